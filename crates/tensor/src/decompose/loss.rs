//! Cross-entropy with class indices, by PyTorch's definition of `ignore_index` and `label_smoothing`.
use super::{lift, wide};
use crate::{Result, Tensor};

/// Which rows count, and targets that point into the row everywhere.
fn rows(target: &Tensor, ignore_index: i64) -> (Tensor, Tensor) {
    let counts = target.ne(ignore_index as f64);
    // An ignored row may hold any number: look up class 0 instead, whose value is then not used.
    let safe = counts.select(target, 0.0);
    (counts, safe)
}

pub(super) fn cross_entropy(
    logits: &Tensor,
    target: &Tensor,
    ignore_index: i64,
    label_smoothing: f64,
) -> Vec<Tensor> {
    let x = lift(logits);
    let (counts, class) = rows(target, ignore_index);
    let lse = x.logsumexp(-1, false);
    let picked = x.gather(&class.unsqueeze(-1), -1).squeeze(-1);
    let mut loss = &lse - picked;
    if label_smoothing != 0.0 {
        let uniform = &lse - x.mean(&[-1], false);
        loss = loss * (1.0 - label_smoothing) + uniform * label_smoothing;
    }
    vec![counts.select(loss, 0.0), lse]
}

pub(super) fn cross_entropy_grad(
    x: &[Tensor],
    ignore_index: i64,
    label_smoothing: f64,
) -> Result<Tensor> {
    let [logits, target, lse, dloss] = x else {
        return Ok(Tensor::scalar(0.0));
    };
    let w = wide(logits.dtype());
    let [_, classes] = logits.dims()?;
    let (counts, class) = rows(target, ignore_index);
    let p = (logits.cast(w) - lse.cast(w).unsqueeze(-1)).exp();
    let mut q = class.one_hot(classes, w);
    if label_smoothing != 0.0 {
        q = q * (1.0 - label_smoothing) + label_smoothing / classes as f64;
    }
    let d = (p - q) * dloss.cast(w).unsqueeze(-1);
    Ok(counts.unsqueeze(-1).select(d, 0.0))
}
