//! Trainer, metrics, callbacks, checkpoints and TensorBoard logs of bimetal.
mod checkpoint;
mod error;
mod tensorboard;

pub use checkpoint::{Array, ArrayInfo, StateMismatch, compare_arrays};
pub use error::{Error, ErrorKind, Problem, Result};
pub use tensorboard::{EventWriter, Histogram};
