//! Train steps: forward, loss, backward, Adam.
use crate::models::Model;
use bimetal::prelude::*;

/// A training that repeats its step on one batch.
pub struct Training {
    store: ParamStore,
    params: Vec<Slot>,
    model: Model,
    optimizer: Adam,
    scaler: LossScaler,
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
        let model = build(&store.root())?;
        let params = store.trainable_slots()?;
        let scale = match store.computes_in_f16() {
            true => LossScale::dynamic(),
            false => LossScale::None,
        };
        // The counter of steps is made when it is first asked for; not within the first step.
        store.applied()?;
        let mut optimizer = Adam::new(1e-3);
        optimizer.init(&params)?;
        Ok(Training {
            scaler: LossScaler::new(scale, device)?,
            store,
            params,
            model,
            optimizer,
            loss: f32::NAN,
        })
    }

    /// The number of elements of all parameters.
    pub fn parameters(&self) -> usize {
        self.params.iter().map(|p| p.shape().numel()).sum()
    }

    /// One step.
    ///
    /// # Errors
    /// Those of the device.
    pub fn step(&mut self) -> Result<()> {
        let cx = self.store.train();
        let logits = self.model.net.forward(&self.model.x, &cx);
        let loss = cross_entropy(&logits, &self.model.y);
        let grads = self.scaler.scale(&loss).grad(&self.params)?.unscale();
        self.loss = self.optimizer.step(cx, grads)?.loss()?;
        Ok(())
    }

    /// The loss of the last step.
    pub fn loss(&self) -> f32 {
        self.loss
    }
}
