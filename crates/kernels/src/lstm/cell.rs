//! The steps of a cell on one row of gates.
use crate::simd::isa::{map2, map3, pick};
use crate::simd::{Unary, UnaryOp, simd_level, unary_f32};

/// See [`Cell::grad`].
type Grad = fn(&mut [f32], &mut [f32], &[f32], &[f32], &[f32], &[f32]);

/// Functions for the instruction set in use.
#[derive(Clone, Copy)]
pub struct Cell {
    pub sigmoid: Unary<f32>,
    pub tanh: Unary<f32>,
    /// `dst = a + b`.
    pub add: fn(&mut [f32], &[f32], &[f32]),
    /// `c = f c + i g`.
    pub next: fn(&mut [f32], &[f32]),
    /// `dst = a b`.
    pub times: fn(&mut [f32], &[f32], &[f32]),
    /// Gates' gradients, and `dc` of the step before in place, from `dc`, `dh`, activated gates, c before and tanh(c) after.
    pub grad: Grad,
}

impl Cell {
    pub fn new() -> Cell {
        let level = simd_level();
        Cell {
            sigmoid: unary_f32(UnaryOp::Sigmoid),
            tanh: unary_f32(UnaryOp::Tanh),
            add: pick!(level, fn(dst: &mut [f32], a: &[f32], b: &[f32]) {
                map2(dst, a, b, |x: f32, y: f32| x + y)
            }),
            next: pick!(level, fn(c: &mut [f32], gates: &[f32]) {
                let [i, f, g, _] = quarters(gates);
                for (((c, i), f), g) in c.iter_mut().zip(i).zip(f).zip(g) {
                    *c = f * *c + i * g;
                }
            }),
            times: pick!(level, fn(dst: &mut [f32], a: &[f32], b: &[f32]) {
                map2(dst, a, b, |x: f32, y: f32| x * y)
            }),
            grad: pick!(
                level,
                fn(
                    out: &mut [f32],
                    dc: &mut [f32],
                    dh: &[f32],
                    gates: &[f32],
                    before: &[f32],
                    tanh: &[f32],
                ) {
                    let n = dc.len();
                    let [i, f, g, o] = quarters(gates);
                    for (((d, dh), o), t) in dc.iter_mut().zip(dh).zip(o).zip(tanh) {
                        *d += dh * o * (1.0 - t * t);
                    }
                    let slope = |s: f32| s * (1.0 - s);
                    let (di, rest) = out.split_at_mut(n);
                    map3(di, dc, g, i, |d: f32, g: f32, i: f32| d * g * slope(i));
                    let (df, rest) = rest.split_at_mut(n);
                    map3(df, dc, before, f, |d: f32, c: f32, f: f32| d * c * slope(f));
                    let (dg, d_o) = rest.split_at_mut(n);
                    map3(dg, dc, i, g, |d: f32, i: f32, g: f32| d * i * (1.0 - g * g));
                    map3(d_o, dh, tanh, o, |d: f32, t: f32, o: f32| d * t * slope(o));
                    for (d, f) in dc.iter_mut().zip(f) {
                        *d *= f;
                    }
                }
            ),
        }
    }

    /// Activates a row of gates.
    pub fn activate(&self, dst: &mut [f32], gates: &[f32]) {
        let n = dst.len() / 4;
        (self.sigmoid)(&mut dst[..2 * n], &gates[..2 * n]);
        (self.tanh)(&mut dst[2 * n..3 * n], &gates[2 * n..3 * n]);
        (self.sigmoid)(&mut dst[3 * n..], &gates[3 * n..]);
    }
}

#[inline(always)]
fn quarters(x: &[f32]) -> [&[f32]; 4] {
    let n = x.len() / 4;
    [&x[..n], &x[n..2 * n], &x[2 * n..3 * n], &x[3 * n..]]
}
