//! The index of an extreme element.
use crate::exec::code::CHUNK;
use crate::exec::convert;
use crate::exec::cx::{Compile, Cx, Kernel};
use crate::exec::scratch::Scratch;
use crate::exec::view::{Block, View};
use crate::par;
use crate::simd;
use bimetal_tensor::graph::ArgOp;
use bimetal_tensor::plan::{Access, BufId, register};
use bimetal_tensor::{DType, ErrorKind, Result, Shape};
use std::cmp::Ordering;

/// The first extreme element along the last axis; NaN is more extreme than any number.
pub(crate) struct ArgReduce {
    input: View,
    output: usize,
    op: ArgOp,
    rows: usize,
    len: usize,
}

impl ArgReduce {
    pub(crate) fn new(
        domain: &Shape,
        input: &Access,
        op: ArgOp,
        output: BufId,
        cx: &Compile<'_>,
    ) -> Result<ArgReduce> {
        cx.check(domain.rank() > 0, "no axis to be reduced")?;
        let last = domain.rank() - 1;
        let rows = domain[..last].iter().product();
        let desc = cx.desc(output)?;
        cx.check(
            desc.dtype == DType::I32 && desc.numel >= rows,
            "the indices do not fit their buffer",
        )?;
        Ok(ArgReduce {
            input: cx.view(input, domain)?,
            output: output as usize,
            op,
            rows,
            len: domain[last],
        })
    }

    fn row<T: Copy + PartialOrd>(&self, base: *mut u8, row: usize, scratch: *mut u8) -> i32 {
        let mut best: Option<T> = None;
        let mut index = 0;
        for at in (0..self.len).step_by(CHUNK) {
            let n = CHUNK.min(self.len - at);
            // SAFETY: the block lies in the domain, and scratch has room for it.
            let v = unsafe {
                self.input
                    .load(base, &Block::linear(row * self.len + at, n), scratch)
            };
            let mut candidates = 0..n;
            if register(self.input.dtype) == DType::F32 && !v.splat {
                // SAFETY: the register has `n` f32 values.
                let x = unsafe { std::slice::from_raw_parts(v.ptr.cast::<f32>(), n) };
                // The extreme of the block stands for it.
                let i = match self.op {
                    ArgOp::Max => simd::argmax_f32(x),
                    ArgOp::Min => simd::argmin_f32(x),
                };
                candidates = i..i + 1;
            }
            for i in candidates {
                // SAFETY: the register has `n` values of type `T`, or one.
                let x = unsafe { *v.ptr.cast::<T>().add(if v.splat { 0 } else { i }) };
                let better = match (best, self.op) {
                    (None, _) => true,
                    (Some(b), op) => match x.partial_cmp(&b) {
                        Some(Ordering::Greater) => op == ArgOp::Max,
                        Some(Ordering::Less) => op == ArgOp::Min,
                        Some(Ordering::Equal) => false,
                        // One is NaN: the first of them wins.
                        None => b.partial_cmp(&b).is_some(),
                    },
                };
                if better {
                    best = Some(x);
                    index = at + i;
                }
            }
        }
        index as i32
    }
}

impl Kernel for ArgReduce {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let per_task = (16 * 1024 / self.len.max(1)).max(1);
        let base = cx.ptr(self.input.buf);
        let shared = (base as usize, cx.ptr(self.output) as usize);
        par::for_each(par::pieces(self.rows, per_task), |t| {
            let (base, out) = (shared.0 as *mut u8, shared.1 as *mut i32);
            let mut scratch = Scratch::new(CHUNK * convert::width(self.input.dtype));
            for row in par::piece(self.rows, per_task, t) {
                let s = scratch.ptr();
                let index = match register(self.input.dtype) {
                    DType::F32 => self.row::<f32>(base, row, s),
                    DType::F64 => self.row::<f64>(base, row, s),
                    DType::I32 => self.row::<i32>(base, row, s),
                    DType::I64 => self.row::<i64>(base, row, s),
                    DType::U32 => self.row::<u32>(base, row, s),
                    _ => self.row::<u8>(base, row, s),
                };
                // SAFETY: each row has its own element.
                unsafe { *out.add(row) = index };
            }
        });
        Ok(())
    }

    fn work(&self) -> usize {
        2 * self.rows * self.len
    }
}
