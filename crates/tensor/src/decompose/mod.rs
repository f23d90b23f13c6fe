//! What composites mean in terms of the other operations: the definition that native kernels are tested against, what a
//! device without them runs, and what derivatives without a rule of their own are taken of.
//!
//! 8- and 16-bit floats are cast to f32 first and every result is rounded once at the end; f64 stays f64.
mod attention;
mod exponents;
mod loss;
mod norm;
mod optim;
mod recurrent;
mod softmax;
mod stats;

use crate::graph::Composite;
use crate::ops::infer_composite;
use crate::{DType, Error, Result, Tensor};

/// The outputs of composite `c` on `inputs`, one tensor each, of the shapes and dtypes the composite itself has. If the operands do not
/// fit, all of them are invalid.
#[track_caller]
pub fn decompose(c: &Composite, inputs: &[Tensor]) -> Vec<Tensor> {
    crate::Label::located(|| {
        build(c, inputs).unwrap_or_else(|e| vec![Tensor::invalid(e); outputs(c, inputs.len())])
    })
}

#[track_caller]
fn build(c: &Composite, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut metas = Vec::with_capacity(x.len());
    for t in x {
        metas.push(t.check()?.meta());
    }
    let want = infer_composite(c, &metas)?;
    let outs = match *c {
        Composite::Softmax => vec![softmax::softmax(&x[0])],
        Composite::SoftmaxGrad => vec![softmax::softmax_grad(&x[0], &x[1])],
        Composite::LogSoftmax => vec![softmax::log_softmax(&x[0])],
        Composite::LogSoftmaxGrad => vec![softmax::log_softmax_grad(&x[0], &x[1])],
        Composite::LayerNorm { eps } => norm::layer_norm(&x[0], &x[1], &x[2], eps.0),
        Composite::LayerNormGrad => norm::layer_norm_grad(x),
        Composite::BatchNorm { eps } => norm::batch_norm(&x[0], &x[1], &x[2], eps.0)?,
        Composite::BatchNormGrad => norm::batch_norm_grad(x)?,
        Composite::CrossEntropy {
            ignore_index,
            label_smoothing,
        } => loss::cross_entropy(&x[0], &x[1], ignore_index, label_smoothing.0),
        Composite::CrossEntropyGrad {
            ignore_index,
            label_smoothing,
        } => vec![loss::cross_entropy_grad(
            x,
            ignore_index,
            label_smoothing.0,
        )?],
        Composite::Attention(spec) => attention::attention(&spec, x)?,
        Composite::AttentionGrad(spec) => attention::attention_grad(&spec, x)?,
        Composite::LstmCell => recurrent::lstm_cell(&x[0], &x[1]),
        Composite::LstmCellGrad => recurrent::lstm_cell_grad(x),
        Composite::Lstm => recurrent::lstm(x)?,
        Composite::LstmGrad => recurrent::lstm_grad(x)?,
        Composite::GradStats => stats::grad_stats(x)?,
        Composite::ExponentHistogram { to } => exponents::histogram(&x[0], to)?,
        Composite::OptimUpdate {
            rule,
            beta1,
            beta2,
            eps,
            weight_decay,
        } => optim::update(
            rule,
            optim::Numbers {
                beta1: beta1.0,
                beta2: beta2.0,
                eps: eps.0,
                weight_decay: weight_decay.0,
            },
            x,
        ),
    };
    // The one rounding of each result.
    Ok(outs
        .iter()
        .zip(&want)
        .map(|(t, m)| t.cast(m.dtype))
        .collect())
}

/// The number of outputs of `c` on `inputs` operands, for operands that do not fit.
fn outputs(c: &Composite, inputs: usize) -> usize {
    match c {
        Composite::LayerNorm { .. }
        | Composite::LayerNormGrad
        | Composite::BatchNormGrad
        | Composite::AttentionGrad(_)
        | Composite::LstmGrad
        | Composite::GradStats
        | Composite::ExponentHistogram { .. } => 3,
        Composite::BatchNorm { .. } | Composite::Lstm => 4,
        Composite::CrossEntropy { .. }
        | Composite::Attention(_)
        | Composite::LstmCell
        | Composite::LstmCellGrad => 2,
        Composite::OptimUpdate { rule, .. } => {
            let each = 2 + rule.moments();
            inputs.saturating_sub(4) / each * (each - 1)
        }
        _ => 1,
    }
}

/// The dtype a composite computes in for operands of dtype `d`.
fn wide(d: DType) -> DType {
    match d {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// The operand in the dtype composites compute in.
fn lift(t: &Tensor) -> Tensor {
    t.cast(wide(t.dtype()))
}

#[track_caller]
fn device(t: &Tensor) -> Result<&crate::Device> {
    t.device().ok_or_else(|| {
        Error::device(
            "decompose",
            "a bare number has no device; use `Tensor::full(shape, value, dtype, device)`",
        )
    })
}
