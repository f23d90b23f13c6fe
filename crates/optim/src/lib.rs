//! Optimizers, schedules and gradient accumulation of bimetal.
//!
//! [`Sgd`], [`Adam`] and [`AdamW`] update f32 masters in one kernel per parameter group, with the loss scale, clipping and the check for finite gradients inside.
//! A [`Schedule`] gives the learning rate as a function of the applied steps, on the device. [`Optimizer::step`] is a transaction that does not wait for the host; its
//! [`StepHandle`] reads the outcome when asked. An [`Ema`] keeps averages of the weights in the same step.
//!
//! ```
//! use bimetal_layers::{Layer, Linear, ParamStore, mse};
//! use bimetal_optim::{AdamW, Optimizer, ParamGroup, warmup_cosine};
//! use bimetal_precision::{LossScale, LossScaler};
//! use bimetal_tensor::{DType, Tensor};
//!
//! # fn main() -> bimetal_tensor::Result<()> {
//! let device = bimetal_cpu::cpu();
//! let store = ParamStore::new(&device, "mixed_float16").seed(0);
//! let net = Linear::new(&store.root().at("net"), 4, 1);
//! let scaler = LossScaler::new(LossScale::dynamic(), &device)?;
//! let mut optimizer = AdamW::new(warmup_cosine(0.05, 0.005, 5, 50))
//!     .betas(0.9, 0.99)
//!     .decay_matrices_only()
//!     .group(ParamGroup::new("net.bias").lr_factor(0.5));
//!
//! let x = Tensor::ones(&[8, 4], DType::F32, &device);
//! let y = Tensor::full(&[8, 1], 3.0, DType::F32, &device);
//! let mut losses = Vec::new();
//! for _ in 0..50 {
//!     let cx = store.train();
//!     let loss = mse(&net.forward(&x, &cx), &y);
//!     let grads = scaler.scale(&loss).grad(&store.trainable_slots()?)?;
//!     let step = optimizer.step(cx, grads.unscale().clip_global_norm(10.0))?;
//!     losses.push(step.loss()?);
//! }
//! assert!(losses[49] < 0.1 * losses[0], "{losses:?}");
//! # Ok(())
//! # }
//! ```
mod accumulate;
mod adam;
mod ema;
mod engine;
mod group;
mod handle;
mod optimizer;
mod schedule;
mod sgd;

pub use accumulate::Accumulator;
pub use adam::{Adam, AdamW};
pub use ema::{Averages, Ema};
pub use group::ParamGroup;
pub use handle::{Notice, StepHandle};
pub use optimizer::{Optimizer, Watch};
pub use schedule::{Cosine, Exponential, LinearDecay, Schedule, StepDecay, Warmup, warmup_cosine};
pub use sgd::Sgd;
