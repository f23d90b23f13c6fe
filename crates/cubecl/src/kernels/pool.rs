//! Pooling and its gradients: every unit gathers what belongs to its elements.
use super::Launch;
use super::common::{Build, GROUP, Slab, get, put, spread};
use crate::interpret::before;
use crate::math::{bits, float};
use crate::plan::{Bound, Cx};
use crate::words::Buffers;
use bimetal_tensor::graph::Pool2d;
use bimetal_tensor::plan::{Dense, register};
use bimetal_tensor::{DType, ErrorKind, Shape};
use cubecl::prelude::*;

/// Sizes of a pooling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sizes {
    h: u32,
    w: u32,
    oh: u32,
    ow: u32,
    kernel: [u32; 2],
    stride: [u32; 2],
    pad: [u32; 2],
    count_pad: bool,
    max: bool,
    /// What is read: the input, or the gradient of the result.
    from: Slab,
    /// The indices of maxima.
    index: Option<usize>,
    /// What is written: the result, or the gradient of the input.
    to: Option<Slab>,
}

/// Elements of a window along an axis that a mean counts.
#[cube]
fn counted(o: u32, #[comptime] axis: usize, #[comptime] s: Sizes) -> u32 {
    if comptime!(s.count_pad) {
        comptime!(s.kernel[axis]).runtime()
    } else {
        let size = comptime!(if axis == 0 { s.h } else { s.w });
        let first = o * comptime!(s.stride[axis]);
        let end = first + comptime!(s.kernel[axis]);
        let low = max(first, comptime!(s.pad[axis]).runtime()) - comptime!(s.pad[axis]);
        let high = max(end, comptime!(s.pad[axis]).runtime()) - comptime!(s.pad[axis]);
        min(high, size.runtime()) - min(low, size.runtime())
    }
}

#[cube(launch_unchecked)]
fn pool_kernel(mut buffers: Buffers, numel: u32, #[comptime] s: Sizes) {
    let first = ABSOLUTE_POS as u32 * comptime!(GROUP as u32);
    if first >= numel {
        terminate!();
    }
    let mut values = Sequence::<u32>::new();
    let mut indices = Sequence::<u32>::new();
    let ty = comptime!(register(s.from.dtype));
    #[unroll]
    for j in 0..GROUP {
        let i = min(first + comptime!(j as u32), numel - 1u32);
        let ox = i % comptime!(s.ow);
        let oy = (i / comptime!(s.ow)) % comptime!(s.oh);
        let plane = i / comptime!(s.ow * s.oh) * comptime!(s.h * s.w);
        let mut found = 0u32.runtime();
        let mut best = 0u32.runtime();
        let mut at = 0u32.runtime();
        let mut sum = 0.0f32;
        for u in 0..comptime!(s.kernel[0]) {
            let y = oy * comptime!(s.stride[0]) + u - comptime!(s.pad[0]);
            if y < comptime!(s.h) {
                for v in 0..comptime!(s.kernel[1]) {
                    let x = ox * comptime!(s.stride[1]) + v - comptime!(s.pad[1]);
                    if x < comptime!(s.w) {
                        let here = y * comptime!(s.w) + x;
                        let value = get(&buffers, plane + here, comptime!(s.from.clone()));
                        if comptime!(s.max) {
                            if found == 0u32 || before(value, best, ty, true) {
                                best = value;
                                at = here;
                            }
                            found = 1u32;
                        } else {
                            sum += float(value);
                        }
                    }
                }
            }
        }
        if comptime!(s.max) {
            let nothing = comptime!(lowest(ty));
            let value = select(found == 0u32, nothing.runtime(), best);
            values.push(value);
        } else {
            let n = counted(oy, 0usize, comptime!(s.clone()))
                * counted(ox, 1usize, comptime!(s.clone()));
            let value = bits(sum / f32::cast_from(n));
            values.push(value);
        }
        indices.push(at);
    }
    if comptime!(s.to.is_some()) {
        let to = comptime!(s.to.clone().unwrap_or(s.from.clone()));
        put(
            &mut buffers,
            &values,
            first,
            numel,
            comptime!(to.binding),
            comptime!(to.dtype),
        );
    }
    if comptime!(s.index.is_some()) {
        put(
            &mut buffers,
            &indices,
            first,
            numel,
            comptime!(s.index.unwrap_or(0)),
            DType::I32,
        );
    }
}

fn lowest(ty: DType) -> u32 {
    match ty {
        DType::F32 => f32::NEG_INFINITY.to_bits(),
        DType::I32 => i32::MIN as u32,
        _ => 0,
    }
}

#[cube(launch_unchecked)]
fn pool_grad_kernel(mut buffers: Buffers, numel: u32, #[comptime] s: Sizes) {
    let first = ABSOLUTE_POS as u32 * comptime!(GROUP as u32);
    if first >= numel {
        terminate!();
    }
    let mut values = Sequence::<u32>::new();
    #[unroll]
    for j in 0..GROUP {
        let i = min(first + comptime!(j as u32), numel - 1u32);
        let x = i % comptime!(s.w);
        let y = (i / comptime!(s.w)) % comptime!(s.h);
        let here = i % comptime!(s.w * s.h);
        let plane = i / comptime!(s.w * s.h) * comptime!(s.oh * s.ow);
        let mut sum = 0.0f32;
        // Backwards through the window is forwards through the results.
        for u in 0..comptime!(s.kernel[0]) {
            let top = y + comptime!(s.pad[0]) - (comptime!(s.kernel[0] - 1) - u);
            let oy = top / comptime!(s.stride[0]);
            if oy < comptime!(s.oh) && oy * comptime!(s.stride[0]) == top {
                for v in 0..comptime!(s.kernel[1]) {
                    let left = x + comptime!(s.pad[1]) - (comptime!(s.kernel[1] - 1) - v);
                    let ox = left / comptime!(s.stride[1]);
                    if ox < comptime!(s.ow) && ox * comptime!(s.stride[1]) == left {
                        let at = plane + oy * comptime!(s.ow) + ox;
                        let grad = float(get(&buffers, at, comptime!(s.from.clone())));
                        if comptime!(s.max) {
                            let index = comptime!(Slab {
                                binding: s.index.unwrap_or(0),
                                dtype: DType::I32
                            });
                            if get(&buffers, at, index) == here {
                                sum += grad;
                            }
                        } else {
                            let n = counted(oy, 0usize, comptime!(s.clone()))
                                * counted(ox, 1usize, comptime!(s.clone()));
                            sum += grad / f32::cast_from(n);
                        }
                    }
                }
            }
        }
        let value = bits(sum);
        values.push(value);
    }
    let to = comptime!(s.to.clone().unwrap_or(s.from.clone()));
    put(
        &mut buffers,
        &values,
        first,
        numel,
        comptime!(to.binding),
        comptime!(to.dtype),
    );
}

/// A pooling or its gradient.
pub(super) struct Pool {
    sizes: Sizes,
    bound: Bound,
    numel: usize,
    grad: bool,
}

impl Pool {
    /// Of a maximum (with `indices`) or a mean; `to` is the values.
    pub(super) fn forward(
        b: &Build<'_>,
        pool: &Pool2d,
        max: bool,
        input: &Dense,
        values: Option<&Dense>,
        indices: Option<&Dense>,
    ) -> Result<Pool, String> {
        let mut bound = Bound::default();
        let from = b.slab(input, &mut bound)?;
        let to = values.map(|d| b.slab(d, &mut bound)).transpose()?;
        let index = indices.map(|d| b.slab(d, &mut bound)).transpose()?;
        let y = values.or(indices).ok_or("a pooling has a result")?;
        let index = index.map(|s| s.binding);
        let sizes = sizes(pool, &input.shape, &y.shape, max, from, index, to)?;
        let numel = b.numel(&y.shape)?;
        Ok(Pool {
            sizes,
            bound,
            numel,
            grad: false,
        })
    }

    /// The gradient of the input.
    pub(super) fn grad(
        b: &Build<'_>,
        pool: &Pool2d,
        indices: Option<&Dense>,
        grad: &Dense,
        output: &Dense,
    ) -> Result<Pool, String> {
        let mut bound = Bound::default();
        let from = b.slab(grad, &mut bound)?;
        let to = Some(b.slab(output, &mut bound)?);
        let index = indices.map(|d| b.slab(d, &mut bound)).transpose()?;
        let index = index.map(|s| s.binding);
        let max = index.is_some();
        Ok(Pool {
            sizes: sizes(pool, &output.shape, &grad.shape, max, from, index, to)?,
            bound,
            numel: b.numel(&output.shape)?,
            grad: true,
        })
    }
}

fn sizes(
    pool: &Pool2d,
    x: &Shape,
    y: &Shape,
    max: bool,
    from: Slab,
    index: Option<usize>,
    to: Option<Slab>,
) -> Result<Sizes, String> {
    let size = |s: &Shape, axis: usize| match s.rank() {
        4 => Ok(s[axis] as u32),
        _ => Err("a pooling takes tensors of four axes".to_string()),
    };
    Ok(Sizes {
        h: size(x, 2)?,
        w: size(x, 3)?,
        oh: size(y, 2)?,
        ow: size(y, 3)?,
        kernel: pool.kernel,
        stride: pool.stride,
        pad: [pool.padding[0], pool.padding[2]],
        count_pad: pool.count_include_pad,
        max,
        from,
        index,
        to,
    })
}

impl Launch for Pool {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        if self.numel == 0 {
            return Ok(());
        }
        let (buffers, _) = cx.bind(&self.bound);
        let (count, dim) = spread(cx, self.numel, GROUP);
        let (client, numel, sizes) = (&cx.device.client, self.numel as u32, self.sizes.clone());
        // SAFETY: indices are computed from the sizes of the operands, which fit their buffers.
        unsafe {
            match self.grad {
                false => pool_kernel::launch_unchecked(client, count, dim, buffers, numel, sizes),
                true => {
                    pool_grad_kernel::launch_unchecked(client, count, dim, buffers, numel, sizes)
                }
            }
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}
