//! One step: build its graph, submit it, read it later.

use bimetal_autodiff::grad_optional;
use bimetal_data::{Batch, Loader};
use bimetal_optim::{Accumulator, StepHandle};
use bimetal_precision::{LossScaler, NonFinite, StepOutcome, find_non_finite};
use bimetal_tensor::{Slot, Tensor};

use super::task::{Count, Reduced, wide};
use super::{Task, TensorBatch, Trainer, advice};
use crate::Result;
use crate::trainer::totals::Totals;

/// A step that was submitted and not read.
pub(super) struct Pending {
    handle: StepHandle,
    loss_counts: Vec<Count>,
    metrics: Vec<(String, Reduced)>,
    pub samples: u64,
    /// The batches, to look into if the step is skipped.
    batches: Vec<Batch>,
}

/// What was read of a step.
pub(super) struct Done {
    pub loss: f32,
    pub scale: f32,
    pub outcome: StepOutcome,
    pub batches: Vec<Batch>,
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
    pub params: Vec<Slot>,
    /// Things worth telling the user that the first step shows.
    pub advice: Vec<String>,
    pub first: bool,
}

impl Stepper<'_> {
    /// Submits the step of the next `batches` batches.
    pub fn submit(
        &mut self,
        t: &mut Trainer,
        train: &mut Loader,
        batches: usize,
    ) -> Result<Pending> {
        let clip = t.settings.clip_norm;
        let mut hosts = Vec::new();
        if batches == 1 {
            let cx = t.store.train();
            let forward = self.forward(t, train, &cx, &mut hosts)?;
            let mut grads = self
                .scaler
                .scale(&forward.loss)
                .grad(&self.params)?
                .unscale();
            if let Some(norm) = clip {
                grads = grads.clip_global_norm(norm);
            }
            let handle = t.optimizer.step_with(cx, grads, &forward.also())?;
            return Ok(self.pending(t, handle, vec![forward.settle()?], hosts));
        }
        let mut window = Accumulator::new();
        let mut forwards = Vec::with_capacity(batches);
        for _ in 0..batches {
            let cx = window.context(t.store.train());
            let forward = self.forward(t, train, &cx, &mut hosts)?;
            let grads = self.scaler.scale(&forward.loss).grad(&self.params)?;
            window.add_with(cx, grads, &forward.also())?;
            forwards.push(forward.settle()?);
        }
        let (cx, grads) = window.finish(t.store.train())?;
        let mut grads = grads.unscale();
        if let Some(norm) = clip {
            grads = grads.clip_global_norm(norm);
        }
        let handle = t.optimizer.step(cx, grads)?;
        Ok(self.pending(t, handle, forwards, hosts))
    }

    fn forward(
        &mut self,
        t: &Trainer,
        train: &mut Loader,
        cx: &bimetal_layers::Ctx,
        hosts: &mut Vec<Batch>,
    ) -> Result<Forward> {
        let host = train.next_in_cycle()?;
        let batch = TensorBatch::upload(&host, t.store.device());
        let output = self.task.training_step(&batch, cx);
        let (loss, loss_count) = output.loss.mean("loss", &batch);
        if output.loss.counts_padding(&batch) {
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
            .map(|(name, value)| (name.clone(), value.sum(name, &batch)))
            .collect();
        hosts.push(host);
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
        t: &Trainer,
        handle: StepHandle,
        forwards: Vec<Forward>,
        hosts: Vec<Batch>,
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
            samples: hosts.iter().map(|host| host.valid as u64).sum(),
            batches: match t.settings.check_numerics {
                true => hosts,
                false => Vec::new(),
            },
        }
    }

    /// Runs the batches of a skipped step again, on the state it left as it was, and finds the operation that first gave
    /// numbers that are not finite.
    pub fn blame(&self, t: &Trainer, batches: &[Batch], scale: f32) -> Result<Option<NonFinite>> {
        for (micro, host) in batches.iter().enumerate() {
            let batch = TensorBatch::upload(host, t.store.device());
            let cx = t.store.train().with_micro(micro as u32);
            let output = self.task.training_step(&batch, &cx);
            let (loss, _) = output.loss.mean("loss", &batch);
            let scaled = wide(&loss) * f64::from(scale);
            let reads: Vec<Tensor> = self.params.iter().map(Slot::read).collect();
            let grads = grad_optional(&scaled, &reads.iter().collect::<Vec<_>>())?;
            let mut all = vec![&scaled];
            all.extend(grads.iter().flatten());
            if let Some(found) = find_non_finite(&all)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

impl Pending {
    /// Waits for the step and adds its numbers to the epoch's.
    pub fn read(self, totals: &mut Totals) -> Result<Done> {
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
            outcome: self.handle.outcome()?,
            batches: self.batches,
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
