//! Trainer, metrics, callbacks, checkpoints and TensorBoard logs of bimetal.
//!
//! Everything around the training steps that needs the host alone: what is shown ([`Progress`]), logged
//! ([`TensorBoard`], [`CsvLogger`], [`JsonlLogger`]), decided ([`EarlyStopping`], [`ModelCheckpoint`]) and kept
//! ([`Checkpoints`]). [`Callback`] is the trait for one's own additions.
//!
//! ```
//! # fn main() -> bimetal_train::Result<()> {
//! use bimetal_train::{Callbacks, EarlyStopping, Logs, TrainInfo};
//!
//! let mut callbacks = Callbacks::new();
//! callbacks.push(EarlyStopping::new("loss").patience(1));
//! callbacks.on_train_begin(&TrainInfo { epochs: 10, ..TrainInfo::default() })?;
//! let mut stopped = None;
//! for (epoch, loss) in [0.9, 0.5, 0.6].into_iter().enumerate() {
//!     let logs: Logs = [("loss", loss)].into_iter().collect();
//!     stopped = callbacks.on_epoch_end(epoch, &logs)?.stop;
//! }
//! assert!(stopped.is_some_and(|reason| reason.contains("`loss` has not improved")));
//! # Ok(()) }
//! ```

mod callback;
mod checkpoint;
mod error;
mod files;
mod logs;
mod metrics;
mod progress;
mod tensorboard;
mod trainer;

pub use callback::{
    Actions, Callback, Callbacks, Control, CsvLogger, EarlyStopping, Frequency, JsonlLogger, Mode,
    ModelCheckpoint, Outcome, Resumed, SaveRequest, StepRecord, TensorBoard, TerminateOnNaN,
    TrainInfo,
};
pub use checkpoint::{
    Array, ArrayInfo, Checkpoint, Checkpoints, Cursor, Meta, RngState, ScaleState, StateMismatch,
    compare_arrays, load_checkpoint, load_latest_checkpoint, save_checkpoint,
};
pub use error::{Error, ErrorKind, Problem, Result};
pub use logs::Logs;
pub use metrics::{Accuracy, Mean};
pub use progress::{Progress, ProgressState};
pub use tensorboard::{EventWriter, Histogram};
pub use trainer::{
    Output, Report, Task, TensorBatch, Trainer, load_slots, load_weights, slot_arrays,
};
