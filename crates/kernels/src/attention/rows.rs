//! The rows of a block of scores.

use crate::gemm::{Isa, by_level};
use crate::simd::exp_neg;

/// Values that are reduced side by side.
const LANES: usize = 32;

/// Scores of a block, `[rows, cols]`.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    pub scores: *mut f32,
    pub ld: usize,
    pub cols: usize,
    pub scale: f32,
    /// Keys of the block that each row sees.
    pub seen: &'a [usize],
    /// What the key mask adds.
    pub bias: Option<&'a [f32]>,
}

/// What rows have summed up so far.
pub struct Running<'a> {
    /// The largest score.
    pub top: &'a mut [f32],
    /// The sum of the probabilities relative to it.
    pub sum: &'a mut [f32],
    /// The weighted values, `[rows, d]`.
    pub values: *mut f32,
    pub d: usize,
}

/// Calls `f` with chunks of `LANES` values and then with the rest; lanes become vectors.
#[inline(always)]
fn chunks(values: &mut [f32], mut f: impl FnMut(&mut [f32])) {
    let (full, rest) = values.as_chunks_mut::<LANES>();
    for chunk in full {
        f(chunk);
    }
    f(rest);
}

/// Combines lanes as a balanced tree.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Makes the scores of masked keys minus infinity, whatever they are.
#[inline(always)]
fn hide(scores: &mut [f32], bias: Option<&[f32]>) {
    for (score, bias) in scores.iter_mut().zip(bias.unwrap_or(&[])) {
        *score = if *bias < 0.0 { *bias } else { *score };
    }
}

by_level!(
    /// Turns scores into probabilities relative to the running maximum, 0 for keys not seen, and
    /// brings what was summed so far to the same maximum.
    pub fn softmax(block: &Block<'_>, running: &mut Running<'_>) = softmax_body
);

#[inline(always)]
unsafe fn softmax_body<I: Isa>(block: &Block<'_>, running: &mut Running<'_>) {
    for (row, &seen) in block.seen.iter().enumerate() {
        // SAFETY: row `row` of the block.
        let scores =
            unsafe { std::slice::from_raw_parts_mut(block.scores.add(row * block.ld), block.cols) };
        let (scores, unseen) = scores.split_at_mut(seen);
        unseen.fill(0.0);
        let mut tops = [f32::NEG_INFINITY; LANES];
        hide(scores, block.bias);
        chunks(scores, |chunk| {
            for (score, top) in chunk.iter_mut().zip(&mut tops) {
                *score *= block.scale;
                *top = larger(*score, *top);
            }
        });
        let old = running.top[row];
        let top = larger(fold(tops, larger), old);
        // No key seen so far: any finite value will do.
        let shift = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let mut sums = [0.0; LANES];
        chunks(scores, |chunk| {
            for (score, sum) in chunk.iter_mut().zip(&mut sums) {
                *score = exp_neg::<I::Simd>(*score - shift);
                *sum += *score;
            }
        });
        let sum = fold(sums, |a, b| a + b);
        let factor = match old == f32::NEG_INFINITY {
            true => 0.0,
            false => exp_neg::<I::Simd>(old - shift),
        };
        running.sum[row] = running.sum[row] * factor + sum;
        running.top[row] = top;
        if factor != 1.0 {
            // SAFETY: row `row` of the values.
            let values = unsafe {
                std::slice::from_raw_parts_mut(running.values.add(row * running.d), running.d)
            };
            for value in values {
                *value *= factor;
            }
        }
    }
}

by_level!(
    /// Divides by the sums; a row that has seen nothing becomes 0.
    pub fn normalize(running: &mut Running<'_>) = normalize_body
);

#[inline(always)]
#[allow(clippy::extra_unused_type_parameters)] // by_level! names the set; the compiler vectorises for it
unsafe fn normalize_body<I: Isa>(running: &mut Running<'_>) {
    for (row, &sum) in running.sum.iter().enumerate() {
        // SAFETY: row `row` of the values.
        let values = unsafe {
            std::slice::from_raw_parts_mut(running.values.add(row * running.d), running.d)
        };
        for value in values {
            *value = if sum == 0.0 { 0.0 } else { *value / sum };
        }
    }
}

by_level!(
    /// With `scores` s and `grads` the gradients g of the dropped probabilities: `p = exp(s - lse)`,
    /// `grads = p (f g - dot) scale`, `scores = f p`, where f are the dropout factors (1 without).
    pub fn softmax_grad(block: &Block<'_>, grads: *mut f32, lse: &[f32], dot: &[f32], factors: Option<&[f32]>) = softmax_grad_body
);

#[inline(always)]
unsafe fn softmax_grad_body<I: Isa>(
    block: &Block<'_>,
    grads: *mut f32,
    lse: &[f32],
    dot: &[f32],
    factors: Option<&[f32]>,
) {
    for (row, &seen) in block.seen.iter().enumerate() {
        // SAFETY: row `row` of both blocks.
        let (scores, grads) = unsafe {
            let at = row * block.ld;
            (
                std::slice::from_raw_parts_mut(block.scores.add(at), block.cols),
                std::slice::from_raw_parts_mut(grads.add(at), block.cols),
            )
        };
        // A query that sees no key has no probabilities.
        let seen = if lse[row] == f32::NEG_INFINITY {
            0
        } else {
            seen
        };
        scores[seen..].fill(0.0);
        grads[seen..].fill(0.0);
        let (lse, dot, scale) = (lse[row], dot[row], block.scale);
        let grads = &mut grads[..seen];
        let scores = &mut scores[..seen];
        hide(scores, block.bias);
        match factors {
            None => {
                for (s, g) in scores.iter_mut().zip(grads) {
                    let p = exp_neg::<I::Simd>(*s * scale - lse);
                    *g = p * (*g - dot) * scale;
                    *s = p;
                }
            }
            Some(factors) => {
                let factors = &factors[row * block.ld..][..seen];
                for ((s, g), f) in scores.iter_mut().zip(grads).zip(factors) {
                    let p = exp_neg::<I::Simd>(*s * scale - lse);
                    *g = p * (*f * *g - dot) * scale;
                    *s = f * p;
                }
            }
        }
    }
}

by_level!(
    /// `out[i] = sum over j of a[i, j] * b[i, j]`, rows of `d`.
    pub fn dots(a: &[f32], b: &[f32], d: usize, out: &mut [f32]) = dots_body
);

#[inline(always)]
#[allow(clippy::extra_unused_type_parameters)] // by_level! names the set; the compiler vectorises for it
unsafe fn dots_body<I: Isa>(a: &[f32], b: &[f32], d: usize, out: &mut [f32]) {
    for (row, out) in out.iter_mut().enumerate() {
        let (a, b) = (&a[row * d..][..d], &b[row * d..][..d]);
        let mut sums = [0.0; LANES];
        for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
            for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                *sum += a * b;
            }
        }
        *out = fold(sums, |a, b| a + b);
    }
}
