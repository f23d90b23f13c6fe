//! Composites over the last axis: softmax, layer normalisation, cross-entropy.
use crate::exec::convert;
use crate::exec::cx::{Compile, Cx, Kernel, Operand};
use bimetal_kernels::rows::{self, CrossEntropy, NormGrad, Rows, RowsMut, Targets};
use bimetal_tensor::graph::Composite;
use bimetal_tensor::{DType, ErrorKind, Result};

/// A composite whose operands are rows.
pub(crate) struct RowKernel {
    composite: Composite,
    cols: usize,
    x: Vec<Operand>,
    y: Vec<Option<Operand>>,
}

impl RowKernel {
    pub(crate) fn new(
        composite: Composite,
        x: Vec<Operand>,
        y: Vec<Option<Operand>>,
        cx: &Compile<'_>,
    ) -> Result<RowKernel> {
        use Composite::*;
        let n = x.first().map_or(0, |d| d.numel);
        let cols = x.first().and_then(|d| d.shape.last().copied()).unwrap_or(1);
        let rows = n.checked_div(cols).unwrap_or(0);
        // Sizes of inputs and outputs.
        let (inputs, outputs) = match composite {
            Softmax | LogSoftmax => (vec![n], vec![n]),
            SoftmaxGrad | LogSoftmaxGrad => (vec![n, n], vec![n]),
            LayerNorm { .. } => (vec![n, cols, cols], vec![n, rows, rows]),
            LayerNormGrad => (vec![n, cols, rows, rows, n], vec![n, cols, cols]),
            CrossEntropy { .. } => (vec![n, rows], vec![rows, rows]),
            CrossEntropyGrad { .. } => (vec![n, rows, rows, rows], vec![n]),
            _ => (vec![], vec![]),
        };
        cx.check(
            x.iter().map(|d| d.numel).eq(inputs)
                && y.len() == outputs.len()
                && y.iter()
                    .zip(outputs)
                    .all(|(d, n)| d.as_ref().is_none_or(|d| d.numel == n)),
            "sizes of a row kernel do not match",
        )?;
        for (i, d) in y.iter().enumerate() {
            let Some(d) = d else { continue };
            let others = y.iter().enumerate().filter(|(j, _)| *j != i);
            let others = others.filter_map(|(_, o)| o.as_ref());
            let alone = x.iter().chain(others).all(|o| !cx.overlap(o.buf, d.buf));
            cx.check(alone, "a result of a row kernel shares memory")?;
        }
        Ok(RowKernel {
            composite,
            cols,
            x,
            y,
        })
    }

    fn bytes<'a>(&self, cx: &'a Cx<'_>, d: &Operand) -> &'a [u8] {
        // SAFETY: the buffer is as large, and nobody writes an operand meanwhile.
        unsafe { std::slice::from_raw_parts(cx.ptr(d.buf), d.numel * d.dtype.size()) }
    }

    fn rows<'a>(&self, cx: &'a Cx<'_>, i: usize) -> Option<Rows<'a>> {
        Rows::new(self.x[i].dtype, self.bytes(cx, &self.x[i]), self.cols)
    }

    /// A small operand in f32.
    fn vector(&self, cx: &Cx<'_>, i: usize) -> Vec<f32> {
        let d = &self.x[i];
        let mut v = vec![0.0; d.numel];
        // SAFETY: the operand has these elements.
        unsafe { convert::load(d.dtype, cx.ptr(d.buf), 1, d.numel, v.as_mut_ptr().cast()) };
        v
    }

    /// An f32 operand.
    fn f32s<'a>(&self, cx: &'a Cx<'_>, i: usize) -> &'a [f32] {
        // SAFETY: `native` lets only f32 statistics through.
        unsafe { cx.slice::<f32>(&self.x[i]) }
    }

    /// Result `i`, or `spare` if nobody asks for it.
    fn result<'a>(
        &self,
        cx: &'a Cx<'_>,
        i: usize,
        bytes: usize,
        spare: &'a mut Vec<u64>,
    ) -> &'a mut [u8] {
        let ptr = match &self.y[i] {
            Some(d) => cx.ptr(d.buf),
            None => {
                spare.resize(bytes.div_ceil(8), 0);
                spare.as_mut_ptr().cast()
            }
        };
        // SAFETY: a result's buffer is as large and shares memory with nothing else, as checked; so does the spare.
        unsafe { std::slice::from_raw_parts_mut(ptr, bytes) }
    }

    fn statistics<'a>(
        &self,
        cx: &'a Cx<'_>,
        i: usize,
        n: usize,
        spare: &'a mut Vec<u64>,
    ) -> &'a mut [f32] {
        bytemuck::cast_slice_mut(self.result(cx, i, 4 * n, spare))
    }

    fn targets<'a>(&self, cx: &'a Cx<'_>) -> Targets<'a> {
        // SAFETY: the dtype is looked at.
        unsafe {
            match self.x[1].dtype {
                DType::I64 => Targets::I64(cx.slice(&self.x[1])),
                _ => Targets::I32(cx.slice(&self.x[1])),
            }
        }
    }

    /// An error if a target that counts is no class.
    fn check_targets(
        &self,
        targets: Targets<'_>,
        ignore: i64,
    ) -> std::result::Result<(), ErrorKind> {
        let outside = |t: &i64| *t != ignore && !(0..self.cols as i64).contains(t);
        let bad = match targets {
            Targets::I32(v) => v.iter().map(|t| *t as i64).find(outside),
            Targets::I64(v) => v.iter().copied().find(outside),
        };
        match bad {
            None => Ok(()),
            Some(index) => Err(ErrorKind::IndexOutOfRange {
                index,
                size: self.cols,
            }),
        }
    }

    /// `None` if an operand is not what `native` lets through.
    fn dispatch(&self, cx: &Cx<'_>) -> Option<std::result::Result<(), ErrorKind>> {
        use Composite as C;
        let mut spare = [Vec::new(), Vec::new(), Vec::new()];
        let [s0, s1, s2] = &mut spare;
        let main = &self.x[0];
        let count = main.numel / self.cols;
        // A first result of the first operand's size.
        let dtype = self.y[0].as_ref().map_or(main.dtype, |d| d.dtype);
        let out = |s: &'_ mut Vec<u64>| -> Option<RowsMut<'_>> {
            let bytes = self.result(cx, 0, main.numel * dtype.size(), s);
            // SAFETY: the lifetime is shortened to the spare's; the buffer lives longer.
            let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) };
            RowsMut::new(dtype, bytes, self.cols)
        };
        match self.composite {
            C::Softmax => rows::softmax(self.rows(cx, 0)?, out(s0)?),
            C::LogSoftmax => rows::log_softmax(self.rows(cx, 0)?, out(s0)?),
            C::SoftmaxGrad => rows::softmax_grad(self.rows(cx, 0)?, self.rows(cx, 1)?, out(s0)?),
            C::LogSoftmaxGrad => {
                rows::log_softmax_grad(self.rows(cx, 0)?, self.rows(cx, 1)?, out(s0)?)
            }
            C::LayerNorm { eps } => {
                let (gamma, beta) = (self.vector(cx, 1), self.vector(cx, 2));
                let mean = self.statistics(cx, 1, count, s1);
                let rstd = self.statistics(cx, 2, count, s2);
                let x = self.rows(cx, 0)?;
                rows::layer_norm(
                    x,
                    Some(&gamma),
                    Some(&beta),
                    eps.0 as f32,
                    out(s0)?,
                    mean,
                    rstd,
                );
            }
            C::LayerNormGrad => {
                let gamma = self.vector(cx, 1);
                let args = NormGrad {
                    x: self.rows(cx, 0)?,
                    dy: self.rows(cx, 4)?,
                    gamma: Some(&gamma),
                    rstd: self.f32s(cx, 3),
                };
                let (mut dgamma, mut dbeta) = (vec![0.0; self.cols], vec![0.0; self.cols]);
                let wanted = |i: usize| self.y[i].is_some();
                rows::layer_norm_grad(
                    args,
                    self.f32s(cx, 2),
                    out(s0)?,
                    wanted(1).then_some(&mut dgamma[..]),
                    wanted(2).then_some(&mut dbeta[..]),
                );
                for (d, v) in self.y[1..].iter().zip([dgamma, dbeta]) {
                    let Some(d) = d else { continue };
                    let v = crate::exec::view::Arg::dense(v.as_ptr().cast());
                    // SAFETY: the result has as many elements and shares memory with nothing else.
                    unsafe { convert::store(d.dtype, cx.ptr(d.buf), 1, self.cols, v, DType::F32) };
                }
            }
            C::CrossEntropy {
                ignore_index,
                label_smoothing,
            }
            | C::CrossEntropyGrad {
                ignore_index,
                label_smoothing,
            } => {
                let targets = self.targets(cx);
                if let Err(e) = self.check_targets(targets, ignore_index) {
                    return Some(Err(e));
                }
                let ce = CrossEntropy {
                    logits: self.rows(cx, 0)?,
                    targets,
                    ignore_index: Some(ignore_index),
                    label_smoothing: label_smoothing.0 as f32,
                };
                if matches!(self.composite, C::CrossEntropyGrad { .. }) {
                    rows::cross_entropy_grad(ce, self.f32s(cx, 2), self.f32s(cx, 3), out(s0)?);
                } else {
                    let loss = self.statistics(cx, 0, count, s0);
                    let lse = self.statistics(cx, 1, count, s1);
                    rows::cross_entropy(ce, loss, lse);
                }
            }
            _ => return None,
        }
        Some(Ok(()))
    }
}

impl Kernel for RowKernel {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let done = self.dispatch(cx);
        done.unwrap_or_else(|| {
            Err(ErrorKind::Device {
                detail: format!(
                    "`{}` got operands that its kernel does not take",
                    self.composite.name()
                ),
            })
        })
    }

    fn work(&self) -> usize {
        8 * self.x[0].numel
    }
}
