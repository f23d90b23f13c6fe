//! Passes without training.

use bimetal_data::{Array, Cursor, Loader};
use bimetal_layers::Layer;
use bimetal_tensor::{DType, Tensor, eval};

use super::task::{Count, Reduced, wide};
use super::totals::Totals;
use super::{Task, TensorBatch, Trainer};
use crate::{Error, Logs, Result};

/// Batches whose results wait on the device before the host reads them.
const AHEAD: usize = 32;

struct Evaluated {
    loss: Tensor,
    loss_count: Count,
    metrics: Vec<(String, Reduced)>,
}

impl Evaluated {
    fn read(self, totals: &mut Totals) -> Result<()> {
        let count = self.loss_count.read()?;
        totals.add("loss", self.loss.item()? * count, count);
        let mut metrics = self.metrics.iter();
        metrics.try_for_each(|(name, metric)| metric.add_to(name, totals))
    }
}

impl Trainer {
    /// Means of loss and metrics over one epoch of `loader` from its beginning, in evaluation mode: dropout is off,
    /// BatchNorm uses its statistics, nothing changes. Padding does not count.
    ///
    /// # Errors
    /// Mistakes in the task, an index out of range, a loader whose options do not fit its data.
    pub fn evaluate(&self, task: &dyn Task, mut loader: Loader) -> Result<Logs> {
        self.evaluate_on(task, &mut loader)
    }

    pub(super) fn evaluate_on(&self, task: &dyn Task, loader: &mut Loader) -> Result<Logs> {
        self.store.check()?;
        loader.restore(Cursor::default())?;
        let mut totals = Totals::default();
        let mut pending = Vec::with_capacity(AHEAD);
        while let Some(host) = loader.next_batch()? {
            let batch = TensorBatch::upload(&host, self.store.device());
            let cx = self.store.eval();
            let output = task.validation_step(&batch, &cx);
            let (loss, loss_count) = output.loss.mean("loss", &batch);
            let metrics: Vec<_> = output
                .metrics
                .iter()
                .map(|(name, value)| (name.clone(), value.sum(name, &batch)))
                .collect();
            let mut wanted = vec![&loss];
            if let Count::Of(count) = &loss_count {
                wanted.push(count);
            }
            for (_, metric) in &metrics {
                wanted.push(&metric.value);
                if let Count::Of(count) = &metric.count {
                    wanted.push(count);
                }
            }
            eval(&wanted)?;
            let metrics = metrics.into_iter();
            pending.push(Evaluated {
                loss: loss.settle()?,
                loss_count: loss_count.settle()?,
                metrics: metrics
                    .map(|(name, metric)| Ok((name, metric.settle()?)))
                    .collect::<Result<_>>()?,
            });
            if pending.len() == AHEAD {
                let mut read = pending.drain(..);
                read.try_for_each(|e| e.read(&mut totals))?;
            }
        }
        pending.into_iter().try_for_each(|e| e.read(&mut totals))?;
        Ok(totals.logs())
    }

    /// What `model` gives for the first array of every batch of one epoch of `loader`, in order and without padding:
    /// `[samples, ...]`, 16-bit floats as f32.
    ///
    /// # Errors
    /// As [`Trainer::evaluate`]; a model whose result has another number of rows than its batch.
    pub fn predict(&self, model: &dyn Layer, mut loader: Loader) -> Result<Array> {
        self.store.check()?;
        loader.restore(Cursor::default())?;
        let mut bytes = Vec::new();
        let mut found: Option<(DType, Vec<usize>)> = None;
        let mut samples = 0;
        while let Some(host) = loader.next_batch()? {
            let batch = TensorBatch::upload(&host, self.store.device());
            let Some(input) = batch.first() else {
                return Err(Error::invalid(
                    "predict needs a loader whose batches hold at least one array",
                ));
            };
            let y = model.forward(input, &self.store.eval());
            let y = match y.dtype().is_float() {
                true => wide(&y),
                false => y,
            };
            let shape = y.shape()?;
            let (rows, row) = match shape.split_first() {
                Some((&rows, row)) if rows == host.size => (rows, row),
                _ => {
                    return Err(Error::invalid(format!(
                        "the model made {shape:?} of a batch of {} rows; predict expects one row for each",
                        host.size
                    )));
                }
            };
            let (dtype, expected) = found.get_or_insert_with(|| (y.dtype(), row.to_vec()));
            if *dtype != y.dtype() || expected != row {
                return Err(Error::invalid(format!(
                    "the model made rows {:?} {row:?} of one batch and {dtype:?} {expected:?} of another",
                    y.dtype()
                )));
            }
            let all = y.to_bytes()?;
            bytes.extend_from_slice(&all[..all.len() / rows * host.valid]);
            samples += host.valid;
        }
        let (dtype, row) = found.unwrap_or((DType::F32, Vec::new()));
        let shape: Vec<usize> = std::iter::once(samples).chain(row).collect();
        Ok(Array::from_bytes(dtype, &shape, bytes)?)
    }
}
