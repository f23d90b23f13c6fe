//! A sequence of long short-term memory and its gradient.
use crate::exec::convert;
use crate::exec::cx::{Compile, Cx, Kernel, Operand};
use bimetal_kernels::gemm::Scratch;
use bimetal_kernels::lstm::{self as kernel, Grads, Outputs, Saved, Sizes, Start};
use bimetal_kernels::rows::{Rows, RowsMut};
use bimetal_tensor::graph::LSTM_KEPT;
use bimetal_tensor::{DType, ErrorKind, Result};

/// A sequence, or its gradient.
pub(crate) struct Sequence {
    grad: bool,
    x: Vec<Operand>,
    y: Vec<Option<Operand>>,
    sizes: Sizes,
}

impl Sequence {
    pub(crate) fn new(
        grad: bool,
        x: Vec<Operand>,
        y: Vec<Option<Operand>>,
        cx: &Compile<'_>,
    ) -> Result<Sequence> {
        cx.check(
            x.len() == if grad { 5 } else { 4 }
                && y.len() == if grad { 3 } else { 4 }
                && x[0].shape.rank() == 3
                && x[0].numel > 0
                && x[0].shape[2].is_multiple_of(4),
            "an lstm has the wrong operands",
        )?;
        let [batch, time, hidden] = [x[0].shape[0], x[0].shape[1], x[0].shape[2] / 4];
        let sizes = Sizes {
            batch,
            time,
            hidden,
            every: LSTM_KEPT,
        };
        let (all, one) = (batch * time * hidden, batch * hidden);
        let kept = batch * time.div_ceil(LSTM_KEPT) * hidden;
        let (inputs, outputs) = match grad {
            false => (
                vec![4 * all, 4 * hidden * hidden, one, one],
                vec![all, one, 4 * all, kept],
            ),
            true => (
                vec![4 * all, 4 * hidden * hidden, kept, all, one],
                vec![4 * all, one, one],
            ),
        };
        // Cell states of operands and results are f32, and what a spare holds is narrower or as wide.
        let (cells, results): (&[usize], &[usize]) = match grad {
            false => (&[3], &[1, 3]),
            true => (&[2, 4], &[2]),
        };
        cx.check(
            x.iter().map(|d| d.numel).eq(inputs)
                && y.iter()
                    .zip(outputs)
                    .all(|(d, n)| d.as_ref().is_none_or(|d| d.numel == n))
                && cells.iter().all(|i| x[*i].dtype == DType::F32)
                && results
                    .iter()
                    .all(|i| y[*i].as_ref().is_none_or(|d| d.dtype == DType::F32)),
            "sizes or dtypes of an lstm do not match",
        )?;
        for (i, d) in y.iter().enumerate() {
            let Some(d) = d else { continue };
            let others = y.iter().enumerate().filter(|(j, _)| *j != i);
            let others = others.filter_map(|(_, o)| o.as_ref());
            let alone = x.iter().chain(others).all(|o| !cx.overlap(o.buf, d.buf));
            cx.check(alone, "a result of an lstm shares memory")?;
        }
        Ok(Sequence { grad, x, y, sizes })
    }

    fn rows<'a>(&self, cx: &'a Cx<'_>, i: usize, cols: usize) -> Option<Rows<'a>> {
        let d = &self.x[i];
        // SAFETY: the buffer is as large, and nobody writes an operand meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(cx.ptr(d.buf), d.numel * d.dtype.size()) };
        Rows::new(d.dtype, bytes, cols)
    }

    /// An f32 operand.
    fn cells<'a>(&self, cx: &'a Cx<'_>, i: usize) -> &'a [f32] {
        // SAFETY: the dtype was checked.
        unsafe { cx.slice::<f32>(&self.x[i]) }
    }

    /// Result `i` of `numel` elements, or a spare if nobody asks for it.
    fn result<'a>(
        &self,
        cx: &'a Cx<'_>,
        i: usize,
        numel: usize,
        spare: &'a mut Option<Scratch>,
    ) -> (DType, &'a mut [u8]) {
        let (dtype, ptr) = match &self.y[i] {
            Some(d) => (d.dtype, cx.ptr(d.buf)),
            None => {
                let ptr = spare.insert(Scratch::take::<f32>(numel)).ptr::<u8>();
                // SAFETY: the spare has these bytes.
                unsafe { ptr.write_bytes(0, 4 * numel) };
                // What is rounded on the way is rounded also where nobody asks for it.
                let cell = matches!((self.grad, i), (false, 1 | 3) | (true, 2));
                (if cell { DType::F32 } else { self.x[0].dtype }, ptr)
            }
        };
        // SAFETY: a result's buffer is as large and shares memory with nothing else, as checked; so does the spare.
        let bytes = unsafe { std::slice::from_raw_parts_mut(ptr, numel * dtype.size()) };
        (dtype, bytes)
    }

    /// `None` if an operand is not what `native` lets through.
    fn dispatch(&self, cx: &Cx<'_>) -> Option<()> {
        let Sizes {
            batch,
            time,
            hidden: n,
            ..
        } = self.sizes;
        let (all, one) = (batch * time * n, batch * n);
        let w = &self.x[1];
        let copy: Vec<f32>;
        let weight = if w.dtype == DType::F32 {
            self.cells(cx, 1)
        } else {
            let mut values = vec![0.0f32; w.numel];
            // SAFETY: the operand has these elements.
            unsafe {
                convert::load(
                    w.dtype,
                    cx.ptr(w.buf),
                    1,
                    w.numel,
                    values.as_mut_ptr().cast(),
                )
            };
            copy = values;
            &copy
        };
        let mut spare = [None, None, None, None];
        let [s0, s1, s2, s3] = &mut spare;
        let matrix = |(dtype, bytes), cols| RowsMut::new(dtype, bytes, cols);
        if self.grad {
            let saved = Saved {
                gates: self.rows(cx, 0, 4 * n)?,
                weight,
                cells: self.cells(cx, 2),
                dy: self.rows(cx, 3, n)?,
                dc: self.cells(cx, 4),
            };
            let grads = Grads {
                gates: matrix(self.result(cx, 0, 4 * all, s0), 4 * n)?,
                h: matrix(self.result(cx, 1, one, s1), n)?,
                c: bytemuck::cast_slice_mut(self.result(cx, 2, one, s2).1),
            };
            kernel::lstm_grad(self.sizes, saved, grads);
        } else {
            let start = Start {
                gates: self.rows(cx, 0, 4 * n)?,
                weight,
                h: self.rows(cx, 2, n)?,
                c: self.cells(cx, 3),
            };
            let kept = batch * time.div_ceil(LSTM_KEPT) * n;
            let out = Outputs {
                y: matrix(self.result(cx, 0, all, s0), n)?,
                c: bytemuck::cast_slice_mut(self.result(cx, 1, one, s1).1),
                gates: matrix(self.result(cx, 2, 4 * all, s2), 4 * n)?,
                cells: bytemuck::cast_slice_mut(self.result(cx, 3, kept, s3).1),
            };
            kernel::lstm(self.sizes, start, out);
        }
        Some(())
    }
}

impl Kernel for Sequence {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        self.dispatch(cx).ok_or_else(|| ErrorKind::Device {
            detail: "an lstm got operands that its kernel does not take".into(),
        })
    }

    fn work(&self) -> usize {
        let Sizes {
            batch,
            time,
            hidden,
            ..
        } = self.sizes;
        (batch * time * hidden).saturating_mul(hidden / 2 + 16)
    }
}
