//! Optimizers, schedules and gradient accumulation of bimetal.
//!
//! [`Sgd`], [`Adam`] and [`AdamW`] update f32 masters in one kernel per parameter group, with the loss scale, clipping and the check for finite gradients inside.
//! A [`Schedule`] gives the learning rate as a function of the applied steps, on the device. [`Optimizer::step`] is a transaction that does not wait for the host; its
//! [`StepHandle`] reads the outcome when asked.
//!
//! ```
//! use bimetal_optim::{AdamW, ParamGroup, warmup_cosine};
//!
//! let optimizer = AdamW::new(warmup_cosine(1e-3, 1e-4, 100, 2000))
//!     .betas(0.9, 0.99)
//!     .weight_decay(0.1)
//!     .decay_matrices_only()
//!     .group(ParamGroup::new("head").lr_factor(0.1));
//! # let _ = optimizer;
//! ```
mod accumulate;
mod adam;
mod engine;
mod group;
mod handle;
mod optimizer;
mod schedule;
mod sgd;

pub use accumulate::Accumulator;
pub use adam::{Adam, AdamW};
pub use group::ParamGroup;
pub use handle::{Notice, StepHandle};
pub use optimizer::Optimizer;
pub use schedule::{Cosine, Exponential, Linear, Schedule, StepDecay, Warmup, warmup_cosine};
pub use sgd::Sgd;
