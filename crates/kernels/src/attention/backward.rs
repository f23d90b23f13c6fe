//! The backward pass: one task for a range of keys of one head, which visits all queries in order.
//!
//! A task finishes dk and dv of its keys. Of dq it has a part, in f32; the parts are added up in the
//! order of the keys when all tasks are done.

use super::panels::{Left, Packed, Rows, multiply};
use super::rows::{Block, LANES, dot, softmax_grad};
use super::{Attention, Heads, HeadsMut, KEYS, QUERIES, bias, part, row_stride, visible};
use crate::gemm::{Dst, Isa, Level, Operand, Real, Scratch, by_level, store_rows};
use crate::par;
use bimetal_dtype::DType;
use std::ops::Range;

/// Heads from which keys are not split among tasks.
const HEADS: usize = 16;
/// Parts of the keys at most.
const PARTS: usize = 8;

/// What the backward pass reads.
pub struct Inputs {
    pub q: Heads,
    pub k: Heads,
    pub v: Heads,
    pub y: Heads,
    pub dy: Heads,
}

/// # Safety
/// As [`attention_grad`](super::attention_grad).
pub unsafe fn run(
    level: Level,
    spec: &Attention<'_>,
    inputs: &Inputs,
    lse: *const f32,
    [dq, dk, dv]: [HeadsMut; 3],
) {
    let heads = spec.batch * spec.heads;
    if heads == 0 || spec.d == 0 {
        return;
    }
    let blocks = spec.tk.div_ceil(KEYS).max(1);
    let parts = (HEADS / heads).clamp(1, PARTS).min(blocks);
    let part_keys = blocks.div_ceil(parts) * KEYS;
    let parts = spec.tk.div_ceil(part_keys).max(1);
    let len = spec.tq * spec.d;
    let sums = Scratch::take::<f32>(heads * parts * len);
    let (sums, lse) = (Dst(sums.ptr::<f32>()), Dst(lse.cast_mut()));
    par::for_each(heads * parts, |task| {
        let (head, part) = (task / parts, task % parts);
        let keys = part * part_keys..((part + 1) * part_keys).min(spec.tk);
        let task = Task {
            level,
            spec,
            inputs,
            head,
            keys,
            lse: lse.at(head * spec.tq),
        };
        // SAFETY: each task has its own keys of dk and dv and its own part of dq.
        par::serial(|| unsafe { task.run(sums.at((head * parts + part) * len), dk, dv) });
    });
    par::for_each(heads, |head| {
        let (batch, h) = (head / spec.heads, head % spec.heads);
        // SAFETY: each task has its own head.
        unsafe {
            let all = std::slice::from_raw_parts_mut(sums.at(head * parts * len), parts * len);
            let (sum, others) = all.split_at_mut(len);
            for other in others.chunks(len.max(1)) {
                for (a, b) in sum.iter_mut().zip(other) {
                    *a += b;
                }
            }
            let to = dq.at(batch, h, 0);
            store_rows::<f32>(
                level,
                sum.as_ptr(),
                spec.tq,
                spec.d,
                spec.d,
                to,
                dq.row_bytes(),
                dq.dtype,
            );
        }
    });
}

struct Task<'a> {
    level: Level,
    spec: &'a Attention<'a>,
    inputs: &'a Inputs,
    /// Number among all heads of all sequences.
    head: usize,
    keys: Range<usize>,
    /// Of this head.
    lse: *const f32,
}

impl Task<'_> {
    /// # Safety
    /// `dq` has room for `[tq, d]`; see [`run`].
    unsafe fn run(&self, dq: *mut f32, dk: HeadsMut, dv: HeadsMut) {
        let (spec, level, d) = (self.spec, self.level, self.spec.d);
        let (batch, head) = (self.head / spec.heads, self.head % spec.heads);
        // SAFETY: `dq` has room for this; zero bits are the number 0.
        unsafe { std::ptr::write_bytes(dq, 0, spec.tq * d) };
        let dots = Scratch::take::<f32>(spec.tq);
        // SAFETY: the queries of this head.
        let (q, dy, dots) = unsafe {
            let Inputs { q, y, dy, .. } = self.inputs;
            let all = |of| Rows::new(level, of, [batch, head, 0], spec.tq, d);
            let (q, dy, y) = (all(q), all(dy), all(y));
            let dots = std::slice::from_raw_parts_mut(dots.ptr::<f32>(), spec.tq);
            row_dots(level, &y.left, &dy.left, d, dots);
            (q, dy, &*dots)
        };
        for first in self.keys.clone().step_by(KEYS) {
            let keys = first..(first + KEYS).min(self.keys.end);
            let sums = [
                Scratch::zeros(keys.len() * d),
                Scratch::zeros(keys.len() * d),
            ];
            // SAFETY: the sums have room for these keys.
            unsafe { self.block(&keys, q.left, dy.left, dots, dq, [&sums[0], &sums[1]]) };
            for (sum, to) in sums.iter().zip([dk, dv]) {
                let dst = to.at(batch, head, first);
                let (rows, bytes) = (keys.len(), to.row_bytes());
                // SAFETY: some keys of this task.
                unsafe { store_rows::<f32>(level, sum.ptr(), rows, d, d, dst, bytes, to.dtype) };
            }
        }
    }

    /// What all queries contribute to the sums of some keys, and these to dq.
    ///
    /// # Safety
    /// As [`Task::run`]; `q` and `dy` are those of all queries.
    unsafe fn block(
        &self,
        keys: &Range<usize>,
        q: Left,
        dy: Left,
        dots: &[f32],
        dq: *mut f32,
        [sum_k, sum_v]: [&Scratch; 2],
    ) {
        let (spec, level, d) = (self.spec, self.level, self.spec.d);
        let (batch, head) = (self.head / spec.heads, self.head % spec.heads);
        let family = f32::family(level);
        let (step, ld) = (part(spec.tq.min(QUERIES)), row_stride(keys.len()));
        let (scores, grads) = (Scratch::zeros(step * ld), Scratch::zeros(step * ld));
        let factors = spec.dropout.map(|_| Scratch::zeros(step * ld));
        let mut mask = [0.0; KEYS];
        let masked = bias(spec, batch, keys.clone(), &mut mask);
        let Inputs { k, v, .. } = self.inputs;
        let (k, v) = (
            k.matrix(batch, head, keys.start),
            v.matrix(batch, head, keys.start),
        );
        // SAFETY: the matrices have these sizes.
        let (k_turned, v_turned, k) = unsafe {
            (
                Packed::new(level, &k.transposed(), d, keys.len()),
                Packed::new(level, &v.transposed(), d, keys.len()),
                Packed::new(level, &k, keys.len(), d),
            )
        };
        for first in (0..spec.tq).step_by(step) {
            let queries = first..(first + step).min(spec.tq);
            let count = queries.len();
            let seen = visible(spec, queries.clone(), keys);
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
            let factors = self.factors(first, keys.start, &block, factors.as_ref());
            let wanted = |rows: Range<usize>, at: Range<usize>| {
                let seen = seen[rows.end - 1].next_multiple_of(LANES);
                0..if at.start < seen { d } else { 0 }
            };
            // The queries of the part that see any key from `keys.start` on.
            let seers = |keys: Range<usize>, _: Range<usize>| {
                seen.partition_point(|n| *n <= keys.start)..count
            };
            let (q, dy) = (q.rows_from(first), dy.rows_from(first));
            let turned = |ptr: *mut f32| Left {
                ptr,
                stride: ld,
                turned: true,
            };
            // SAFETY: the matrices have these sizes, the scratch room for a part.
            unsafe {
                let (s, g) = (scores.ptr::<f32>(), grads.ptr::<f32>());
                multiply(&family, count, q, &k_turned, s, ld, false, wanted);
                multiply(&family, count, dy, &v_turned, g, ld, false, wanted);
                let lse = std::slice::from_raw_parts(self.lse.add(first), count);
                softmax_grad(level, &block, g, lse, &dots[queries], factors);
                let packed = |of: Left| Packed::new(level, &dense(of.ptr, of.stride), count, d);
                let (dy, q) = (packed(dy), packed(q));
                multiply(&family, cols, turned(s), &dy, sum_v.ptr(), d, true, seers);
                multiply(&family, cols, turned(g), &q, sum_k.ptr(), d, true, seers);
                let ds = Left {
                    ptr: g,
                    stride: ld,
                    turned: false,
                };
                let dq = dq.add(first * d);
                multiply(&family, count, ds, &k, dq, d, true, |rows, _| {
                    0..seen[rows.end - 1]
                });
            }
        }
    }

    /// The dropout factors of a part.
    fn factors<'s>(
        &self,
        query: usize,
        key: usize,
        block: &Block<'_>,
        scratch: Option<&'s Scratch>,
    ) -> Option<&'s [f32]> {
        let (dropout, scratch) = (self.spec.dropout?, scratch?);
        let len = block.seen.len() * block.ld;
        // SAFETY: the scratch has the values of a part and is not read while it is filled.
        let all = unsafe { std::slice::from_raw_parts_mut(scratch.ptr::<f32>(), len) };
        for (row, &seen) in block.seen.iter().enumerate() {
            let query = self.head * self.spec.tq + query + row;
            dropout(query, key, &mut all[row * block.ld..][..seen]);
        }
        Some(all)
    }
}

/// A row-major f32 matrix.
fn dense(ptr: *const f32, ld: usize) -> Operand<'static> {
    Operand {
        ptr: ptr.cast(),
        dtype: DType::F32,
        round_to: None,
        row_stride: ld as isize,
        col_stride: 1,
        offsets: &[0],
    }
}

by_level!(
    /// `out[i] = sum over j of a[i, j] * b[i, j]`, rows of `d`.
    fn row_dots(a: &Left, b: &Left, d: usize, out: &mut [f32]) = row_dots_body
);

#[inline(always)]
unsafe fn row_dots_body<I: Isa>(a: &Left, b: &Left, d: usize, out: &mut [f32]) {
    for (row, out) in out.iter_mut().enumerate() {
        // SAFETY: row `row` of both.
        let (a, b) = unsafe {
            (
                std::slice::from_raw_parts(a.ptr.add(row * a.stride), d),
                std::slice::from_raw_parts(b.ptr.add(row * b.stride), d),
            )
        };
        *out = dot::<I>(a, b);
    }
}
