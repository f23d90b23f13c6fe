//! All callbacks of a run as one.

use bimetal_precision::Culprit;
use serde_json::{Value, json};

use super::{Callback, Control, SaveRequest, StepRecord, TrainInfo};
use crate::{LayerStats, Logs, Result};

/// The callbacks of a run, called in the order they were added; all of them are called even when one stops training.
#[derive(Default)]
pub struct Callbacks(Vec<Box<dyn Callback>>);

/// What the callbacks want, taken together.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Actions {
    /// Why training is to end, from the first callback that wants it.
    pub stop: Option<String>,
    /// Checkpoints to write, in order.
    pub saves: Vec<SaveRequest>,
    /// Numbers of the callbacks for which the current weights are to be kept.
    pub keep_weights: Vec<usize>,
    /// Numbers of the callbacks whose kept weights are to be put back; the last one wins.
    pub restore_weights: Vec<usize>,
    /// What to tell the user, with the callback's name in front.
    pub warnings: Vec<String>,
}

impl Actions {
    fn add(&mut self, number: usize, name: &str, control: Control) {
        match control {
            Control::Continue => {}
            Control::StopTraining { reason } => {
                self.stop.get_or_insert_with(|| format!("{name}: {reason}"));
            }
            Control::Save(request) => self.saves.push(request),
            Control::KeepWeights => self.keep_weights.push(number),
            Control::RestoreWeights => self.restore_weights.push(number),
            Control::Warn(text) => self.warnings.push(format!("{name}: {text}")),
            Control::All(controls) => {
                for control in controls {
                    self.add(number, name, control);
                }
            }
        }
    }
}

impl Callbacks {
    /// No callbacks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a callback at the end.
    pub fn push(&mut self, callback: impl Callback + 'static) {
        self.0.push(Box::new(callback));
    }

    /// Number of callbacks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn each(
        &mut self,
        mut call: impl FnMut(&mut dyn Callback) -> Result<Control>,
    ) -> Result<Actions> {
        let mut actions = Actions::default();
        for (number, callback) in self.0.iter_mut().enumerate() {
            let control = call(callback.as_mut())?;
            actions.add(number, callback.name(), control);
        }
        Ok(actions)
    }

    /// Calls [`Callback::on_train_begin`] of all.
    pub fn on_train_begin(&mut self, info: &TrainInfo) -> Result<Actions> {
        self.each(|c| c.on_train_begin(info))
    }

    /// Calls [`Callback::on_train_end`] of all.
    pub fn on_train_end(&mut self, logs: &Logs) -> Result<Actions> {
        self.each(|c| c.on_train_end(logs))
    }

    /// Calls [`Callback::on_epoch_begin`] of all.
    pub fn on_epoch_begin(&mut self, epoch: usize) -> Result<Actions> {
        self.each(|c| c.on_epoch_begin(epoch))
    }

    /// Calls [`Callback::on_epoch_end`] of all.
    pub fn on_epoch_end(&mut self, epoch: usize, logs: &Logs) -> Result<Actions> {
        self.each(|c| c.on_epoch_end(epoch, logs))
    }

    /// Calls [`Callback::on_batch_end`] of all.
    pub fn on_batch_end(&mut self, batch: usize, logs: &Logs) -> Result<Actions> {
        self.each(|c| c.on_batch_end(batch, logs))
    }

    /// Calls [`Callback::on_step`] of all.
    pub fn on_step(&mut self, record: &StepRecord) -> Result<Actions> {
        self.each(|c| c.on_step(record))
    }

    /// Calls [`Callback::on_skipped`] of all.
    pub fn on_skipped(&mut self, step: u64, culprit: &Culprit) -> Result<Actions> {
        self.each(|c| c.on_skipped(step, culprit))
    }

    /// Calls [`Callback::on_validation_end`] of all.
    pub fn on_validation_end(&mut self, logs: &Logs) -> Result<Actions> {
        self.each(|c| c.on_validation_end(logs))
    }

    /// Whether any callback wants the weights after this epoch.
    pub fn wants_weights(&self, epoch: usize) -> bool {
        self.0.iter().any(|c| c.wants_weights(epoch))
    }

    /// Calls [`Callback::on_weights`] of those that want them.
    pub fn on_weights(&mut self, epoch: usize, weights: &[(String, Vec<f32>)]) -> Result<Actions> {
        self.each(|c| {
            if c.wants_weights(epoch) {
                c.on_weights(epoch, weights)
            } else {
                Ok(Control::Continue)
            }
        })
    }

    /// Whether any callback wants to see the layers in the last step of this epoch.
    pub fn wants_layers(&self, epoch: usize) -> bool {
        self.0.iter().any(|c| c.wants_layers(epoch))
    }

    /// Calls [`Callback::on_layers`] of those that want them.
    pub fn on_layers(&mut self, epoch: usize, layers: &[LayerStats]) -> Result<Actions> {
        self.each(|c| match c.wants_layers(epoch) {
            true => c.on_layers(epoch, layers),
            false => Ok(Control::Continue),
        })
    }

    /// Calls [`Callback::flush`] of all: before each checkpoint.
    pub fn flush(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(|c| c.flush())
    }

    /// The states of all callbacks, for [`Meta::extra`](crate::Meta::extra).
    pub fn state(&self) -> Value {
        let states = self
            .0
            .iter()
            .map(|c| json!({ "name": c.name(), "state": c.state() }));
        Value::Array(states.collect())
    }

    /// Gives the callbacks what [`Callbacks::state`] saved; warns where the callbacks have changed since.
    ///
    /// # Errors
    /// A state that its callback cannot read.
    pub fn load_state(&mut self, state: &Value) -> Result<Actions> {
        let mut actions = Actions::default();
        for (number, callback) in self.0.iter_mut().enumerate() {
            let saved = &state[number];
            if saved["name"] != callback.name() {
                let found = saved["name"].as_str().unwrap_or("nothing");
                let text = format!(
                    "the checkpoint holds the state of {found} in its place; it starts anew"
                );
                actions.add(number, callback.name(), Control::Warn(text));
            } else if !saved["state"].is_null() {
                callback.load_state(&saved["state"])?;
            }
        }
        Ok(actions)
    }
}
