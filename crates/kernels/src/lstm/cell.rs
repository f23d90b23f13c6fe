//! The steps of a cell on one row of gates.
use crate::simd::isa::pick;
use crate::simd::simd_level;
use crate::simd::{sigmoid_f32 as sigmoid, tanh_f32 as tanh};

/// See [`Cell::next`].
type Next = fn(&mut [f32], &mut [f32], &[f32]);
/// See [`Cell::replay`].
type Replay = fn(&mut [f32], &mut [f32], &mut [f32], &mut [f32], &[f32]);
/// See [`Cell::grad`].
type Grad = fn(&mut [f32], &mut [f32], [&[f32]; 2], &[f32], &[f32], &[f32]);

/// Functions for the instruction set in use.
#[derive(Clone, Copy)]
pub struct Cell {
    /// `dst = a + b`.
    pub add: fn(&mut [f32], &[f32], &[f32]),
    /// h and, in place, c after a step, from gates before activation.
    pub next: Next,
    /// Activated gates, c before and tanh(c) after a step, and c in place, from gates before activation.
    pub replay: Replay,
    /// Gates' gradients, and `dc` of the step before in place, from `dc`, both parts of `dh`, activated gates, c before and tanh(c) after.
    pub grad: Grad,
}

impl Cell {
    pub fn new() -> Cell {
        let level = simd_level();
        Cell {
            add: pick!(level, fn(dst: &mut [f32], a: &[f32], b: &[f32]) {
                for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
                    *dst = a + b;
                }
            }),
            next: pick!(level, fn(h: &mut [f32], c: &mut [f32], gates: &[f32]) {
                let n = c.len();
                let h = &mut h[..n];
                let [i, f, g, o] = quarters(gates, n);
                for j in 0..n {
                    let (i, f) = (sigmoid::<I>(i[j]), sigmoid::<I>(f[j]));
                    c[j] = f * c[j] + i * tanh::<I>(g[j]);
                    h[j] = sigmoid::<I>(o[j]) * tanh::<I>(c[j]);
                }
            }),
            replay: pick!(
                level,
                fn(
                    active: &mut [f32],
                    before: &mut [f32],
                    after: &mut [f32],
                    c: &mut [f32],
                    gates: &[f32],
                ) {
                    let n = c.len();
                    let (before, after) = (&mut before[..n], &mut after[..n]);
                    let [i, f, g, o] = quarters(gates, n);
                    let [ai, af, ag, ao] = quarters_mut(active, n);
                    for j in 0..n {
                        (ai[j], af[j]) = (sigmoid::<I>(i[j]), sigmoid::<I>(f[j]));
                        (ag[j], ao[j]) = (tanh::<I>(g[j]), sigmoid::<I>(o[j]));
                        before[j] = c[j];
                        c[j] = af[j] * c[j] + ai[j] * ag[j];
                        after[j] = tanh::<I>(c[j]);
                    }
                }
            ),
            grad: pick!(
                level,
                fn(
                    out: &mut [f32],
                    dc: &mut [f32],
                    dh: [&[f32]; 2],
                    gates: &[f32],
                    before: &[f32],
                    tanh: &[f32],
                ) {
                    let n = dc.len();
                    let [i, f, g, o] = quarters(gates, n);
                    let [di, df, dg, d_o] = quarters_mut(out, n);
                    let (dy, dh) = (&dh[0][..n], &dh[1][..n]);
                    let (before, tanh) = (&before[..n], &tanh[..n]);
                    let slope = |s: f32| s * (1.0 - s);
                    for j in 0..n {
                        let (dh, t) = (dy[j] + dh[j], tanh[j]);
                        let d = dc[j] + dh * o[j] * (1.0 - t * t);
                        di[j] = d * g[j] * slope(i[j]);
                        df[j] = d * before[j] * slope(f[j]);
                        dg[j] = d * i[j] * (1.0 - g[j] * g[j]);
                        d_o[j] = dh * t * slope(o[j]);
                        dc[j] = d * f[j];
                    }
                }
            ),
        }
    }
}

#[inline(always)]
fn quarters(x: &[f32], n: usize) -> [&[f32]; 4] {
    [&x[..n], &x[n..2 * n], &x[2 * n..3 * n], &x[3 * n..4 * n]]
}

#[inline(always)]
fn quarters_mut(x: &mut [f32], n: usize) -> [&mut [f32]; 4] {
    let (a, rest) = x[..4 * n].split_at_mut(n);
    let (b, rest) = rest.split_at_mut(n);
    let (c, d) = rest.split_at_mut(n);
    [a, b, c, d]
}
