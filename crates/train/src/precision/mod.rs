//! What precision does to a model: a report of each layer's numbers.

mod advice;
mod compare;
mod compare_html;
mod graph;
mod html;
mod layer_stats;
mod report;
mod search;
mod setup;
mod text;
mod values;
mod watch;
mod welch;

use std::path::Path;

use bimetal_data::{Batch, Loader};
use bimetal_layers::ParamStore;
use bimetal_precision::{LossScale, LossScaler};
use bimetal_tensor::{Tensor, eval};

use crate::trainer::{mean_loss, run_slots, set_slots};
use crate::{Error, Result, Task, TensorBatch, Trainer};

pub use advice::{Advice, Severity};
pub use compare::{Comparison, PolicyRuns, Verdict, compare_policies};
pub use layer_stats::LayerStats;
pub use report::{LayerReport, PrecisionReport};
pub use search::{PolicySearch, PolicyTrial, SearchBudget, load_policies, search_policy};
pub use setup::{PolicyRun, Setup};
pub use values::{ScaleRange, Updates, Values};
pub(crate) use watch::{Seen, Watch};

/// What a few batches show of each layer's numbers, forward and backward, without training: nothing changes, and there is nothing about updates. The loss is scaled
/// by `scale`, as it would be in training.
///
/// ```
/// # use bimetal_data::{Array, InMemory, Loader};
/// # use bimetal_layers::{Ctx, Layer, Linear, ParamStore, mse};
/// # use bimetal_precision::LossScale;
/// # use bimetal_train::{Output, TensorBatch, precision_report};
/// # fn main() -> bimetal_train::Result<()> {
/// let store = ParamStore::new(&bimetal_cpu::cpu(), "mixed_float16").seed(0);
/// let net = Linear::new(&store.root().at("net"), 2, 1);
/// // Targets beyond what f16 holds.
/// let task = |batch: &TensorBatch, cx: &Ctx| {
///     Output::new(mse(&(net.forward(&batch[0], cx) * 1e6), &batch[1]) * 1e-12)
/// };
/// let x = Array::from_vec(vec![1.0f32; 16], &[8, 2])?;
/// let y = Array::from_vec(vec![1e6f32; 8], &[8, 1])?;
/// let batch = Loader::new(InMemory::new(vec![x, y])?).batch(8).next_in_cycle()?;
///
/// let report = precision_report(&store, &task, &[batch], LossScale::Static(1.0))?;
/// assert!(report.advice[0].text.contains("overflows in 100 % of batches"), "{report}");
/// println!("{report}"); // or report.write("runs/a"): text, JSON and a page
/// # Ok(()) }
/// ```
///
/// # Errors
/// Mistakes in the task, a scale that cannot work, no batches.
pub fn precision_report(
    store: &ParamStore,
    task: &dyn Task,
    batches: &[Batch],
    scale: LossScale,
) -> Result<PrecisionReport> {
    if batches.is_empty() {
        return Err(Error::invalid(
            "a precision report needs at least one batch",
        ));
    }
    let params = store.trainable_slots()?;
    let scaler = LossScaler::new(scale, store.device())?;
    let mut report = PrecisionReport::new("precision".into(), store.policies().to_string());
    for host in batches {
        let batch = TensorBatch::upload(host, store.device());
        let cx = store.train();
        let scaled = scaler.scale(&mean_loss(&task.training_step(&batch, &cx), &batch));
        let (watch, grads) = Watch::differentiate(&scaled, &params, true)?;
        let tensors = watch.tensors();
        let all: Vec<&Tensor> = [grads.loss(), grads.scale(), grads.finite()]
            .into_iter()
            .chain(&tensors)
            .collect();
        eval(&all)?;
        let (loss, scale) = (grads.loss().item()?, grads.scale().item()?);
        let finite = grads.finite().item()? != 0.0;
        report.add(watch.read()?, loss, scale, finite);
    }
    let scaled = scaler.settings() != LossScale::None;
    let scale = scaled.then(|| scaler.current()).transpose()?;
    Ok(report.finish(scale.map(f64::from)))
}

impl Trainer {
    /// What `steps` steps of training show of each layer's numbers: activations, their gradients, gradients of the weights, updates. The numbers are
    /// computed by the plans of the steps; afterwards weights, moments, statistics, loss scale and counters are what they were before.
    ///
    /// Accumulation does not count: each step is one batch.
    ///
    /// # Errors
    /// As [`Trainer::fit`]; no steps.
    pub fn precision_report(
        &mut self,
        task: &dyn Task,
        mut data: Loader,
        steps: u64,
    ) -> Result<PrecisionReport> {
        if steps == 0 {
            return Err(Error::invalid("a precision report needs at least one step"));
        }
        data.check()?;
        let scaler = self.prepare()?;
        let kept = run_slots(self, &scaler)?;
        let attempted = self.optimizer().attempted();
        let policy = self.store().policies().to_string();
        let report = PrecisionReport::new("precision".into(), policy);
        let result = self.watched_steps(task, &mut data, steps, report);
        set_slots(&kept)?;
        self.optimizer().set_attempted(attempted);
        result
    }

    fn watched_steps(
        &mut self,
        task: &dyn Task,
        data: &mut Loader,
        steps: u64,
        mut report: PrecisionReport,
    ) -> Result<PrecisionReport> {
        let mut scale = 1.0;
        for _ in 0..steps {
            let step = self.watched_step(task, data)?;
            scale = f64::from(step.scale);
            let applied = step.outcome.is_applied();
            report.add(step.seen, f64::from(step.loss), scale, applied);
        }
        Ok(report.finish(self.scales_loss().then_some(scale)))
    }
}

/// Writes files to a folder, which is made if need be.
pub(crate) fn write_files(dir: &Path, files: &[(&str, &str)]) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| Error::unwritable(dir, e))?;
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
    }
    Ok(())
}
