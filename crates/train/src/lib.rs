//! Trainer, metrics, callbacks, checkpoints and TensorBoard logs of bimetal.
//!
//! The [`Trainer`] runs the loop: steps, validation, progress, logs, checkpoints, resuming to the same bits. A [`Task`] says how a batch becomes
//! a loss and metrics; callbacks see numbers and say what they want done ([`TensorBoard`], [`ModelCheckpoint`], [`EarlyStopping`], ...; [`Callback`] is
//! the trait for one's own). The parts serve loops written by hand, too: [`Checkpoints`], [`EventWriter`], [`Progress`], [`Mean`].
//!
//! ```
//! use bimetal_data::{Array, InMemory, Loader};
//! use bimetal_layers::{Ctx, Layer, Linear, ParamStore, mse};
//! use bimetal_optim::Adam;
//! use bimetal_train::{EarlyStopping, Output, TensorBatch, Trainer};
//!
//! # fn main() -> bimetal_train::Result<()> {
//! let x = Array::from_vec((0..64).map(|i| i as f32 / 32.0 - 1.0).collect(), &[64, 1])?;
//! let y = x.map_f32(|x| 2.0 * x + 1.0)?;
//! let data = InMemory::new(vec![x, y])?;
//!
//! let store = ParamStore::new(&bimetal_cpu::cpu(), "float32").seed(0);
//! let net = Linear::new(&store.root().at("net"), 1, 1);
//! let task = |batch: &TensorBatch, cx: &Ctx| Output::new(mse(&net.forward(&batch[0], cx), &batch[1]));
//!
//! let mut trainer = Trainer::new(&store, Adam::new(0.1))
//!     .steps_per_execution(8)
//!     .callback(EarlyStopping::new("loss").patience(2))
//!     .progress(false);
//! let report = trainer.fit(&task, Loader::new(data).batch(8).shuffle(0), None, 30)?;
//! assert!(report.train_loss() < 1e-2, "{report}");
//! # Ok(()) }
//! ```

mod callback;
mod checkpoint;
mod error;
mod files;
mod logs;
mod metrics;
mod precision;
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
pub use precision::{
    Advice, Comparison, LayerReport, LayerStats, PolicyRun, PolicyRuns, PolicySearch, PolicyTrial,
    PrecisionReport, ScaleRange, SearchBudget, Setup, Severity, Updates, Values, Verdict,
    compare_policies, load_policies, precision_report, search_policy,
};
pub use progress::{Progress, ProgressState};
pub use tensorboard::{EventWriter, Histogram};
pub use trainer::{
    Output, Report, Task, TensorBatch, Trainer, load_slots, load_weights, slot_arrays,
};
