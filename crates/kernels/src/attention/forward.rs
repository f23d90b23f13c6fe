//! The forward pass: one task for a block of queries of one head.

use super::rows::{Block, Running, normalize, softmax};
use super::{Attention, Heads, HeadsMut, KEYS, QUERIES, bias};
use crate::gemm::{Dense, Dst, Level, Operand, Product, Scratch, store_rows};
use crate::par;
use bimetal_dtype::DType;
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
    let scores = Scratch::take::<f32>(QUERIES * KEYS);
    let values = Scratch::take::<f32>(rows * d);
    let (mut top, mut sum) = ([f32::NEG_INFINITY; QUERIES], [0.0; QUERIES]);
    let (mut mask, mut factors) = ([0.0; KEYS], [0.0; KEYS]);
    let mut running = Running {
        top: &mut top[..rows],
        sum: &mut sum[..rows],
        values: values.ptr(),
        d,
    };
    // SAFETY: the scratch has room for these; zero bits are the number 0.
    unsafe { std::ptr::write_bytes(running.values, 0, rows * d) };
    let queries_of = q.matrix(batch, head, queries.start);
    let last = spec.visible(queries.end - 1);
    for first in (0..last).step_by(KEYS) {
        let keys = first..(first + KEYS).min(last);
        let cols = keys.len();
        let k = k.matrix(batch, head, first).transposed();
        // SAFETY: the matrices have these sizes.
        unsafe {
            product(
                level,
                rows,
                cols,
                d,
                queries_of,
                k,
                scores.ptr(),
                KEYS,
                false,
            )
        };
        let seen = visible(spec, queries.clone(), &keys);
        let block = Block {
            scores: scores.ptr(),
            ld: KEYS,
            cols,
            scale: spec.scale,
            seen: &seen[..rows],
            bias: bias(spec, batch, keys, &mut mask).then_some(&mask[..]),
        };
        // SAFETY: the block has these rows, and the processor the level.
        unsafe { softmax(level, &block, &mut running) };
        if let Some(dropout) = spec.dropout {
            for (row, &seen) in block.seen.iter().enumerate() {
                dropout(
                    index * spec.tq + queries.start + row,
                    first,
                    &mut factors[..seen],
                );
                // SAFETY: row `row` of the block.
                let p =
                    unsafe { std::slice::from_raw_parts_mut(block.scores.add(row * KEYS), seen) };
                for (p, factor) in p.iter_mut().zip(&factors) {
                    *p *= factor;
                }
            }
        }
        let p = dense(block.scores, KEYS);
        let v = v.matrix(batch, head, first);
        // SAFETY: the matrices have these sizes.
        unsafe { product(level, rows, d, cols, p, v, running.values, d, true) };
    }
    // SAFETY: the rows of this task.
    unsafe {
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

/// Keys of a block that each query of a block sees.
pub fn visible(
    spec: &Attention<'_>,
    queries: Range<usize>,
    keys: &Range<usize>,
) -> [usize; QUERIES] {
    let mut seen = [0; QUERIES];
    for (seen, query) in seen.iter_mut().zip(queries) {
        *seen = spec
            .visible(query)
            .saturating_sub(keys.start)
            .min(keys.len());
    }
    seen
}

/// A row-major f32 matrix.
pub fn dense(ptr: *const f32, ld: usize) -> Operand<'static> {
    Operand {
        ptr: ptr.cast(),
        dtype: DType::F32,
        round_to: None,
        row_stride: ld as isize,
        col_stride: 1,
        offsets: &[0],
    }
}

/// `C (+)= A B` in f32.
///
/// # Safety
/// The matrices have these sizes, C its own memory.
pub unsafe fn product(
    level: Level,
    m: usize,
    n: usize,
    k: usize,
    a: Operand<'_>,
    b: Operand<'_>,
    c: *mut f32,
    ld: usize,
    add: bool,
) {
    let out = Dense {
        ptr: c.cast(),
        dtype: DType::F32,
        row_stride: ld,
        batch_stride: 0,
    };
    Product::<f32> {
        level,
        batch: 1,
        m,
        n,
        k,
        a: &a,
        b: &b,
        out: &out,
        add,
    }
    .run();
}
