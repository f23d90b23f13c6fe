//! What a run that is repeated under other policies is made of.

use std::sync::{Arc, Mutex, PoisonError};

use bimetal_data::Loader;
use bimetal_layers::ParamStore;
use bimetal_precision::PolicyMap;
use bimetal_tensor::Device;
use serde::{Deserialize, Serialize};

use crate::{Callback, Control, Error, Outcome, Result, StepRecord, Task, Trainer};

/// A model with its trainer, task and data, built anew on a store for each run of [`compare_policies`](crate::compare_policies) and
/// [`search_policy`](crate::search_policy).
pub struct Setup {
    pub(super) trainer: Trainer,
    pub(super) task: Box<dyn Task>,
    pub(super) train: Loader,
    pub(super) valid: Option<Loader>,
}

impl Setup {
    /// A run of `task` on `train`. For the same seed (`store.seed_value()`) it must be the same batches in the same order.
    pub fn new(trainer: Trainer, task: impl Task + 'static, train: Loader) -> Setup {
        Setup {
            trainer,
            task: Box::new(task),
            train,
            valid: None,
        }
    }

    /// With validation at the end, whose loss is then what is compared.
    pub fn valid(mut self, valid: Loader) -> Setup {
        self.valid = Some(valid);
        self
    }
}

/// One training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyRun {
    /// The seed of weights, data and dropout.
    pub seed: u64,
    /// The loss of each step; `None` where it was not finite.
    pub losses: Vec<Option<f64>>,
    /// What is compared: the validation loss, or without validation the mean loss of the last tenth of the steps. `None` if it was not finite or the run failed.
    pub result: Option<f64>,
    /// Loss and metrics at the end, those of the validation with the prefix `val_`.
    pub metrics: Vec<(String, f64)>,
    /// Wall time of the steps.
    pub seconds: f64,
    /// The most bytes that were allocated at once.
    pub peak_bytes: u64,
    /// Bytes kept from the forward for the backward pass.
    pub saved_bytes: u64,
    /// Steps that were skipped.
    pub skipped: u64,
    /// Why the run ended with an error, if it did.
    pub failed: Option<String>,
}

/// Keeps the losses of a run, which an error would take along.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<StepRecord>>>);

impl Callback for Record {
    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(*record);
        Ok(Control::Continue)
    }
}

/// Builds a run on a store of its own.
pub(super) fn prepare(
    device: &Device,
    policy: &PolicyMap,
    seed: u64,
    build: &dyn Fn(&ParamStore) -> Result<Setup>,
) -> Result<(ParamStore, Setup)> {
    let store = ParamStore::new(device, policy.clone()).seed(seed);
    let setup = build(&store)?;
    store.check()?;
    Ok((store, setup))
}

/// Trains for `steps` steps and gives back the trainer for a look at its end. A run that fails, as one whose every step is skipped, is a result like others.
pub(super) fn run(
    store: &ParamStore,
    setup: Setup,
    steps: u64,
) -> (PolicyRun, Trainer, Box<dyn Task>) {
    let record = Record::default();
    let Setup {
        trainer,
        task,
        train,
        valid,
    } = setup;
    let mut trainer = trainer.progress(false).callback(record.clone());
    let fitted = trainer.fit_steps(&*task, train, valid, steps);
    let records = record.0.lock().unwrap_or_else(PoisonError::into_inner);
    let losses: Vec<f64> = records.iter().map(|r| f64::from(r.loss)).collect();
    let finite = |x: f64| x.is_finite().then_some(x);
    let mut run = PolicyRun {
        seed: store.seed_value(),
        losses: losses.iter().map(|l| finite(*l)).collect(),
        result: None,
        metrics: Vec::new(),
        seconds: 0.0,
        peak_bytes: store.device().memory().peak as u64,
        saved_bytes: 0,
        skipped: records
            .iter()
            .filter(|r| r.outcome == Outcome::Skipped)
            .count() as u64,
        failed: None,
    };
    match fitted {
        Err(error) => run.failed = Some(error.to_string()),
        Ok(report) => {
            run.seconds = report.seconds;
            (run.peak_bytes, run.saved_bytes) =
                (report.memory.peak as u64, report.memory.saved as u64);
            let tail = &losses[losses.len() - losses.len().div_ceil(10)..];
            let mean = tail.iter().sum::<f64>() / tail.len().max(1) as f64;
            run.result = finite(report.valid.get("loss").unwrap_or(mean));
            let mut metrics = report.train.clone();
            metrics.extend_prefixed("val_", &report.valid);
            run.metrics = metrics
                .iter()
                .filter(|(_, v)| v.is_finite())
                .map(|(n, v)| (n.to_string(), v))
                .collect();
        }
    }
    drop(records);
    (run, trainer, task)
}

/// Policies from their text.
pub(super) fn policy(text: &str) -> Result<PolicyMap> {
    text.parse().map_err(|e| Error::invalid(format!("{e}")))
}

/// Nothing to train is a mistake, and so is a seed that comes twice.
pub(super) fn check(seeds: &[u64], steps: u64) -> Result<()> {
    if seeds.is_empty() || steps == 0 {
        return Err(Error::invalid(format!(
            "{} seeds and {steps} steps were given; expected at least one of each",
            seeds.len()
        )));
    }
    // Runs that are the same twice would pass for proof that seeds make no difference.
    let twice = seeds
        .iter()
        .enumerate()
        .find(|(i, s)| seeds[..*i].contains(s));
    if let Some((_, seed)) = twice {
        return Err(Error::invalid(format!(
            "seed {seed} was given twice; expected different ones, because their spread is what policies are measured against"
        )));
    }
    Ok(())
}
