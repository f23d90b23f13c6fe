//! The rows of a block of scores.

use crate::gemm::{Isa, by_level};
use crate::simd::exp_share;
use crate::simd::isa::Isa as _;

/// Values that are reduced side by side. Rows of scores have room for whole lanes.
pub const LANES: usize = 32;

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

/// The two halves of the lanes, combined.
#[inline(always)]
fn halves(lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES / 2] {
    let mut half = [0.0; LANES / 2];
    for (i, value) in half.iter_mut().enumerate() {
        *value = f(lanes[i], lanes[i + LANES / 2]);
    }
    half
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
            unsafe { std::slice::from_raw_parts_mut(block.scores.add(row * block.ld), block.ld) };
        hide(&mut scores[..seen], block.bias);
        // As many chunks for each row, so that no branch depends on the row: keys it does not see become 0.
        let (scores, _) = scores[..block.cols.next_multiple_of(LANES)].as_chunks_mut::<LANES>();
        let mut tops = [f32::NEG_INFINITY; LANES];
        for (first, chunk) in (0..).step_by(LANES).zip(scores.iter_mut()) {
            let left = seen as i32 - first;
            for (i, (score, top)) in (0..).zip(chunk.iter_mut().zip(&mut tops)) {
                let scaled = *score * block.scale;
                *score = if i < left { scaled } else { f32::NEG_INFINITY };
                *top = larger(*score, *top);
            }
        }
        let old = running.top[row];
        let top = larger(I::Simd::max16(halves(tops, larger)), old);
        // No key seen so far: any finite value will do.
        let shift = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let mut sums = [0.0; LANES];
        for chunk in scores.iter_mut() {
            for (score, sum) in chunk.iter_mut().zip(&mut sums) {
                *score = exp_share::<I::Simd>(*score - shift);
                *sum += *score;
            }
        }
        let sum = I::Simd::sum16(halves(sums, |a, b| a + b));
        let factor = match old == f32::NEG_INFINITY {
            true => 0.0,
            false => exp_share::<I::Simd>(old - shift),
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
                std::slice::from_raw_parts_mut(block.scores.add(at), block.ld),
                std::slice::from_raw_parts_mut(grads.add(at), block.ld),
            )
        };
        // A query that sees no key has no probabilities.
        let seen = if lse[row] == f32::NEG_INFINITY {
            0
        } else {
            seen
        };
        let (lse, dot, scale) = (lse[row], dot[row], block.scale);
        hide(&mut scores[..seen], block.bias);
        let width = seen.next_multiple_of(LANES);
        let (s, _) = scores[..width].as_chunks_mut::<LANES>();
        let (g, _) = grads[..width].as_chunks_mut::<LANES>();
        match factors {
            None => {
                for (s, g) in s.iter_mut().zip(g) {
                    for (s, g) in s.iter_mut().zip(g) {
                        let p = exp_share::<I::Simd>(*s * scale - lse);
                        *g = p * (*g - dot) * scale;
                        *s = p;
                    }
                }
            }
            Some(factors) => {
                let (f, _) = factors[row * block.ld..][..width].as_chunks::<LANES>();
                for ((s, g), f) in s.iter_mut().zip(g).zip(f) {
                    for ((s, g), f) in s.iter_mut().zip(g).zip(f) {
                        let p = exp_share::<I::Simd>(*s * scale - lse);
                        *g = p * (*f * *g - dot) * scale;
                        *s = f * p;
                    }
                }
            }
        }
        // The lanes behind the last key, and keys that other rows see.
        let end = width.max(block.cols);
        scores[seen..end].fill(0.0);
        grads[seen..end].fill(0.0);
    }
}

/// The sum over products.
#[inline(always)]
pub fn dot<I: Isa>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES / 2];
    let ((whole_a, a), (whole_b, b)) = (a.as_chunks(), b.as_chunks());
    for (a, b) in whole_a.iter().zip(whole_b) {
        let (a, b): (&[f32; LANES / 2], &[f32; LANES / 2]) = (a, b);
        for i in 0..LANES / 2 {
            sums[i] += a[i] * b[i];
        }
    }
    let mut last = [0.0; LANES / 2];
    for ((last, a), b) in last.iter_mut().zip(a).zip(b) {
        *last = a * b;
    }
    for (sum, last) in sums.iter_mut().zip(last) {
        *sum += last;
    }
    I::Simd::sum16(sums)
}
