//! Train steps: forward, loss, backward, update.
use crate::models::Model;
use bimetal::prelude::*;

/// A training that repeats its step on one batch.
pub struct Training {
    store: ParamStore,
    params: Vec<Slot>,
    model: Model,
    optimizer: Box<dyn Optimizer>,
    scaler: LossScaler,
    clip: Option<f64>,
    loss: f32,
}

/// The policy that trains in a dtype: master weights in f32 always.
pub fn policy(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "mixed_float16",
        DType::BF16 => "mixed_bfloat16",
        _ => "float32",
    }
}

impl Training {
    /// Builds a network, its optimizer (Adam, 1e-3, no decay), and for f16 a dynamic loss scale.
    ///
    /// # Errors
    /// Those of the model.
    pub fn new(
        build: impl FnOnce(&Scope) -> Result<Model>,
        dtype: DType,
        device: &Device,
    ) -> Result<Training> {
        let store = ParamStore::new(device, policy(dtype)).seed(0);
        Training::with(store, build, Box::new(Adam::new(1e-3)))
    }

    /// Builds a network in an empty store; if it computes in f16, with a dynamic loss scale.
    ///
    /// # Errors
    /// Those of the model and the optimizer.
    pub fn with(
        store: ParamStore,
        build: impl FnOnce(&Scope) -> Result<Model>,
        mut optimizer: Box<dyn Optimizer>,
    ) -> Result<Training> {
        let model = build(&store.root())?;
        let params = store.trainable_slots()?;
        let scale = match store.computes_in_f16() {
            true => LossScale::dynamic(),
            false => LossScale::None,
        };
        // The counter of steps is made when it is first asked for; not within the first step.
        store.applied()?;
        optimizer.init(&params)?;
        Ok(Training {
            scaler: LossScaler::new(scale, store.device())?,
            store,
            params,
            model,
            optimizer,
            clip: None,
            loss: f32::NAN,
        })
    }

    /// Gradients are clipped to this norm.
    pub fn clip(mut self, norm: f64) -> Training {
        self.clip = Some(norm);
        self
    }

    /// The number of elements of all parameters.
    pub fn parameters(&self) -> usize {
        self.params.iter().map(|p| p.shape().numel()).sum()
    }

    /// Submits a step, and does not wait for it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn submit(&mut self) -> Result<StepHandle> {
        let cx = self.store.train();
        let logits = self.model.net.forward(&self.model.x, &cx);
        let loss = cross_entropy(&logits, &self.model.y);
        let grads = self.scaler.scale(&loss).grad(&self.params)?.unscale();
        let grads = match self.clip {
            Some(norm) => grads.clip_global_norm(norm),
            None => grads,
        };
        Ok(self.optimizer.step(cx, grads)?)
    }

    /// One step, with its loss.
    ///
    /// # Errors
    /// Those of the device.
    pub fn step(&mut self) -> Result<()> {
        self.loss = self.submit()?.loss()?;
        Ok(())
    }

    /// The loss of the last step that was waited for.
    pub fn loss(&self) -> f32 {
        self.loss
    }
}
