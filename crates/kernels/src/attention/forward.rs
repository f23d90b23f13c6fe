//! The forward pass: one task for a block of queries of one head.

use super::panels::{Left, Packed, Rows, multiply};
use super::rows::{Block, LANES, Running, normalize, softmax};
use super::{Attention, Heads, HeadsMut, KEYS, QUERIES, bias, part, row_stride, visible};
use crate::gemm::{Dst, Level, Real, Scratch, store_rows};
use crate::par;
use std::ops::Range;

/// Multiply-adds that are worth a task.
const TASK: usize = 1 << 18;

/// # Safety
/// As [`attention`](super::attention).
pub unsafe fn run(
    level: Level,
    spec: &Attention<'_>,
    inputs: [Heads; 3],
    y: HeadsMut,
    lse: *mut f32,
) {
    let blocks = spec.tq.div_ceil(QUERIES);
    let tasks = spec.batch * spec.heads * blocks;
    let work = 2 * spec.tq.min(QUERIES) * spec.tk * spec.d;
    let together = TASK / work.max(1) + 1;
    let lse = Dst(lse);
    par::for_each(par::pieces(tasks, together), |t| {
        for task in par::piece(tasks, together, t) {
            let (head, first) = (task / blocks, task % blocks * QUERIES);
            let queries = first..(first + QUERIES).min(spec.tq);
            let lse = lse.at(head * spec.tq + first);
            // SAFETY: each task has its own queries.
            par::serial(|| unsafe { block(level, spec, &inputs, head, queries, y, lse) });
        }
    });
}

/// # Safety
/// As [`run`], for some queries of head `index` of all heads of all sequences.
unsafe fn block(
    level: Level,
    spec: &Attention<'_>,
    [q, k, v]: &[Heads; 3],
    index: usize,
    queries: Range<usize>,
    y: HeadsMut,
    lse: *mut f32,
) {
    let (batch, head) = (index / spec.heads, index % spec.heads);
    let (rows, d) = (queries.len(), spec.d);
    let family = f32::family(level);
    let (step, ld) = (part(rows), row_stride(spec.tk));
    let scores = Scratch::zeros(step * ld);
    let values = Scratch::zeros(rows * d);
    let (mut top, mut sum) = ([f32::NEG_INFINITY; QUERIES], [0.0; QUERIES]);
    let (mut mask, mut factors) = ([0.0; KEYS], [0.0; KEYS]);
    // SAFETY: the queries of this task.
    let q = unsafe { Rows::new(level, q, [batch, head, queries.start], rows, d) };
    let last = spec.visible(queries.end - 1);
    for first in (0..last).step_by(KEYS) {
        let keys = first..(first + KEYS).min(last);
        // SAFETY: the keys of this block.
        let (k, v) = unsafe {
            let (k, v) = (k.matrix(batch, head, first), v.matrix(batch, head, first));
            (
                Packed::new(level, &k.transposed(), d, keys.len()),
                Packed::new(level, &v, keys.len(), d),
            )
        };
        let masked = bias(spec, batch, keys.clone(), &mut mask);
        for start in (0..rows).step_by(step) {
            let count = step.min(rows - start);
            let query = queries.start + start;
            let seen = visible(spec, query..query + count, &keys);
            let seen = &seen[..count];
            let cols = seen[count - 1];
            if cols == 0 {
                continue;
            }
            let block = Block {
                scores: scores.ptr(),
                ld,
                cols,
                scale: spec.scale,
                seen,
                bias: masked.then_some(&mask[..]),
            };
            let mut running = Running {
                top: &mut top[start..start + count],
                sum: &mut sum[start..start + count],
                values: values.ptr::<f32>().wrapping_add(start * d),
                d,
            };
            // SAFETY: the matrices have these sizes, and the processor the level.
            unsafe {
                let q = q.left.rows_from(start);
                multiply(
                    &family,
                    count,
                    q,
                    &k,
                    block.scores,
                    ld,
                    false,
                    |rows, at| {
                        let seen = seen[rows.end - 1].next_multiple_of(LANES);
                        0..if at.start < seen { d } else { 0 }
                    },
                );
                softmax(level, &block, &mut running);
            }
            if let Some(dropout) = spec.dropout {
                for (row, &seen) in seen.iter().enumerate() {
                    let factors = &mut factors[..seen];
                    dropout(index * spec.tq + query + row, first, factors);
                    // SAFETY: row `row` of the block.
                    let p =
                        unsafe { std::slice::from_raw_parts_mut(block.scores.add(row * ld), seen) };
                    for (p, factor) in p.iter_mut().zip(factors) {
                        *p *= *factor;
                    }
                }
            }
            let p = Left {
                ptr: block.scores,
                stride: ld,
                turned: false,
            };
            // SAFETY: the matrices have these sizes.
            unsafe {
                multiply(&family, count, p, &v, running.values, d, true, |rows, _| {
                    0..seen[rows.end - 1]
                })
            };
        }
    }
    // SAFETY: the rows of this task.
    unsafe {
        let mut running = Running {
            top: &mut top[..rows],
            sum: &mut sum[..rows],
            values: values.ptr(),
            d,
        };
        normalize(level, &mut running);
        let to = y.at(batch, head, queries.start);
        store_rows::<f32>(
            level,
            running.values,
            rows,
            d,
            d,
            to,
            y.row_bytes(),
            y.dtype,
        );
        for (row, (top, sum)) in running.top.iter().zip(running.sum.iter()).enumerate() {
            let empty = *sum == 0.0;
            *lse.add(row) = if empty {
                f32::NEG_INFINITY
            } else {
                top + sum.ln()
            };
        }
    }
}
