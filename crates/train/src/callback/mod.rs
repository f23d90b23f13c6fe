//! Callbacks: what happens beside the training steps.
//!
//! A callback sees numbers and answers with a [`Control`]; it never holds tensors. Saving, keeping and restoring
//! weights are requests that the training loop carries out.

mod batches;
mod csv;
mod early_stopping;
mod jsonl;
mod lines;
mod list;
mod model_checkpoint;
mod monitor;
mod template;
mod tensorboard;
mod terminate_on_nan;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use bimetal_precision::Culprit;

use crate::{LayerStats, Logs, Result};

pub use csv::CsvLogger;
pub use early_stopping::EarlyStopping;
pub use jsonl::JsonlLogger;
pub use list::{Actions, Callbacks};
pub use model_checkpoint::ModelCheckpoint;
pub use monitor::Mode;
pub use tensorboard::TensorBoard;
pub use terminate_on_nan::TerminateOnNaN;

/// Hooks into training; every method does nothing unless it is overridden.
///
/// Epochs and batches count from 0. Order: `on_train_begin`, for a resumed run `load_state`, then per epoch
/// `on_epoch_begin`, `on_step` and `on_batch_end` as results are read, `on_validation_end`, `on_epoch_end`; at last
/// `on_train_end`, which an error skips.
///
/// ```
/// use bimetal_train::{Callback, Control, Logs, Result};
///
/// /// Stops as soon as the loss is good enough.
/// struct StopBelow(f64);
///
/// impl Callback for StopBelow {
///     fn on_epoch_end(&mut self, _epoch: usize, logs: &Logs) -> Result<Control> {
///         match logs.get("loss") {
///             Some(loss) if loss < self.0 => Ok(Control::stop(format!("loss {loss} is good enough"))),
///             _ => Ok(Control::Continue),
///         }
///     }
/// }
/// ```
#[allow(unused_variables)]
pub trait Callback: Send {
    /// Before the first step: the place to open files and to refuse settings.
    fn on_train_begin(&mut self, info: &TrainInfo) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// After the last epoch, also when training was stopped.
    fn on_train_end(&mut self, logs: &Logs) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// Before the first batch of an epoch (of what is left of it after a resume).
    fn on_epoch_begin(&mut self, epoch: usize) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// After an epoch and its validation; `logs` holds means over the epoch, validation with the prefix `val_`.
    fn on_epoch_end(&mut self, epoch: usize, logs: &Logs) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// After each execution; `batch` is the index in the epoch of its last batch: 3, 7, 9 for ten batches in
    /// executions of four.
    fn on_batch_end(&mut self, batch: usize, logs: &Logs) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// Once for each attempted step, in order, when the host has read its results.
    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// With numerics checks on, after [`Callback::on_step`] of a skipped step whose culprit is known.
    fn on_skipped(&mut self, step: u64, culprit: &Culprit) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// After a pass over the validation data; `logs` without prefix.
    fn on_validation_end(&mut self, logs: &Logs) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// Whether [`Callback::on_weights`] is wanted after this epoch; reading all weights takes time.
    fn wants_weights(&self, epoch: usize) -> bool {
        false
    }

    /// The parameters after an epoch, as (path, elements), when [`Callback::wants_weights`] asked for them.
    fn on_weights(&mut self, epoch: usize, weights: &[(String, Vec<f32>)]) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// Whether [`Callback::on_layers`] is wanted of this epoch. Its last step then computes the numbers beside its own; other steps cost nothing.
    fn wants_layers(&self, epoch: usize) -> bool {
        false
    }

    /// What the last step of an epoch saw of the layers, when [`Callback::wants_layers`] asked for it; of several batches of a step, its last.
    fn on_layers(&mut self, epoch: usize, layers: &[LayerStats]) -> Result<Control> {
        Ok(Control::Continue)
    }

    /// Before a checkpoint is written: what was logged must reach the disk, or a resume would find a gap.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// What a resumed run must know; goes into the checkpoint.
    fn state(&self) -> Option<serde_json::Value> {
        None
    }

    /// Takes back what [`Callback::state`] gave, after `on_train_begin` of a resumed run.
    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        Ok(())
    }

    /// The name used in messages and checkpoints: the type's.
    fn name(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        path.rsplit("::").next().unwrap_or(path)
    }
}

/// What a callback wants to happen.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Control {
    /// Nothing.
    #[default]
    Continue,
    /// Training ends after this batch or epoch, in order.
    StopTraining {
        /// Why, for the user and the report.
        reason: String,
    },
    /// A checkpoint is to be written.
    Save(SaveRequest),
    /// The current weights are to be kept in memory, in place of those this callback had kept before.
    KeepWeights,
    /// The weights this callback had kept are to be put back.
    RestoreWeights,
    /// The user is to be told.
    Warn(String),
    /// Several of these.
    All(Vec<Control>),
}

impl Control {
    /// Ends training, and says why.
    pub fn stop(reason: impl Into<String>) -> Self {
        Control::StopTraining {
            reason: reason.into(),
        }
    }
}

/// A checkpoint that a callback wants written.
#[derive(Clone, Debug, PartialEq)]
pub struct SaveRequest {
    /// The folder, see [`save_checkpoint`](crate::save_checkpoint).
    pub path: PathBuf,
    /// Parameters alone, without optimizer state and counters.
    pub weights_only: bool,
    /// The monitored name and value when this is the best so far.
    pub best: Option<(String, f64)>,
}

/// What callbacks are told before training starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainInfo {
    /// Epochs in all.
    pub epochs: usize,
    /// Batches of an epoch, where that is known.
    pub batches: Option<usize>,
    /// Whether there is validation data.
    pub validation: bool,
    /// Where a resumed run goes on; `None` for a run from the beginning.
    pub resumed: Option<Resumed>,
}

/// Where a resumed run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Attempted steps done.
    pub step: u64,
    /// Applied steps done.
    pub applied: u64,
    /// Epochs completed, which is the index of the epoch that goes on.
    pub epoch: usize,
    /// Batches of that epoch done.
    pub batch: usize,
}

/// The results of one attempted step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRecord {
    /// Number of the attempted step, from 1.
    pub step: u64,
    /// The loss, unscaled.
    pub loss: f32,
    /// The loss scale used in this step, 1 without scaling.
    pub scale: f32,
    /// The global norm of the unscaled gradients, before clipping.
    pub grad_norm: f32,
    /// Whether the step changed the state.
    pub outcome: Outcome,
    /// Applied steps after this one.
    pub applied: u64,
}

/// Whether a step changed the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Weights, moments, statistics and counters moved.
    Applied,
    /// A gradient was not finite: nothing moved but the loss scale.
    Skipped,
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// After each epoch.
    Epoch,
    /// After that many batches, at the end of the execution that reaches them; `Batches(1)` is Keras' `"batch"`.
    Batches(u64),
}
