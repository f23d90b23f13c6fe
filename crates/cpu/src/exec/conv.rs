//! Convolutions and pooling: plain loops.
use super::code::{CHUNK, Code, Frame};
use super::convert;
use super::cx::{Compile, Cx, Kernel, Operand};
use super::view::{Arg, Block};
use crate::par;
use bimetal_tensor::graph::{Conv2d, Pool2d};
use bimetal_tensor::plan::{Dense, Fused, register};
use bimetal_tensor::{CastMode, DType, ErrorKind, Result, round_f32_slice};
use std::ops::{AddAssign, Div, Mul};

/// A float type that sums are taken in.
trait Real:
    Copy + Default + Send + Sync + AddAssign + Mul<Output = Self> + Div<Output = Self> + PartialOrd
{
    const LOWEST: Self;
    fn from_usize(n: usize) -> Self;
}
impl Real for f32 {
    const LOWEST: f32 = f32::NEG_INFINITY;
    fn from_usize(n: usize) -> f32 {
        n as f32
    }
}
impl Real for f64 {
    const LOWEST: f64 = f64::NEG_INFINITY;
    fn from_usize(n: usize) -> f64 {
        n as f64
    }
}

/// An operand in its register dtype, rounded to `compute`.
fn load<T: Real>(cx: &Cx<'_>, d: &Operand, compute: DType) -> Vec<T> {
    let mut v = vec![T::default(); d.numel];
    // SAFETY: `T` is the operand's register type.
    unsafe {
        convert::load(d.dtype, cx.ptr(d.buf), 1, d.numel, v.as_mut_ptr().cast());
        if compute != d.dtype && register(d.dtype) == DType::F32 {
            round_f32_slice(
                std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), d.numel),
                compute,
                CastMode::Nonsaturating,
            );
        }
    }
    v
}

fn store<T: Real>(cx: &Cx<'_>, d: &Operand, at: usize, v: &[T]) {
    let dst = cx.ptr(d.buf).wrapping_add(at * d.dtype.size());
    let value = Arg::dense(v.as_ptr().cast());
    // SAFETY: callers write disjoint parts of the result.
    unsafe { convert::store(d.dtype, dst, 1, v.len(), value, register(d.dtype)) };
}

enum Kind {
    Forward(Box<Code>),
    GradInput,
    GradWeight,
}

/// A convolution or one of its gradients.
pub(crate) struct Conv {
    conv: Conv2d,
    kind: Kind,
    /// Input, or its gradient's shape: `[n, c, h, w]`.
    x: [usize; 4],
    /// `[o, c / groups, kh, kw]`.
    w: [usize; 4],
    /// `[n, o, oh, ow]`.
    y: [usize; 4],
    a: Operand,
    b: Operand,
    weight_compute: DType,
    output: Option<Operand>,
}

fn four(s: &[usize], cx: &Compile<'_>) -> Result<[usize; 4]> {
    cx.check(
        s.len() == 4,
        "an operand of a convolution or pooling has not four axes",
    )?;
    Ok([s[0], s[1], s[2], s[3]])
}

impl Conv {
    pub(crate) fn forward(
        conv: &Conv2d,
        input: &Dense,
        weight: &Dense,
        weight_compute: DType,
        shape: &bimetal_tensor::Shape,
        epilogue: &Fused,
        cx: &Compile<'_>,
    ) -> Result<Conv> {
        Ok(Conv {
            conv: *conv,
            kind: Kind::Forward(Box::new(Code::new(epilogue, shape, cx)?)),
            x: four(&input.shape, cx)?,
            w: four(&weight.shape, cx)?,
            y: four(shape, cx)?,
            a: cx.dense(input)?,
            b: cx.dense(weight)?,
            weight_compute,
            output: None,
        })
    }

    pub(crate) fn grad_input(
        conv: &Conv2d,
        weight: &Dense,
        weight_compute: DType,
        grad: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Conv> {
        Ok(Conv {
            conv: *conv,
            kind: Kind::GradInput,
            x: four(&output.shape, cx)?,
            w: four(&weight.shape, cx)?,
            y: four(&grad.shape, cx)?,
            a: cx.dense(grad)?,
            b: cx.dense(weight)?,
            weight_compute,
            output: Some(cx.dense(output)?),
        })
    }

    pub(crate) fn grad_weight(
        conv: &Conv2d,
        input: &Dense,
        grad: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Conv> {
        Ok(Conv {
            conv: *conv,
            kind: Kind::GradWeight,
            x: four(&input.shape, cx)?,
            w: four(&output.shape, cx)?,
            y: four(&grad.shape, cx)?,
            a: cx.dense(input)?,
            b: cx.dense(grad)?,
            weight_compute: grad.dtype,
            output: Some(cx.dense(output)?),
        })
    }

    /// The input row or column that output position `o` meets with tap `k`.
    fn at(&self, axis: usize, o: usize, k: usize) -> Option<usize> {
        let i = (o * self.conv.stride[axis] as usize + k * self.conv.dilation[axis] as usize)
            .checked_sub(self.conv.padding[2 * axis] as usize)?;
        (i < self.x[2 + axis]).then_some(i)
    }

    fn run_as<T: Real>(&self, cx: &Cx<'_>) {
        let ([_, c, h, w], [o, cg, kh, kw], [n, _, oh, ow]) = (self.x, self.w, self.y);
        let og = o / self.conv.groups as usize;
        match (&self.kind, &self.output) {
            (Kind::Forward(code), _) => {
                let x = load::<T>(cx, &self.a, self.a.dtype);
                let f = load::<T>(cx, &self.b, self.weight_compute);
                par::for_each(n * o, |t| {
                    let (b, oc) = (t / o, t % o);
                    let mut plane = vec![T::default(); oh * ow];
                    for ic in 0..cg {
                        let x = &x[(b * c + oc / og * cg + ic) * h * w..][..h * w];
                        for ky in 0..kh {
                            for kx in 0..kw {
                                let f = f[((oc * cg + ic) * kh + ky) * kw + kx];
                                for y in 0..oh {
                                    let Some(iy) = self.at(0, y, ky) else {
                                        continue;
                                    };
                                    for z in 0..ow {
                                        if let Some(ix) = self.at(1, z, kx) {
                                            plane[y * ow + z] += x[iy * w + ix] * f;
                                        }
                                    }
                                }
                            }
                        }
                    }
                    let mut frame = Frame::new(code, cx);
                    for at in (0..oh * ow).step_by(CHUNK) {
                        let n = CHUNK.min(oh * ow - at);
                        let acc = Arg::dense(plane[at..].as_ptr().cast());
                        // SAFETY: planes of the output are disjoint.
                        unsafe { frame.run(&Block::linear(t * oh * ow + at, n), acc) };
                    }
                });
            }
            (Kind::GradInput, Some(out)) => {
                let g = load::<T>(cx, &self.a, self.a.dtype);
                let f = load::<T>(cx, &self.b, self.weight_compute);
                par::for_each(n * c, |t| {
                    let (b, ic) = (t / c, t % c);
                    let (group, ig) = (ic / cg, ic % cg);
                    let mut plane = vec![T::default(); h * w];
                    for oc in group * og..(group + 1) * og {
                        let g = &g[(b * o + oc) * oh * ow..][..oh * ow];
                        for ky in 0..kh {
                            for kx in 0..kw {
                                let f = f[((oc * cg + ig) * kh + ky) * kw + kx];
                                for y in 0..oh {
                                    let Some(iy) = self.at(0, y, ky) else {
                                        continue;
                                    };
                                    for z in 0..ow {
                                        if let Some(ix) = self.at(1, z, kx) {
                                            plane[iy * w + ix] += g[y * ow + z] * f;
                                        }
                                    }
                                }
                            }
                        }
                    }
                    store(cx, out, t * h * w, &plane);
                });
            }
            (Kind::GradWeight, Some(out)) => {
                let x = load::<T>(cx, &self.a, self.a.dtype);
                let g = load::<T>(cx, &self.b, self.b.dtype);
                par::for_each(o * cg, |t| {
                    let (oc, ic) = (t / cg, t % cg);
                    let mut taps = vec![T::default(); kh * kw];
                    for b in 0..n {
                        let x = &x[(b * c + oc / og * cg + ic) * h * w..][..h * w];
                        let g = &g[(b * o + oc) * oh * ow..][..oh * ow];
                        for ky in 0..kh {
                            for kx in 0..kw {
                                let mut sum = T::default();
                                for y in 0..oh {
                                    let Some(iy) = self.at(0, y, ky) else {
                                        continue;
                                    };
                                    for z in 0..ow {
                                        if let Some(ix) = self.at(1, z, kx) {
                                            sum += x[iy * w + ix] * g[y * ow + z];
                                        }
                                    }
                                }
                                taps[ky * kw + kx] += sum;
                            }
                        }
                    }
                    store(cx, out, t * kh * kw, &taps);
                });
            }
            _ => {}
        }
    }
}

impl Kernel for Conv {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        match register(self.a.dtype) {
            DType::F64 => self.run_as::<f64>(cx),
            _ => self.run_as::<f32>(cx),
        }
        Ok(())
    }

    fn work(&self) -> usize {
        let [_, cg, kh, kw] = self.w;
        self.y.iter().product::<usize>() * cg * kh * kw
    }
}

enum PoolKind {
    Max(Option<Operand>, Option<Operand>),
    MaxGrad(Operand),
    Avg,
    AvgGrad,
}

/// A pooling or its gradient, plane by plane.
pub(crate) struct Pool {
    pool: Pool2d,
    kind: PoolKind,
    planes: usize,
    big: [usize; 2],
    small: [usize; 2],
    /// The operand (or gradient).
    a: Operand,
    output: Option<Operand>,
}

impl Pool {
    fn new(
        pool: &Pool2d,
        kind: PoolKind,
        big: &Dense,
        small: &Dense,
        a: &Dense,
        output: Option<&Dense>,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        let (b, s) = (four(&big.shape, cx)?, four(&small.shape, cx)?);
        cx.check(b[..2] == s[..2], "planes of a pooling do not match")?;
        Ok(Pool {
            pool: *pool,
            kind,
            planes: b[0] * b[1],
            big: [b[2], b[3]],
            small: [s[2], s[3]],
            a: cx.dense(a)?,
            output: output.map(|d| cx.dense(d)).transpose()?,
        })
    }

    pub(crate) fn max(
        pool: &Pool2d,
        input: &Dense,
        values: Option<&Dense>,
        indices: Option<&Dense>,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        let small = values.or(indices).unwrap_or(input);
        let dense = |d: Option<&Dense>| d.map(|d| cx.dense(d)).transpose();
        Pool::new(
            pool,
            PoolKind::Max(dense(values)?, dense(indices)?),
            input,
            small,
            input,
            None,
            cx,
        )
    }

    pub(crate) fn max_grad(
        pool: &Pool2d,
        indices: &Dense,
        grad: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        Pool::new(
            pool,
            PoolKind::MaxGrad(cx.dense(indices)?),
            output,
            grad,
            grad,
            Some(output),
            cx,
        )
    }

    pub(crate) fn avg(
        pool: &Pool2d,
        input: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        Pool::new(pool, PoolKind::Avg, input, output, input, Some(output), cx)
    }

    pub(crate) fn avg_grad(
        pool: &Pool2d,
        grad: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        Pool::new(
            pool,
            PoolKind::AvgGrad,
            output,
            grad,
            grad,
            Some(output),
            cx,
        )
    }

    /// The rows (or columns) of window `o`, and its size with padding.
    fn window(&self, axis: usize, o: usize) -> (std::ops::Range<usize>, usize) {
        let (k, s) = (
            self.pool.kernel[axis] as usize,
            self.pool.stride[axis] as usize,
        );
        let (before, after) = (
            self.pool.padding[2 * axis] as usize,
            self.pool.padding[2 * axis + 1] as usize,
        );
        let n = self.big[axis];
        let (from, to) = (o * s, (o * s + k).min(n + before + after));
        let r = from.saturating_sub(before).min(n)..to.saturating_sub(before).min(n);
        (r, to.saturating_sub(from))
    }

    fn count(&self, y: usize, x: usize) -> usize {
        let ((ys, kh), (xs, kw)) = (self.window(0, y), self.window(1, x));
        match self.pool.count_include_pad {
            true => kh * kw,
            false => ys.len() * xs.len(),
        }
    }

    fn run_as<T: Real>(&self, cx: &Cx<'_>) {
        let ([_, w], [oh, ow]) = (self.big, self.small);
        let (big, small) = (self.big[0] * w, oh * ow);
        let a = load::<T>(cx, &self.a, self.a.dtype);
        let each = |f: &mut dyn FnMut(usize, usize, usize)| {
            for y in 0..oh {
                for x in 0..ow {
                    f(y * ow + x, y, x);
                }
            }
        };
        par::for_each(self.planes, |p| match (&self.kind, &self.output) {
            (PoolKind::Max(values, indices), _) => {
                let a = &a[p * big..][..big];
                let mut v = vec![T::LOWEST; small];
                let mut at = vec![0i32; small];
                each(&mut |o, y, x| {
                    let mut first = true;
                    for i in self.window(0, y).0 {
                        for j in self.window(1, x).0 {
                            let e = a[i * w + j];
                            // The first of equals; NaN wins.
                            let better = match e.partial_cmp(&v[o]) {
                                Some(order) => order.is_gt(),
                                None => v[o].partial_cmp(&v[o]).is_some(),
                            };
                            if first || better {
                                (v[o], at[o], first) = (e, (i * w + j) as i32, false);
                            }
                        }
                    }
                });
                if let Some(d) = values {
                    store(cx, d, p * small, &v);
                }
                if let Some(d) = indices {
                    // SAFETY: planes are disjoint; indices are I32.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            at.as_ptr(),
                            cx.ptr(d.buf).cast::<i32>().add(p * small),
                            small,
                        );
                    }
                }
            }
            (PoolKind::MaxGrad(indices), Some(out)) => {
                let mut g = vec![T::default(); big];
                // SAFETY: indices are I32 and only read.
                let at = unsafe { cx.slice::<i32>(indices) };
                for (i, v) in at[p * small..][..small].iter().zip(&a[p * small..]) {
                    if let Some(g) = g.get_mut(*i as usize) {
                        *g += *v;
                    }
                }
                store(cx, out, p * big, &g);
            }
            (PoolKind::Avg, Some(out)) => {
                let a = &a[p * big..][..big];
                let mut v = vec![T::default(); small];
                each(&mut |o, y, x| {
                    for i in self.window(0, y).0 {
                        for j in self.window(1, x).0 {
                            v[o] += a[i * w + j];
                        }
                    }
                    v[o] = v[o] / T::from_usize(self.count(y, x));
                });
                store(cx, out, p * small, &v);
            }
            (PoolKind::AvgGrad, Some(out)) => {
                let mut g = vec![T::default(); big];
                each(&mut |o, y, x| {
                    let v = a[p * small + o] / T::from_usize(self.count(y, x));
                    for i in self.window(0, y).0 {
                        for j in self.window(1, x).0 {
                            g[i * w + j] += v;
                        }
                    }
                });
                store(cx, out, p * big, &g);
            }
            _ => {}
        });
    }
}

impl Kernel for Pool {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        match register(self.a.dtype) {
            DType::F64 => self.run_as::<f64>(cx),
            _ => self.run_as::<f32>(cx),
        }
        Ok(())
    }

    fn work(&self) -> usize {
        let k = self.pool.kernel[0] * self.pool.kernel[1];
        self.planes * self.small[0] * self.small[1] * k as usize
    }
}
