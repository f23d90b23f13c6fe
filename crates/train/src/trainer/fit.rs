//! Starting a run.

use bimetal_data::Loader;

use super::run::{Length, Run};
use super::{Report, Task, Trainer};
use crate::Result;

impl Trainer {
    /// Trains for `epochs` passes over `train`, with a validation after each.
    ///
    /// # Errors
    /// All that can be known is checked before the first step: settings, an empty data set, a batch larger than the
    /// data, a folder that cannot be written, a checkpoint that does not fit. Later: mistakes in the task with layer
    /// path and source line, an index out of range, a file that cannot be written, too many skipped steps in a row.
    /// The state is then that after the last applied step, and the checkpoints written so far are whole.
    pub fn fit(
        &mut self,
        task: &dyn Task,
        train: Loader,
        valid: Option<Loader>,
        epochs: usize,
    ) -> Result<Report> {
        let per_epoch = match self.settings.steps_per_epoch {
            Some(steps) => steps,
            None => {
                self.settings.check()?;
                train
                    .batches_per_epoch()?
                    .div_ceil(self.settings.accumulate as u64)
            }
        };
        let length = Length {
            per_epoch,
            total: per_epoch.saturating_mul(epochs as u64),
        };
        Run::start(self, task, train, valid, length)?.finish()
    }

    /// Trains for `steps` steps, going round `train` as it may, with a validation after each
    /// [`steps_per_epoch`](Trainer::steps_per_epoch) and at the end.
    ///
    /// # Errors
    /// As [`Trainer::fit`].
    pub fn fit_steps(
        &mut self,
        task: &dyn Task,
        train: Loader,
        valid: Option<Loader>,
        steps: u64,
    ) -> Result<Report> {
        let length = Length {
            per_epoch: self.settings.steps_per_epoch.unwrap_or(steps),
            total: steps,
        };
        Run::start(self, task, train, valid, length)?.finish()
    }
}
