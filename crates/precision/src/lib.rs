//! Precision policies, loss scaling and numerics checks of bimetal.
//!
//! A [`Policy`] says which dtypes a layer keeps, computes and returns; a [`PolicyMap`] says it for a whole model, by path.
//!
//! Gradients in f16 vanish below 6e-8. So the loss is multiplied by a scale before differentiation, and the gradients are divided by it afterwards
//! ([`LossScaler`]). The order is kept by types: [`LossScaler::scale`] gives a [`ScaledLoss`], [`ScaledLoss::grad`] gives `Grads<Scaled>`, and clipping, looking at
//! and stepping with gradients is for `Grads<Unscaled>` only ([`Grads`]).
//!
//! ```
//! use bimetal_precision::{LossScale, LossScaler};
//! use bimetal_tensor::{DType, Slot, Tensor};
//!
//! # fn main() -> bimetal_tensor::Result<()> {
//! let device = bimetal_cpu::cpu();
//! let weight = Slot::new("weight", &Tensor::full(&[4, 1], 0.5, DType::F32, &device), &device)?;
//! let x = Tensor::ones(&[2, 4], DType::F16, &device);
//! let loss = x.matmul(&weight.read().cast(DType::F16)).mean_all(); // computed in f16
//!
//! let scaler = LossScaler::new(LossScale::dynamic(), &device)?;
//! let grads = scaler.scale(&loss).grad(&[weight.clone()])?.unscale().clip_global_norm(1.0);
//! assert!(grads.norm().item()? <= 1.0); // and then: optimizer.step(cx, grads)?
//! assert_eq!(grads.norm_before_clipping().item()?, 2.0);
//! # Ok(())
//! # }
//! ```
mod float8;
mod grads;
mod halt;
mod near;
mod numerics;
mod outcome;
mod policy;
mod replicas;
mod scale;
mod scaler;
mod support;

pub use float8::{AmaxOf, F8Histories, F8Recipe, F8Scaling, amax, f8_linear, roll_amax};
pub use grads::{Grads, Origin, Scaled, Scaling, Unscaled};
pub use halt::Halt;
pub use near::near_paths;
pub use numerics::{Checks, InputRange, Level, NonFinite, check_numerics, find_non_finite};
pub use outcome::{Culprit, SkipLimit, StepOutcome};
pub use policy::{Policy, PolicyError, PolicyMap, path_matches};
pub use scale::{DynamicLossScale, LossScale};
pub use scaler::{LossScaler, ScaledLoss};
pub use support::{PrecisionSupport, precision_support, warn_if_slow};
