//! The options of a trainer and their checks.

use std::path::PathBuf;

use bimetal_optim::Ema;
use bimetal_precision::{Level, LossScale};

use crate::{Error, Result};

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub loss_scale: Option<LossScale>,
    pub steps_per_execution: usize,
    pub steps_per_epoch: Option<u64>,
    pub accumulate: usize,
    pub clip_norm: Option<f64>,
    pub ema: Option<Ema>,
    pub checkpoint: Option<PathBuf>,
    pub save_every: Option<u64>,
    pub keep: usize,
    pub resume: bool,
    pub progress: bool,
    pub max_skipped: u32,
    pub check_numerics: Level,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            loss_scale: None,
            steps_per_execution: 1,
            steps_per_epoch: None,
            accumulate: 1,
            clip_norm: None,
            ema: None,
            checkpoint: None,
            save_every: None,
            keep: 3,
            resume: false,
            progress: true,
            max_skipped: 100,
            check_numerics: Level::Off,
        }
    }
}

impl Settings {
    /// The first option that cannot work.
    pub fn check(&self) -> Result<()> {
        let zero = [
            ("steps_per_execution", self.steps_per_execution == 0),
            ("steps_per_epoch", self.steps_per_epoch == Some(0)),
            ("accumulate", self.accumulate == 0),
            ("save_every", self.save_every == Some(0)),
        ];
        if let Some((name, _)) = zero.iter().find(|(_, zero)| *zero) {
            return Err(Error::invalid(format!("{name} is 0; expected at least 1")));
        }
        if let Some(norm) = self.clip_norm
            && !(norm > 0.0 && norm.is_finite())
        {
            return Err(Error::invalid(format!(
                "clip_norm is {norm}; expected a positive finite number, such as 1.0"
            )));
        }
        if self.checkpoint.is_none() && (self.save_every.is_some() || self.resume) {
            let what = if self.resume { "resume" } else { "save_every" };
            return Err(Error::invalid(format!(
                "{what} is set and there is no folder for checkpoints; name one with `.checkpoint(dir)`"
            )));
        }
        Ok(())
    }
}
