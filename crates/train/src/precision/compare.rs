//! Policies compared by training under each of them.

use std::fmt;
use std::path::Path;

use bimetal_layers::ParamStore;
use bimetal_tensor::Device;
use serde::{Deserialize, Serialize};

use super::compare_html;
use super::setup::{PolicyRun, Setup, check, policy, prepare, run};
use super::welch::{p_value, spread};
use super::write_files;
use crate::{Error, Result};

/// Runs under several policies with the same seeds and batches.
///
/// A policy's results are compared with those of the first policy by Welch's t-test (two-sided, on the results of all seeds; unequal variances). A difference is
/// within the noise of the seeds if its p-value is at least 0.05. With few seeds the test sees only large differences: three say little, ten much.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Comparison {
    /// What the model is called on the page.
    pub title: String,
    /// Steps of each run.
    pub steps: u64,
    /// The name of what is compared: `val_loss`, or `loss` without validation data.
    pub result: String,
    /// How it is compared, in words.
    pub statistic: String,
    /// The policies; the others are compared with the first.
    pub policies: Vec<PolicyRuns>,
}

/// The runs under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyRuns {
    /// The policy.
    pub policy: String,
    /// One run for each seed.
    pub runs: Vec<PolicyRun>,
    /// The mean of the results of runs that have one.
    pub mean: Option<f64>,
    /// Their sample standard deviation; 0 for one run.
    pub deviation: f64,
    /// Mean wall time of a run's steps.
    pub seconds: f64,
    /// The most bytes that were allocated at once in any run.
    pub peak_bytes: u64,
    /// What the comparison with the first policy says.
    pub verdict: Verdict,
}

/// Whether a policy does as well as the first one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
#[non_exhaustive]
pub enum Verdict {
    /// It is the first.
    Baseline,
    /// The difference of the means is no larger than what seeds do.
    WithinNoise {
        /// The mean minus that of the first.
        difference: f64,
        /// Of equal means.
        p: f64,
    },
    /// The difference is larger than what seeds do.
    Different {
        /// The mean minus that of the first.
        difference: f64,
        /// Of equal means.
        p: f64,
    },
    /// A run failed, or its result is not finite.
    Failed,
    /// One seed says nothing about noise.
    Unknown {
        /// The result minus that of the first.
        difference: f64,
    },
}

/// Trains under each policy with each seed and compares the results; see [`Comparison`].
///
/// `device` gives the device of a run, a new one for each so that its memory can be told; `build` makes model, trainer and data on the run's store, whose seed is
/// `store.seed_value()`. Policies are written as [`PolicyMap`](bimetal_precision::PolicyMap) reads them.
///
/// ```
/// # use bimetal_data::{Array, InMemory, Loader};
/// # use bimetal_layers::{Ctx, Layer, Linear, ParamStore, mse};
/// # use bimetal_optim::Adam;
/// # use bimetal_train::{Output, Setup, TensorBatch, Trainer, Verdict, compare_policies};
/// # fn main() -> bimetal_train::Result<()> {
/// let build = |store: &ParamStore| {
///     let net = Linear::new(&store.root().at("net"), 1, 1);
///     let x = Array::from_vec((0..64).map(|i| i as f32 / 32.0 - 1.0).collect(), &[64, 1])?;
///     let y = x.map_f32(|x| 2.0 * x + 1.0)?;
///     let data = Loader::new(InMemory::new(vec![x, y])?).batch(8).shuffle(store.seed_value());
///     let task = move |batch: &TensorBatch, cx: &Ctx| Output::new(mse(&net.forward(&batch[0], cx), &batch[1]));
///     Ok(Setup::new(Trainer::new(store, Adam::new(0.1)), task, data))
/// };
/// let comparison = compare_policies(bimetal_cpu::cpu, &["float32", "mixed_bfloat16"], &[0, 1, 2], 30, build)?;
/// println!("{comparison}"); // or comparison.write("runs/compared"): text, JSON and a page with the curves
/// assert_eq!(comparison.policies[0].verdict, Verdict::Baseline);
/// # Ok(()) }
/// ```
///
/// # Errors
/// A policy that does not exist, mistakes in `build`, no policies, seeds or steps. A run that fails is a result and no error.
pub fn compare_policies(
    device: impl Fn() -> Device,
    policies: &[&str],
    seeds: &[u64],
    steps: u64,
    build: impl Fn(&ParamStore) -> Result<Setup>,
) -> Result<Comparison> {
    check(seeds, steps)?;
    if policies.is_empty() {
        return Err(Error::invalid("no policies were given to compare"));
    }
    let maps = policies
        .iter()
        .map(|p| policy(p))
        .collect::<Result<Vec<_>>>()?;
    let mut result = "loss";
    let mut all: Vec<Vec<PolicyRun>> = policies.iter().map(|_| Vec::new()).collect();
    // Seed by seed, so that a machine that slows down is unfair to nobody.
    for seed in seeds {
        for (map, runs) in maps.iter().zip(&mut all) {
            let device = device();
            let (store, setup) = prepare(&device, map, *seed, &build)?;
            if setup.valid.is_some() {
                result = "val_loss";
            }
            runs.push(run(&store, setup, steps).0);
        }
    }
    let mut compared: Vec<PolicyRuns> = Vec::new();
    for (policy, runs) in policies.iter().zip(all) {
        let verdict = match compared.first() {
            None if runs.iter().any(|r| r.result.is_none()) => Verdict::Failed,
            None => Verdict::Baseline,
            Some(first) => Verdict::of(&first.runs, &runs),
        };
        compared.push(PolicyRuns::new(policy, runs, verdict));
    }
    Ok(Comparison {
        title: "policies".into(),
        steps,
        result: result.into(),
        statistic: format!(
            "Welch's t-test, two-sided, on {result} of {} seeds against {}: within the noise if p is at least 0.05",
            seeds.len(),
            policies[0]
        ),
        policies: compared,
    })
}

/// A number in about four digits.
pub(super) fn significant(v: f64) -> String {
    match v.abs() {
        a if a >= 1e4 || (a < 1e-3 && a > 0.0) => format!("{v:.3e}"),
        a if a >= 100.0 => format!("{v:.1}"),
        a if a >= 1.0 => format!("{v:.3}"),
        _ => format!("{v:.4}"),
    }
}

pub(super) fn results(runs: &[PolicyRun]) -> Vec<f64> {
    runs.iter().filter_map(|r| r.result).collect()
}

impl Verdict {
    fn of(first: &[PolicyRun], runs: &[PolicyRun]) -> Verdict {
        let (a, b) = (results(first), results(runs));
        if a.len() < first.len() || b.len() < runs.len() {
            return Verdict::Failed;
        }
        let difference = spread(&b).0 - spread(&a).0;
        match p_value(&b, &a) {
            None => Verdict::Unknown { difference },
            Some(p) if p < 0.05 => Verdict::Different { difference, p },
            Some(p) => Verdict::WithinNoise { difference, p },
        }
    }

    /// Whether the policy does as well as the first one, as far as the seeds can tell.
    pub fn is_within_noise(&self) -> bool {
        matches!(self, Verdict::Baseline | Verdict::WithinNoise { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Baseline => write!(f, "baseline"),
            Verdict::WithinNoise { difference, p } => {
                write!(f, "{difference:+.1e}, within the noise (p = {p:.2})")
            }
            Verdict::Different { difference, p } => {
                let word = if *difference > 0.0 { "worse" } else { "better" };
                write!(
                    f,
                    "{difference:+.1e}, {word} than the noise explains (p = {p:.1e})"
                )
            }
            Verdict::Failed => write!(f, "failed"),
            Verdict::Unknown { difference } => {
                write!(f, "{difference:+.1e}; one seed says nothing about noise")
            }
        }
    }
}

impl PolicyRuns {
    fn new(policy: &str, runs: Vec<PolicyRun>, verdict: Verdict) -> PolicyRuns {
        let found = results(&runs);
        let (mean, deviation) = spread(&found);
        let seconds = runs.iter().map(|r| r.seconds).sum::<f64>() / runs.len().max(1) as f64;
        PolicyRuns {
            policy: policy.into(),
            mean: (!found.is_empty()).then_some(mean),
            deviation: if found.is_empty() { 0.0 } else { deviation },
            seconds,
            peak_bytes: runs.iter().map(|r| r.peak_bytes).max().unwrap_or(0),
            verdict,
            runs,
        }
    }

    /// Mean, smallest and largest loss over the seeds at each step, where all are finite.
    pub fn curve(&self) -> Vec<Option<[f64; 3]>> {
        let steps = self.runs.iter().map(|r| r.losses.len()).min().unwrap_or(0);
        let at = |step: usize| {
            let all: Option<Vec<f64>> = self.runs.iter().map(|r| r.losses[step]).collect();
            let all = all?;
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let low = all.iter().copied().fold(f64::INFINITY, f64::min);
            let high = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            Some([mean, low, high])
        };
        (0..steps).map(at).collect()
    }

    /// The mean over the seeds of a metric at the end.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let values = self.runs.iter().map(|r| {
            let found = r.metrics.iter().find(|(n, _)| n == name);
            found.map(|(_, v)| *v)
        });
        let values: Vec<f64> = values.collect::<Option<_>>()?;
        Some(spread(&values).0)
    }

    /// Steps skipped in all runs.
    pub fn skipped(&self) -> u64 {
        self.runs.iter().map(|r| r.skipped).sum()
    }
}

impl Comparison {
    /// The runs under a policy.
    pub fn policy(&self, name: &str) -> Option<&PolicyRuns> {
        self.policies.iter().find(|p| p.policy == name)
    }

    /// With another title.
    pub fn titled(mut self, title: impl Into<String>) -> Comparison {
        self.title = title.into();
        self
    }

    /// All of it as JSON, which serde reads back.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|e| Error::invalid(format!("a comparison is no JSON: {e}")))
    }

    /// A page that needs no network and no server: loss curves with their spread over the seeds, and a table.
    pub fn to_html(&self) -> String {
        compare_html::page(self)
    }

    /// Writes `policies.txt`, `policies.json` and `policies.html` to a folder, which is made if need be.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<()> {
        let json = self.to_json()?;
        write_files(
            dir.as_ref(),
            &[
                ("policies.txt", &self.to_string()),
                ("policies.json", &json),
                ("policies.html", &self.to_html()),
            ],
        )
    }
}

/// A table of one line a policy.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} steps; {}\n",
            self.title, self.steps, self.statistic
        )?;
        let widths = self.policies.iter().map(|p| p.policy.chars().count());
        let width = widths.max().unwrap_or(6).max(6);
        writeln!(
            f,
            "{:width$}  {:>10} {:>10} {:>8} {:>9} {:>9}  against the first",
            "policy", self.result, "deviation", "skipped", "seconds", "peak MiB"
        )?;
        for p in &self.policies {
            let mean = p.mean.map_or("-".to_string(), significant);
            writeln!(
                f,
                "{:width$}  {mean:>10} {:>10} {:>8} {:>9.2} {:>9.1}  {}",
                p.policy,
                significant(p.deviation),
                p.skipped(),
                p.seconds,
                p.peak_bytes as f64 / 1048576.0,
                p.verdict
            )?;
            if let Some(failed) = p.runs.iter().find_map(|r| r.failed.as_ref()) {
                writeln!(f, "{:width$}  {failed}", "")?;
            }
        }
        Ok(())
    }
}
