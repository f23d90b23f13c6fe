//! One step: build its graph, submit it, read it later.

use bimetal_data::Loader;
use bimetal_layers::Ctx;
use bimetal_optim::{Accumulator, StepHandle};
use bimetal_precision::{Grads, Halt, LossScaler, Scaled, ScaledLoss, StepOutcome, Unscaled};
use bimetal_tensor::{Slot, Tensor};

use super::task::{Count, Reduced};
use super::watched::Look;
use super::{Task, TensorBatch, Trainer, advice};
use crate::Result;
use crate::precision::{Seen, Watch};
use crate::trainer::totals::Totals;

/// A step that was submitted and not read.
pub(super) struct Pending {
    handle: StepHandle,
    loss_counts: Vec<Count>,
    metrics: Vec<(String, Reduced)>,
    pub samples: u64,
    /// The batches, kept to be submitted again if an earlier step of the execution is skipped.
    pub batches: Vec<TensorBatch>,
    pub look: Look,
    /// Layers that are looked at.
    watch: Option<Watch>,
}

/// What was read of a step.
pub(crate) struct Done {
    pub loss: f32,
    pub scale: f32,
    /// The global norm of the gradients before clipping.
    pub norm: f32,
    pub outcome: StepOutcome,
    /// What was looked at of the layers.
    pub seen: Vec<Seen>,
}

/// What one batch adds to a step.
struct Forward {
    loss: Tensor,
    loss_count: Count,
    metrics: Vec<(String, Reduced)>,
}

impl Forward {
    /// The computed values without the graph behind them, which would keep the batch and all activations alive.
    fn settle(self) -> Result<Forward> {
        let metrics = self.metrics.into_iter();
        Ok(Forward {
            loss: self.loss,
            loss_count: self.loss_count.settle()?,
            metrics: metrics
                .map(|(name, metric)| Ok((name, metric.settle()?)))
                .collect::<Result<_>>()?,
        })
    }

    /// The tensors that the step must compute beside the update.
    fn also(&self) -> Vec<&Tensor> {
        let mut all = Vec::new();
        if let Count::Of(count) = &self.loss_count {
            all.push(count);
        }
        for (_, metric) in &self.metrics {
            all.push(&metric.value);
            if let Count::Of(count) = &metric.count {
                all.push(count);
            }
        }
        all
    }
}

/// What all steps of a run share.
pub(super) struct Stepper<'a> {
    pub task: &'a dyn Task,
    pub scaler: LossScaler,
    /// With numerics checks on, what stops the rest of an execution behind a skipped step.
    pub halt: Option<Halt>,
    pub params: Vec<Slot>,
    /// Things worth telling the user that the first step shows.
    pub advice: Vec<String>,
    pub first: bool,
}

impl Stepper<'_> {
    /// The next `count` batches, on the device.
    pub fn load(&self, t: &Trainer, train: &mut Loader, count: usize) -> Result<Vec<TensorBatch>> {
        let batches = (0..count).map(|_| {
            let host = train.next_in_cycle()?;
            Ok(TensorBatch::upload(&host, t.store.device()))
        });
        batches.collect()
    }

    /// Submits the step of `batches`. Of several, the layers are looked at in the last.
    pub fn submit(
        &mut self,
        t: &mut Trainer,
        batches: Vec<TensorBatch>,
        look: Look,
    ) -> Result<Pending> {
        let level = t.settings.check_numerics;
        if let [batch] = &batches[..] {
            let cx = t.store.train();
            let forward = self.forward(t, batch, &cx)?;
            let scaled = self.scaler.scale(&forward.loss);
            let (mut watch, grads) = self.differentiate(&scaled, look)?;
            let grads = self.ready(t, grads.check_numerics(level));
            let seen = watch.as_ref().map_or(Vec::new(), Watch::tensors);
            let also: Vec<_> = forward.also().into_iter().chain(&seen).collect();
            let handle = self.step(t, cx, grads, &also, &mut watch)?;
            let mut pending = self.pending(handle, vec![forward.settle()?], batches);
            pending.look = look;
            pending.watch = watch.map(Watch::settle).transpose()?;
            return Ok(pending);
        }
        let mut window = Accumulator::new();
        let mut forwards = Vec::with_capacity(batches.len());
        let mut watch = None;
        for (i, batch) in batches.iter().enumerate() {
            let cx = window.context(t.store.train());
            let forward = self.forward(t, batch, &cx)?;
            let scaled = self.scaler.scale(&forward.loss);
            // Of several batches the last is looked at.
            let look = if i + 1 == batches.len() {
                look
            } else {
                Look::No
            };
            let (looked, grads) = self.differentiate(&scaled, look)?;
            let seen = looked.as_ref().map_or(Vec::new(), Watch::tensors);
            let also: Vec<_> = forward.also().into_iter().chain(&seen).collect();
            window.add_with(cx, grads.check_numerics(level), &also)?;
            forwards.push(forward.settle()?);
            watch = looked.map(Watch::settle).transpose()?;
        }
        let (cx, grads) = window.finish(t.store.train())?;
        if let Some(watch) = &mut watch {
            watch.updated_by(grads.raw());
        }
        let grads = self.ready(t, grads);
        let handle = self.step(t, cx, grads, &[], &mut watch)?;
        let mut pending = self.pending(handle, forwards, batches);
        pending.look = look;
        pending.watch = watch.map(Watch::settle).transpose()?;
        Ok(pending)
    }

    /// The gradients, and a watch over the layers if they are to be looked at.
    fn differentiate(
        &self,
        scaled: &ScaledLoss,
        look: Look,
    ) -> Result<(Option<Watch>, Grads<Scaled>)> {
        if look == Look::No {
            return Ok((None, scaled.grad(&self.params)?));
        }
        let unrounded = look == Look::Unrounded;
        let (watch, grads) = Watch::differentiate(scaled, &self.params, unrounded)?;
        Ok((Some(watch), grads))
    }

    fn step(
        &self,
        t: &mut Trainer,
        cx: Ctx,
        grads: Grads<Unscaled>,
        also: &[&Tensor],
        watch: &mut Option<Watch>,
    ) -> Result<StepHandle> {
        let Some(watch) = watch else {
            return Ok(t.optimizer.step_with(cx, grads, also)?);
        };
        let mut updates = |writes: &[(Slot, Tensor)]| watch.updates(writes);
        Ok(t.optimizer.step_watched(cx, grads, also, &mut updates)?)
    }

    /// The gradients as the optimizer takes them.
    fn ready(&self, t: &Trainer, grads: Grads<Scaled>) -> Grads<Unscaled> {
        let mut grads = grads.unscale();
        if let Some(norm) = t.settings.clip_norm {
            grads = grads.clip_global_norm(norm);
        }
        match &self.halt {
            Some(halt) => grads.halting(halt),
            None => grads,
        }
    }

    fn forward(&mut self, t: &Trainer, batch: &TensorBatch, cx: &Ctx) -> Result<Forward> {
        let output = self.task.training_step(batch, cx);
        let (loss, loss_count) = output.loss.mean("loss", batch);
        if output.loss.counts_padding(batch) {
            self.tell(
                "the loader pads its last batch and the loss is a scalar: padding counts in it; return one loss a row, or \
                 use `batch.mask()`",
            );
        }
        if std::mem::take(&mut self.first) {
            for (path, dtype) in advice::half_outputs(&loss) {
                if !t.store.policy_chosen(&path) {
                    self.tell(&format!(
                        "the loss takes {dtype} numbers from `{path}`, whose policy was not chosen; give it `float32`: \
                         .at(..).policy(\"float32\")"
                    ));
                }
            }
        }
        let metrics = output.metrics.iter();
        let metrics = metrics
            .map(|(name, value)| (name.clone(), value.sum(name, batch)))
            .collect();
        Ok(Forward {
            loss,
            loss_count,
            metrics,
        })
    }

    fn tell(&mut self, text: &str) {
        if !self.advice.iter().any(|told| told == text) {
            self.advice.push(text.into());
        }
    }

    fn pending(
        &mut self,
        handle: StepHandle,
        forwards: Vec<Forward>,
        batches: Vec<TensorBatch>,
    ) -> Pending {
        for notice in handle.notices() {
            self.tell(&notice.to_string());
        }
        let (mut loss_counts, mut metrics) = (Vec::new(), Vec::new());
        for forward in forwards {
            loss_counts.push(forward.loss_count);
            metrics.extend(forward.metrics);
        }
        Pending {
            handle,
            loss_counts,
            metrics,
            samples: batches.iter().map(|batch| batch.valid() as u64).sum(),
            batches: match &self.halt {
                Some(_) => batches,
                None => Vec::new(),
            },
            look: Look::No,
            watch: None,
        }
    }
}

impl Pending {
    /// Waits for the step and adds its numbers to the epoch's.
    pub fn read(&self, totals: &mut Totals) -> Result<Done> {
        let loss = self.handle.loss()?;
        let mut count = 0.0;
        for part in &self.loss_counts {
            count += part.read()?;
        }
        totals.add("loss", f64::from(loss) * count, count);
        for (name, metric) in &self.metrics {
            metric.add_to(name, totals)?;
        }
        Ok(Done {
            loss,
            scale: self.handle.scale()?,
            norm: self.handle.norm()?,
            // Steps behind this one, if there are any, were stopped by it.
            outcome: self.handle.outcome_of_halted()?,
            seen: self.watch.as_ref().map_or(Ok(Vec::new()), Watch::read)?,
        })
    }
}

impl Count {
    pub fn settle(self) -> Result<Count> {
        Ok(match self {
            Count::Known(count) => Count::Known(count),
            Count::Of(count) => Count::Of(count.settle()?),
        })
    }

    pub fn read(&self) -> Result<f64> {
        match self {
            Count::Known(count) => Ok(*count),
            Count::Of(count) => Ok(count.item()?),
        }
    }
}

impl Reduced {
    pub fn settle(self) -> Result<Reduced> {
        Ok(Reduced {
            value: self.value.settle()?,
            count: self.count.settle()?,
            factor: self.factor,
        })
    }

    pub fn add_to(&self, name: &str, totals: &mut Totals) -> Result<()> {
        totals.add(name, self.value.item()? * self.factor, self.count.read()?);
        Ok(())
    }
}
