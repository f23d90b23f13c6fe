//! Deciding when to save.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::batches::BatchCounter;
use super::monitor::Monitor;
use super::template::Template;
use super::{Callback, Control, Frequency, Mode, SaveRequest, TrainInfo};
use crate::checkpoint::writable;
use crate::{Error, Logs, Result};

/// Asks for a checkpoint after each epoch or every so many batches, always or when a number improves: Keras' options.
///
/// The file path is the checkpoint's folder and may name numbers: `ckpt/{epoch:02d}-{val_loss:.2f}`. Epoch and batch
/// count from 1 there. Without numbers each checkpoint replaces the one before.
#[derive(Clone, Debug)]
pub struct ModelCheckpoint {
    filepath: String,
    monitor: Monitor,
    save_best_only: bool,
    save_weights_only: bool,
    save_freq: Frequency,
    initial_value_threshold: Option<f64>,
    template: Option<Template>,
    epoch: usize,
    counter: BatchCounter,
    since_last: u64,
}

#[derive(Serialize, Deserialize)]
struct State {
    best: Option<f64>,
    since_last: u64,
}

impl ModelCheckpoint {
    /// Saves after every epoch; `val_loss` is monitored once [`ModelCheckpoint::save_best_only`] is set.
    pub fn new(filepath: impl Into<String>) -> Self {
        Self {
            filepath: filepath.into(),
            monitor: Monitor::new("val_loss"),
            save_best_only: false,
            save_weights_only: false,
            save_freq: Frequency::Epoch,
            initial_value_threshold: None,
            template: None,
            epoch: 0,
            counter: BatchCounter::default(),
            since_last: 0,
        }
    }

    /// Saves after an epoch in which `monitor` is better than ever before.
    pub fn best(filepath: impl Into<String>, monitor: impl Into<String>) -> Self {
        Self::new(filepath).monitor(monitor).save_best_only(true)
    }

    /// The number that decides; default `val_loss`.
    pub fn monitor(mut self, name: impl Into<String>) -> Self {
        self.monitor.name = name.into();
        self
    }

    /// Whether only improvements are saved; default false.
    pub fn save_best_only(mut self, best_only: bool) -> Self {
        self.save_best_only = best_only;
        self
    }

    /// Whether parameters are saved without optimizer state and counters; default false.
    pub fn save_weights_only(mut self, weights_only: bool) -> Self {
        self.save_weights_only = weights_only;
        self
    }

    /// Which direction is better; default [`Mode::Auto`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.monitor.mode = mode;
        self
    }

    /// When to save; default after each epoch. Batches are counted across epochs.
    pub fn save_freq(mut self, frequency: Frequency) -> Self {
        self.save_freq = frequency;
        self
    }

    /// Only what is better than this counts as an improvement.
    pub fn initial_value_threshold(mut self, value: f64) -> Self {
        self.initial_value_threshold = Some(value);
        self
    }

    fn decide(&mut self, batch: Option<usize>, logs: &Logs) -> Result<Control> {
        let mut best = None;
        let mut warning = None;
        if self.save_best_only {
            match logs.get(&self.monitor.name) {
                Some(value) if self.monitor.improves(value, self.monitor.best) => {
                    self.monitor.best = Some(value);
                    best = Some((self.monitor.name.clone(), value));
                }
                Some(_) => return Ok(Control::Continue),
                // As Keras does: rather one checkpoint too many than none.
                None => {
                    warning = self
                        .monitor
                        .missing(logs)
                        .map(|text| format!("{text}; saving anyway"))
                }
            }
        }
        let template = match &self.template {
            Some(template) => template,
            None => self.template.insert(Template::parse(&self.filepath)?),
        };
        let path = PathBuf::from(template.fill(self.epoch, batch, logs)?);
        let save = Control::Save(SaveRequest {
            path,
            weights_only: self.save_weights_only,
            best,
        });
        Ok(match warning {
            Some(text) => Control::All(vec![Control::Warn(text), save]),
            None => save,
        })
    }
}

impl Callback for ModelCheckpoint {
    fn on_train_begin(&mut self, info: &TrainInfo) -> Result<Control> {
        if self.save_freq == Frequency::Batches(0) {
            return Err(Error::invalid(
                "ModelCheckpoint has save_freq 0; use Frequency::Epoch or at least one batch",
            ));
        }
        let template = Template::parse(&self.filepath)?;
        // What a training would be lost for is found out before it.
        let folder = template.folder();
        writable(&folder).map_err(|e| Error::unwritable(&folder, e))?;
        self.template = Some(template);
        if self.save_best_only {
            self.monitor.begin("ModelCheckpoint")?;
        }
        self.monitor.best = self.initial_value_threshold;
        self.counter = BatchCounter::new(info.resumed.as_ref());
        self.since_last = 0;
        Ok(Control::Continue)
    }

    fn on_epoch_begin(&mut self, epoch: usize) -> Result<Control> {
        self.epoch = epoch;
        Ok(Control::Continue)
    }

    fn on_batch_end(&mut self, batch: usize, logs: &Logs) -> Result<Control> {
        let (before, after) = self.counter.advance(batch);
        let Frequency::Batches(every) = self.save_freq else {
            return Ok(Control::Continue);
        };
        self.since_last += after - before;
        if self.since_last < every {
            return Ok(Control::Continue);
        }
        self.since_last = 0;
        self.decide(Some(batch), logs)
    }

    fn on_epoch_end(&mut self, epoch: usize, logs: &Logs) -> Result<Control> {
        self.epoch = epoch;
        match self.save_freq {
            Frequency::Epoch => self.decide(None, logs),
            Frequency::Batches(_) => Ok(Control::Continue),
        }
    }

    fn state(&self) -> Option<Value> {
        let state = State {
            best: self.monitor.best,
            since_last: self.since_last,
        };
        serde_json::to_value(state).ok()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        let state = State::deserialize(state).map_err(|e| {
            Error::invalid(format!(
                "the checkpoint's state of ModelCheckpoint cannot be read: {e}"
            ))
        })?;
        self.monitor.best = state.best;
        self.since_last = state.since_last;
        Ok(())
    }
}
