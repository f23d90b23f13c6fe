//! Gradients of the norms.
//!
//! With `xhat = (x - mean) rstd` and `g = dy gamma`:
//! `dx = rstd (g - mean(g) - xhat mean(g xhat))`, for RMS normalisation without `mean(g)`;
//! `dgamma = sum over rows of dy xhat`, `dbeta = sum over rows of dy`.
use super::access::{Rows, RowsMut, for_blocks};
use super::columns::{add_pairwise, block_rows};
use crate::simd::isa::{map2, map3, pick};
use crate::simd::{simd_level, whole, whole2};
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

/// One row: writes dx and adds to the column sums. `xhat` and `g` are scratch.
#[inline(always)]
fn grad_row(
    dx: &mut [f32],
    x: &[f32],
    dy: &[f32],
    gamma: Option<&[f32]>,
    (mean, rstd, center): (f32, f32, bool),
    scratch: &mut [f32],
    dgamma: &mut [f32],
    dbeta: &mut [f32],
) {
    let n = x.len();
    let (xhat, g) = scratch.split_at_mut(n);
    let g = &mut g[..n];
    for (h, &v) in xhat.iter_mut().zip(x) {
        *h = (v - mean) * rstd;
    }
    for ((s, &h), &d) in dgamma.iter_mut().zip(&*xhat).zip(dy) {
        *s += d * h;
    }
    for (s, &d) in dbeta.iter_mut().zip(dy) {
        *s += d;
    }
    let g: &[f32] = match gamma {
        Some(gamma) => {
            map2(g, dy, gamma, |d: f32, w: f32| d * w);
            g
        }
        None => dy,
    };
    let n = n as f32;
    let m1 = if center {
        whole(g, 0.0, |v| v, |a: f32, b: f32| a + b) / n
    } else {
        0.0
    };
    let m2 = whole2(g, xhat, |g: f32, h: f32| g * h) / n;
    map2(dx, g, xhat, |g: f32, h: f32| rstd * (g - m1 - h * m2));
}

type GradRow = fn(
    &mut [f32],
    &[f32],
    &[f32],
    Option<&[f32]>,
    (f32, f32, bool),
    &mut [f32],
    &mut [f32],
    &mut [f32],
);

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
            scratch: &mut [f32],
            dgamma: &mut [f32],
            dbeta: &mut [f32],
        ) {
            grad_row(dx, x, dy, gamma, row, scratch, dgamma, dbeta)
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
            let mut scratch = vec![0.0; 5 * cols];
            let (sx, rest) = scratch.split_at_mut(cols);
            let (sdy, rest) = rest.split_at_mut(cols);
            let (sdx, work) = rest.split_at_mut(cols);
            for row in 0..dx.count() {
                let at = block * step + row;
                let (x, dy) = (x.row(at, sx), dy.row(at, sdy));
                let numbers = (mean.map_or(0.0, |m| m[at]), rstd[at], mean.is_some());
                dx.write(row, 0..cols, sdx, |dx| {
                    kernel(dx, x, dy, gamma, numbers, work, dgamma, dbeta);
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
