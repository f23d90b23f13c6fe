//! The meaning of every operation in f64.
use bimetal_tensor::graph::{
    ArgOp, Binary, Conv2d, Distribution, Literal, MatmulPrecision, NodeId, Op, Pool2d, ReduceOp,
    Unary, decompose,
};
use bimetal_tensor::{CastMode, DType, Result, Tensor, round_f64};
use std::collections::HashMap;

/// A dense array of f64 that stands for values of `dtype`.
#[derive(Clone, Debug)]
pub struct Array {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub data: Vec<f64>,
}

impl Array {
    fn new(shape: &[usize], dtype: DType, f: impl Fn(&[usize]) -> f64) -> Array {
        let mut data = Vec::with_capacity(shape.iter().product());
        for_each(shape, |i| data.push(f(i)));
        Array {
            shape: shape.to_vec(),
            dtype,
            data,
        }
    }

    pub fn at(&self, index: &[usize]) -> f64 {
        let mut linear = 0;
        for (i, n) in index.iter().zip(&self.shape) {
            linear = linear * n + i;
        }
        self.data[linear]
    }

    // An element-wise operand: a bare number fits every index.
    fn get(&self, index: &[usize]) -> f64 {
        if self.shape.is_empty() {
            self.data[0]
        } else {
            self.at(index)
        }
    }
}

/// Calls `f` with every index of `shape` in row-major order.
pub fn for_each(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut i = vec![0; shape.len()];
    loop {
        f(&i);
        let mut d = shape.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            i[d] += 1;
            if i[d] < shape[d] {
                break;
            }
            i[d] = 0;
        }
    }
}

/// Rounds to the values of a dtype.
pub fn round_to(v: f64, dtype: DType) -> f64 {
    if dtype.is_float() {
        round_f64(v, dtype)
    } else {
        v
    }
}

/// Computes a tensor. Every node rounds to its dtype; inside a composite nothing rounds but its results.
pub fn eval(t: &Tensor) -> Result<Array> {
    let mut memo = HashMap::new();
    compute(t, &mut memo, false)?;
    Ok(memo[&(t.id(), t.output_index())].clone())
}

/// Values by node and output.
pub(crate) type Memo = HashMap<(NodeId, usize), Array>;

/// Computes a tensor and everything before it that `memo` does not hold; `exact`: nothing rounds.
pub(crate) fn compute(root: &Tensor, memo: &mut Memo, exact: bool) -> Result<()> {
    root.check()?;
    let mut stack = vec![(root.clone(), 0usize)];
    while let Some((t, next)) = stack.pop() {
        if memo.contains_key(&(t.id(), t.output_index())) {
            continue;
        }
        if let Some(i) = t.inputs().get(next) {
            stack.push((t.clone(), next + 1));
            stack.push((i.clone(), 0));
            continue;
        }
        let x: Vec<Array> = t
            .inputs()
            .iter()
            .map(|i| memo[&(i.id(), i.output_index())].clone())
            .collect();
        for (i, mut a) in node(&t, &x, exact)?.into_iter().enumerate() {
            if !exact {
                for v in &mut a.data {
                    *v = round_to(*v, a.dtype);
                }
            }
            memo.insert((t.id(), i), a);
        }
    }
    Ok(())
}

fn node(t: &Tensor, x: &[Array], exact: bool) -> Result<Vec<Array>> {
    let outs: Vec<(Vec<usize>, DType)> = (0..t.output_count())
        .map(|i| {
            let o = t.output(i);
            Ok((o.shape()?.to_vec(), o.dtype()))
        })
        .collect::<Result<_>>()?;
    let (shape, dtype) = outs[0].clone();
    let one = |f: &dyn Fn(&[usize]) -> f64| Ok(vec![Array::new(&shape, dtype, f)]);
    match t.op() {
        Op::Data | Op::Read => {
            let data = t.to_f64_vec()?;
            Ok(vec![Array { shape, dtype, data }])
        }
        Op::Scalar(Literal::Value(v)) => one(&|_| v.0),
        Op::Iota { axis } => one(&|i| i[*axis as usize] as f64),
        Op::Unary(u) => one(&|i| unary(*u, x[0].get(i))),
        Op::Binary(b) => {
            let int = !x.iter().any(|a| a.dtype.is_float());
            one(&|i| binary(*b, x[0].get(i), x[1].get(i), int))
        }
        Op::Select => one(&|i| {
            if x[0].get(i) != 0.0 {
                x[1].get(i)
            } else {
                x[2].get(i)
            }
        }),
        Op::CastStochastic => one(&|i| match exact {
            true => x[0].get(i),
            false => stochastic(x[0].get(i), x[1].get(i), dtype),
        }),
        Op::Fma => one(&|i| x[0].get(i).mul_add(x[1].get(i), x[2].get(i))),
        Op::Cast(mode) => one(&|i| cast(x[0].get(i), x[0].dtype, dtype, *mode, exact)),
        Op::Reshape => Ok(vec![Array {
            shape,
            dtype,
            data: x[0].data.clone(),
        }]),
        Op::Detach => Ok(vec![x[0].clone()]),
        Op::Permute(axes) => one(&|i| {
            let mut j = vec![0; i.len()];
            for (d, &v) in i.iter().enumerate() {
                j[axes.map[d] as usize] = v;
            }
            x[0].at(&j)
        }),
        Op::Broadcast => one(&|i| {
            let lead = i.len() - x[0].shape.len();
            let j: Vec<usize> = (0..x[0].shape.len())
                .map(|d| if x[0].shape[d] == 1 { 0 } else { i[d + lead] })
                .collect();
            x[0].at(&j)
        }),
        Op::Slice { axis, start, step } => one(&|i| {
            let mut j = i.to_vec();
            j[*axis as usize] = (*start as isize + i[*axis as usize] as isize * step) as usize;
            x[0].at(&j)
        }),
        Op::Pad { axis, before, .. } => one(&|i| {
            let a = *axis as usize;
            match i[a].checked_sub(*before) {
                Some(p) if p < x[0].shape[a] => {
                    let mut j = i.to_vec();
                    j[a] = p;
                    x[0].at(&j)
                }
                _ => 0.0,
            }
        }),
        Op::Concat { axis } => one(&|i| {
            let mut j = i.to_vec();
            for a in x {
                let n = a.shape[*axis as usize];
                if j[*axis as usize] < n {
                    return a.at(&j);
                }
                j[*axis as usize] -= n;
            }
            f64::NAN
        }),
        Op::Reduce { op, axes } => one(&|i| {
            let mut v = Vec::new();
            let sub: Vec<usize> = (0..i.len())
                .map(|d| if axes.contains(d) { x[0].shape[d] } else { 1 })
                .collect();
            for_each(&sub, |k| {
                let j: Vec<usize> = i.iter().zip(k).map(|(a, b)| a + b).collect();
                v.push(x[0].at(&j));
            });
            reduce(*op, &v)
        }),
        Op::ArgReduce { op, axis } => one(&|i| {
            let mut best = (0usize, f64::NAN);
            for p in 0..x[0].shape[*axis as usize] {
                let mut j = i.to_vec();
                j[*axis as usize] = p;
                let v = x[0].at(&j);
                let better = match op {
                    ArgOp::Max => v > best.1,
                    ArgOp::Min => v < best.1,
                };
                if p == 0 || (!best.1.is_nan() && (better || v.is_nan())) {
                    best = (p, v);
                }
            }
            best.0 as f64
        }),
        Op::Matmul(precision) => {
            let r = shape.len();
            let k = x[0].shape[r - 1];
            one(&|i| {
                let (mut a, mut b) = (i.to_vec(), i.to_vec());
                (0..k)
                    .map(|p| {
                        a[r - 1] = p;
                        b[r - 2] = p;
                        times(x[0].at(&a), x[1].at(&b), *precision)
                    })
                    .sum()
            })
        }
        Op::Conv2d(c) => {
            let mut out = Array::new(&shape, dtype, |_| 0.0);
            let (xs, ws) = (x[0].shape.clone(), x[1].shape.clone());
            conv(c, &xs, &ws, &shape, |xi, wi, yi| {
                out.data[yi] += x[0].data[xi] * x[1].data[wi]
            });
            Ok(vec![out])
        }
        Op::Conv2dGradInput(c) => {
            let mut out = Array::new(&shape, dtype, |_| 0.0);
            let (ws, ys) = (x[0].shape.clone(), x[1].shape.clone());
            conv(c, &shape, &ws, &ys, |xi, wi, yi| {
                out.data[xi] += x[0].data[wi] * x[1].data[yi]
            });
            Ok(vec![out])
        }
        Op::Conv2dGradWeight(c) => {
            let mut out = Array::new(&shape, dtype, |_| 0.0);
            let (xs, ys) = (x[0].shape.clone(), x[1].shape.clone());
            conv(c, &xs, &shape, &ys, |xi, wi, yi| {
                out.data[wi] += x[0].data[xi] * x[1].data[yi]
            });
            Ok(vec![out])
        }
        Op::MaxPool2d(p) => {
            let pick = |i: &[usize]| {
                let mut best: Option<(f64, usize)> = None;
                window(p, &x[0].shape, i, |h, w| {
                    let v = x[0].at(&[i[0], i[1], h, w]);
                    if best.is_none_or(|b| v > b.0 || (v.is_nan() && !b.0.is_nan())) {
                        best = Some((v, h * x[0].shape[3] + w));
                    }
                });
                best.unwrap_or((f64::NEG_INFINITY, 0))
            };
            Ok(vec![
                Array::new(&shape, dtype, |i| pick(i).0),
                Array::new(&shape, DType::I32, |i| pick(i).1 as f64),
            ])
        }
        Op::MaxPool2dGrad(_) => {
            let mut out = Array::new(&shape, dtype, |_| 0.0);
            let plane = shape[2] * shape[3];
            for_each(&x[0].shape, |i| {
                let at = (i[0] * shape[1] + i[1]) * plane + x[0].at(i) as usize;
                out.data[at] += x[1].at(i);
            });
            Ok(vec![out])
        }
        Op::AvgPool2d(p) => one(&|i| {
            let (mut s, mut n) = (0.0, 0);
            window(p, &x[0].shape, i, |h, w| {
                s += x[0].at(&[i[0], i[1], h, w]);
                n += 1;
            });
            s / pool_count(p, &x[0].shape, i, n)
        }),
        Op::AvgPool2dGrad(p) => {
            let mut out = Array::new(&shape, dtype, |_| 0.0);
            for_each(&x[0].shape, |i| {
                let mut n = 0;
                window(p, &shape, i, |_, _| n += 1);
                let g = x[0].at(i) / pool_count(p, &shape, i, n);
                window(p, &shape, i, |h, w| {
                    let at = ((i[0] * shape[1] + i[1]) * shape[2] + h) * shape[3] + w;
                    out.data[at] += g;
                });
            });
            Ok(vec![out])
        }
        Op::Take { axis } => {
            let (a, r) = (*axis as usize, x[1].shape.len());
            one(&|i| {
                let mut j = i[..a].to_vec();
                j.push(x[1].at(&i[a..a + r]) as usize);
                j.extend_from_slice(&i[a + r..]);
                x[0].at(&j)
            })
        }
        Op::TakeGrad { axis } => {
            let (a, r) = (*axis as usize, x[0].shape.len());
            let mut out = Array::new(&shape, dtype, |_| 0.0);
            for_each(&x[1].shape, |i| {
                let mut j = i[..a].to_vec();
                j.push(x[0].at(&i[a..a + r]) as usize);
                j.extend_from_slice(&i[a + r..]);
                let at = j.iter().zip(&shape).fold(0, |l, (i, n)| l * n + i);
                out.data[at] += x[1].at(i);
            });
            Ok(vec![out])
        }
        Op::GatherAlong { axis } => one(&|i| {
            let mut j = i.to_vec();
            j[*axis as usize] = x[1].at(i) as usize;
            x[0].at(&j)
        }),
        Op::ScatterAlong { axis } => {
            let mut out = Array::new(&shape, dtype, |_| 0.0);
            for_each(&x[1].shape, |i| {
                let mut j = i.to_vec();
                j[*axis as usize] = x[0].at(i) as usize;
                let at = j.iter().zip(&shape).fold(0, |l, (i, n)| l * n + i);
                out.data[at] += x[1].at(i);
            });
            Ok(vec![out])
        }
        Op::CumSum { axis, reverse } => one(&|i| {
            let a = *axis as usize;
            let range = if *reverse {
                i[a]..shape[a]
            } else {
                0..i[a] + 1
            };
            let mut j = i.to_vec();
            range
                .map(|p| {
                    j[a] = p;
                    x[0].at(&j)
                })
                .sum()
        }),
        Op::Sort { descending } => {
            let n = *x[0].shape.last().unwrap_or(&1);
            let k = *shape.last().unwrap_or(&1);
            let (mut v, mut ix) = (Vec::new(), Vec::new());
            for row in x[0].data.chunks(n.max(1)) {
                let mut o: Vec<usize> = (0..n).collect();
                // NaN is larger than everything.
                let key = |i: usize| (row[i].is_nan(), if row[i].is_nan() { 0.0 } else { row[i] });
                o.sort_by(|&a, &b| {
                    let c = key(a)
                        .partial_cmp(&key(b))
                        .unwrap_or(std::cmp::Ordering::Equal);
                    if *descending { c.reverse() } else { c }
                });
                v.extend(o[..k].iter().map(|&i| row[i]));
                ix.extend(o[..k].iter().map(|&i| i as f64));
            }
            Ok(vec![
                Array {
                    shape: shape.clone(),
                    dtype,
                    data: v,
                },
                Array {
                    shape,
                    dtype: DType::I32,
                    data: ix,
                },
            ])
        }
        Op::Barrier => Ok(x[..x.len() - 1].to_vec()),
        Op::Checkpoint { results } => Ok(x[..*results as usize].to_vec()),
        Op::Composite(c) => {
            let inputs: Vec<Tensor> = t.inputs().to_vec();
            splice(&decompose(c, &inputs), &inputs, x)
        }
        Op::Random {
            distribution: Distribution::Bits | Distribution::Uniform | Distribution::Normal,
            ..
        } => {
            // Random bits have no formula in f64: the device's own are taken, and tested elsewhere against the published vectors.
            let data = t.to_f64_vec()?;
            Ok(vec![Array { shape, dtype, data }])
        }
        op => Err(bimetal_tensor::Error::other(
            "reference",
            format!("{} has no reference", op.name()),
        )),
    }
}

/// Computes a decomposition without any rounding inside.
fn splice(results: &[Tensor], inputs: &[Tensor], x: &[Array]) -> Result<Vec<Array>> {
    let mut memo: Memo = HashMap::new();
    for (t, a) in inputs.iter().zip(x) {
        memo.insert((t.id(), t.output_index()), a.clone());
    }
    results
        .iter()
        .map(|r| {
            compute(r, &mut memo, true)?;
            Ok(memo[&(r.id(), r.output_index())].clone())
        })
        .collect()
}

/// The neighbour of `v` in `to` that the noise picks.
fn stochastic(v: f64, noise: f64, to: DType) -> f64 {
    if !v.is_finite() {
        return round_f64(v, to);
    }
    if v.abs() >= to.max_finite() {
        return to.max_finite().copysign(v);
    }
    let exponent = v.abs().max(to.smallest_normal()).log2().floor();
    let unit = to.epsilon() * 2f64.powi(exponent as i32);
    let low = (v.abs() / unit).floor();
    let up = f64::from(u8::from(noise < v.abs() / unit - low));
    ((low + up) * unit).copysign(v)
}

/// The product of two elements in a precision of f32 operands.
fn times(a: f64, b: f64, precision: MatmulPrecision) -> f64 {
    // To so many bits of mantissa, to nearest even; exponents of f32 are enough for both formats.
    let round = |v: f64, bits: i32| {
        if v == 0.0 || !v.is_finite() {
            return v;
        }
        let unit = 2f64.powi(v.abs().log2().floor() as i32 - bits);
        (v / unit).round_ties_even() * unit
    };
    match precision {
        MatmulPrecision::Exact => a * b,
        MatmulPrecision::Tf32 => round(a, 10) * round(b, 10),
        MatmulPrecision::Bf16x3 => {
            let split = |v: f64| (round(v, 7), round(v - round(v, 7), 7));
            let ((ah, al), (bh, bl)) = (split(a), split(b));
            ah * bh + ah * bl + al * bh
        }
    }
}

fn cast(v: f64, from: DType, to: DType, mode: CastMode, exact: bool) -> f64 {
    if to == DType::Bool {
        return (v != 0.0) as u8 as f64;
    }
    if to.is_float() {
        let m = to.max_finite();
        return match mode {
            _ if exact => v,
            CastMode::Saturating if v.abs() > m => m.copysign(v),
            _ => round_f64(v, to),
        };
    }
    if from.is_float() {
        let (lo, hi) = match to {
            DType::U8 => (0.0, 255.0),
            DType::U32 => (0.0, u32::MAX as f64),
            DType::I32 => (i32::MIN as f64, i32::MAX as f64),
            _ => (i64::MIN as f64, i64::MAX as f64),
        };
        return if v.is_nan() {
            0.0
        } else {
            v.trunc().clamp(lo, hi)
        };
    }
    match to {
        DType::U8 => v as i64 as u8 as f64,
        DType::U32 => v as i64 as u32 as f64,
        DType::I32 => v as i64 as i32 as f64,
        _ => v,
    }
}

fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a >= 3.0 {
        return (1.0 - erfc(a)).copysign(x);
    }
    // All terms are positive (Abramowitz and Stegun 7.1.6): nothing cancels.
    let (mut term, mut sum, mut n) = (a, a, 1.0);
    while term > 1e-18 * sum {
        n += 2.0;
        term *= 2.0 * a * a / n;
        sum += term;
    }
    (sum * (-a * a).exp() * std::f64::consts::FRAC_2_SQRT_PI).copysign(x)
}

/// `1 - erf(x)`; far out by its continued fraction (Abramowitz and Stegun 7.1.14).
fn erfc(x: f64) -> f64 {
    if x < 1.0 || x.is_nan() {
        return 1.0 - erf(x);
    }
    let mut f = 0.0;
    for k in (1..400).rev() {
        f = (k as f64 / 2.0) / (x + f);
    }
    (-x * x).exp() / ((x + f) * std::f64::consts::PI.sqrt())
}

fn phi(x: f64) -> f64 {
    0.5 * erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

pub fn unary(u: Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    match u {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                1f64.copysign(x)
            }
        }
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Recip => 1.0 / x,
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Erf => erf(x),
        Unary::Relu => {
            if x > 0.0 || x.is_nan() {
                x
            } else {
                0.0
            }
        }
        Unary::Silu => x * sigmoid(x),
        Unary::Gelu => x * phi(x),
        Unary::GeluTanh => 0.5 * x * (1.0 + inner(x).tanh()),
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::Square => x * x,
        Unary::GeluGrad => phi(x) + x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt(),
        Unary::GeluTanhGrad => {
            let t = inner(x).tanh();
            let d = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * d
        }
        Unary::SiluGrad => {
            let s = sigmoid(x);
            s * (1.0 + x * (1.0 - s))
        }
        Unary::Not => (x == 0.0) as u8 as f64,
        Unary::IsFinite => x.is_finite() as u8 as f64,
        Unary::IsNan => x.is_nan() as u8 as f64,
    }
}

pub fn binary(b: Binary, x: f64, y: f64, _int: bool) -> f64 {
    let bit = |b: bool| b as u8 as f64;
    let nan = x.is_nan() || y.is_nan();
    match b {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Max => {
            if nan {
                f64::NAN
            } else {
                x.max(y)
            }
        }
        Binary::Min => {
            if nan {
                f64::NAN
            } else {
                x.min(y)
            }
        }
        Binary::Pow => x.powf(y),
        Binary::Rem => {
            let r = x % y;
            if r != 0.0 && (r < 0.0) != (y < 0.0) {
                r + y
            } else {
                r
            }
        }
        Binary::Eq => bit(x == y),
        Binary::Ne => bit(x != y),
        Binary::Lt => bit(x < y),
        Binary::Le => bit(x <= y),
        Binary::Gt => bit(x > y),
        Binary::Ge => bit(x >= y),
        Binary::And => bit(x != 0.0 && y != 0.0),
        Binary::Or => bit(x != 0.0 || y != 0.0),
        Binary::Xor => bit((x != 0.0) != (y != 0.0)),
    }
}

fn reduce(op: ReduceOp, v: &[f64]) -> f64 {
    let extreme = |f: &dyn Fn(f64, f64) -> f64| {
        v.iter().copied().reduce(|a, b| {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else {
                f(a, b)
            }
        })
    };
    match op {
        ReduceOp::Sum => v.iter().sum(),
        ReduceOp::Mean => v.iter().sum::<f64>() / v.len() as f64,
        ReduceOp::Prod => v.iter().product(),
        ReduceOp::Max => extreme(&f64::max).unwrap_or(f64::NEG_INFINITY),
        ReduceOp::Min => extreme(&f64::min).unwrap_or(f64::INFINITY),
    }
}

/// Calls `f` with linear indices into input, weight and output for every product of a convolution.
fn conv(
    c: &Conv2d,
    xs: &[usize],
    ws: &[usize],
    ys: &[usize],
    mut f: impl FnMut(usize, usize, usize),
) {
    let per_group = ws[0] / c.groups as usize;
    for_each(ys, |y| {
        let (n, o) = (y[0], y[1]);
        let yi = ((n * ys[1] + o) * ys[2] + y[2]) * ys[3] + y[3];
        for_each(&ws[1..], |w| {
            let ch = (o / per_group) * ws[1] + w[0];
            let pos = |out: usize, k: usize, d: usize| {
                (out * c.stride[d] as usize + k * c.dilation[d] as usize)
                    .checked_sub(c.padding[2 * d] as usize)
            };
            if let (Some(h), Some(wd)) = (pos(y[2], w[1], 0), pos(y[3], w[2], 1))
                && h < xs[2]
                && wd < xs[3]
            {
                let xi = ((n * xs[1] + ch) * xs[2] + h) * xs[3] + wd;
                let wi = ((o * ws[1] + w[0]) * ws[2] + w[1]) * ws[3] + w[2];
                f(xi, wi, yi);
            }
        });
    });
}

fn window(p: &Pool2d, xs: &[usize], i: &[usize], mut f: impl FnMut(usize, usize)) {
    for kh in 0..p.kernel[0] as usize {
        for kw in 0..p.kernel[1] as usize {
            let h = (i[2] * p.stride[0] as usize + kh).checked_sub(p.padding[0] as usize);
            let w = (i[3] * p.stride[1] as usize + kw).checked_sub(p.padding[2] as usize);
            if let (Some(h), Some(w)) = (h, w)
                && h < xs[2]
                && w < xs[3]
            {
                f(h, w);
            }
        }
    }
}

/// The divisor of a mean: PyTorch counts padding, but not what a window reaches beyond it.
fn pool_count(p: &Pool2d, xs: &[usize], i: &[usize], valid: usize) -> f64 {
    if !p.count_include_pad {
        return valid as f64;
    }
    let reach = |d: usize| {
        let start = i[2 + d] * p.stride[d] as usize;
        let end = (start + p.kernel[d] as usize)
            .min(xs[2 + d] + (p.padding[2 * d] + p.padding[2 * d + 1]) as usize);
        end - start
    };
    (reach(0) * reach(1)) as f64
}
