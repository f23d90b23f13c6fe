//! Composites with kernels of their own; the others are decomposed by the scheduler.
mod attention;
mod batch_norm;
mod exponents;
mod lstm;
mod optim;
mod rows;
mod stats;

use super::cx::{Compile, Kernel, Operand};
use bimetal_tensor::graph::Composite;
use bimetal_tensor::plan::{Meta, Strided};
use bimetal_tensor::{DType, Result};

const NO_KERNEL: &str = "a composite has no kernel for operands like these";

/// Whether the composite has a kernel for operands like these.
pub(crate) fn native(composite: &Composite, inputs: &[Meta]) -> bool {
    match composite {
        Composite::OptimUpdate { .. } => inputs.iter().skip(1).all(|m| m.dtype == DType::F32),
        Composite::GradStats => {
            !inputs.is_empty()
                && inputs
                    .iter()
                    .all(|m| m.dtype.is_float() && m.dtype != DType::F64)
        }
        Composite::ExponentHistogram { .. } => inputs.iter().all(|m| m.dtype != DType::F64),
        Composite::Softmax
        | Composite::SoftmaxGrad
        | Composite::LogSoftmax
        | Composite::LogSoftmaxGrad
        | Composite::LayerNorm { .. }
        | Composite::LayerNormGrad => rows(inputs),
        Composite::BatchNorm { .. } | Composite::BatchNormGrad => batch_norm::native(inputs),
        Composite::CrossEntropy { .. } => rows(&inputs[..1]),
        Composite::CrossEntropyGrad { .. } => {
            rows(&inputs[..1]) && inputs[2..].iter().all(|m| m.dtype == DType::F32)
        }
        Composite::Attention(_) | Composite::AttentionGrad(_) => {
            let few = matches!(composite, Composite::Attention(_));
            let (heads, lse) = match few {
                true => (&inputs[..3], None),
                false => (&inputs[..4], inputs.get(4)),
            };
            heads
                .iter()
                .all(|m| m.dtype != DType::F64 && m.shape.numel() > 0)
                && lse.is_none_or(|m| m.dtype == DType::F32)
        }
        Composite::Lstm | Composite::LstmGrad => inputs
            .iter()
            .all(|m| m.dtype != DType::F64 && m.shape.numel() > 0),
        _ => false,
    }
}

/// Whether the row kernels take these operands: no f64, no empty rows.
fn rows(inputs: &[Meta]) -> bool {
    inputs
        .iter()
        .all(|m| m.dtype.is_float() && m.dtype != DType::F64)
        && inputs[0].shape.last().is_some_and(|n| *n > 0)
}

/// The kernel of a composite.
pub(super) fn compile(
    composite: &Composite,
    random: Option<u32>,
    inputs: &[Strided],
    outputs: &[Option<Strided>],
    cx: &Compile<'_>,
) -> Result<Box<dyn Kernel>> {
    let x = inputs
        .iter()
        .map(|d| cx.strided(d))
        .collect::<Result<Vec<Operand>>>()?;
    let y = outputs
        .iter()
        .map(|d| d.as_ref().map(|d| cx.strided(d)).transpose())
        .collect::<Result<Vec<Option<Operand>>>>()?;
    let metas: Vec<Meta> = inputs
        .iter()
        .map(|d| Meta {
            shape: d.shape,
            dtype: d.access.dtype,
        })
        .collect();
    let attention = matches!(
        composite,
        Composite::Attention(_) | Composite::AttentionGrad(_)
    );
    let mut operands = inputs.iter().chain(outputs.iter().flatten());
    cx.check(
        attention || operands.all(|d| d.access.is_dense(&d.shape)),
        "an operand of a composite is not dense",
    )?;
    Ok(match *composite {
        Composite::OptimUpdate {
            rule,
            beta1,
            beta2,
            eps,
            weight_decay,
        } => {
            let numbers = [beta1.0, beta2.0, eps.0, weight_decay.0];
            Box::new(optim::Update::new(rule, numbers, x, y, cx)?)
        }
        Composite::GradStats => Box::new(stats::Stats::new(x, y, cx)?),
        Composite::ExponentHistogram { to } => Box::new(exponents::Exponents::new(to, x, y, cx)?),
        Composite::Attention(spec) => {
            Box::new(attention::Attend::new(spec, false, random, x, y, cx)?)
        }
        Composite::AttentionGrad(spec) => {
            Box::new(attention::Attend::new(spec, true, random, x, y, cx)?)
        }
        Composite::BatchNorm { eps } => {
            cx.check(native(composite, &metas), NO_KERNEL)?;
            Box::new(batch_norm::BatchNorm::new(Some(eps.0), x, y, cx)?)
        }
        Composite::BatchNormGrad => {
            cx.check(native(composite, &metas), NO_KERNEL)?;
            Box::new(batch_norm::BatchNorm::new(None, x, y, cx)?)
        }
        Composite::Lstm | Composite::LstmGrad => {
            let grad = matches!(composite, Composite::LstmGrad);
            Box::new(lstm::Sequence::new(grad, x, y, cx)?)
        }
        composite => {
            cx.check(native(&composite, &metas), NO_KERNEL)?;
            Box::new(rows::RowKernel::new(composite, x, y, cx)?)
        }
    })
}
