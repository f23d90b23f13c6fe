//! Reductions whose kept axes are the contiguous ones in memory: rows of kept elements are added up.
use super::fold::{self, Fold};
use super::{Reduce, Shared};
use crate::exec::code::{CHUNK, Frame};
use crate::exec::cx::Cx;
use crate::exec::view::{Arg, Block};
use crate::par;
use bimetal_tensor::Shape;
use bimetal_tensor::plan::{Fused, Instr};

/// Rows added one after the other; their sums combine as a tree.
const ROWS: usize = 128;
/// Elements of a task, about.
const TASK: usize = 32 * 1024;

/// The domain as `[outer, reduced, inner]`.
pub(super) struct Columns {
    /// The axes in this order.
    pub(super) order: Vec<usize>,
    outer: usize,
    inner: usize,
}

impl Columns {
    /// The axes' order if most inputs are contiguous along kept axes and not along reduced ones.
    pub(super) fn choose(domain: &Shape, kept: usize, fused: &Fused) -> Option<Columns> {
        let random = |i: &Instr| matches!(i, Instr::Random { .. });
        // Random elements are numbered in the order of the domain.
        if fused.program.instrs.iter().any(random) || domain.numel() == 0 {
            return None;
        }
        let last = |range: std::ops::Range<usize>| range.rev().find(|i| domain[*i] > 1);
        let (k, r) = (last(0..kept)?, last(kept..domain.rank())?);
        let along = |axis: usize| fused.inputs.iter().filter(|a| a.strides[axis] == 1).count();
        if along(k) <= along(r) {
            return None;
        }
        let first = fused.inputs.iter().find(|a| a.strides[k] == 1)?;
        let (mut from, mut next) = (k, domain[k] as isize);
        while from > 0 && (domain[from - 1] == 1 || first.strides[from - 1] == next) {
            from -= 1;
            next *= domain[from] as isize;
        }
        let order = (0..from)
            .chain(kept..domain.rank())
            .chain(from..kept)
            .collect();
        Some(Columns {
            order,
            outer: domain[..from].iter().product(),
            inner: domain[from..kept].iter().product(),
        })
    }
}

impl Reduce {
    pub(super) fn run_columns<T: Fold>(&self, c: &Columns, cx: &Cx<'_>) {
        let (len, inner) = (self.len, c.inner);
        let width = match inner <= CHUNK {
            true => inner,
            false => inner.div_ceil(inner.div_ceil(CHUNK)).next_multiple_of(16).min(CHUNK),
        };
        let (parts, strips) = (par::pieces(len, ROWS), par::pieces(inner, width));
        // Parts of one strip that a task adds up, each on its own.
        let together = (TASK / (ROWS * width)).clamp(1, parts.max(1));
        let groups = par::pieces(parts, together);
        // `[part, kept]`
        let mut sums = vec![T::identity(self.op); parts.max(1) * self.kept];
        let out = Shared(sums.as_mut_ptr());
        par::for_each(c.outer * groups * strips, |t| {
            let (strip, t) = (t % strips, t / strips);
            let (group, outer) = (t % groups, t / groups);
            let cols = par::piece(inner, width, strip);
            let mut frame = Frame::new(&self.prologue, cx);
            let mut spare = Vec::new();
            for part in par::piece(parts, together, group) {
                let at = part * self.kept + outer * inner + cols.start;
                // SAFETY: each task has its own strip of its own parts.
                let acc = unsafe { std::slice::from_raw_parts_mut(out.at(at), cols.len()) };
                let rows = par::piece(len, ROWS, part);
                let many = CHUNK / cols.len();
                for row in rows.clone().step_by(many) {
                    let count = many.min(rows.end - row);
                    let start = (outer * len + row) * inner + cols.start;
                    let b = Block::matrix(start, count, cols.len(), inner);
                    // SAFETY: the block lies in the permuted domain; the prologue gives values of type `T`.
                    let v = unsafe {
                        let v = frame.value(&b, Arg::NONE, 0);
                        fold::values::<T>(v, b.len(), &mut spare)
                    };
                    fold::rows(self.op, acc, v);
                }
            }
        });
        let out = Shared(sums.as_mut_ptr());
        par::for_each(par::pieces(self.kept, CHUNK), |t| {
            let cols = par::piece(self.kept, CHUNK, t);
            // SAFETY: each task has its own columns; both slices are of different parts.
            let column = |part: usize| unsafe {
                std::slice::from_raw_parts_mut(out.at(part * self.kept + cols.start), cols.len())
            };
            let mut s = 1;
            while s < parts {
                for i in (0..parts - s).step_by(2 * s) {
                    fold::rows(self.op, column(i), column(i + s));
                }
                s *= 2;
            }
            self.finish(&mut Frame::new(&self.epilogue, cx), cols.start, column(0));
        });
    }
}
