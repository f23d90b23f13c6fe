//! Stopping when nothing gets better.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::monitor::Monitor;
use super::{Callback, Control, Mode, TrainInfo};
use crate::{Error, Logs, Result};

/// Stops training when a monitored number has stopped improving; semantics of Keras 3.
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    monitor: Monitor,
    patience: usize,
    baseline: Option<f64>,
    start_from_epoch: usize,
    restore_best_weights: bool,
    state: State,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    wait: usize,
    best: Option<f64>,
    best_epoch: usize,
    kept: bool,
}

impl EarlyStopping {
    /// Watches `monitor` (Keras' default is `val_loss`) with patience 0: the first epoch without improvement is the last.
    pub fn new(monitor: impl Into<String>) -> Self {
        Self {
            monitor: Monitor::new(monitor),
            patience: 0,
            baseline: None,
            start_from_epoch: 0,
            restore_best_weights: false,
            state: State::default(),
        }
    }

    /// Epochs without improvement after which training stops.
    pub fn patience(mut self, epochs: usize) -> Self {
        self.patience = epochs;
        self
    }

    /// Smallest change that counts as an improvement; default 0.
    pub fn min_delta(mut self, delta: f64) -> Self {
        self.monitor.min_delta = delta;
        self
    }

    /// Which direction is better; default [`Mode::Auto`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.monitor.mode = mode;
        self
    }

    /// A value that must be reached: patience runs out unless the number is better than this.
    pub fn baseline(mut self, value: f64) -> Self {
        self.baseline = Some(value);
        self
    }

    /// Epochs at the beginning that are not watched; default 0.
    pub fn start_from_epoch(mut self, epoch: usize) -> Self {
        self.start_from_epoch = epoch;
        self
    }

    /// Whether the weights of the best epoch are put back when training ends, stopped or not; default false.
    pub fn restore_best_weights(mut self, restore: bool) -> Self {
        self.restore_best_weights = restore;
        self
    }

    fn keep_weights(&mut self) -> Control {
        if !self.restore_best_weights {
            return Control::Continue;
        }
        self.state.kept = true;
        Control::KeepWeights
    }
}

impl Callback for EarlyStopping {
    fn on_train_begin(&mut self, _info: &TrainInfo) -> Result<Control> {
        self.state = State::default();
        self.monitor.begin("EarlyStopping")?;
        Ok(Control::Continue)
    }

    fn on_epoch_end(&mut self, epoch: usize, logs: &Logs) -> Result<Control> {
        let Some(current) = logs.get(&self.monitor.name) else {
            return Ok(self
                .monitor
                .missing(logs)
                .map_or(Control::Continue, Control::Warn));
        };
        if epoch < self.start_from_epoch {
            return Ok(Control::Continue);
        }
        // Something must be there to restore even if nothing ever improves.
        let first = self.restore_best_weights && !self.state.kept;
        let mut control = Control::Continue;
        if first {
            self.state.best_epoch = epoch;
            control = self.keep_weights();
        }
        self.state.wait += 1;
        if self.monitor.improves(current, self.state.best) {
            self.state.best = Some(current);
            self.state.best_epoch = epoch;
            if self.baseline.is_none() || self.monitor.improves(current, self.baseline) {
                self.state.wait = 0;
            }
            return Ok(self.keep_weights());
        }
        if self.state.wait >= self.patience && epoch > 0 {
            let best = self
                .state
                .best
                .map_or("none".into(), |best| format!("{best:.5}"));
            let stop = Control::stop(format!(
                "`{}` has not improved for {} epochs; best {best} in epoch {}",
                self.monitor.name,
                self.state.wait,
                self.state.best_epoch + 1
            ));
            return Ok(Control::All(vec![control, stop]));
        }
        Ok(control)
    }

    fn on_train_end(&mut self, _logs: &Logs) -> Result<Control> {
        Ok(if self.state.kept {
            Control::RestoreWeights
        } else {
            Control::Continue
        })
    }

    fn state(&self) -> Option<Value> {
        serde_json::to_value(&self.state).ok()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.state = State::deserialize(state).map_err(|e| {
            Error::invalid(format!(
                "the checkpoint's state of EarlyStopping cannot be read: {e}"
            ))
        })?;
        Ok(())
    }
}
