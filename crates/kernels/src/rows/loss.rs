//! Softmax cross-entropy with integer targets, without storing probabilities.
use super::access::{Rows, RowsMut, block_rows, for_blocks};
use super::softmax::{row_max, row_sum, shift};
use crate::simd::isa::{Isa, map, pick};
use crate::simd::{BLOCK, Tree, exp_f32, exp_neg, log_f32, simd_level};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Class numbers, one per row.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// The index type.
    I32(&'a [i32]),
    /// Accepted wherever indices are.
    I64(&'a [i64]),
}

impl Targets<'_> {
    fn get(&self, row: usize) -> i64 {
        match self {
            Targets::I32(t) => t[row] as i64,
            Targets::I64(t) => t[row],
        }
    }
}

/// What loss and gradient have in common.
#[derive(Clone, Copy)]
pub struct CrossEntropy<'a> {
    /// `[rows, classes]`.
    pub logits: Rows<'a>,
    /// `[rows]`.
    pub targets: Targets<'a>,
    /// Rows with this target have loss and gradient 0 (-100 in PyTorch).
    pub ignore_index: Option<i64>,
    /// Weight of the uniform distribution in the target distribution (Szegedy et al. 2016).
    pub label_smoothing: f32,
}

/// A target outside of the classes that is not the ignored one; its row has loss NaN and gradient 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTarget {
    /// The first such row.
    pub row: usize,
    /// Its target.
    pub value: i64,
}

enum Target {
    Class(usize),
    Ignored,
    Bad,
}

impl CrossEntropy<'_> {
    fn target(&self, row: usize) -> Target {
        let t = self.targets.get(row);
        if Some(t) == self.ignore_index {
            return Target::Ignored;
        }
        match usize::try_from(t) {
            Ok(class) if class < self.logits.cols() => Target::Class(class),
            _ => Target::Bad,
        }
    }
}

/// Maximum, sum of `exp(x - maximum)` and, if `total` is asked for, sum of x of one block.
#[inline(always)]
fn block_sums<I: Isa>(x: &[f32], exps: &mut [f32], total: bool) -> Sums {
    let m = row_max(x);
    let s = shift(m);
    let exps = &mut exps[..x.len()];
    map(exps, x, |v: f32| exp_neg::<I>(v - s));
    (m, row_sum(exps), if total { row_sum(x) } else { 0.0 })
}

type Sums = (f32, f32, f32);

/// Joins two parts of a row: the online softmax of Milakov and Gimelshein (2018).
#[inline(always)]
fn join<I: Isa>(a: Sums, b: Sums) -> Sums {
    let m = if a.0 > b.0 { a.0 } else { b.0 };
    let s = shift(m);
    (
        m,
        a.1 * exp_neg::<I>(a.0 - s) + b.1 * exp_neg::<I>(b.0 - s),
        a.2 + b.2,
    )
}

/// For each row `lse = log sum exp(logits)` and
/// `loss = (1 - smoothing) (lse - logits[target]) + smoothing (lse - mean(logits))`.
///
/// `loss` and `lse` receive `[rows]` in f32; rows that are ignored have loss 0, bad ones an `lse` of 0.
pub fn cross_entropy(ce: CrossEntropy, loss: &mut [f32], lse: &mut [f32]) -> Option<BadTarget> {
    let level = simd_level();
    let sums = pick!(level, fn(x: &[f32], exps: &mut [f32], total: bool) -> Sums {
        block_sums::<I>(x, exps, total)
    });
    let join = pick!(level, fn(a: Sums, b: Sums) -> Sums { join::<I>(a, b) });
    let log = pick!(level, fn(x: f32) -> f32 { log_f32::<I>(x) });
    let (cols, step) = (ce.logits.cols(), block_rows(ce.logits.cols()));
    let first_bad = AtomicUsize::new(usize::MAX);
    let blocks = loss.par_chunks_mut(step).zip(lse.par_chunks_mut(step));
    for_blocks(blocks, |block, (loss, lse)| {
        let (mut scratch, mut exps) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (i, (loss, lse)) in loss.iter_mut().zip(lse).enumerate() {
            let row = block * step + i;
            (*loss, *lse) = (0.0, 0.0);
            let class = match ce.target(row) {
                Target::Class(class) => Some(class),
                Target::Ignored => None,
                Target::Bad => {
                    *loss = f32::NAN;
                    first_bad.fetch_min(row, Ordering::Relaxed);
                    continue;
                }
            };
            let mut tree = Tree::new((f32::NEG_INFINITY, 0.0, 0.0), join);
            let mut at_target = 0.0;
            for from in (0..cols).step_by(BLOCK) {
                let part = from..(from + BLOCK).min(cols);
                let x = ce.logits.part(row, part.clone(), &mut scratch);
                if let Some(class) = class
                    && part.contains(&class)
                {
                    at_target = x[class - from];
                }
                tree.push(sums(x, &mut exps, ce.label_smoothing != 0.0));
            }
            let (max, sum, total) = tree.finish();
            let (max, log_sum) = (shift(max), log(sum));
            *lse = max + log_sum;
            if class.is_none() {
                continue;
            }
            // The differences first: the maximum may be far larger than the loss.
            let nll = (max - at_target) + log_sum;
            *loss = nll;
            if ce.label_smoothing != 0.0 {
                let uniform = (max - total / cols as f32) + log_sum;
                *loss = (1.0 - ce.label_smoothing) * nll + ce.label_smoothing * uniform;
            }
        }
    });
    let row = first_bad.into_inner();
    (row != usize::MAX).then(|| BadTarget {
        row,
        value: ce.targets.get(row),
    })
}

/// `dlogits = dloss[row] (exp(logits - lse) - (1 - smoothing) onehot(target) - smoothing / classes)`.
///
/// `lse` is that of [`cross_entropy`], `dloss` is `[rows]`; `dlogits` has any float dtype.
pub fn cross_entropy_grad(ce: CrossEntropy, lse: &[f32], dloss: &[f32], mut dlogits: RowsMut) {
    let kernel = pick!(simd_level(), fn(dx: &mut [f32], x: &[f32], lse: f32, uniform: f32, scale: f32) {
        map(dx, x, |v: f32| (exp_f32::<I>(v - lse) - uniform) * scale)
    });
    let (cols, step) = (ce.logits.cols(), block_rows(ce.logits.cols()));
    let uniform = ce.label_smoothing / cols as f32;
    for_blocks(dlogits.blocks(step), |block, mut dlogits| {
        let (mut sx, mut sdx) = ([0.0; BLOCK], [0.0; BLOCK]);
        for i in 0..dlogits.count() {
            let row = block * step + i;
            let class = match ce.target(row) {
                Target::Class(class) => Some(class),
                _ => None,
            };
            for from in (0..cols).step_by(BLOCK) {
                let part = from..(from + BLOCK).min(cols);
                dlogits.write(i, part.clone(), &mut sdx, |dx| {
                    let Some(class) = class else {
                        return dx.fill(0.0);
                    };
                    let x = ce.logits.part(row, part.clone(), &mut sx);
                    kernel(dx, x, lse[row], uniform, dloss[row]);
                    if part.contains(&class) {
                        let p = dx[class - from];
                        dx[class - from] = p - (1.0 - ce.label_smoothing) * dloss[row];
                    }
                });
            }
        }
    });
}

#[cfg(test)]
#[path = "test_loss.rs"]
mod tests;
