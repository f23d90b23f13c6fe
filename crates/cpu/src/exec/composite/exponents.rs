//! Exponents of elements counted in one pass, sums in the order of the decomposition.
use crate::exec::convert;
use crate::exec::cx::{Compile, Cx, Kernel, Operand};
use crate::exec::reduce::fold;
use bimetal_kernels::par;
use bimetal_tensor::graph::{EXPONENT_BINS, ReduceOp, RoundingLimits, exponent_bin};
use bimetal_tensor::{DType, ErrorKind, Result};
use std::sync::{Mutex, PoisonError};

/// Elements summed as one run, and runs of a task.
const RUN: usize = crate::exec::code::CHUNK;
const RUNS: usize = 16;

/// Counts by sign and exponent, what rounding loses, and moments.
pub(crate) struct Exponents {
    limits: RoundingLimits,
    input: Operand,
    /// I32 `[2, EXPONENT_BINS]`, I32 `[3]`, F32 `[5]`.
    outputs: [Option<usize>; 3],
}

/// What one task found.
struct Part {
    /// Two rows of bins.
    counts: Vec<i32>,
    lost: [i32; 3],
    extremes: [f32; 2],
    sums: [f32; 3],
}

impl Exponents {
    pub(crate) fn new(
        to: DType,
        x: Vec<Operand>,
        y: Vec<Option<Operand>>,
        cx: &Compile<'_>,
    ) -> Result<Exponents> {
        let want = [
            (DType::I32, 2 * EXPONENT_BINS),
            (DType::I32, 3),
            (DType::F32, 5),
        ];
        let [input] = <[Operand; 1]>::try_from(x).map_err(|x| {
            let text = format!("{} operands of an exponent histogram", x.len());
            bimetal_tensor::Error::other("compile", text)
        })?;
        cx.check(
            y.len() == 3
                && y.iter().zip(want).all(|(d, (dtype, n))| {
                    d.as_ref().is_none_or(|d| d.dtype == dtype && d.numel == n)
                })
                && input.dtype.is_float()
                && input.dtype != DType::F64,
            "operand or results of an exponent histogram have wrong dtypes",
        )?;
        let buf = |i: usize| y[i].as_ref().map(|d| d.buf);
        Ok(Exponents {
            limits: RoundingLimits::of(to),
            outputs: [buf(0), buf(1), buf(2)],
            input,
        })
    }

    fn count(&self, part: &mut Part, values: &mut [f32]) {
        let l = &self.limits;
        let [low, high] = &mut part.extremes;
        for v in values {
            let (x, a) = (*v, v.abs());
            let row = if x < 0.0 { EXPONENT_BINS } else { 0 };
            part.counts[row + exponent_bin(x)] += 1;
            if !x.is_finite() {
                *v = 0.0;
                continue;
            }
            part.lost[0] += (a > 0.0 && a <= l.zero_to) as i32;
            part.lost[1] += (a > l.zero_to && a < l.subnormal_below) as i32;
            part.lost[2] += (a >= l.overflow_from) as i32;
            *low = low.min(x);
            *high = high.max(x);
        }
    }
}

impl Part {
    fn new() -> Part {
        Part {
            counts: vec![0; 2 * EXPONENT_BINS],
            lost: [0; 3],
            extremes: [f32::INFINITY, f32::NEG_INFINITY],
            sums: [0.0; 3],
        }
    }
}

impl Kernel for Exponents {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let d = &self.input;
        let runs = par::pieces(d.numel, RUN);
        let tasks = runs.div_ceil(RUNS);
        let parts = Mutex::new((0..tasks).map(|_| None).collect::<Vec<Option<Part>>>());
        par::for_each(tasks, |t| {
            let mut part = Part::new();
            let mut sums: [Vec<f32>; 3] = Default::default();
            let (mut values, mut other) = ([0.0f32; RUN], [0.0f32; RUN]);
            for r in t * RUNS..((t + 1) * RUNS).min(runs) {
                let range = par::piece(d.numel, RUN, r);
                let src = cx.ptr(d.buf).wrapping_add(range.start * d.dtype.size());
                let v = &mut values[..range.len()];
                // SAFETY: the range lies in the operand.
                unsafe { convert::load(d.dtype, src, 1, v.len(), v.as_mut_ptr().cast()) };
                self.count(&mut part, v);
                let other = &mut other[..v.len()];
                sums[0].push(fold::run(ReduceOp::Sum, v));
                other.iter_mut().zip(&*v).for_each(|(o, x)| *o = x.abs());
                sums[1].push(fold::run(ReduceOp::Sum, other));
                other.iter_mut().zip(&*v).for_each(|(o, x)| *o = x * x);
                sums[2].push(fold::run(ReduceOp::Sum, other));
            }
            for (sum, parts) in part.sums.iter_mut().zip(&mut sums) {
                *sum = fold::tree(ReduceOp::Sum, parts);
            }
            parts.lock().unwrap_or_else(PoisonError::into_inner)[t] = Some(part);
        });
        let mut all = Part::new();
        let mut sums: [Vec<f32>; 3] = Default::default();
        let parts = parts.into_inner().unwrap_or_else(PoisonError::into_inner);
        for part in parts.into_iter().flatten() {
            for (to, from) in all.counts.iter_mut().zip(&part.counts) {
                *to += from;
            }
            for (to, from) in all.lost.iter_mut().zip(&part.lost) {
                *to += from;
            }
            all.extremes[0] = all.extremes[0].min(part.extremes[0]);
            all.extremes[1] = all.extremes[1].max(part.extremes[1]);
            for (to, from) in sums.iter_mut().zip(part.sums) {
                to.push(from);
            }
        }
        let mut moments = [all.extremes[0], all.extremes[1], 0.0, 0.0, 0.0];
        for (to, parts) in moments[2..].iter_mut().zip(&mut sums) {
            *to = fold::tree(ReduceOp::Sum, parts);
        }
        // SAFETY: buffers of these lengths and dtypes, which were checked, and which nobody else writes.
        unsafe {
            let copy = |buf: Option<usize>, from: *const u8, bytes: usize| {
                if let Some(b) = buf {
                    std::ptr::copy_nonoverlapping(from, cx.ptr(b), bytes);
                }
            };
            let [counts, lost, sums] = self.outputs;
            copy(counts, all.counts.as_ptr().cast(), all.counts.len() * 4);
            copy(lost, all.lost.as_ptr().cast(), 12);
            copy(sums, moments.as_ptr().cast(), 20);
        }
        Ok(())
    }

    fn work(&self) -> usize {
        8 * self.input.numel
    }
}
