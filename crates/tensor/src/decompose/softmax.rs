//! Softmax and its logarithm over the last axis. A row of minus infinities gives NaN, as in PyTorch.
use super::lift;
use crate::Tensor;

/// The operand in f32 minus its row maximum, which is a constant to derivatives: the result does not depend on it.
fn shifted(x: &Tensor) -> Tensor {
    let x = lift(x);
    if x.meta().shape.numel() == 0 {
        return x;
    }
    let top = x.max(&[-1], true).detach();
    x - top
}

pub(super) fn softmax(x: &Tensor) -> Tensor {
    let e = shifted(x).exp();
    let sum = e.sum(&[-1], true);
    e / sum
}

pub(super) fn softmax_grad(y: &Tensor, dy: &Tensor) -> Tensor {
    let (y, dy) = (lift(y), lift(dy));
    let dot = (&y * &dy).sum(&[-1], true);
    y * (dy - dot)
}

pub(super) fn log_softmax(x: &Tensor) -> Tensor {
    let s = shifted(x);
    let norm = s.exp().sum(&[-1], true).log();
    s - norm
}

pub(super) fn log_softmax_grad(y: &Tensor, dy: &Tensor) -> Tensor {
    let (y, dy) = (lift(y), lift(dy));
    let sum = dy.sum(&[-1], true);
    dy - y.exp() * sum
}
