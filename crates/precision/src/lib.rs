//! Precision policies, loss scaling and numerics checks of bimetal.
//!
//! A [`Policy`] says which dtypes a layer keeps, computes and returns; a [`PolicyMap`] says it for a whole model, by path.
//!
//! Gradients in f16 vanish below 6e-8. So the loss is multiplied by a scale before differentiation, and the gradients are divided by it afterwards
//! ([`LossScaler`]). The order is kept by types: [`LossScaler::scale`] gives a [`ScaledLoss`], [`ScaledLoss::grad`] gives `Grads<Scaled>`, and clipping, looking at
//! and stepping with gradients is for `Grads<Unscaled>` only ([`Grads`]).
//!
//! ```no_run
//! # use bimetal_precision::{LossScale, LossScaler};
//! # use bimetal_tensor::{Device, Result, Slot, Tensor};
//! # fn f(device: &Device, loss: Tensor, params: &[Slot]) -> Result<()> {
//! let scaler = LossScaler::new(LossScale::dynamic(), device)?;
//! let grads = scaler.scale(&loss).grad(params)?.unscale().clip_global_norm(1.0);
//! // then: optimizer.step(cx, grads)?
//! # let _ = grads;
//! # Ok(())
//! # }
//! ```
mod grads;
mod numerics;
mod outcome;
mod policy;
mod scale;
mod scaler;
mod support;

pub use grads::{Grads, Origin, Scaled, Scaling, Unscaled};
pub use numerics::{NonFinite, check_numerics, find_non_finite};
pub use outcome::{Culprit, SkipLimit, StepOutcome};
pub use policy::{Policy, PolicyError, PolicyMap, path_matches};
pub use scale::{DynamicLossScale, LossScale};
pub use scaler::{LossScaler, ScaledLoss};
pub use support::{PrecisionSupport, precision_support, warn_if_slow};
