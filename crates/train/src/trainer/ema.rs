//! Averages of the weights.

use bimetal_optim::Ema;

use super::Trainer;
use crate::Result;

impl Trainer {
    /// Keeps an exponential moving average of the weights, in f32 and moved by applied steps only: a decay, such as 0.999, or an
    /// [`Ema`]; default none. Training, validation and saved weights are those without it; [`Trainer::with_average`] is
    /// for the average. Checkpoints save it with the state of the optimizer.
    pub fn ema(mut self, ema: impl Into<Ema>) -> Self {
        self.settings.ema = Some(ema.into());
        self
    }

    /// Runs `f` with the averages in the weights' place, for instance an evaluation, and puts the weights back.
    ///
    /// ```no_run
    /// # use bimetal_data::Loader;
    /// # use bimetal_train::{Result, Task, Trainer};
    /// # fn f(trainer: Trainer, task: &dyn Task, test: Loader) -> Result<()> {
    /// let logs = trainer.with_average(|t| t.evaluate(task, test))??;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// No averages: [`Trainer::ema`] was not called, or nothing has been trained. A device failure.
    pub fn with_average<R>(&self, f: impl FnOnce(&Trainer) -> R) -> Result<R> {
        Ok(self.optimizer.averages()?.with(|| f(self))?)
    }
}
