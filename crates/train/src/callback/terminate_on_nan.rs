//! Stopping at a loss that is not a number.

use super::{Callback, Control, StepRecord};
use crate::error::ErrorKind;
use crate::{Logs, Result};

/// Stops training when the loss of a step or an execution is NaN or infinite.
///
/// A step that was skipped because of its *gradients* has a finite loss and does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct TerminateOnNaN {
    raise_error: bool,
}

impl TerminateOnNaN {
    /// Stops in order: the epoch's end and `on_train_end` of all callbacks still take place.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether training ends with an error instead; default false.
    pub fn raise_error(mut self, raise: bool) -> Self {
        self.raise_error = raise;
        self
    }

    fn check(&self, loss: f64, at: impl FnOnce() -> String) -> Result<Control> {
        if loss.is_finite() {
            return Ok(Control::Continue);
        }
        let at = at();
        if self.raise_error {
            return Err(ErrorKind::NonFiniteLoss { at, loss }.into());
        }
        Ok(Control::stop(format!("the loss at {at} is {loss}")))
    }
}

impl Callback for TerminateOnNaN {
    fn on_batch_end(&mut self, batch: usize, logs: &Logs) -> Result<Control> {
        self.check(logs.get("loss").unwrap_or(0.0), || format!("batch {batch}"))
    }

    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        self.check(f64::from(record.loss), || format!("step {}", record.step))
    }
}
