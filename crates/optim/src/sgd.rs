//! Stochastic gradient descent.
use crate::engine::Engine;
use crate::{ParamGroup, Schedule};
use bimetal_tensor::graph::OptimRule;

/// Stochastic gradient descent with momentum (PyTorch's `SGD`: the buffer holds gradients, not updates, and starts as the first gradient).
///
/// Buffers and updates are f32 whatever the policy; parameters in half precision are updated in f32 and rounded once.
pub struct Sgd {
    pub(crate) engine: Engine,
}

impl Sgd {
    /// Plain gradient descent with a learning rate: a number or a schedule. Bad settings are an error when training starts.
    pub fn new(lr: impl Schedule + 'static) -> Sgd {
        let rule = OptimRule::Sgd {
            momentum: false,
            nesterov: false,
        };
        Sgd {
            engine: Engine::new(lr, rule, &[]),
        }
    }

    /// The share of the old direction that is kept, in [0, 1); 0 by default.
    pub fn momentum(mut self, momentum: f64) -> Sgd {
        self.engine.beta1 = momentum;
        let nesterov = self.is_nesterov();
        self.rule(nesterov)
    }

    /// The share of each gradient after the first that is not taken into the momentum; 0 by default.
    pub fn dampening(mut self, dampening: f64) -> Sgd {
        self.engine.beta2 = dampening;
        self
    }

    /// Nesterov's form of momentum (Sutskever et al. 2013).
    pub fn nesterov(self) -> Sgd {
        self.rule(true)
    }

    /// L2 decay: this share of the weight is added to the gradient; 0 by default.
    pub fn weight_decay(mut self, decay: f64) -> Sgd {
        self.engine.weight_decay = decay;
        self
    }

    fn is_nesterov(&self) -> bool {
        matches!(self.engine.rule, OptimRule::Sgd { nesterov: true, .. })
    }

    fn rule(mut self, nesterov: bool) -> Sgd {
        let momentum = self.engine.beta1 != 0.0;
        self.engine.rule = OptimRule::Sgd { momentum, nesterov };
        self.engine.moments = if momentum { &["momentum"] } else { &[] };
        self
    }
}

crate::optimizer::optimizer!(Sgd);
