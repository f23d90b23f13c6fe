//! Reductions whose kept axes are the contiguous ones in memory: rows of kept elements are added up, each element in the same order
//! as if its row were reduced alone, so that the choice never shows in the bits.
use super::fold::{self, Fold, LANES};
use super::{Reduce, Shared, TASK};
use crate::exec::code::CHUNK;
use crate::exec::cx::Cx;
use crate::exec::frame::Frame;
use crate::exec::view::{Arg, Block};
use bimetal_kernels::par;
use bimetal_tensor::Shape;
use bimetal_tensor::plan::{Fused, Instr};

/// Columns of a strip: with all lanes they stay in the L1 cache.
const WIDTH: usize = 128;

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
        let width = match inner <= WIDTH {
            true => inner,
            false => inner
                .div_ceil(inner.div_ceil(WIDTH))
                .next_multiple_of(16)
                .min(WIDTH),
        };
        let (parts, strips) = (par::pieces(len, CHUNK), par::pieces(inner, width));
        // `[part, kept]`
        let mut sums = vec![T::identity(self.op); parts.max(1) * self.kept];
        let out = Shared(sums.as_mut_ptr());
        // Short reductions: several outer rows a task.
        let units = c.outer * parts;
        let together = (TASK / (len.min(CHUNK) * width).max(1)).clamp(1, units.max(1));
        par::for_each(par::pieces(units, together) * strips, |t| {
            let (strip, t) = (t % strips, t / strips);
            let cols = par::piece(inner, width, strip);
            let mut frame = Frame::new(&self.prologue, cx);
            let mut spare = Vec::new();
            let mut lanes = vec![T::ZERO; LANES.min(len) * cols.len()];
            for unit in par::piece(units, together, t) {
                let (part, outer) = (unit % parts, unit / parts);
                lanes.fill(T::identity(self.op));
                let rows = par::piece(len, CHUNK, part);
                if let Some(view) = self.prologue.bare_load() {
                    let at = view.offset + (outer * len + rows.start) * inner + cols.start;
                    let all = (rows.len() - 1) * inner + cols.len();
                    // SAFETY: these rows of the operand up to the last column wanted; its elements are of type `T`.
                    let v = unsafe {
                        let ptr = view.at(cx.ptr(view.buf), at as isize);
                        std::slice::from_raw_parts(ptr.cast_const().cast::<T>(), all)
                    };
                    fold::lane_rows(self.op, &mut lanes, cols.len(), 0, v, inner);
                    self.keep(c, &mut lanes, &cols, [part, outer], &out);
                    continue;
                }
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
                    let width = cols.len();
                    fold::lane_rows(self.op, &mut lanes, width, row - rows.start, v, width);
                }
                self.keep(c, &mut lanes, &cols, [part, outer], &out);
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

    /// Combines the lanes of a strip of columns and keeps the sums of this part.
    fn keep<T: Fold>(
        &self,
        c: &Columns,
        lanes: &mut [T],
        cols: &std::ops::Range<usize>,
        [part, outer]: [usize; 2],
        out: &Shared<T>,
    ) {
        fold::lane_tree(self.op, lanes, cols.len());
        let at = part * self.kept + outer * c.inner + cols.start;
        // SAFETY: each task has its own strip of its own parts.
        let sum = unsafe { std::slice::from_raw_parts_mut(out.at(at), cols.len()) };
        sum.copy_from_slice(&lanes[..cols.len()]);
    }
}
