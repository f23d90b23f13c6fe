//! Watching one number for improvement.

use crate::{Error, Logs, Result};

/// Which direction of a monitored number is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By name: losses and errors fall, accuracies and the like rise; an unknown name is an error before training.
    #[default]
    Auto,
    /// Smaller is better.
    Min,
    /// Larger is better.
    Max,
}

/// Words of a name that tell the direction.
const FALLING: [&str; 8] = [
    "loss",
    "error",
    "perplexity",
    "mse",
    "mae",
    "rmse",
    "mape",
    "divergence",
];
const RISING: [&str; 9] = [
    "accuracy",
    "acc",
    "auc",
    "precision",
    "recall",
    "f1",
    "iou",
    "bleu",
    "similarity",
];

/// The monitored number of a callback.
#[derive(Clone, Debug)]
pub(super) struct Monitor {
    pub name: String,
    pub mode: Mode,
    pub min_delta: f64,
    pub best: Option<f64>,
    larger: bool,
    warned: bool,
}

impl Monitor {
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            name,
            mode: Mode::Auto,
            min_delta: 0.0,
            best: None,
            larger: false,
            warned: false,
        }
    }

    /// Settles the direction; `owner` is the callback's name for the message.
    pub fn begin(&mut self, owner: &str) -> Result<()> {
        self.larger = match self.mode {
            Mode::Min => false,
            Mode::Max => true,
            Mode::Auto => direction(&self.name).ok_or_else(|| {
                Error::invalid(format!(
                    "{owner} cannot tell whether `{}` should fall or rise; set .mode(Mode::Min) or .mode(Mode::Max)",
                    self.name
                ))
            })?,
        };
        Ok(())
    }

    /// Whether `value` is better than `reference`; anything but NaN is better than nothing.
    pub fn improves(&self, value: f64, reference: Option<f64>) -> bool {
        match reference {
            _ if value.is_nan() => false,
            None => true,
            Some(reference) if self.larger => value - self.min_delta.abs() > reference,
            Some(reference) => value + self.min_delta.abs() < reference,
        }
    }

    /// A warning that the name is not among the logs, the first time.
    pub fn missing(&mut self, logs: &Logs) -> Option<String> {
        let first = !std::mem::replace(&mut self.warned, true);
        first.then(|| {
            format!(
                "`{}` is not available; available are: {}",
                self.name,
                logs.available()
            )
        })
    }
}

/// Whether larger is better, `None` when the name does not tell.
fn direction(name: &str) -> Option<bool> {
    let name = name.strip_prefix("val_").unwrap_or(name).to_lowercase();
    let mut words = name.split(['_', '/', '.', '-']);
    words.find_map(|word| {
        let rises = RISING.contains(&word);
        (rises || FALLING.contains(&word)).then_some(rises)
    })
}
