//! Scalars and histograms for TensorBoard.

use std::path::PathBuf;

use bimetal_precision::Culprit;

use super::batches::BatchCounter;
use super::{Callback, Control, Frequency, Outcome, StepRecord, TrainInfo};
use crate::{Error, EventWriter, Histogram, LayerStats, Logs, Result};

/// The charts of the page "precision" of the custom scalars dashboard, and the tags they show.
const CHARTS: [(&str, &str); 6] = [
    ("loss", "^(batch|epoch)_loss$"),
    ("loss scale", "^(batch|epoch)_loss_scale$"),
    ("skipped steps", "^(batch|epoch)_skipped_steps$"),
    ("gradient norm", "^(batch|epoch)_grad_norm$"),
    ("gradient norm of each layer", "^grad_norm/"),
    ("update relative to weights of each layer", "^update_ratio/"),
];

/// Logs to TensorBoard with the names and folders of Keras.
///
/// Runs `LOG_DIR/train` and `LOG_DIR/validation`; `epoch_<name>` over epochs, `batch_<name>` over batches when
/// [`TensorBoard::update_freq`] asks for them, `evaluation_<name>_vs_iterations` over applied steps. Loss scale, number of skipped
/// steps and norm of the gradients are among both; with numerics checks on, the culprit of each skipped step is the text
/// `skipped_step`. [`TensorBoard::histogram_freq`] adds what the layers look like: `grad_norm/<layer>`, `update_ratio/<layer>`, and
/// histograms of weights, gradients and activations. The dashboard "custom scalars" has a page "precision" of these.
#[derive(Debug)]
pub struct TensorBoard {
    log_dir: PathBuf,
    update_freq: Frequency,
    histogram_freq: usize,
    train: Option<EventWriter>,
    validation: Option<EventWriter>,
    /// First steps to be written again, of the training and the validation run.
    resumed: Option<(u64, u64)>,
    counter: BatchCounter,
    steps: Steps,
}

/// What the step records say.
#[derive(Debug, Default)]
struct Steps {
    scale: Option<f32>,
    norm: f32,
    skipped: u64,
    applied: u64,
}

impl TensorBoard {
    /// Logs once an epoch to `log_dir`.
    pub fn new(log_dir: impl Into<PathBuf>) -> Self {
        Self {
            log_dir: log_dir.into(),
            update_freq: Frequency::Epoch,
            histogram_freq: 0,
            train: None,
            validation: None,
            resumed: None,
            counter: BatchCounter::default(),
            steps: Steps::default(),
        }
    }

    /// How often losses and metrics are logged within epochs; default not at all.
    pub fn update_freq(mut self, frequency: Frequency) -> Self {
        self.update_freq = frequency;
        self
    }

    /// Epochs from one set of histograms and layer statistics to the next; default 0, none. The step that ends such an epoch computes them itself, on the device;
    /// no other step costs more.
    pub fn histogram_freq(mut self, epochs: usize) -> Self {
        self.histogram_freq = epochs;
        self
    }

    fn train(&mut self) -> Result<&mut EventWriter> {
        self.train.as_mut().ok_or_else(|| {
            Error::invalid(
                "TensorBoard was not told that training began; call on_train_begin first",
            )
        })
    }

    /// Opened on first use: without validation data there is no such run.
    fn validation(&mut self) -> Result<&mut EventWriter> {
        match &mut self.validation {
            Some(writer) => Ok(writer),
            none => {
                let dir = self.log_dir.join("validation");
                let writer = match self.resumed {
                    Some((_, step)) => EventWriter::resume(dir, step)?,
                    None => EventWriter::create(dir)?,
                };
                Ok(none.insert(writer))
            }
        }
    }

    /// The logs, with what the step records say unless the logs say so themselves.
    fn with_steps(&self, logs: &Logs) -> Logs {
        let mut logs = logs.clone();
        if let Some(scale) = self.steps.scale {
            for (name, value) in [
                ("loss_scale", f64::from(scale)),
                ("skipped_steps", self.steps.skipped as f64),
                ("grad_norm", f64::from(self.steps.norm)),
            ] {
                if logs.get(name).is_none() {
                    logs.set(name, value);
                }
            }
        }
        logs
    }
}

impl Callback for TensorBoard {
    fn on_train_begin(&mut self, info: &TrainInfo) -> Result<Control> {
        if self.update_freq == Frequency::Batches(0) {
            return Err(Error::invalid(
                "TensorBoard has update_freq 0; use Frequency::Epoch or at least one batch",
            ));
        }
        self.counter = BatchCounter::new(info.resumed.as_ref());
        self.steps = Steps::default();
        self.validation = None;
        // One file holds points over epochs and points over steps. What a resumed run repeats has the same values,
        // so the axis with the finer points decides which points readers are told to forget.
        self.resumed = info.resumed.map(|r| {
            self.steps.applied = r.applied;
            let by_epoch = self.update_freq == Frequency::Epoch;
            (
                if by_epoch { r.epoch as u64 } else { r.step + 1 },
                r.applied + 1,
            )
        });
        let dir = self.log_dir.join("train");
        self.train = Some(match self.resumed {
            Some((step, _)) => EventWriter::resume(dir, step)?,
            None => EventWriter::create(dir)?,
        });
        self.train()?.layout("precision", &CHARTS)?;
        Ok(Control::Continue)
    }

    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        self.steps.scale = Some(record.scale);
        self.steps.norm = record.grad_norm;
        self.steps.applied = record.applied;
        self.steps.skipped += u64::from(record.outcome == Outcome::Skipped);
        Ok(Control::Continue)
    }

    fn on_skipped(&mut self, step: u64, culprit: &Culprit) -> Result<Control> {
        let text = culprit.to_string();
        self.train()?.text("skipped_step", &text, step)?;
        // The run may end with this.
        self.train()?.flush()?;
        Ok(Control::Continue)
    }

    fn on_batch_end(&mut self, batch: usize, logs: &Logs) -> Result<Control> {
        let (before, after) = self.counter.advance(batch);
        if let Frequency::Batches(every) = self.update_freq
            && before / every != after / every
        {
            for (name, value) in self.with_steps(logs).iter() {
                self.train()?
                    .scalar(&format!("batch_{name}"), value, after)?;
            }
        }
        Ok(Control::Continue)
    }

    fn on_validation_end(&mut self, logs: &Logs) -> Result<Control> {
        let applied = self.steps.applied;
        for (name, value) in logs.iter() {
            let tag = format!("evaluation_{name}_vs_iterations");
            self.validation()?.scalar(&tag, value, applied)?;
        }
        Ok(Control::Continue)
    }

    fn on_epoch_end(&mut self, epoch: usize, logs: &Logs) -> Result<Control> {
        let step = epoch as u64;
        for (name, value) in self.with_steps(logs).iter() {
            match name.strip_prefix("val_") {
                Some(name) => self
                    .validation()?
                    .scalar(&format!("epoch_{name}"), value, step)?,
                None => self
                    .train()?
                    .scalar(&format!("epoch_{name}"), value, step)?,
            }
        }
        self.flush()?;
        Ok(Control::Continue)
    }

    fn wants_weights(&self, epoch: usize) -> bool {
        self.histogram_freq > 0 && epoch.is_multiple_of(self.histogram_freq)
    }

    fn on_weights(&mut self, epoch: usize, weights: &[(String, Vec<f32>)]) -> Result<Control> {
        for (path, elements) in weights {
            let histogram = Histogram::new(elements.iter().copied().map(f64::from));
            self.train()?
                .histogram(&format!("{path}/histogram"), &histogram, epoch as u64)?;
        }
        Ok(Control::Continue)
    }

    fn wants_layers(&self, epoch: usize) -> bool {
        self.wants_weights(epoch)
    }

    fn on_layers(&mut self, epoch: usize, layers: &[LayerStats]) -> Result<Control> {
        let (step, writer) = (epoch as u64, self.train()?);
        for layer in layers {
            let path = &layer.path;
            for (name, value) in [
                ("grad_norm", layer.grad_norm),
                ("update_ratio", layer.update_ratio),
            ] {
                if let Some(value) = value {
                    writer.scalar(&format!("{name}/{path}"), value, step)?;
                }
            }
            for (name, histogram) in [
                ("activations", &layer.activations),
                ("activation_gradients", &layer.activation_grads),
                ("gradients", &layer.weight_grads),
            ] {
                if let Some(histogram) = histogram {
                    writer.histogram(&format!("{path}/{name}"), histogram, step)?;
                }
            }
        }
        Ok(Control::Continue)
    }

    fn on_train_end(&mut self, _logs: &Logs) -> Result<Control> {
        self.flush()?;
        self.train = None;
        self.validation = None;
        Ok(Control::Continue)
    }

    fn flush(&mut self) -> Result<()> {
        self.train.as_mut().map_or(Ok(()), EventWriter::flush)?;
        self.validation.as_mut().map_or(Ok(()), EventWriter::flush)
    }

    fn state(&self) -> Option<serde_json::Value> {
        Some(serde_json::json!({ "skipped": self.steps.skipped }))
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.steps.skipped = state["skipped"].as_u64().unwrap_or(0);
        Ok(())
    }
}
