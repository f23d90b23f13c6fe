//! One JSON object a step.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::lines::LineFile;
use super::{Callback, Control, Outcome, StepRecord, TrainInfo};
use crate::{Error, Logs, Result};

/// Appends one JSON line for each attempted step:
/// `{"step":7,"loss":0.5,"loss_bits":"3f000000","scale":32768.0,"outcome":"applied"}`.
///
/// `loss_bits` are the eight hexadecimal digits of the f32; a loss that is not finite is `null` in `loss`, which JSON
/// cannot write otherwise. `outcome` is `applied` or `skipped`. A resumed run drops the lines after its step and goes
/// on, so that the file reads as that of a run without interruption.
#[derive(Debug)]
pub struct JsonlLogger {
    path: PathBuf,
    flush_every: usize,
    pending: usize,
    file: Option<LineFile>,
}

#[derive(Serialize)]
struct Line {
    step: u64,
    loss: f32,
    loss_bits: String,
    scale: f32,
    outcome: &'static str,
}

#[derive(Deserialize)]
struct Step {
    step: u64,
}

impl JsonlLogger {
    /// Writes to `path`; a file that is there is replaced unless the run is a resumed one.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            flush_every: 50,
            pending: 0,
            file: None,
        }
    }

    /// Lines held back at most; default 50. Epoch ends and checkpoints flush as well.
    pub fn flush_every(mut self, lines: usize) -> Self {
        self.flush_every = lines;
        self
    }
}

impl Callback for JsonlLogger {
    fn on_train_begin(&mut self, info: &TrainInfo) -> Result<Control> {
        self.pending = 0;
        let Some(resumed) = info.resumed else {
            self.file = Some(LineFile::create(&self.path)?);
            return Ok(Control::Continue);
        };
        let mut last = 0;
        let file = LineFile::resume(&self.path, |line| {
            match serde_json::from_str::<Step>(line) {
                Ok(found) if found.step <= resumed.step => {
                    last = found.step;
                    true
                }
                _ => false,
            }
        })?;
        self.file = Some(file);
        if last == resumed.step {
            return Ok(Control::Continue);
        }
        Ok(Control::Warn(format!(
            "`{}` ends at step {last} and the run goes on after step {}: the steps between are missing in it",
            self.path.display(),
            resumed.step
        )))
    }

    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        let line = Line {
            step: record.step,
            loss: record.loss,
            loss_bits: format!("{:08x}", record.loss.to_bits()),
            scale: record.scale,
            outcome: match record.outcome {
                Outcome::Applied => "applied",
                Outcome::Skipped => "skipped",
            },
        };
        let line = serde_json::to_string(&line).map_err(|e| {
            Error::invalid(format!(
                "cannot encode the record of step {}: {e}",
                record.step
            ))
        })?;
        let Some(file) = &mut self.file else {
            return Err(Error::invalid(
                "JsonlLogger was not told that training began; call on_train_begin first",
            ));
        };
        file.push(&line);
        self.pending += 1;
        if self.pending >= self.flush_every {
            self.pending = 0;
            file.flush()?;
        }
        Ok(Control::Continue)
    }

    fn on_epoch_end(&mut self, _epoch: usize, _logs: &Logs) -> Result<Control> {
        self.pending = 0;
        self.file.as_mut().map_or(Ok(()), LineFile::flush)?;
        Ok(Control::Continue)
    }

    fn on_train_end(&mut self, _logs: &Logs) -> Result<Control> {
        self.flush()?;
        self.file = None;
        Ok(Control::Continue)
    }

    fn flush(&mut self) -> Result<()> {
        self.pending = 0;
        self.file.as_mut().map_or(Ok(()), LineFile::sync)
    }
}
