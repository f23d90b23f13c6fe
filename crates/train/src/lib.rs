//! Trainer, metrics, callbacks, checkpoints and TensorBoard logs of bimetal.
mod checkpoint;
mod error;
mod tensorboard;

pub use checkpoint::{
    Array, ArrayInfo, Checkpoint, Checkpoints, Cursor, Meta, RngState, ScaleState, StateMismatch,
    compare_arrays, load_checkpoint, load_latest_checkpoint, save_checkpoint,
};
pub use error::{Error, ErrorKind, Problem, Result};
pub use tensorboard::{EventWriter, Histogram};
