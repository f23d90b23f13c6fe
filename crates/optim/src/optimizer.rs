//! What a training loop wants of an optimizer.
use crate::{Averages, Ema, StepHandle};
use bimetal_layers::Ctx;
use bimetal_precision::{Grads, Unscaled};
use bimetal_tensor::{Error, Result, Slot, Tensor};

/// What looks at the values that a step is about to write, and returns what is to be computed of them; see [`Optimizer::step_watched`].
pub type Watch<'a> = dyn FnMut(&[(Slot, Tensor)]) -> Vec<Tensor> + 'a;

/// Updates parameters by their gradients. A step is a transaction: weights, moments, averages, statistics of layers, the counter of applied steps (on which schedule and bias
/// correction depend) and the loss scale advance together; a step with a gradient that is not finite changes the loss scale and nothing else.
///
/// ```no_run
/// # use bimetal_layers::ParamStore;
/// # use bimetal_optim::{AdamW, Optimizer, warmup_cosine};
/// # use bimetal_precision::{LossScale, LossScaler, StepOutcome};
/// # use bimetal_tensor::{Device, Result, Tensor};
/// # fn train(store: &ParamStore, model: impl Fn(&bimetal_layers::Ctx) -> Tensor) -> Result<()> {
/// let scaler = LossScaler::new(LossScale::dynamic(), store.device())?;
/// let mut optimizer = AdamW::new(warmup_cosine(1e-3, 1e-4, 100, 2000)).decay_matrices_only();
/// for _ in 0..2000 {
///     let cx = store.train();
///     let loss = model(&cx);
///     let grads = scaler.scale(&loss).grad(&store.trainable_slots()?)?.unscale().clip_global_norm(1.0);
///     let step = optimizer.step(cx, grads)?;
///     if let StepOutcome::Skipped { culprit } = step.outcome()? {
///         eprintln!("skipped: {culprit:?}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// One store and one scaler belong to one optimizer: each step counts in the store and updates the scale.
///
/// Scaled gradients are not accepted:
///
/// ```compile_fail,E0308
/// # use bimetal_layers::Ctx;
/// # use bimetal_optim::{Optimizer, Sgd};
/// # use bimetal_precision::{Grads, Scaled};
/// fn wrong(mut optimizer: Sgd, cx: Ctx, grads: Grads<Scaled>) {
///     let _ = optimizer.step(cx, grads);
/// }
/// ```
pub trait Optimizer: Send {
    /// Makes the state for parameters that have none yet. Settings that cannot work (a learning rate that is NaN, say) are an error before anything changes.
    /// The first step does it if nobody has.
    fn init(&mut self, params: &[Slot]) -> Result<()>;

    /// Submits one step and does not wait for it. `cx` brings the state updates that the forward pass collected; `also` are tensors to be computed by the same
    /// plan, such as metrics, which keep their values.
    ///
    /// Errors: bad settings, or the first mistake in the graph; nothing has changed then.
    fn step_with(
        &mut self,
        cx: Ctx,
        grads: Grads<Unscaled>,
        also: &[&Tensor],
    ) -> Result<StepHandle>;

    /// [`Optimizer::step_with`] without anything else to compute.
    fn step(&mut self, cx: Ctx, grads: Grads<Unscaled>) -> Result<StepHandle> {
        self.step_with(cx, grads, &[])
    }

    /// As [`Optimizer::step_with`], and `watch` is shown what the step is about to write, as slots with their new values: the tensors it returns are computed by
    /// the same plan. An optimizer that cannot show it does not call `watch`.
    fn step_watched(
        &mut self,
        cx: Ctx,
        grads: Grads<Unscaled>,
        also: &[&Tensor],
        watch: &mut Watch<'_>,
    ) -> Result<StepHandle> {
        let _ = watch;
        self.step_with(cx, grads, also)
    }

    /// Keeps averages of the weights from the first step on; an error once the optimizer has been used, or if it cannot.
    fn set_ema(&mut self, ema: Ema) -> Result<()> {
        let _ = ema;
        Err(Error::argument("ema", "this optimizer keeps no averages"))
    }

    /// The averages of the weights; an error unless the optimizer was made with `.ema(..)` and has its state.
    fn averages(&self) -> Result<&Averages> {
        Err(Error::argument("ema", "this optimizer keeps no averages"))
    }

    /// What a checkpoint saves, in a fixed order: slots named `optim/lr` (if the rate is a number), `optim/<parameter>/<moment>`, and, of averages,
    /// `optim/ema_updates` and `optim/<parameter>/ema`.
    fn state(&self) -> Vec<Slot>;

    /// Changes the learning rate of an optimizer that was made with a number. NaN, infinite and negative rates are refused, and so is a change where a schedule
    /// rules.
    fn set_lr(&mut self, lr: f64) -> Result<()>;

    /// The number of steps attempted so far, skipped ones included. Applied steps are counted on the device, in the store.
    fn attempted(&self) -> u64;

    /// Continues counting attempted steps from here, after a checkpoint was loaded.
    fn set_attempted(&mut self, attempted: u64);
}

/// The parts that all optimizers share.
macro_rules! optimizer {
    ($name:ident) => {
        impl $name {
            /// Other settings for some parameters, by path. Later groups win; one that describes no parameter is an error of the first step.
            pub fn group(mut self, group: ParamGroup) -> $name {
                self.engine.groups.push(group);
                self
            }

            /// No weight decay for parameters with fewer than two axes, such as biases and the gains of norms, unless a group says otherwise.
            pub fn decay_matrices_only(mut self) -> $name {
                self.engine.matrices_only = true;
                self
            }

            /// Rounds new values of parameters that are kept in half precision to a neighbour at random, so that updates smaller than a step of the format are kept on
            /// average (Zamirai et al. 2020, "Revisiting BFloat16 Training"). Needs no masters, but is noisier than they are; without effect on f32 parameters.
            pub fn stochastic_rounding(mut self) -> $name {
                self.engine.stochastic_rounding = true;
                self
            }

            /// Keeps an average of the weights: a decay, such as 0.999, or an [`Ema`](crate::Ema). A decay that cannot work is an error when training starts.
            pub fn ema(mut self, ema: impl Into<crate::Ema>) -> $name {
                self.engine.ema = Some(ema.into());
                self
            }
        }

        impl $crate::Optimizer for $name {
            fn init(&mut self, params: &[bimetal_tensor::Slot]) -> bimetal_tensor::Result<()> {
                self.engine.init(params)
            }

            fn step_with(
                &mut self,
                cx: bimetal_layers::Ctx,
                grads: bimetal_precision::Grads<bimetal_precision::Unscaled>,
                also: &[&bimetal_tensor::Tensor],
            ) -> bimetal_tensor::Result<$crate::StepHandle> {
                self.engine.step(cx, &grads, also, &mut |_| Vec::new())
            }

            fn step_watched(
                &mut self,
                cx: bimetal_layers::Ctx,
                grads: bimetal_precision::Grads<bimetal_precision::Unscaled>,
                also: &[&bimetal_tensor::Tensor],
                watch: &mut $crate::Watch<'_>,
            ) -> bimetal_tensor::Result<$crate::StepHandle> {
                self.engine.step(cx, &grads, also, watch)
            }

            fn set_ema(&mut self, ema: $crate::Ema) -> bimetal_tensor::Result<()> {
                self.engine.set_ema(ema)
            }

            fn averages(&self) -> bimetal_tensor::Result<&$crate::Averages> {
                self.engine.averages()
            }

            fn state(&self) -> Vec<bimetal_tensor::Slot> {
                self.engine.state()
            }

            fn set_lr(&mut self, lr: f64) -> bimetal_tensor::Result<()> {
                self.engine.set_lr(lr)
            }

            fn attempted(&self) -> u64 {
                self.engine.attempted
            }

            fn set_attempted(&mut self, attempted: u64) {
                self.engine.attempted = attempted;
            }
        }
    };
}
pub(crate) use optimizer;
