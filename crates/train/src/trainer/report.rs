//! What a training run gives back.

use std::fmt;

use bimetal_tensor::MemoryReport;

use crate::Logs;

/// The results of [`Trainer::fit`](crate::Trainer::fit).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The logs of each epoch, validation with the prefix `val_`; those before a resume are among them.
    pub history: Vec<Logs>,
    /// Attempted steps, those before a resume included.
    pub steps: u64,
    /// Applied steps.
    pub applied: u64,
    /// Attempted steps that changed nothing because a gradient was not finite.
    pub skipped: u64,
    /// Means of loss and metrics over the last epoch.
    pub train: Logs,
    /// Loss and metrics of the last validation, empty without validation data.
    pub valid: Logs,
    /// Wall time of the steps of this process, without validation, callbacks and checkpoints.
    pub seconds: f64,
    /// Samples per second over that time.
    pub samples_per_second: f64,
    /// Bytes live, peak, reserved and saved for backward.
    pub memory: MemoryReport,
    /// Plans that the device has compiled so far.
    pub plans_compiled: u64,
    /// Numbers in all parameters.
    pub parameters: usize,
    /// Attempted steps of the checkpoint that the run went on from; 0 for a run from the beginning.
    pub resumed_from: u64,
    /// Checkpoints written by this process.
    pub checkpoints_written: u64,
    /// Why training ended before its last epoch, if it did.
    pub stopped: Option<String>,
    /// What the user was told.
    pub warnings: Vec<String>,
}

impl Report {
    /// The mean loss of the last epoch, NaN if no step was attempted.
    pub fn train_loss(&self) -> f64 {
        self.train.get("loss").unwrap_or(f64::NAN)
    }

    /// The loss of the last validation, NaN without one.
    pub fn valid_loss(&self) -> f64 {
        self.valid.get("loss").unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Report {
    /// A table of a line for each subject.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<22}{value:>14}");
        for (name, value) in self.train.iter() {
            row(&format!("training {name}"), format!("{value:.4}"))?;
        }
        for (name, value) in self.valid.iter() {
            row(&format!("validation {name}"), format!("{value:.4}"))?;
        }
        row("steps", self.steps.to_string())?;
        row("skipped steps", self.skipped.to_string())?;
        row("parameters", self.parameters.to_string())?;
        row("training time", format!("{:.1} s", self.seconds))?;
        row("samples/s", format!("{:.0}", self.samples_per_second))?;
        let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64);
        row("peak memory", mib(self.memory.peak))?;
        row("saved for backward", mib(self.memory.saved))?;
        row("plans compiled", self.plans_compiled.to_string())
    }
}
