//! Whether gradients are finite, their squared norm, and the first culprit.
use super::device;
use crate::{DType, Error, Result, Tensor};

pub(super) fn grad_stats(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let Some(first) = x.first() else {
        return Err(Error::argument("grad_stats", "no tensors were given"));
    };
    // The flag looks at the elements and not at the sum, which may overflow although all of them are finite.
    let device = device(first)?;
    let finite: Vec<Tensor> = x
        .iter()
        .map(|t| match t.meta().shape.numel() {
            0 => Tensor::full(&[], 1.0, DType::Bool, device),
            _ => t.is_finite().all(&[], false),
        })
        .collect();
    let mut culprit = Tensor::full(&[], -1.0, DType::I32, device);
    for (i, ok) in finite.iter().enumerate().rev() {
        culprit = ok.select(&culprit, i as f64);
    }
    let all = finite
        .iter()
        .skip(1)
        .fold(finite[0].clone(), |a, b| a.logical_and(b));
    let squares = |t: &Tensor| t.cast(DType::F32).square().sum_all();
    let sum = x[1..].iter().fold(squares(first), |a, t| a + squares(t));
    Ok(vec![all, sum, culprit])
}
