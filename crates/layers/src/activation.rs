//! Activation functions.
use crate::{Ctx, Layer};
use bimetal_tensor::Tensor;

/// An element-wise activation, in the dtype of its input; f32 inside for 8- and 16-bit floats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x Phi(x)` with the exact normal distribution function (Hendrycks and Gimpel 2016).
    Gelu,
    /// GELU's tanh approximation.
    GeluTanh,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl Layer for Activation {
    #[track_caller]
    fn forward(&self, x: &Tensor, _cx: &Ctx) -> Tensor {
        match self {
            Activation::Relu => x.relu(),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Silu => x.silu(),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => x.sigmoid(),
        }
    }
}
