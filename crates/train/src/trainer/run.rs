//! A run: epochs of executions of steps.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bimetal_data::Loader;
use bimetal_precision::{Level, SkipLimit, StepOutcome};
use bimetal_tensor::{CastMode, DType, cast_slice};

use super::slots::set;
use super::state::Position;
use super::step::{Done, Stepper};
use super::totals::Totals;
use super::watched::Look;
use super::{Report, Trainer};
use crate::callback::{Outcome, SaveRequest, StepRecord};
use crate::precision::Seen;
use crate::{
    Actions, Checkpoints, Error, LayerStats, Logs, Progress, ProgressState, Result, save_checkpoint,
};

/// How long a run is, in steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    pub per_epoch: u64,
    pub total: u64,
}

impl Length {
    pub fn epochs(self) -> usize {
        self.total.div_ceil(self.per_epoch.max(1)) as usize
    }

    /// The epoch in which step number `done` (from 0) lies, and its place there.
    pub fn place(self, done: u64) -> (usize, u64) {
        let per_epoch = self.per_epoch.max(1);
        ((done / per_epoch) as usize, done % per_epoch)
    }

    /// Steps of an epoch; the last one may be shorter.
    fn of_epoch(self, epoch: usize) -> u64 {
        let before = self.per_epoch * epoch as u64;
        self.per_epoch.min(self.total.saturating_sub(before))
    }
}

pub(super) struct Run<'a> {
    pub t: &'a mut Trainer,
    pub stepper: Stepper<'a>,
    pub train: Loader,
    pub valid: Option<Loader>,
    pub length: Length,
    pub at: Position,
    pub skips: SkipLimit,
    pub checkpoints: Option<Checkpoints>,
    /// The step of the last checkpoint, in the numbering of `at.done`.
    pub saved: Option<u64>,
    /// Checkpoints that callbacks asked for in the middle of what belongs together.
    pub requested: Vec<SaveRequest>,
    pub progress: Option<Progress>,
    pub scale: f32,
    pub valid_logs: Logs,
    pub samples: u64,
    pub resumed: Option<u64>,
    pub written: u64,
    pub warnings: Vec<String>,
    pub spent: Duration,
    /// Samples and time of the running epoch, of this process.
    pub epoch_samples: u64,
    pub epoch_spent: Duration,
}

impl Run<'_> {
    /// Trains what is left.
    pub fn finish(self) -> Result<Report> {
        let device = self.t.store.device().clone();
        // Between two looks of the host steps are the same launches again and again.
        let replay = self.t.settings.steps_per_execution > 1;
        if replay {
            device.set_replay(true);
        }
        let report = self.train();
        if replay {
            device.set_replay(false);
        }
        report
    }

    fn train(mut self) -> Result<Report> {
        if let Some(reason) = self.at.stopped.clone() {
            self.warn(format!("the run had been stopped before: {reason}"));
        }
        let nothing_left = self.at.done >= self.length.total || self.at.stopped.is_some();
        if nothing_left && self.resumed.is_some() {
            self.validate()?;
        }
        while self.at.done < self.length.total && self.at.stopped.is_none() {
            self.epoch()?;
        }
        if self.checkpoints.is_some() && self.saved != Some(self.at.done) {
            self.save()?;
        }
        let mut logs = self.at.totals.logs();
        logs.extend_prefixed("val_", &self.valid_logs);
        let actions = self.t.callbacks.on_train_end(&logs)?;
        self.act(actions)?;
        self.requested_saves()?;
        Ok(self.report())
    }

    fn epoch(&mut self) -> Result<()> {
        let (epoch, first) = self.length.place(self.at.done);
        let batches = self.length.of_epoch(epoch);
        if first == 0 {
            self.at.totals = Totals::default();
        }
        (self.epoch_samples, self.epoch_spent) = (0, Duration::ZERO);
        if let Some(progress) = &mut self.progress {
            progress.begin_epoch(epoch, Some(batches as usize), first as usize);
        }
        let actions = self.t.callbacks.on_epoch_begin(epoch)?;
        self.act(actions)?;
        let mut batch = first;
        while batch < batches && self.at.stopped.is_none() {
            let steps = (batches - batch).min(self.t.settings.steps_per_execution as u64);
            let last = batch + steps == batches;
            let look = last && self.t.callbacks.wants_layers(epoch);
            let seen = self.execute(steps, look)?;
            if let Some((layers, scale)) = seen {
                let layers = LayerStats::of(&layers, f64::from(scale));
                let actions = self.t.callbacks.on_layers(epoch, &layers)?;
                self.act(actions)?;
            }
            batch += steps;
            let logs = self.at.totals.logs();
            let actions = self.t.callbacks.on_batch_end(batch as usize - 1, &logs)?;
            self.act(actions)?;
            if batch < batches && self.at.stopped.is_none() {
                self.show(batch, &logs, false);
                self.save_if_due(steps)?;
                self.requested_saves()?;
            }
        }
        self.end_epoch(epoch, batch)
    }

    /// Submits steps one after the other, then reads them. With numerics checks on, a skipped step has stopped those behind it, which are
    /// submitted again. Gives what the last step saw of the layers, if it was to `look`, and its loss scale.
    fn execute(&mut self, steps: u64, look: bool) -> Result<Option<(Vec<Seen>, f32)>> {
        let begin = Instant::now();
        let mut pending = VecDeque::with_capacity(steps as usize);
        for step in 1..=steps {
            let count = self.window()?;
            let batches = self.stepper.load(self.t, &mut self.train, count)?;
            let look = match look && step == steps {
                true => Look::Real,
                false => Look::No,
            };
            pending.push_back(self.stepper.submit(self.t, batches, look)?);
        }
        let mut done = Vec::with_capacity(pending.len());
        while let Some(step) = pending.pop_front() {
            self.samples += step.samples;
            self.epoch_samples += step.samples;
            let read = step.read(&mut self.at.totals)?;
            if let (Some(halt), false) = (&self.stepper.halt, read.outcome.is_applied()) {
                halt.clear()?;
                let attempted = self.t.optimizer.attempted() - pending.len() as u64;
                self.t.optimizer.set_attempted(attempted);
                for step in std::mem::take(&mut pending) {
                    pending.push_back(self.stepper.submit(self.t, step.batches, step.look)?);
                }
            }
            done.push(read);
        }
        self.spent += begin.elapsed();
        self.epoch_spent += begin.elapsed();
        for advice in std::mem::take(&mut self.stepper.advice) {
            self.warn(advice);
        }
        let mut seen = None;
        for mut step in done {
            let layers = std::mem::take(&mut step.seen);
            if !layers.is_empty() {
                seen = Some((layers, step.scale));
            }
            self.at.done += 1;
            self.scale = step.scale;
            let outcome = match step.outcome {
                StepOutcome::Applied => {
                    self.at.applied += 1;
                    Outcome::Applied
                }
                StepOutcome::Skipped { .. } => {
                    self.at.skipped += 1;
                    Outcome::Skipped
                }
            };
            let record = StepRecord {
                step: self.at.base + self.at.done,
                loss: step.loss,
                scale: step.scale,
                grad_norm: step.norm,
                outcome,
                applied: self.at.applied,
            };
            let actions = self.t.callbacks.on_step(&record)?;
            self.act(actions)?;
            self.look_into(&step)?;
            self.skips.observe(&step.outcome)?;
        }
        Ok(seen)
    }

    /// With numerics checks on, says who is to blame for a skipped step: an error if its loss was not finite.
    fn look_into(&mut self, step: &Done) -> Result<()> {
        if self.t.settings.check_numerics == Level::Off {
            return Ok(());
        }
        let at = self.at.base + self.at.done;
        let StepOutcome::Skipped { culprit } = &step.outcome else {
            let loss = step.loss;
            if loss.is_finite() {
                return Ok(());
            }
            return Err(Error::invalid(format!(
                "the loss of step {at} is {loss} although all gradients are finite, as after the logarithm of a negative number: find the \
                 operation with `find_non_finite(&[&loss])`"
            )));
        };
        let place = match culprit {
            Some(culprit) => culprit.to_string(),
            None => "nothing was found".to_string(),
        };
        if let Some(culprit) = culprit {
            let actions = self.t.callbacks.on_skipped(at, culprit)?;
            self.act(actions)?;
        }
        if !step.loss.is_finite() {
            let loss = step.loss;
            let advice = culprit
                .as_ref()
                .map_or(String::new(), |c| format!("; {}", c.advice()));
            return Err(Error::invalid(format!(
                "the loss of step {at} is {loss}: {place}{advice}"
            )));
        }
        self.warn(format!("step {at} was skipped: {place}"));
        Ok(())
    }

    /// Batches of the next step: fewer at the end of a pass whose number of batches is no multiple of `accumulate`.
    fn window(&self) -> Result<usize> {
        let accumulate = self.t.settings.accumulate;
        if accumulate == 1 || self.t.settings.steps_per_epoch.is_some() {
            return Ok(accumulate);
        }
        let batches = self.train.batches_per_epoch()?;
        let left = batches - self.train.state().index % batches;
        Ok(accumulate.min(left as usize))
    }

    fn end_epoch(&mut self, epoch: usize, batch: u64) -> Result<()> {
        self.validate()?;
        let mut logs = self.at.totals.logs();
        logs.extend_prefixed("val_", &self.valid_logs);
        if self.t.callbacks.wants_weights(epoch) {
            let weights = self.weights()?;
            let actions = self.t.callbacks.on_weights(epoch, &weights)?;
            self.act(actions)?;
        }
        self.at.remember(epoch, &logs);
        let actions = self.t.callbacks.on_epoch_end(epoch, &logs)?;
        self.show(batch, &logs, true);
        self.act(actions)?;
        if self.checkpoints.is_some() {
            match self.t.settings.save_every {
                None => self.save()?,
                Some(_) => self.save_if_due(self.t.settings.steps_per_execution as u64)?,
            }
        }
        self.requested_saves()
    }

    fn validate(&mut self) -> Result<()> {
        let Some(valid) = &mut self.valid else {
            return Ok(());
        };
        self.valid_logs = self.t.evaluate_on(self.stepper.task, valid)?;
        let actions = self.t.callbacks.on_validation_end(&self.valid_logs)?;
        self.act(actions)
    }

    fn weights(&self) -> Result<Vec<(String, Vec<f32>)>> {
        let params = self.t.store.params();
        let weights = params.iter().map(|p| {
            let slot = p.slot()?;
            let mut numbers = vec![0u8; slot.shape().numel() * DType::F32.size()];
            // On the host: an expression would be one more plan.
            cast_slice(
                &slot.to_bytes()?,
                slot.dtype(),
                &mut numbers,
                DType::F32,
                CastMode::default(),
            )
            .map_err(|e| Error::invalid(format!("cannot read `{}`: {e}", slot.name())))?;
            let numbers = numbers
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_ne_bytes(*b));
            Ok((slot.name().to_string(), numbers.collect()))
        });
        weights.collect()
    }

    fn show(&mut self, batch: u64, logs: &Logs, end: bool) {
        let Some(progress) = &mut self.progress else {
            return;
        };
        let scaled = self.stepper.scaler.settings() != bimetal_precision::LossScale::None;
        let state = ProgressState {
            batch: batch as usize,
            samples: self.epoch_samples,
            logs,
            scale: scaled.then_some(self.scale),
            skipped: self.at.skipped,
        };
        match end {
            true => progress.end_epoch(&state, self.epoch_spent),
            false => progress.update(&state),
        }
    }

    pub fn warn(&mut self, text: String) {
        if let Some(progress) = &mut self.progress {
            progress.println(&format!("warning: {text}"));
        }
        self.warnings.push(text);
    }

    /// Does what callbacks want; checkpoints wait until what belongs together is done.
    pub fn act(&mut self, actions: Actions) -> Result<()> {
        for warning in actions.warnings {
            self.warn(warning);
        }
        if let Some(reason) = actions.stop {
            self.at.stopped.get_or_insert(reason);
        }
        if !actions.keep_weights.is_empty() {
            let snapshot = self.t.snapshot()?;
            for number in actions.keep_weights {
                self.t.kept.insert(number, snapshot.clone());
            }
        }
        if let Some(number) = actions.restore_weights.last() {
            match self.t.kept.get(number) {
                Some(kept) => set(kept.iter().map(|(slot, bytes)| (slot, bytes.as_slice())))?,
                None => self.warn("a callback wants weights put back that it never kept".into()),
            }
        }
        self.requested.extend(actions.saves);
        Ok(())
    }

    fn save_if_due(&mut self, steps: u64) -> Result<()> {
        let Some(every) = self.t.settings.save_every else {
            return Ok(());
        };
        let (before, now) = (self.at.done.saturating_sub(steps), self.at.done);
        match before / every != now / every && self.saved != Some(now) {
            true => self.save(),
            false => Ok(()),
        }
    }

    fn save(&mut self) -> Result<()> {
        self.t.callbacks.flush()?;
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(());
        };
        let scaler = &self.stepper.scaler;
        let meta = self.t.checkpoint_meta(scaler, &self.at, &self.train)?;
        let arrays = self.t.checkpoint_arrays(scaler, false)?;
        checkpoints.save(&arrays, &meta)?;
        self.saved = Some(self.at.done);
        self.written += 1;
        Ok(())
    }

    fn requested_saves(&mut self) -> Result<()> {
        for request in std::mem::take(&mut self.requested) {
            self.t.callbacks.flush()?;
            let scaler = &self.stepper.scaler;
            let mut meta = self.t.checkpoint_meta(scaler, &self.at, &self.train)?;
            if let Some((name, value)) = &request.best {
                meta.extra.insert(
                    "best".into(),
                    serde_json::json!({ "name": name, "value": value }),
                );
            }
            let arrays = self.t.checkpoint_arrays(scaler, request.weights_only)?;
            save_checkpoint(&request.path, &arrays, &meta)?;
            self.written += 1;
        }
        Ok(())
    }

    fn report(self) -> Report {
        self.t.attempted = self.at.base + self.at.done;
        let device = self.t.store.device();
        let seconds = self.spent.as_secs_f64();
        let params = self.t.store.params();
        Report {
            history: self.at.logs(),
            steps: self.at.done,
            applied: self.at.done - self.at.skipped,
            skipped: self.at.skipped,
            train: self.at.totals.logs(),
            valid: self.valid_logs,
            seconds,
            samples_per_second: if seconds > 0.0 {
                self.samples as f64 / seconds
            } else {
                0.0
            },
            memory: device.memory(),
            plans_compiled: device.plans_compiled(),
            parameters: params.iter().map(|p| p.shape().numel()).sum(),
            resumed_from: self.resumed.unwrap_or(0),
            checkpoints_written: self.written,
            stopped: self.at.stopped,
            warnings: self.warnings,
        }
    }
}
