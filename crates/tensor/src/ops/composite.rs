//! Composite operations: inference of their results, and their builders.
use super::axis_of;
use crate::graph::{
    AttentionSpec, Attr, Composite, CustomHandle, CustomOp, EXPONENT_BINS, LSTM_KEPT, Op,
};
use crate::plan::Meta;
use crate::tensor::{Inputs, Outs};
use crate::{DType, Error, Label, Result, Shape, Tensor};
use std::sync::Arc;

fn wide(d: DType) -> DType {
    if d == DType::F64 {
        DType::F64
    } else {
        DType::F32
    }
}

/// Shapes and dtypes of a composite's outputs; checks its operands.
#[track_caller]
pub(crate) fn infer_composite(c: &Composite, x: &[Meta]) -> Result<Vec<Meta>> {
    let name = c.name();
    let shapes = || x.iter().map(|m| m.shape).collect::<Vec<_>>();
    let bad = |detail: &str| Err(Error::shape(name, &shapes(), detail));
    let dtypes = || x.iter().map(|m| m.dtype).collect::<Vec<_>>();
    let bad_type = |detail: &str| Err(Error::dtype(name, &dtypes(), detail));
    let arity = |n: usize| -> Result<()> {
        if x.len() == n {
            return Ok(());
        }
        Err(Error::argument(
            name,
            format!("expected {n} operands, found {}", x.len()),
        ))
    };
    let meta = |shape: Shape, dtype: DType| Meta { shape, dtype };
    let first_float = x.first().is_some_and(|m| m.dtype.is_float());
    let many = matches!(c, Composite::GradStats | Composite::OptimUpdate { .. });
    if !first_float && !many {
        return bad_type("expected floats; use `cast`");
    }
    Ok(match c {
        Composite::Softmax | Composite::LogSoftmax => {
            arity(1)?;
            if x[0].shape.rank() == 0 {
                return bad("expected at least one axis");
            }
            vec![x[0]]
        }
        Composite::SoftmaxGrad | Composite::LogSoftmaxGrad => {
            arity(2)?;
            if x[0].shape != x[1].shape {
                return bad("shapes must be equal");
            }
            vec![x[0]]
        }
        Composite::LayerNorm { .. } => {
            arity(3)?;
            let s = x[0].shape;
            let d = s.last().copied();
            if d.is_none()
                || x[1..]
                    .iter()
                    .any(|m| m.shape.rank() != 1 || m.shape.last().copied() != d)
            {
                return bad("gamma and beta must have one axis of the size of the last axis of x");
            }
            let stat = meta(s.with(s.rank() - 1, 1), wide(x[0].dtype));
            vec![x[0], stat, stat]
        }
        Composite::LayerNormGrad => {
            arity(5)?;
            vec![x[0], x[1], x[1]]
        }
        Composite::BatchNorm { .. } => {
            arity(3)?;
            let s = x[0].shape;
            if s.rank() < 2 || x[1..].iter().any(|m| m.shape[..] != s[1..2]) {
                return bad("expected x [n, c, ..] and gamma, beta [c]");
            }
            let stat = meta(x[1].shape, wide(x[0].dtype));
            vec![x[0], stat, stat, stat]
        }
        Composite::BatchNormGrad => {
            arity(5)?;
            vec![x[0], x[1], x[1]]
        }
        Composite::CrossEntropy { .. } => {
            arity(2)?;
            if x[0].shape.rank() != 2 || x[1].shape[..] != x[0].shape[..1] {
                return bad("expected logits [n, c] and targets [n]");
            }
            if !matches!(x[1].dtype, DType::I32 | DType::I64) {
                return bad_type("targets must be class indices, I32 or I64");
            }
            let row = meta(x[1].shape, wide(x[0].dtype));
            vec![row, row]
        }
        Composite::CrossEntropyGrad { .. } => {
            arity(4)?;
            vec![x[0]]
        }
        Composite::Attention(spec) => {
            arity(3 + spec.key_mask as usize + spec.dropout.is_some() as usize)?;
            let ok = x[..3].iter().all(|m| m.shape.rank() == 4)
                && x[1].shape == x[2].shape
                && x[0].shape[0] == x[1].shape[0]
                && x[0].shape[2..] == x[1].shape[2..];
            if !ok {
                return bad("expected q [b, tq, h, d] and k, v [b, tk, h, d]");
            }
            if x[1].dtype != x[0].dtype || x[2].dtype != x[0].dtype {
                return bad_type("q, k and v must have one dtype");
            }
            if spec.key_mask {
                if x[3].shape[..] != [x[1].shape[0], x[1].shape[1]] {
                    return bad("the key mask must be [b, tk]");
                }
                if x[3].dtype != DType::Bool {
                    return bad_type("the key mask must be Bool (true: attend)");
                }
            }
            vec![
                x[0],
                meta(
                    x[0].shape
                        .without(3)
                        .with(1, x[0].shape[2])
                        .with(2, x[0].shape[1]),
                    wide(x[0].dtype),
                ),
            ]
        }
        Composite::AttentionGrad(spec) => {
            arity(6 + spec.key_mask as usize + spec.dropout.is_some() as usize)?;
            vec![x[0], x[1], x[2]]
        }
        Composite::LstmCell => {
            arity(2)?;
            let ok = x[0].shape.rank() == 2
                && x[1].shape.rank() == 2
                && x[0].shape[0] == x[1].shape[0]
                && x[0].shape[1] == 4 * x[1].shape[1];
            if !ok {
                return bad("expected gates [b, 4h] and c [b, h]");
            }
            if x[1].dtype != wide(x[0].dtype) {
                return bad_type("the cell state must be f32");
            }
            vec![meta(x[1].shape, x[0].dtype), x[1]]
        }
        Composite::LstmCellGrad => {
            arity(5)?;
            vec![x[0], x[1]]
        }
        Composite::Lstm | Composite::LstmGrad => {
            let grad = matches!(c, Composite::LstmGrad);
            arity(if grad { 5 } else { 4 })?;
            let (s, w) = (x[0].shape, x[1].shape);
            if s.rank() != 3 || w.rank() != 2 || s[1] == 0 || s[2] != w[0] || w[0] != 4 * w[1] {
                return bad("expected gates [b, t, 4h] with t at least 1 and weights [4h, h]");
            }
            let [b, t, h] = [s[0], s[1], w[1]];
            let y = meta(s.with(2, h), x[0].dtype);
            let one = |dtype| meta(s.without(2).with(1, h), dtype);
            let (state, cell) = (one(x[0].dtype), one(wide(x[0].dtype)));
            let kept = meta(
                s.with(1, t.div_ceil(LSTM_KEPT)).with(2, h),
                wide(x[0].dtype),
            );
            let want: &[Meta] = match grad {
                false => &[state, cell],
                true => &[kept, y, cell],
            };
            if x[2..].iter().zip(want).any(|(x, w)| x.shape != w.shape) {
                return bad(&format!(
                    "the gates are those of a batch of {b}, {t} steps and {h} units; the other operands do not fit"
                ));
            }
            if !x[1].dtype.is_float() || x[2..].iter().zip(want).any(|(x, w)| x.dtype != w.dtype) {
                return bad_type("hidden states must have the gates' dtype, cell states f32");
            }
            match grad {
                false => vec![y, cell, x[0], kept],
                true => vec![x[0], state, cell],
            }
        }
        Composite::GradStats => {
            if x.iter().any(|m| !m.dtype.is_float()) {
                return bad_type("expected floats");
            }
            let s = Shape::scalar();
            vec![
                meta(s, DType::Bool),
                meta(s, DType::F32),
                meta(s, DType::I32),
            ]
        }
        Composite::ExponentHistogram { to } => {
            arity(1)?;
            if !to.is_float() {
                return bad_type("the dtype whose limits count must be a float");
            }
            let shape = |dims: &[usize]| Shape::new(dims).unwrap_or(Shape::scalar());
            vec![
                meta(shape(&[2, EXPONENT_BINS]), DType::I32),
                meta(shape(&[3]), DType::I32),
                meta(shape(&[5]), DType::F32),
            ]
        }
        Composite::OptimUpdate { rule, .. } => {
            let each = 2 + rule.moments();
            if x.len() < 4 || !(x.len() - 4).is_multiple_of(each) {
                return Err(Error::argument(
                    name,
                    format!(
                        "expected 4 operands and {each} per parameter, found {}",
                        x.len()
                    ),
                ));
            }
            if x[0].dtype != DType::Bool || x[1..4].iter().any(|m| m.dtype != DType::F32) {
                return bad_type("expected apply (Bool), lr, factor and step (F32)");
            }
            if x[..4].iter().any(|m| m.shape.rank() != 0) {
                return bad("the first four operands must be scalars");
            }
            let mut out = Vec::new();
            for p in x[4..].chunks(each) {
                if p.iter().any(|m| m.shape != p[0].shape) {
                    return bad("weight, gradient and moments must have one shape");
                }
                if p.iter()
                    .any(|m| !matches!(m.dtype, DType::F32 | DType::F64) || m.dtype != p[0].dtype)
                {
                    return bad_type("weight, gradient and moments must all be f32 (or all f64)");
                }
                out.push(p[0]);
                out.extend_from_slice(&p[2..]);
            }
            out
        }
    })
}

impl Tensor {
    /// A composite on its operands; the other outputs are reached through [`Tensor::output`].
    #[track_caller]
    pub fn composite(composite: Composite, inputs: &[&Tensor]) -> Tensor {
        Tensor::make(|| {
            let mut metas = Vec::with_capacity(inputs.len());
            for t in inputs {
                metas.push(t.valid()?.meta());
            }
            let outs = infer_composite(&composite, &metas)?;
            Ok(Tensor::node(
                Op::Composite(composite),
                inputs.iter().map(|t| (*t).clone()).collect(),
                Outs::from_vec(outs),
                Label::current(),
            ))
        })
    }

    /// An operation of a user's crate; the other outputs are reached through [`Tensor::output`].
    #[track_caller]
    pub fn custom(op: Arc<dyn CustomOp>, inputs: &[&Tensor]) -> Tensor {
        Tensor::make(|| {
            let mut metas = Vec::with_capacity(inputs.len());
            for t in inputs {
                metas.push(t.valid()?.meta());
            }
            let outs = op.infer(&metas)?;
            if outs.is_empty() {
                return Err(Error::argument(op.name(), "the operation has no results"));
            }
            Ok(Tensor::node(
                Op::Custom(CustomHandle(op)),
                inputs.iter().map(|t| (*t).clone()).collect(),
                Outs::from_vec(outs),
                Label::current(),
            ))
        })
    }

    #[track_caller]
    fn along_last(
        &self,
        op: &'static str,
        axis: isize,
        f: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let axis = axis_of(op, axis, &s)? as isize;
            let last = s.rank() as isize - 1;
            if axis == last {
                return Ok(f(self));
            }
            Ok(f(&self.transpose(axis, last)).transpose(axis, last))
        })
    }

    /// Softmax along `axis`; f32 inside, result in this tensor's dtype.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Tensor {
        self.along_last("softmax", axis, |x| {
            Tensor::composite(Composite::Softmax, &[x])
        })
    }

    /// The logarithm of softmax along `axis`; f32 inside, result in this tensor's dtype.
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        self.along_last("log_softmax", axis, |x| {
            Tensor::composite(Composite::LogSoftmax, &[x])
        })
    }

    /// Layer normalisation over the last axis (Ba et al. 2016) with `gamma` and `beta` `[d]`; f32 inside, result in this tensor's dtype.
    #[track_caller]
    pub fn layer_norm(&self, gamma: &Tensor, beta: &Tensor, eps: f64) -> Tensor {
        Tensor::composite(
            Composite::LayerNorm { eps: Attr(eps) },
            &[self, gamma, beta],
        )
    }

    /// Batch normalisation over all axes but 1 of `[n, c, ..]` (Ioffe and Szegedy 2015) with `gamma` and `beta` `[c]`; f32 inside. Returns the
    /// result in this tensor's dtype, and the batch's mean and biased variance (f32 `[c]`).
    #[track_caller]
    pub fn batch_norm(&self, gamma: &Tensor, beta: &Tensor, eps: f64) -> (Tensor, Tensor, Tensor) {
        let t = Tensor::composite(
            Composite::BatchNorm { eps: Attr(eps) },
            &[self, gamma, beta],
        );
        (t.output(0), t.output(1), t.output(3))
    }

    /// Cross-entropy of logits `[n, c]` with class indices `[n]`, per row (f32): rows whose target is `ignore_index` give 0; a share of
    /// `label_smoothing` of the target is spread evenly over all classes (PyTorch's definition). An index that is neither a class nor
    /// `ignore_index` is an error when the value is computed.
    #[track_caller]
    pub fn cross_entropy_rows(
        &self,
        target: &Tensor,
        ignore_index: i64,
        label_smoothing: f64,
    ) -> Tensor {
        Tensor::make(|| {
            if !(0.0..=1.0).contains(&label_smoothing) {
                return Err(Error::argument(
                    "cross_entropy",
                    format!("label_smoothing {label_smoothing} is outside of 0 to 1"),
                ));
            }
            let c = Composite::CrossEntropy {
                ignore_index,
                label_smoothing: Attr(label_smoothing),
            };
            Ok(Tensor::composite(c, &[self, target]))
        })
    }

    /// Scaled dot-product attention of queries `[b, tq, h, d]` with keys and values `[b, tk, h, d]` (time before heads, so that a packed
    /// projection splits and the result joins without moving data); softmax in f32. A `key_mask` `[b, tk]`
    /// (Bool) says which keys take part; a query that sees none gives 0. `step` is needed with dropout only.
    #[track_caller]
    pub fn attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        key_mask: Option<&Tensor>,
        step: Option<&Tensor>,
        mut spec: AttentionSpec,
    ) -> Tensor {
        Tensor::make(|| {
            spec.key_mask = key_mask.is_some();
            if spec.dropout.is_some() != step.is_some() {
                return Err(Error::argument(
                    "attention",
                    "dropout and the step tensor belong together",
                ));
            }
            let mut inputs = vec![self, k, v];
            inputs.extend(key_mask);
            inputs.extend(step);
            Ok(Tensor::composite(Composite::Attention(spec), &inputs))
        })
    }

    /// One step of a long short-term memory (Hochreiter and Schmidhuber 1997): pre-activation gates `[b, 4h]` in PyTorch's order i, f, g, o
    /// and the cell state `[b, h]` (f32) give the output (gates' dtype) and the new cell state (f32).
    #[track_caller]
    pub fn lstm_cell(&self, c: &Tensor) -> (Tensor, Tensor) {
        let t = Tensor::composite(Composite::LstmCell, &[self, c]);
        (t.output(0), t.output(1))
    }

    /// A whole sequence of long short-term memory: what gates get from the inputs `[b, t, 4h]`, recurrent weights `[4h, h]`, h `[b, h]` (gates'
    /// dtype) and c `[b, h]` (f32) to start from give the hidden states `[b, t, h]` and the last cell state. As [`Tensor::lstm_cell`] on
    /// `gates(t) + h(t - 1) weight^T` step by step, but the recurrent product adds in f32 before the gates are rounded.
    #[track_caller]
    pub fn lstm(&self, weight: &Tensor, h: &Tensor, c: &Tensor) -> (Tensor, Tensor) {
        let t = Tensor::composite(Composite::Lstm, &[self, weight, h, c]);
        (t.output(0), t.output(1))
    }

    /// Over many tensors at once: whether all elements are finite (Bool), the sum of their squares (f32), and the number of the first
    /// tensor that is not finite (I32, -1 if none); all scalars. Has no derivative.
    #[track_caller]
    pub fn grad_stats(tensors: &[&Tensor]) -> (Tensor, Tensor, Tensor) {
        let t = Tensor::composite(Composite::GradStats, tensors);
        (t.output(0), t.output(1), t.output(2))
    }

    /// Where the elements of this float tensor lie, looked at in f32: counts by sign and exponent (I32 `[2, EXPONENT_BINS]`, see
    /// [`crate::graph::exponent_bin`]); how many finite ones rounding to `to` would make zero, subnormal and infinite (I32 `[3]`); and minimum, maximum, sum, sum of magnitudes
    /// and sum of squares of the finite ones (F32 `[5]`). Has no derivative.
    #[track_caller]
    pub fn exponent_histogram(&self, to: DType) -> (Tensor, Tensor, Tensor) {
        let t = Tensor::composite(Composite::ExponentHistogram { to }, &[self]);
        (t.output(0), t.output(1), t.output(2))
    }

    /// Each of `values` unchanged; what is built on the results is not computed before `after`, and no pass merges across.
    #[track_caller]
    pub fn barrier(values: &[&Tensor], after: &Tensor) -> Vec<Tensor> {
        let t = Tensor::make(|| {
            let mut outs = Outs::new();
            let mut inputs = Inputs::new();
            for v in values {
                outs.push(v.valid()?.meta());
                inputs.push((*v).clone());
            }
            inputs.push(after.valid()?.clone());
            Ok(Tensor::node(Op::Barrier, inputs, outs, Label::current()))
        });
        (0..values.len()).map(|i| t.output(i)).collect()
    }

    /// `results` unchanged; the backward pass computes them again from `inputs` instead of keeping the values in between. The autodiff
    /// crate's `checkpoint` is the user's door to this.
    #[track_caller]
    pub fn checkpointed(results: &[&Tensor], inputs: &[&Tensor]) -> Vec<Tensor> {
        let t = Tensor::make(|| {
            let mut outs = Outs::new();
            let mut all = Inputs::new();
            for v in results {
                outs.push(v.valid()?.meta());
            }
            for v in results.iter().chain(inputs) {
                all.push(v.valid()?.clone());
            }
            let op = Op::Checkpoint {
                results: results.len() as u8,
            };
            Ok(Tensor::node(op, all, outs, Label::current()))
        });
        (0..results.len()).map(|i| t.output(i)).collect()
    }

    /// The same value without its history: gradients stop here.
    pub fn detach(&self) -> Tensor {
        Tensor::make(|| {
            let m = self.valid()?.meta();
            Ok(Tensor::single(
                Op::Detach,
                Inputs::from_iter([self.clone()]),
                m.shape,
                m.dtype,
            ))
        })
    }
}
