//! Gradients of the norms.
//!
//! With `xhat = (x - mean) rstd` and `g = dy gamma`:
//! `dx = rstd (g - mean(g) - xhat mean(g xhat))`, for RMS normalisation without `mean(g)`;
//! `dgamma = sum over rows of dy xhat`, `dbeta = sum over rows of dy`.
use super::access::{Rows, RowsMut, for_blocks};
use super::columns::{add_pairwise, block_rows};
use crate::simd::isa::{map2, map3, pick};
use crate::simd::{BLOCK, LANES, Tree, fold_lanes, simd_level, whole, whole2};
use rayon::prelude::*;

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

/// One row: writes dx and adds to the column sums.
///
/// Two passes over a row that stays in the first cache: sums, then results. What both need is computed twice rather than kept.
#[inline(always)]
fn grad_row(
    dx: &mut [f32],
    x: &[f32],
    dy: &[f32],
    gamma: Option<&[f32]>,
    (mean, rstd, center): (f32, f32, bool),
    dgamma: &mut [f32],
    dbeta: &mut [f32],
) {
    let n = x.len() as f32;
    let hat = |x: f32| (x - mean) * rstd;
    let add = |a: f32, b: f32| a + b;
    for ((s, &x), &d) in dgamma.iter_mut().zip(x).zip(dy) {
        *s += d * hat(x);
    }
    for (s, &d) in dbeta.iter_mut().zip(dy) {
        *s += d;
    }
    match gamma {
        Some(gamma) => {
            let (m1, m2) = sums(x, dy, gamma, hat);
            let (m1, m2) = (if center { m1 / n } else { 0.0 }, m2 / n);
            map3(dx, x, dy, gamma, |x: f32, d: f32, w: f32| {
                rstd * (d * w - m1 - hat(x) * m2)
            });
        }
        None => {
            let m1 = if center {
                whole(dy, 0.0, |v| v, add) / n
            } else {
                0.0
            };
            let m2 = whole2(dy, x, |g: f32, x: f32| g * hat(x)) / n;
            map2(dx, dy, x, |g: f32, x: f32| rstd * (g - m1 - hat(x) * m2));
        }
    }
}

/// The sums of `g = dy gamma` and of `g xhat`, each in the order of [`whole`].
#[inline(always)]
fn sums(x: &[f32], dy: &[f32], gamma: &[f32], hat: impl Fn(f32) -> f32 + Copy) -> (f32, f32) {
    let add = |(a, b): (f32, f32), (c, d): (f32, f32)| (a + c, b + d);
    let mut tree = Tree::new((0.0, 0.0), add);
    for ((x, dy), gamma) in x
        .chunks(BLOCK)
        .zip(dy.chunks(BLOCK))
        .zip(gamma.chunks(BLOCK))
    {
        let (mut first, mut second) = ([0.0f32; LANES], [0.0f32; LANES]);
        let ((xs, x_tail), (ds, d_tail), (ws, w_tail)) = (
            x.as_chunks::<LANES>(),
            dy.as_chunks::<LANES>(),
            gamma.as_chunks::<LANES>(),
        );
        for ((x, d), w) in xs.iter().zip(ds).zip(ws) {
            for l in 0..LANES {
                let g = d[l] * w[l];
                first[l] += g;
                second[l] += g * hat(x[l]);
            }
        }
        for (l, ((&x, &d), &w)) in x_tail.iter().zip(d_tail).zip(w_tail).enumerate() {
            let g = d * w;
            first[l] += g;
            second[l] += g * hat(x);
        }
        let plus = |a: f32, b: f32| a + b;
        tree.push((fold_lanes(first, plus), fold_lanes(second, plus)));
    }
    tree.finish()
}

type GradRow =
    fn(&mut [f32], &[f32], &[f32], Option<&[f32]>, (f32, f32, bool), &mut [f32], &mut [f32]);

fn norm_grad(
    args: NormGrad,
    mean: Option<&[f32]>,
    mut dx: RowsMut,
    dgamma: Option<&mut [f32]>,
    dbeta: Option<&mut [f32]>,
) {
    let NormGrad { x, dy, gamma, rstd } = args;
    let kernel: GradRow = pick!(
        simd_level(),
        fn(
            dx: &mut [f32],
            x: &[f32],
            dy: &[f32],
            gamma: Option<&[f32]>,
            row: (f32, f32, bool),
            dgamma: &mut [f32],
            dbeta: &mut [f32],
        ) {
            grad_row(dx, x, dy, gamma, row, dgamma, dbeta)
        }
    );
    let (cols, step) = (x.cols(), block_rows(x.cols()));
    // Both sums of a block lie side by side; one that is not asked for has no columns.
    let (wide_g, wide_b) = (
        dgamma.as_ref().map_or(0, |_| cols),
        dbeta.as_ref().map_or(0, |_| cols),
    );
    let width = wide_g + wide_b;
    let blocks = dx.count().div_ceil(step);
    let mut partial = vec![0.0f32; blocks * width.max(1)];
    for_blocks(
        dx.blocks(step).zip(partial.par_chunks_mut(width.max(1))),
        |block, (mut dx, sums)| {
            let (dgamma, dbeta) = sums[..width].split_at_mut(wide_g);
            let mut scratch = vec![0.0; 3 * cols];
            let (sx, rest) = scratch.split_at_mut(cols);
            let (sdy, sdx) = rest.split_at_mut(cols);
            for row in 0..dx.count() {
                let at = block * step + row;
                x.ahead(at + 1);
                dy.ahead(at + 1);
                let (x, dy) = (x.row(at, sx), dy.row(at, sdy));
                let numbers = (mean.map_or(0.0, |m| m[at]), rstd[at], mean.is_some());
                dx.write(row, 0..cols, sdx, |dx| {
                    kernel(dx, x, dy, gamma, numbers, dgamma, dbeta);
                });
            }
        },
    );
    if width > 0 {
        add_pairwise(&mut partial, width);
        // Without rows there are no partial sums and the gradients are 0.
        partial.resize(partial.len().max(width), 0.0);
        if let Some(d) = dgamma {
            d.copy_from_slice(&partial[..wide_g]);
        }
        if let Some(d) = dbeta {
            d.copy_from_slice(&partial[wide_g..width]);
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
