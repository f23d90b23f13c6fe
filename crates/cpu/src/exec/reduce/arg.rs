//! The index of an extreme element.
use crate::exec::code::CHUNK;
use crate::exec::convert;
use crate::exec::cx::{Compile, Cx, Kernel};
use crate::exec::view::{Block, View};
use bimetal_kernels::gemm::Scratch;
use bimetal_kernels::par;
use bimetal_kernels::simd;
use bimetal_tensor::graph::ArgOp;
use bimetal_tensor::plan::{Access, BufId, register};
use bimetal_tensor::{DType, ErrorKind, Result, Shape, Strides};
use std::cmp::Ordering;
use std::ops::Range;

/// The first extreme element along the last axis; NaN is more extreme than any number.
pub(crate) struct ArgReduce {
    input: View,
    output: usize,
    op: ArgOp,
    rows: usize,
    len: usize,
    /// Where the last kept axis is the contiguous one in memory: the operand over `[outer.., n, inner]`, and `inner`.
    columns: Option<(View, usize)>,
}

/// Columns looked at together.
const STRIP: usize = 128;

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
        let view = cx.view(input, domain)?;
        let mut columns = None;
        if last > 0
            && input.strides[last] != 1
            && input.strides[last - 1] == 1
            && domain[last - 1] >= 8
        {
            let mut turned = input.clone();
            let mut strides = input.strides.to_vec();
            strides.swap(last - 1, last);
            turned.strides = Strides::new(&strides);
            let inner = domain[last - 1];
            let shape = domain.with(last - 1, domain[last]).with(last, inner);
            columns = Some((cx.view(&turned, &shape)?, inner));
        }
        Ok(ArgReduce {
            input: view,
            output: output as usize,
            op,
            rows,
            len: domain[last],
            columns,
        })
    }

    /// Whether `x` takes the place of `best`, which came before.
    #[inline(always)]
    fn better<T: PartialOrd>(&self, x: &T, best: &T) -> bool {
        match x.partial_cmp(best) {
            Some(Ordering::Greater) => self.op == ArgOp::Max,
            Some(Ordering::Less) => self.op == ArgOp::Min,
            Some(Ordering::Equal) => false,
            // One is NaN: the first of them wins.
            None => best.partial_cmp(best).is_some(),
        }
    }

    /// A strip of columns, row by row.
    fn strip<T: Copy + PartialOrd>(
        &self,
        view: &View,
        inner: usize,
        cx: &Cx<'_>,
        outer: usize,
        cols: Range<usize>,
    ) {
        let scratch = Scratch::take::<T>(STRIP);
        let mut best: Vec<T> = Vec::with_capacity(cols.len());
        let mut index = vec![0i32; cols.len()];
        for row in 0..self.len {
            let start = (outer * self.len + row) * inner + cols.start;
            let b = Block::linear(start, cols.len());
            // SAFETY: the block lies in the turned domain, and scratch has room for it.
            let v = unsafe { view.load(cx.ptr(view.buf), &b, scratch.ptr()) };
            // SAFETY: the register has a value of type `T` for each column, or one for all.
            let value = |c: usize| unsafe { *v.ptr.cast::<T>().add(if v.splat { 0 } else { c }) };
            if row == 0 {
                best.extend((0..cols.len()).map(value));
                continue;
            }
            for (c, (best, index)) in best.iter_mut().zip(&mut index).enumerate() {
                let x = value(c);
                if self.better(&x, best) {
                    (*best, *index) = (x, row as i32);
                }
            }
        }
        let out = cx.ptr(self.output).cast::<i32>();
        // SAFETY: each strip has its own results.
        unsafe {
            let out = out.add(outer * inner + cols.start);
            std::ptr::copy_nonoverlapping(index.as_ptr(), out, index.len());
        }
    }

    fn run_columns(&self, view: &View, inner: usize, cx: &Cx<'_>) {
        let strips = par::pieces(inner, STRIP);
        par::for_each(self.rows / inner * strips, |t| {
            let (outer, cols) = (t / strips, par::piece(inner, STRIP, t % strips));
            match register(self.input.dtype) {
                DType::F32 => self.strip::<f32>(view, inner, cx, outer, cols),
                DType::F64 => self.strip::<f64>(view, inner, cx, outer, cols),
                DType::I32 => self.strip::<i32>(view, inner, cx, outer, cols),
                DType::I64 => self.strip::<i64>(view, inner, cx, outer, cols),
                DType::U32 => self.strip::<u32>(view, inner, cx, outer, cols),
                _ => self.strip::<u8>(view, inner, cx, outer, cols),
            }
        });
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
                let better = best.is_none_or(|b| self.better(&x, &b));
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
        if let Some((view, inner)) = &self.columns {
            self.run_columns(view, *inner, cx);
            return Ok(());
        }
        let per_task = (16 * 1024 / self.len.max(1)).max(1);
        let base = cx.ptr(self.input.buf);
        let shared = (base as usize, cx.ptr(self.output) as usize);
        par::for_each(par::pieces(self.rows, per_task), |t| {
            let (base, out) = (shared.0 as *mut u8, shared.1 as *mut i32);
            let scratch = Scratch::take::<u8>(CHUNK * convert::width(self.input.dtype));
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
