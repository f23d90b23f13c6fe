//! Whether gradients are finite, their squared norm, and the first culprit, in one pass and in the order of the decomposition.
use crate::exec::convert;
use crate::exec::cx::{Compile, Cx, Kernel, Operand};
use crate::exec::reduce::fold;
use bimetal_kernels::par;
use bimetal_kernels::simd;
use bimetal_kernels::simd::isa::pick;
use bimetal_tensor::graph::ReduceOp;
use bimetal_tensor::{DType, ErrorKind, Result};
use std::sync::Mutex;
use std::sync::PoisonError;

/// Elements summed as one run, and runs of a task.
const RUN: usize = crate::exec::code::CHUNK;
const RUNS: usize = 16;

/// All-finite flag, sum of squares, number of the first operand that is not finite.
pub(crate) struct Stats {
    inputs: Vec<Operand>,
    /// Bool, F32, I32 scalars.
    outputs: [Option<usize>; 3],
    /// Operand and first run of each task.
    tasks: Vec<(usize, usize)>,
}

impl Stats {
    pub(crate) fn new(x: Vec<Operand>, y: Vec<Option<Operand>>, cx: &Compile<'_>) -> Result<Stats> {
        cx.check(
            y.len() == 3
                && y.iter()
                    .zip([DType::Bool, DType::F32, DType::I32])
                    .all(|(d, want)| d.as_ref().is_none_or(|d| d.dtype == want && d.numel == 1)),
            "results of gradient statistics have wrong dtypes",
        )?;
        cx.check(
            x.iter()
                .all(|d| d.dtype.is_float() && d.dtype != DType::F64),
            "an operand of gradient statistics is no float of at most 32 bits",
        )?;
        let mut tasks = Vec::new();
        for (i, d) in x.iter().enumerate() {
            tasks.extend((0..par::pieces(d.numel, RUN)).step_by(RUNS).map(|r| (i, r)));
        }
        let buf = |i: usize| y[i].as_ref().map(|d| d.buf);
        Ok(Stats {
            outputs: [buf(0), buf(1), buf(2)],
            inputs: x,
            tasks,
        })
    }
}

/// The squares of `src` to `dst`; whether all are finite.
fn squares(dst: &mut [f32], src: &[f32]) -> bool {
    let f = pick!(simd::simd_level(), fn(dst: &mut [f32], src: &[f32]) -> bool {
        let mut top = 0i32;
        for (d, x) in dst.iter_mut().zip(src) {
            *d = x * x;
            top = top.max((x.to_bits() & 0x7fff_ffff) as i32);
        }
        top < 0x7f80_0000
    });
    f(dst, src)
}

/// Whether all of `n` floats are finite, by their exponents: no arithmetic, for when the sum is not wanted.
///
/// # Safety
/// `src` points to `n` elements of `dtype`, aligned.
unsafe fn all_finite(dtype: DType, src: *const u8, n: usize) -> bool {
    /// The largest of the numbers without their signs.
    fn top32(x: &[u32]) -> u32 {
        let f = pick!(simd::simd_level(), fn(x: &[u32]) -> u32 {
            x.iter().fold(0, |top, x| top.max(x & 0x7fff_ffff))
        });
        f(x)
    }
    fn top16(x: &[u16]) -> u16 {
        let f = pick!(simd::simd_level(), fn(x: &[u16]) -> u16 {
            x.iter().fold(0, |top, x| top.max(x & 0x7fff))
        });
        f(x)
    }
    fn top8(x: &[u8]) -> u8 {
        x.iter().fold(0, |top, x| top.max(x & 0x7f))
    }
    // SAFETY: as the caller promises; all bit patterns are numbers.
    unsafe {
        match dtype {
            DType::F16 => top16(std::slice::from_raw_parts(src.cast(), n)) < 0x7c00,
            DType::BF16 => top16(std::slice::from_raw_parts(src.cast(), n)) < 0x7f80,
            DType::F8E5M2 => top8(std::slice::from_raw_parts(src, n)) < 0x7c,
            // Has no infinities.
            DType::F8E4M3 => top8(std::slice::from_raw_parts(src, n)) < 0x7f,
            _ => top32(std::slice::from_raw_parts(src.cast(), n)) < 0x7f80_0000,
        }
    }
}

impl Kernel for Stats {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let results = Mutex::new(vec![(0.0f32, true); self.tasks.len()]);
        par::for_each(self.tasks.len(), |t| {
            let (operand, first) = self.tasks[t];
            let d = &self.inputs[operand];
            if self.outputs[1].is_none() {
                let start = (first * RUN).min(d.numel);
                let n = (RUNS * RUN).min(d.numel - start);
                let src = cx.ptr(d.buf).wrapping_add(start * d.dtype.size());
                // SAFETY: the range lies in the operand, and buffers are aligned for their dtypes.
                let finite = unsafe { all_finite(d.dtype, src, n) };
                results.lock().unwrap_or_else(PoisonError::into_inner)[t] = (0.0, finite);
                return;
            }
            let mut parts = Vec::with_capacity(RUNS);
            let (mut values, mut square) = ([0.0f32; RUN], [0.0f32; RUN]);
            let mut finite = true;
            for r in first..(first + RUNS).min(par::pieces(d.numel, RUN)) {
                let range = par::piece(d.numel, RUN, r);
                let src = cx.ptr(d.buf).wrapping_add(range.start * d.dtype.size());
                let v = &mut values[..range.len()];
                // SAFETY: the range lies in the operand, and buffers are aligned for their dtypes.
                let v = unsafe {
                    if d.dtype == DType::F32 {
                        std::slice::from_raw_parts(src.cast::<f32>(), v.len())
                    } else {
                        convert::load(d.dtype, src, 1, v.len(), v.as_mut_ptr().cast());
                        v
                    }
                };
                let square = &mut square[..v.len()];
                finite &= squares(square, v);
                parts.push(fold::run(ReduceOp::Sum, square));
            }
            let sum = fold::tree(ReduceOp::Sum, &mut parts);
            results.lock().unwrap_or_else(PoisonError::into_inner)[t] = (sum, finite);
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (mut total, mut culprit) = (0.0f32, -1i32);
        let mut at = 0;
        for (i, d) in self.inputs.iter().enumerate() {
            let n = par::pieces(par::pieces(d.numel, RUN), RUNS);
            let mut sums: Vec<f32> = results[at..at + n].iter().map(|r| r.0).collect();
            if culprit < 0 && results[at..at + n].iter().any(|r| !r.1) {
                culprit = i as i32;
            }
            at += n;
            total += fold::tree(ReduceOp::Sum, &mut sums);
        }
        // SAFETY: scalars of these dtypes, written by nobody else.
        unsafe {
            if let Some(b) = self.outputs[0] {
                *cx.ptr(b) = (culprit < 0) as u8;
            }
            if let Some(b) = self.outputs[1] {
                *cx.ptr(b).cast::<f32>() = total;
            }
            if let Some(b) = self.outputs[2] {
                *cx.ptr(b).cast::<i32>() = culprit;
            }
        }
        Ok(())
    }

    fn work(&self) -> usize {
        self.inputs.iter().map(|d| d.numel).sum()
    }
}
