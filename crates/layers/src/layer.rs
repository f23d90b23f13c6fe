//! What a layer is, and layers made of others.
use crate::Ctx;
use bimetal_tensor::{Label, Tensor};

/// A function of a tensor with parameters of its own. Functions and closures `Fn(&Tensor, &Ctx) -> Tensor` are layers too.
pub trait Layer {
    /// The result for `x`. Mistakes in shapes or dtypes give an invalid tensor that says what was wrong.
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor;
}

impl<F: Fn(&Tensor, &Ctx) -> Tensor> Layer for F {
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self(x, cx)
    }
}

/// Layers one after the other.
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer + Send + Sync>>,
}

impl Sequential {
    /// No layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// With one more layer at the end.
    pub fn then(mut self, layer: impl Layer + Send + Sync + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

impl Layer for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let run = || {
            let mut x = x.clone();
            for layer in &self.layers {
                x = layer.forward(&x, cx);
            }
            x
        };
        Label::located(run)
    }
}

/// `[n, a, b, ..]` to `[n, a b ..]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Layer for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor, _cx: &Ctx) -> Tensor {
        let last = x.rank().unwrap_or(0) as isize - 1;
        x.flatten(1..=last)
    }
}
