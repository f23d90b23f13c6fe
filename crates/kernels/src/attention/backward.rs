//! The backward pass: one task for a range of keys of one head, which visits all queries in order.
//!
//! A task finishes dk and dv of its keys. Of dq it has a part, in f32; the parts are added up in the
//! order of the keys when all tasks are done.

use super::forward::{dense, product, visible};
use super::rows::{Block, dots, softmax_grad};
use super::{Attention, Heads, HeadsMut, KEYS, QUERIES, bias};
use crate::gemm::{Dst, Isa, Level, Scratch, by_level, store_rows};
use crate::par;
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

/// Scratch filled with zeros.
fn zeros(len: usize) -> Scratch {
    let scratch = Scratch::take::<f32>(len);
    // SAFETY: it has room for these; zero bits are the number 0.
    unsafe { std::ptr::write_bytes(scratch.ptr::<f32>(), 0, len) };
    scratch
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
        let (spec, d) = (self.spec, self.spec.d);
        let (batch, head) = (self.head / spec.heads, self.head % spec.heads);
        let len = self.keys.len() * d;
        let (sum_k, sum_v) = (zeros(len), zeros(len));
        // SAFETY: `dq` has room for this; zero bits are the number 0.
        unsafe { std::ptr::write_bytes(dq, 0, spec.tq * d) };
        for first in (0..spec.tq).step_by(QUERIES) {
            let queries = first..(first + QUERIES).min(spec.tq);
            // SAFETY: a block of queries; the sums have room for all keys of this task.
            unsafe { self.block(queries, dq, sum_k.ptr(), sum_v.ptr()) };
        }
        for (sum, to) in [(&sum_k, dk), (&sum_v, dv)] {
            let dst = to.at(batch, head, self.keys.start);
            let (rows, bytes) = (self.keys.len(), to.row_bytes());
            // SAFETY: the keys of this task.
            unsafe { store_rows::<f32>(self.level, sum.ptr(), rows, d, d, dst, bytes, to.dtype) };
        }
    }

    /// Adds what a block of queries contributes.
    ///
    /// # Safety
    /// As [`Task::run`]; the sums are those of the task's keys.
    unsafe fn block(&self, queries: Range<usize>, dq: *mut f32, sum_k: *mut f32, sum_v: *mut f32) {
        let (spec, level, d, rows) = (self.spec, self.level, self.spec.d, queries.len());
        let (batch, head) = (self.head / spec.heads, self.head % spec.heads);
        let last = spec.visible(queries.end - 1).min(self.keys.end);
        if last <= self.keys.start {
            return;
        }
        let Inputs { q, k, v, y, dy } = self.inputs;
        let (scores, grads) = (
            Scratch::take::<f32>(QUERIES * KEYS),
            Scratch::take::<f32>(QUERIES * KEYS),
        );
        let factors = spec.dropout.map(|_| zeros(QUERIES * KEYS));
        let mut mask = [0.0; KEYS];
        // SAFETY: rows of this head.
        let (lse, dot) = unsafe {
            let lse = std::slice::from_raw_parts(self.lse.add(queries.start), rows);
            (lse, self.row_dots(&queries, y, dy))
        };
        let (q, dy) = (
            q.matrix(batch, head, queries.start),
            dy.matrix(batch, head, queries.start),
        );
        for first in (self.keys.start..last).step_by(KEYS) {
            let keys = first..(first + KEYS).min(last);
            let cols = keys.len();
            let (k, v) = (k.matrix(batch, head, first), v.matrix(batch, head, first));
            let seen = visible(spec, queries.clone(), &keys);
            let block = Block {
                scores: scores.ptr(),
                ld: KEYS,
                cols,
                scale: spec.scale,
                seen: &seen[..rows],
                bias: bias(spec, batch, keys, &mut mask).then_some(&mask[..]),
            };
            let factors = self.factors(&queries, first, &block, factors.as_ref());
            let at = (first - self.keys.start) * d;
            // SAFETY: the matrices have these sizes, the scratch room for a block.
            unsafe {
                let (s, g) = (scores.ptr::<f32>(), grads.ptr::<f32>());
                product(level, rows, cols, d, q, k.transposed(), s, KEYS, false);
                product(level, rows, cols, d, dy, v.transposed(), g, KEYS, false);
                softmax_grad(level, &block, g, lse, &dot[..rows], factors);
                let (p, ds) = (dense(s, KEYS), dense(g, KEYS));
                product(
                    level,
                    cols,
                    d,
                    rows,
                    p.transposed(),
                    dy,
                    sum_v.add(at),
                    d,
                    true,
                );
                product(
                    level,
                    cols,
                    d,
                    rows,
                    ds.transposed(),
                    q,
                    sum_k.add(at),
                    d,
                    true,
                );
                product(
                    level,
                    rows,
                    d,
                    cols,
                    ds,
                    k,
                    dq.add(queries.start * d),
                    d,
                    true,
                );
            }
        }
    }

    /// The dropout factors of a block.
    fn factors<'s>(
        &self,
        queries: &Range<usize>,
        first: usize,
        block: &Block<'_>,
        scratch: Option<&'s Scratch>,
    ) -> Option<&'s [f32]> {
        let (dropout, scratch) = (self.spec.dropout?, scratch?);
        // SAFETY: the scratch has a block of values and is not read while it is filled.
        let all = unsafe { std::slice::from_raw_parts_mut(scratch.ptr::<f32>(), QUERIES * KEYS) };
        for (row, &seen) in block.seen.iter().enumerate() {
            let query = self.head * self.spec.tq + queries.start + row;
            dropout(query, first, &mut all[row * KEYS..][..seen]);
        }
        Some(all)
    }

    /// `dy . y` of some queries.
    ///
    /// # Safety
    /// Rows of this head.
    unsafe fn row_dots(&self, queries: &Range<usize>, y: &Heads, dy: &Heads) -> [f32; QUERIES] {
        let (batch, head) = (self.head / self.spec.heads, self.head % self.spec.heads);
        let (rows, d) = (queries.len(), self.spec.d);
        let copies = Scratch::take::<f32>(2 * rows * d);
        let mut out = [0.0; QUERIES];
        // SAFETY: rows of this head; the scratch has room for two copies.
        unsafe {
            let all = copies.ptr::<f32>();
            load(
                self.level,
                y,
                y.at(batch, head, queries.start),
                rows,
                d,
                all,
            );
            load(
                self.level,
                dy,
                dy.at(batch, head, queries.start),
                rows,
                d,
                all.add(rows * d),
            );
            let all = std::slice::from_raw_parts(all, 2 * rows * d);
            let (y, dy) = all.split_at(rows * d);
            dots(self.level, y, dy, d, &mut out[..rows]);
        }
        out
    }
}

by_level!(
    /// Loads rows of `d` elements.
    fn load(from: &Heads, src: *const u8, rows: usize, d: usize, dst: *mut f32) = load_body
);

#[inline(always)]
unsafe fn load_body<I: Isa>(from: &Heads, src: *const u8, rows: usize, d: usize, dst: *mut f32) {
    let bytes = from.strides[2] * from.dtype.size() as isize;
    for row in 0..rows {
        // SAFETY: row `row` of both.
        unsafe {
            let src = src.wrapping_offset(row as isize * bytes);
            from.elements().load::<I, f32>(src, 1, d, dst.add(row * d));
        }
    }
}
