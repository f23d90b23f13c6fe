//! Layer normalisation (Ba, Kiros, Hinton 2016) and RMS normalisation (Zhang, Sennrich 2019) over rows.
use super::access::{Rows, RowsMut, block_rows, for_blocks};
use crate::simd::isa::{Isa, pick};
use crate::simd::{Tree, simd_level};
use rayon::prelude::*;

/// Partial sums of a row. Enough of them that no addition waits for the one before it.
const WIDE: usize = 64;
/// Elements that are summed in lanes before a tree takes over.
const LONG: usize = 4096;
/// Elements of a narrower type that are on their way at a time.
const PART: usize = 2048;

/// The sum of `f(x)` in lanes: element i goes to lane `i % 64`, lanes fold in halves.
#[inline(always)]
fn lanes<I: Isa>(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; WIDE];
    let (groups, tail) = x.as_chunks::<WIDE>();
    for group in groups {
        for (sum, &x) in sums.iter_mut().zip(group) {
            *sum += f(x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(tail) {
        *sum += f(x);
    }
    let mut folded = [0.0f32; 16];
    for l in 0..16 {
        folded[l] = (sums[l] + sums[l + 32]) + (sums[l + 16] + sums[l + 48]);
    }
    I::sum16(folded)
}

/// [`lanes`] of parts, as a tree.
#[inline(always)]
fn sum<I: Isa>(x: &[f32], f: impl Fn(f32) -> f32 + Copy) -> f32 {
    if x.len() <= LONG {
        return lanes::<I>(x, f);
    }
    let mut tree = Tree::new(0.0, |a: f32, b: f32| a + b);
    for part in x.chunks(LONG) {
        tree.push(lanes::<I>(part, f));
    }
    tree.finish()
}

/// `(mean, 1 / sqrt(variance + eps))`, or without `center` `(0, 1 / sqrt(mean of squares + eps))`.
///
/// The mean is summed as differences from the first element: those of equal values are exactly 0, and so is their
/// variance. The variance takes a second pass over a row that lies in the first cache by then, so that a large mean does not cancel it.
#[inline(always)]
fn statistics<I: Isa>(x: &[f32], eps: f32, center: bool) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = match x.first() {
        Some(&first) if center => first + sum::<I>(x, |x| x - first) / n,
        _ => 0.0,
    };
    let variance = sum::<I>(x, |x| (x - mean) * (x - mean)) / n;
    (mean, 1.0 / (variance + eps).sqrt())
}

/// `y = f(x, g, b)` with a vector that is not there as zeros, which `f` leaves out.
#[inline(always)]
fn scale<I: Isa>(
    y: &mut [f32],
    x: &[f32],
    g: &[f32],
    b: &[f32],
    streams: bool,
    f: impl Fn(f32, f32, f32) -> f32,
) {
    if streams {
        let ((ys, _), (xs, _), (gs, _), (bs, _)) = (
            y.as_chunks_mut::<16>(),
            x.as_chunks::<16>(),
            g.as_chunks::<16>(),
            b.as_chunks::<16>(),
        );
        for (((y, x), g), b) in ys.iter_mut().zip(xs).zip(gs).zip(bs) {
            let mut line = [0.0; 16];
            for l in 0..16 {
                line[l] = f(x[l], g[l], b[l]);
            }
            // SAFETY: one line of `y`, whose rows are whole lines where it streams.
            unsafe { I::stream16(y.as_mut_ptr(), line) };
        }
    } else {
        for (((y, &x), &g), &b) in y.iter_mut().zip(x).zip(g).zip(b) {
            *y = f(x, g, b);
        }
    }
}

/// What is the same for all rows.
#[derive(Clone, Copy)]
struct Spec<'a> {
    cols: usize,
    gamma: Option<&'a [f32]>,
    beta: Option<&'a [f32]>,
    eps: f32,
    /// Whether y consists of aligned lines that are written around the caches.
    streams: bool,
}

/// Rows that lie one after the other. `mean` is empty for RMS normalisation.
#[inline(always)]
fn norm_rows<I: Isa>(
    spec: &Spec<'_>,
    x: &[f32],
    y: &mut [f32],
    mean: &mut [f32],
    rstd: &mut [f32],
) {
    let &Spec {
        cols, eps, streams, ..
    } = spec;
    let center = !mean.is_empty();
    for (row, rstd) in rstd.iter_mut().enumerate() {
        let at = row * cols..(row + 1) * cols;
        let (x, y) = (&x[at.clone()], &mut y[at]);
        let (m, r) = statistics::<I>(x, eps, center);
        *rstd = r;
        if let Some(mean) = mean.get_mut(row) {
            *mean = m;
        }
        match (spec.gamma, spec.beta) {
            (None, None) => scale::<I>(y, x, x, x, streams, |x, _, _| (x - m) * r),
            (Some(g), None) => scale::<I>(y, x, g, x, streams, |x, g, _| (x - m) * r * g),
            (None, Some(b)) => scale::<I>(y, x, x, b, streams, |x, _, b| (x - m) * r + b),
            (Some(g), Some(b)) => scale::<I>(y, x, g, b, streams, |x, g, b| (x - m) * r * g + b),
        }
    }
}

type NormRows = fn(&Spec<'_>, &[f32], &mut [f32], &mut [f32], &mut [f32]);

fn norm(x: Rows, mut spec: Spec<'_>, mut y: RowsMut, mean: Option<&mut [f32]>, rstd: &mut [f32]) {
    let kernel: NormRows = pick!(
        simd_level(),
        fn(spec: &Spec<'_>, x: &[f32], y: &mut [f32], mean: &mut [f32], rstd: &mut [f32]) {
            norm_rows::<I>(spec, x, y, mean, rstd)
        }
    );
    spec.streams = y.take_lines();
    let (cols, step) = (spec.cols, block_rows(spec.cols));
    let run = |block: usize, mut y: RowsMut, mean: &mut [f32], rstd: &mut [f32]| {
        let count = rstd.len();
        // Rows that are converted are so few at a time that they stay in the first cache.
        let some = match x.in_place() && y.in_place() {
            true => count,
            false => (PART / cols).clamp(1, count.max(1)),
        };
        let mut sx = vec![0.0; if x.in_place() { 0 } else { some * cols }];
        let mut sy = vec![0.0; if y.in_place() { 0 } else { some * cols }];
        for first in (0..count).step_by(some) {
            let rows = first..(first + some).min(count);
            let part = 0..rows.len() * cols;
            let x = x.part(block * step + first, part.clone(), &mut sx);
            let mean = mean.get_mut(rows.clone()).unwrap_or(&mut []);
            y.write(first, part, &mut sy, |y| {
                kernel(&spec, x, y, mean, &mut rstd[rows])
            });
        }
    };
    let blocks = y.blocks(step).zip(rstd.par_chunks_mut(step));
    match mean {
        Some(mean) => for_blocks(
            blocks.zip(mean.par_chunks_mut(step)),
            |i, ((y, rstd), mean)| run(i, y, mean, rstd),
        ),
        None => for_blocks(blocks, |i, (y, rstd)| run(i, y, &mut [], rstd)),
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
    let spec = Spec {
        cols: x.cols(),
        gamma,
        beta,
        eps,
        streams: false,
    };
    norm(x, spec, y, Some(mean), rstd);
}

/// `y = x rstd gamma` for each row, with `rstd = 1 / sqrt(mean of squares + eps)`.
pub fn rms_norm(x: Rows, gamma: Option<&[f32]>, eps: f32, y: RowsMut, rstd: &mut [f32]) {
    let spec = Spec {
        cols: x.cols(),
        gamma,
        beta: None,
        eps,
        streams: false,
    };
    norm(x, spec, y, None, rstd);
}
