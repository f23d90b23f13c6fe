//! Layer normalisation (Ba, Kiros, Hinton 2016) and RMS normalisation (Zhang, Sennrich 2019) over rows.
use super::access::{Rows, RowsMut, block_rows, for_blocks};
use crate::simd::isa::{map, map2, map3, pick};
use crate::simd::{simd_level, whole};
use rayon::prelude::*;

/// `(mean, 1 / sqrt(variance + eps))`, or without `center` `(0, 1 / sqrt(mean of squares + eps))`.
///
/// The mean is summed in f64, where equal values add up exactly: their variance is exactly 0. The variance takes
/// a second pass, so that a large mean does not cancel it.
#[inline(always)]
fn statistics(x: &[f32], eps: f32, center: bool) -> (f32, f32) {
    let n = x.len() as f64;
    let mean = if center {
        (whole(x, 0.0, |v: f32| v as f64, |a: f64, b: f64| a + b) / n) as f32
    } else {
        0.0
    };
    let squares = whole(
        x,
        0.0,
        |v: f32| (v - mean) * (v - mean),
        |a: f32, b: f32| a + b,
    );
    let variance = squares / n as f32;
    (mean, 1.0 / (variance + eps).sqrt())
}

#[inline(always)]
fn scale_row(
    y: &mut [f32],
    x: &[f32],
    mean: f32,
    rstd: f32,
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
) {
    match (gamma, beta) {
        (None, None) => map(y, x, |v: f32| (v - mean) * rstd),
        (Some(g), None) => map2(y, x, g, |v: f32, g: f32| (v - mean) * rstd * g),
        (None, Some(b)) => map2(y, x, b, |v: f32, b: f32| (v - mean) * rstd + b),
        (Some(g), Some(b)) => map3(y, x, g, b, |v: f32, g: f32, b: f32| {
            (v - mean) * rstd * g + b
        }),
    }
}

type Statistics = fn(&[f32], f32, bool) -> (f32, f32);
type Scale = fn(&mut [f32], &[f32], f32, f32, Option<&[f32]>, Option<&[f32]>);

fn norm(
    x: Rows,
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
    eps: f32,
    mut y: RowsMut,
    mean: Option<&mut [f32]>,
    rstd: &mut [f32],
) {
    let level = simd_level();
    let measure: Statistics = pick!(level, fn(x: &[f32], eps: f32, center: bool) -> (f32, f32) {
        statistics(x, eps, center)
    });
    let scale: Scale = pick!(
        level,
        fn(
            y: &mut [f32], x: &[f32], mean: f32, rstd: f32, gamma: Option<&[f32]>, beta: Option<&[f32]>,
        ) {
            scale_row(y, x, mean, rstd, gamma, beta)
        }
    );
    let center = mean.is_some();
    let (cols, step) = (x.cols(), block_rows(x.cols()));
    let run = |block: usize, mut y: RowsMut, mut mean: Option<&mut [f32]>, rstd: &mut [f32]| {
        let (mut sx, mut sy) = (vec![0.0; cols], vec![0.0; cols]);
        for row in 0..y.count() {
            x.ahead(block * step + row + 1);
            let x = x.row(block * step + row, &mut sx);
            let (m, r) = measure(x, eps, center);
            if let Some(mean) = &mut mean {
                mean[row] = m;
            }
            rstd[row] = r;
            y.write(row, 0..cols, &mut sy, |y| scale(y, x, m, r, gamma, beta));
        }
    };
    let blocks = y.blocks(step).zip(rstd.par_chunks_mut(step));
    match mean {
        Some(mean) => for_blocks(
            blocks.zip(mean.par_chunks_mut(step)),
            |i, ((y, rstd), mean)| run(i, y, Some(mean), rstd),
        ),
        None => for_blocks(blocks, |i, (y, rstd)| run(i, y, None, rstd)),
    }
}

/// `y = (x - mean) rstd gamma + beta` for each row, with `rstd = 1 / sqrt(variance + eps)`.
///
/// `gamma` and `beta` are `[cols]`, `mean` and `rstd` receive `[rows]`, f32 whatever the dtype of x.
pub fn layer_norm(
    x: Rows,
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
    eps: f32,
    y: RowsMut,
    mean: &mut [f32],
    rstd: &mut [f32],
) {
    norm(x, gamma, beta, eps, y, Some(mean), rstd);
}

/// `y = x rstd gamma` for each row, with `rstd = 1 / sqrt(mean of squares + eps)`.
pub fn rms_norm(x: Rows, gamma: Option<&[f32]>, eps: f32, y: RowsMut, rstd: &mut [f32]) {
    norm(x, gamma, None, eps, y, None, rstd);
}
