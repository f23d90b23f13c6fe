//! Gradients of the norms.
//!
//! With `xhat = (x - mean) rstd` and `g = dy gamma`:
//! `dx = rstd (g - mean(g) - xhat mean(g xhat))`, for RMS normalisation without `mean(g)`;
//! `dgamma = sum over rows of dy xhat`, `dbeta = sum over rows of dy`.
use super::access::{Rows, RowsMut, for_blocks};
use super::columns::{add_pairwise, block_rows};
use crate::simd::isa::{Isa, pick};
use crate::simd::{Tree, simd_level};
use rayon::prelude::*;

/// Partial sums of a row.
const WIDE: usize = 32;
/// Elements that are summed in lanes before a tree takes over.
const LONG: usize = 2048;
/// Elements of a narrower type that are on their way at a time.
const PART: usize = 1024;

/// What a norm and its gradient take and gave.
#[derive(Clone, Copy)]
pub struct NormGrad<'a> {
    /// The input of the norm, `[rows, cols]`.
    pub x: Rows<'a>,
    /// The gradient of the output, `[rows, cols]`.
    pub dy: Rows<'a>,
    /// `[cols]`.
    pub gamma: Option<&'a [f32]>,
    /// `[rows]`, from the forward pass.
    pub rstd: &'a [f32],
}

/// A row as the kernel sees it.
#[derive(Clone, Copy)]
struct Row<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    /// dy where there is none, and not looked at.
    gamma: &'a [f32],
    mean: f32,
    rstd: f32,
}

impl Row<'_> {
    #[inline(always)]
    fn hat(&self, x: f32) -> f32 {
        (x - self.mean) * self.rstd
    }

    /// One sweep of a part of the row: adds to the column sums and returns the sums of g and of `g xhat`.
    #[inline(always)]
    fn sums<I: Isa, const GAMMA: bool>(
        &self,
        part: std::ops::Range<usize>,
        dgamma: &mut [f32],
        dbeta: &mut [f32],
    ) -> (f32, f32) {
        let (mut first, mut second) = ([0.0f32; WIDE], [0.0f32; WIDE]);
        let (xs, x_tail) = self.x[part.clone()].as_chunks::<WIDE>();
        let (ds, d_tail) = self.dy[part.clone()].as_chunks::<WIDE>();
        let (ws, w_tail) = self.gamma[part.clone()].as_chunks::<WIDE>();
        let (gs, g_tail) = dgamma[part.clone()].as_chunks_mut::<WIDE>();
        let (bs, b_tail) = dbeta[part].as_chunks_mut::<WIDE>();
        for ((((x, d), w), dg), db) in xs.iter().zip(ds).zip(ws).zip(gs).zip(bs) {
            for l in 0..WIDE {
                let hat = self.hat(x[l]);
                let g = if GAMMA { d[l] * w[l] } else { d[l] };
                first[l] += g;
                second[l] += g * hat;
                dg[l] += d[l] * hat;
                db[l] += d[l];
            }
        }
        let tail = x_tail
            .iter()
            .zip(d_tail)
            .zip(w_tail)
            .zip(g_tail)
            .zip(b_tail);
        for (l, ((((&x, &d), &w), dg), db)) in tail.enumerate() {
            let hat = self.hat(x);
            let g = if GAMMA { d * w } else { d };
            first[l] += g;
            second[l] += g * hat;
            *dg += d * hat;
            *db += d;
        }
        (fold::<I>(first), fold::<I>(second))
    }

    /// Writes dx and adds to the column sums: two sweeps over a row that stays in the first cache, sums, then results.
    /// What both need is computed twice rather than kept.
    #[inline(always)]
    fn run<I: Isa, const GAMMA: bool>(
        &self,
        center: bool,
        streams: bool,
        dx: &mut [f32],
        dgamma: &mut [f32],
        dbeta: &mut [f32],
    ) {
        let len = self.x.len();
        let (g, gh) = if len <= LONG {
            self.sums::<I, GAMMA>(0..len, dgamma, dbeta)
        } else {
            let mut tree = Tree::new((0.0, 0.0), |a: (f32, f32), b: (f32, f32)| {
                (a.0 + b.0, a.1 + b.1)
            });
            for first in (0..len).step_by(LONG) {
                let part = first..(first + LONG).min(len);
                tree.push(self.sums::<I, GAMMA>(part, dgamma, dbeta));
            }
            tree.finish()
        };
        let n = len as f32;
        let (m1, m2) = (if center { g / n } else { 0.0 }, gh / n);
        let f = |x: f32, dy: f32, gamma: f32| {
            let g = if GAMMA { dy * gamma } else { dy };
            self.rstd * (g - m1 - self.hat(x) * m2)
        };
        if streams {
            let (xs, _) = self.x.as_chunks::<16>();
            let (ds, _) = self.dy.as_chunks::<16>();
            let (gs, _) = self.gamma.as_chunks::<16>();
            let (to, _) = dx.as_chunks_mut::<16>();
            for (((to, x), d), g) in to.iter_mut().zip(xs).zip(ds).zip(gs) {
                let mut line = [0.0; 16];
                for l in 0..16 {
                    line[l] = f(x[l], d[l], g[l]);
                }
                // SAFETY: one line of dx, whose rows are whole lines where it streams.
                unsafe { I::stream16(to.as_mut_ptr(), line) };
            }
        } else {
            let all = dx.iter_mut().zip(self.x).zip(self.dy).zip(self.gamma);
            for (((dx, &x), &dy), &gamma) in all {
                *dx = f(x, dy, gamma);
            }
        }
    }
}

#[inline(always)]
fn fold<I: Isa>(x: [f32; WIDE]) -> f32 {
    let mut half = [0.0f32; 16];
    for l in 0..16 {
        half[l] = x[l] + x[l + 16];
    }
    I::sum16(half)
}

/// What is the same for all rows.
#[derive(Clone, Copy)]
struct Spec<'a> {
    cols: usize,
    gamma: Option<&'a [f32]>,
    center: bool,
    /// Whether dx consists of aligned lines that are written around the caches.
    streams: bool,
}

/// Rows that lie one after the other. `mean` is empty for RMS normalisation.
#[inline(always)]
fn grad_rows<I: Isa>(
    spec: &Spec<'_>,
    [x, dy, mean, rstd]: [&[f32]; 4],
    dx: &mut [f32],
    dgamma: &mut [f32],
    dbeta: &mut [f32],
) {
    let cols = spec.cols;
    for (row, &rstd) in rstd.iter().enumerate() {
        let at = row * cols..(row + 1) * cols;
        let (x, dy, dx) = (&x[at.clone()], &dy[at.clone()], &mut dx[at]);
        let row = Row {
            x,
            dy,
            gamma: spec.gamma.unwrap_or(dy),
            mean: mean.get(row).copied().unwrap_or(0.0),
            rstd,
        };
        let (center, streams) = (spec.center, spec.streams);
        match spec.gamma {
            Some(_) => row.run::<I, true>(center, streams, dx, dgamma, dbeta),
            None => row.run::<I, false>(center, streams, dx, dgamma, dbeta),
        }
    }
}

type GradRows = fn(&Spec<'_>, [&[f32]; 4], &mut [f32], &mut [f32], &mut [f32]);

fn norm_grad(
    args: NormGrad,
    mean: Option<&[f32]>,
    mut dx: RowsMut,
    dgamma: Option<&mut [f32]>,
    dbeta: Option<&mut [f32]>,
) {
    let NormGrad { x, dy, gamma, rstd } = args;
    let kernel: GradRows = pick!(
        simd_level(),
        fn(
            spec: &Spec<'_>,
            rows: [&[f32]; 4],
            dx: &mut [f32],
            dgamma: &mut [f32],
            dbeta: &mut [f32],
        ) {
            grad_rows::<I>(spec, rows, dx, dgamma, dbeta)
        }
    );
    let (cols, step) = (x.cols(), block_rows(x.cols()));
    let spec = Spec {
        cols,
        gamma,
        center: mean.is_some(),
        streams: dx.take_lines(),
    };
    let mean = mean.unwrap_or(&[]);
    // Both sums of a block lie side by side.
    let width = 2 * cols;
    let blocks = dx.count().div_ceil(step);
    let mut partial = vec![0.0f32; blocks * width];
    for_blocks(
        dx.blocks(step).zip(partial.par_chunks_mut(width)),
        |block, (mut dx, sums)| {
            let (dgamma, dbeta) = sums.split_at_mut(cols);
            let count = dx.count();
            let direct = x.in_place() && dy.in_place() && dx.in_place();
            // Rows that are converted are so few at a time that they stay in the first cache.
            let some = match direct {
                true => count.max(1),
                false => (PART / cols).clamp(1, count.max(1)),
            };
            let len = if direct { 0 } else { some * cols };
            let mut scratch = vec![0.0; 3 * len];
            let (sx, rest) = scratch.split_at_mut(len);
            let (sdy, sdx) = rest.split_at_mut(len);
            for first in (0..count).step_by(some) {
                let at = block * step + first;
                let rows = at..at + some.min(count - first);
                let part = 0..rows.len() * cols;
                let (x, dy) = (x.part(at, part.clone(), sx), dy.part(at, part.clone(), sdy));
                let mean = mean.get(rows.clone()).unwrap_or(&[]);
                let rows = [x, dy, mean, &rstd[rows]];
                dx.write(first, part, sdx, |dx| {
                    kernel(&spec, rows, dx, dgamma, dbeta)
                });
            }
        },
    );
    add_pairwise(&mut partial, width);
    // Without rows there are no partial sums and the gradients are 0.
    partial.resize(partial.len().max(width), 0.0);
    for (to, sums) in [dgamma, dbeta].into_iter().zip(partial.chunks(cols)) {
        if let Some(to) = to {
            to.copy_from_slice(sums);
        }
    }
}

/// The gradient of [`super::layer_norm`]; `dgamma` and `dbeta` receive `[cols]` in f32.
pub fn layer_norm_grad(
    args: NormGrad,
    mean: &[f32],
    dx: RowsMut,
    dgamma: Option<&mut [f32]>,
    dbeta: Option<&mut [f32]>,
) {
    norm_grad(args, Some(mean), dx, dgamma, dbeta);
}

/// The gradient of [`super::rms_norm`].
pub fn rms_norm_grad(args: NormGrad, dx: RowsMut, dgamma: Option<&mut [f32]>) {
    norm_grad(args, None, dx, dgamma, None);
}
