//! Starting a run: everything that can be known is checked before the first step.

use std::time::Duration;

use bimetal_data::Loader;
use bimetal_precision::{Halt, Level, SkipLimit, warn_if_slow};

use super::run::{Length, Run};
use super::state::Position;
use super::step::Stepper;
use super::{Task, Trainer};
use crate::callback::{Resumed, TrainInfo};
use crate::{Checkpoints, Error, Logs, Progress, Result, load_latest_checkpoint};

impl<'a> Run<'a> {
    /// Checks everything, restores a checkpoint and tells the callbacks.
    pub fn start(
        t: &'a mut Trainer,
        task: &'a dyn Task,
        mut train: Loader,
        valid: Option<Loader>,
        length: Length,
    ) -> Result<Self> {
        let scaler = t.prepare()?;
        train.check()?;
        // A first batch smaller than asked for would train, but not what was meant.
        if train.batch_size() > train.samples() {
            return Err(Error::invalid(format!(
                "a batch of {} is larger than the training data of {} samples; use a smaller batch or more data",
                train.batch_size(),
                train.samples()
            )));
        }
        valid.as_ref().map_or(Ok(()), Loader::check)?;
        let mut at = Position {
            base: t.attempted,
            applied: applied(t)?,
            ..Position::default()
        };
        let policy = &t.store.policies().default;
        let mut warnings = Vec::from_iter(warn_if_slow(t.store.device(), policy));
        let mut resumed = None;
        let mut callback_states = None;
        let checkpoints = match t.settings.checkpoint.clone() {
            None => None,
            Some(dir) => {
                let checkpoints = Checkpoints::open(&dir)?.keep(t.settings.keep);
                let newest = load_latest_checkpoint(&dir)?;
                match newest {
                    Some(found) if t.settings.resume => {
                        let (position, told) = t.restore(&found, &scaler, &mut train)?;
                        at = position;
                        warnings.extend(told);
                        callback_states = found.meta().extra.get("callbacks").cloned();
                        resumed = Some(at.base + at.done);
                    }
                    Some(found) if t.attempted == 0 => {
                        return Err(Error::invalid(format!(
                            "`{}` holds a checkpoint of step {}; go on from it with `.resume(true)`, or choose another folder",
                            dir.display(),
                            found.meta().attempted
                        )));
                    }
                    _ => {}
                }
                Some(checkpoints)
            }
        };
        let progress = t
            .settings
            .progress
            .then(|| Progress::stderr(length.epochs()));
        let params = t.store.trainable_slots()?;
        let halts = t.settings.check_numerics != Level::Off && t.settings.steps_per_execution > 1;
        let halt = halts.then(|| Halt::new(t.store.device())).transpose()?;
        let max_skipped = t.settings.max_skipped;
        let mut run = Self {
            stepper: Stepper {
                task,
                scaler,
                halt,
                params,
                advice: Vec::new(),
                first: true,
            },
            t,
            train,
            valid,
            length,
            saved: resumed.map(|_| at.done),
            at,
            skips: SkipLimit::new(max_skipped),
            checkpoints,
            requested: Vec::new(),
            progress,
            scale: 1.0,
            valid_logs: Logs::new(),
            samples: 0,
            resumed,
            written: 0,
            warnings: Vec::new(),
            spent: Duration::ZERO,
            epoch_samples: 0,
            epoch_spent: Duration::ZERO,
        };
        for warning in warnings {
            run.warn(warning);
        }
        run.begin(callback_states)?;
        Ok(run)
    }

    fn begin(&mut self, callback_states: Option<serde_json::Value>) -> Result<()> {
        let (epoch, batch) = self.length.place(self.at.done);
        let info = TrainInfo {
            epochs: self.length.epochs(),
            batches: Some(self.length.per_epoch as usize),
            validation: self.valid.is_some(),
            resumed: self.resumed.map(|step| Resumed {
                step,
                applied: self.at.applied,
                epoch,
                batch: batch as usize,
            }),
        };
        let actions = self.t.callbacks.on_train_begin(&info)?;
        self.act(actions)?;
        if let Some(states) = callback_states {
            let actions = self.t.callbacks.load_state(&states)?;
            self.act(actions)?;
        }
        Ok(())
    }
}

/// The counter of applied steps, read without a plan.
fn applied(t: &Trainer) -> Result<u64> {
    let bytes = t.store.applied()?.to_bytes()?;
    let count: [u8; 4] = bytes.try_into().unwrap_or_default();
    Ok(u64::from(u32::from_ne_bytes(count)))
}
