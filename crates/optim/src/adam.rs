//! Adam and AdamW.
use crate::engine::Engine;
use crate::{ParamGroup, Schedule};
use bimetal_tensor::graph::OptimRule;

/// Adam (Kingma and Ba 2015), PyTorch's form: `eps` is added after the bias correction, weight decay goes into the gradient.
///
/// Moments and updates are f32 whatever the policy, so that the default `eps` of 1e-8 is not 0; parameters in half precision are updated in f32 and rounded
/// once. Bias correction counts the applied steps of the store, as Keras does: a parameter that is thawed late starts with moments that are not corrected, so its first
/// updates are too large; a new optimizer for that stage, or a warm-up, avoids it.
pub struct Adam {
    pub(crate) engine: Engine,
}

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019), PyTorch's form: the weight shrinks by `lr * weight_decay` of itself.
///
/// Moments and updates are f32 whatever the policy; see [`Adam`].
pub struct AdamW {
    pub(crate) engine: Engine,
}

fn engine(lr: impl Schedule + 'static, decoupled: bool, weight_decay: f64) -> Engine {
    let mut engine = Engine::new(lr, OptimRule::Adam { decoupled }, &["m", "v"]);
    (engine.beta1, engine.beta2) = (0.9, 0.999);
    (engine.eps, engine.weight_decay) = (1e-8, weight_decay);
    engine
}

impl Adam {
    /// Adam with a learning rate: a number or a schedule. Betas 0.9 and 0.999, eps 1e-8, no decay. Bad settings are an error when training starts.
    pub fn new(lr: impl Schedule + 'static) -> Adam {
        Adam {
            engine: engine(lr, false, 0.0),
        }
    }
}

impl AdamW {
    /// AdamW with a learning rate: a number or a schedule. Betas 0.9 and 0.999, eps 1e-8, decay 0.01. Bad settings are an error when training starts.
    pub fn new(lr: impl Schedule + 'static) -> AdamW {
        AdamW {
            engine: engine(lr, true, 0.01),
        }
    }
}

macro_rules! settings {
    ($($name:ident)*) => {$(
        impl $name {
            /// The decay rates of the first and the second moment, in [0, 1).
            pub fn betas(mut self, beta1: f64, beta2: f64) -> $name {
                (self.engine.beta1, self.engine.beta2) = (beta1, beta2);
                self
            }

            /// Added to the denominator.
            pub fn eps(mut self, eps: f64) -> $name {
                self.engine.eps = eps;
                self
            }

            /// The decay of the weights per unit of learning rate.
            pub fn weight_decay(mut self, decay: f64) -> $name {
                self.engine.weight_decay = decay;
                self
            }
        }

        crate::optimizer::optimizer!($name);
    )*};
}
settings!(Adam AdamW);
