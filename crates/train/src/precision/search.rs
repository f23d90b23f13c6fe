//! The fewest layers that must stay in f32, found by training.

use std::fmt;
use std::path::Path;

use bimetal_layers::ParamStore;
use bimetal_precision::{Policy, PolicyMap};
use bimetal_tensor::Device;
use serde::{Deserialize, Serialize};

use super::compare::significant;
use super::graph::is_low;
use super::report::{LayerReport, PrecisionReport};
use super::setup::{Setup, check, prepare, run};
use super::values::Values;
use super::welch::spread;
use crate::{Error, Result};

/// How much a search may train.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchBudget {
    /// What layers follow that may be low; default `mixed_float16`.
    pub low: Policy,
    /// Steps of a run; default 100. As many as it takes to see whether training works.
    pub steps: u64,
    /// The seeds of each trial; default three.
    pub seeds: Vec<u64>,
    /// Runs in all; default 60. A search that needs more ends with the best it has found.
    pub runs: usize,
    /// A loss may be worse than the mean of float32 by so many standard deviations of float32 over the seeds; default 2.
    pub deviations: f64,
    /// And by this share of the mean, since a deviation of few seeds may be tiny; default 0.01.
    pub tolerance: f64,
}

impl Default for SearchBudget {
    fn default() -> SearchBudget {
        SearchBudget {
            low: Policy::mixed_float16(),
            steps: 100,
            seeds: vec![0, 1, 2],
            runs: 60,
            deviations: 2.0,
            tolerance: 0.01,
        }
    }
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicySearch {
    /// The policies: low, and float32 for the layers that need it.
    pub policies: PolicyMap,
    /// Those layers.
    pub float32_layers: Vec<String>,
    /// The layers that could have been low, the most suspicious first.
    pub candidates: Vec<String>,
    /// The largest mean loss that counts as being within the noise of float32.
    pub limit: f64,
    /// The results of float32.
    pub baseline: Vec<Option<f64>>,
    /// What was tried, in order.
    pub trials: Vec<PolicyTrial>,
    /// Whether the search ended by itself: leaving out any one of the layers is known to fail. Otherwise runs were used up.
    pub finished: bool,
}

/// One set of layers that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PolicyTrial {
    /// The layers in float32.
    pub float32_layers: Vec<String>,
    /// The result of each seed; after one that is not finite no more are tried.
    pub results: Vec<Option<f64>>,
    /// Whether the mean is within the noise of float32.
    pub within_noise: bool,
}

/// Finds the fewest layers that must stay in float32 so that training under a low policy ends with a loss within the noise of float32.
///
/// First float32 is trained with all seeds; its mean and deviation are the limit ([`SearchBudget`]). Then everything is low. If that fails, layers are put in the order
/// of what [`Trainer::precision_report`](crate::Trainer::precision_report) says of the failed run, before and after it: overflow first, then gradients and
/// activations that become zero. As few of the first of them as it takes become float32 (1, 2, 4, .., then halving), and at last each is tried without. Layers whose scope chose float32
/// stay so and are no candidates.
///
/// What `build` gets and gives is as in [`compare_policies`](crate::compare_policies).
///
/// # Errors
/// Mistakes in `build`, a budget without seeds, steps or runs, a float32 that does not train.
pub fn search_policy(
    device: impl Fn() -> Device,
    budget: &SearchBudget,
    build: impl Fn(&ParamStore) -> Result<Setup>,
) -> Result<PolicySearch> {
    budget.check()?;
    let mut search = Search {
        device: &device,
        build: &build,
        budget,
        left: budget.runs,
        limit: f64::INFINITY,
        trials: Vec::new(),
        baseline: Vec::new(),
    };
    search.baseline()?;
    let (all_low, candidates) = search.all_low()?;
    let (wide, finished) = match all_low {
        true => (Some(Vec::new()), true),
        false => search.shrink(&candidates)?,
    };
    // Nothing that was tried is enough: what is left is float32.
    let (default, float32_layers) = match wide {
        Some(wide) => (budget.low, wide),
        None => (Policy::float32(), Vec::new()),
    };
    let policies = with_float32(default, &float32_layers);
    Ok(PolicySearch {
        policies,
        float32_layers,
        candidates,
        limit: search.limit,
        baseline: search.baseline,
        trials: search.trials,
        finished,
    })
}

impl SearchBudget {
    /// What cannot work is an error before anything is trained.
    fn check(&self) -> Result<()> {
        check(&self.seeds, self.steps)?;
        let needed = 2 * self.seeds.len();
        if self.runs < needed {
            return Err(Error::invalid(format!(
                "{} runs are fewer than the {needed} that float32 and the low policy need",
                self.runs
            )));
        }
        let noise = [
            ("deviations", self.deviations),
            ("tolerance", self.tolerance),
        ];
        match noise.iter().find(|(_, v)| !(v.is_finite() && *v >= 0.0)) {
            None => Ok(()),
            Some((name, v)) => Err(Error::invalid(format!(
                "{name} is {v}; expected a number that is 0 or more"
            ))),
        }
    }
}

fn with_float32(default: Policy, layers: &[String]) -> PolicyMap {
    let map = PolicyMap::new(default);
    layers
        .iter()
        .fold(map, |map, path| map.rule(path.clone(), Policy::float32()))
}

struct Search<'a> {
    device: &'a dyn Fn() -> Device,
    build: &'a dyn Fn(&ParamStore) -> Result<Setup>,
    budget: &'a SearchBudget,
    left: usize,
    limit: f64,
    trials: Vec<PolicyTrial>,
    baseline: Vec<Option<f64>>,
}

impl Search<'_> {
    fn baseline(&mut self) -> Result<()> {
        for seed in &self.budget.seeds {
            self.left -= 1;
            let map = PolicyMap::new(Policy::float32());
            let (store, setup) = prepare(&(self.device)(), &map, *seed, self.build)?;
            let (run, ..) = run(&store, setup, self.budget.steps);
            if run.result.is_none() {
                let why = run.failed.unwrap_or("its loss is not finite".into());
                return Err(Error::invalid(format!(
                    "float32 does not train with seed {seed}, so there is nothing to compare with: {why}"
                )));
            }
            self.baseline.push(run.result);
        }
        let found: Vec<f64> = self.baseline.iter().flatten().copied().collect();
        let (mean, deviation) = spread(&found);
        let noise = (self.budget.deviations * deviation).max(self.budget.tolerance * mean.abs());
        self.limit = mean + noise;
        Ok(())
    }

    /// The trial of no layer in float32, and the candidates.
    fn all_low(&mut self) -> Result<(bool, Vec<String>)> {
        let mut ranks: Vec<(String, [f64; 4])> = Vec::new();
        let mut results = Vec::new();
        for seed in &self.budget.seeds {
            self.left -= 1;
            let map = PolicyMap::new(self.budget.low);
            let (store, mut setup) = prepare(&(self.device)(), &map, *seed, self.build)?;
            let (_, data) = prepare(&(self.device)(), &map, *seed, self.build)?;
            let before = setup
                .trainer
                .precision_report(&*setup.task, data.train, 2)?;
            rank(&mut ranks, &before);
            let (run, mut trainer, task) = run(&store, setup, self.budget.steps);
            // The state a run ends in may show what its beginning does not.
            let (_, data) = prepare(&(self.device)(), &map, *seed, self.build)?;
            rank(
                &mut ranks,
                &trainer.precision_report(&*task, data.train, 2)?,
            );
            results.push(run.result);
            if run.result.is_none() {
                break;
            }
        }
        ranks.sort_by(|(_, a), (_, b)| b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal));
        let within = self.judge(Vec::new(), results);
        Ok((within, ranks.into_iter().map(|(path, _)| path).collect()))
    }

    fn judge(&mut self, float32_layers: Vec<String>, results: Vec<Option<f64>>) -> bool {
        let found: Option<Vec<f64>> = results.iter().copied().collect();
        let complete = results.len() == self.budget.seeds.len();
        let within_noise = complete && found.is_some_and(|f| spread(&f).0 <= self.limit);
        self.trials.push(PolicyTrial {
            float32_layers,
            results,
            within_noise,
        });
        within_noise
    }

    /// Whether these layers in float32 are enough; `None` if there are no runs left to find out.
    fn enough(&mut self, layers: &[String]) -> Result<Option<bool>> {
        if let Some(known) = self.trials.iter().find(|t| t.float32_layers == layers) {
            return Ok(Some(known.within_noise));
        }
        let mut results = Vec::new();
        for seed in &self.budget.seeds {
            if self.left == 0 {
                return Ok(None);
            }
            self.left -= 1;
            let map = with_float32(self.budget.low, layers);
            let (store, setup) = prepare(&(self.device)(), &map, *seed, self.build)?;
            let (run, ..) = run(&store, setup, self.budget.steps);
            results.push(run.result);
            if run.result.is_none() {
                break;
            }
        }
        Ok(Some(self.judge(layers.to_vec(), results)))
    }

    /// The layers that are enough and of which none can be left out, if there are any, and whether runs sufficed to know.
    fn shrink(&mut self, candidates: &[String]) -> Result<(Option<Vec<String>>, bool)> {
        let (mut low, mut high) = (0, 1);
        loop {
            let n = high.min(candidates.len());
            match self.enough(&candidates[..n])? {
                None => return Ok((None, false)),
                Some(true) => {
                    high = n;
                    break;
                }
                Some(false) if n == candidates.len() => return Ok((None, true)),
                Some(false) => (low, high) = (n, 2 * n),
            }
        }
        // `low` of them are too few, `high` are enough.
        while high - low > 1 {
            let middle = (low + high) / 2;
            match self.enough(&candidates[..middle])? {
                None => return Ok((Some(candidates[..high].to_vec()), false)),
                Some(true) => high = middle,
                Some(false) => low = middle,
            }
        }
        let mut kept = candidates[..high].to_vec();
        // The last was needed, or fewer would have been enough; of the others the least suspicious goes first.
        for path in candidates[..high - 1].iter().rev() {
            let without: Vec<String> = kept.iter().filter(|p| *p != path).cloned().collect();
            match self.enough(&without)? {
                None => return Ok((Some(kept), false)),
                Some(true) => kept = without,
                Some(false) => {}
            }
        }
        Ok((Some(kept), true))
    }
}

/// Takes note of how much a report blames each layer that is low: overflow of activations, of gradients at any scale, gradients and activations that become zero.
fn rank(all: &mut Vec<(String, [f64; 4])>, report: &PrecisionReport) {
    for layer in report.layers.iter().filter(|l| !l.outside) {
        let inside = layer.inner.as_ref().is_some_and(|(_, v)| is_low(v.dtype));
        if !is_low(layer.compute) && !is_low(layer.output) && !inside {
            continue;
        }
        let blame = blame(layer);
        match all.iter_mut().find(|(path, _)| *path == layer.path) {
            Some((_, old)) => old.iter_mut().zip(blame).for_each(|(a, b)| *a = a.max(b)),
            None => all.push((layer.path.clone(), blame)),
        }
    }
}

fn blame(layer: &LayerReport) -> [f64; 4] {
    let most = |values: &[&Option<Values>], f: &dyn Fn(&Values) -> f64| {
        values
            .iter()
            .filter_map(|v| v.as_ref())
            .map(f)
            .fold(0.0, f64::max)
    };
    let gradients = [&layer.activation_grads, &layer.weight_grads];
    let beyond = |v: &Values| f64::from(u8::from(v.amax > v.dtype.max_finite()));
    [
        layer.overflow_steps_share(),
        most(&gradients, &beyond),
        most(&gradients, &Values::underflow_share),
        most(&[&layer.activations], &Values::underflow_share),
    ]
}

impl PolicySearch {
    /// Writes the policies to a file, as JSON: `{"default": "mixed_float16", "rules": [["head", "float32"]]}`. [`load_policies`] reads it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let text = serde_json::to_string_pretty(&self.policies)
            .map_err(|e| Error::invalid(format!("policies are no JSON: {e}")))?;
        std::fs::write(path, text + "\n").map_err(|e| Error::io("write", path, e))
    }
}

/// Policies from a file that [`PolicySearch::save`] wrote, or that was written by hand, for [`ParamStore::new`].
///
/// # Errors
/// A file that cannot be read or holds something else.
pub fn load_policies(path: impl AsRef<Path>) -> Result<PolicyMap> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    serde_json::from_str(&text).map_err(|e| {
        Error::invalid(format!(
            "`{}` holds no policies: {e}; expected JSON such as {{\"default\": \"mixed_float16\", \"rules\": [[\"head\", \"float32\"]]}}",
            path.display()
        ))
    })
}

/// What was found, and the trials.
impl fmt::Display for PolicySearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let results = |all: &[Option<f64>]| {
            let all = all
                .iter()
                .map(|r| r.map_or("not finite".to_string(), significant));
            all.collect::<Vec<_>>().join(", ")
        };
        writeln!(f, "policies: {}", self.policies)?;
        if !self.finished {
            writeln!(
                f,
                "all runs of the budget were used: fewer layers may be enough"
            )?;
        }
        writeln!(
            f,
            "float32: {}; within the noise up to {}",
            results(&self.baseline),
            significant(self.limit)
        )?;
        for t in &self.trials {
            let layers = match t.float32_layers.is_empty() {
                true => "everything low".to_string(),
                false => format!("float32: {}", t.float32_layers.join(", ")),
            };
            let verdict = if t.within_noise {
                "enough"
            } else {
                "not enough"
            };
            writeln!(f, "- {layers}: {} ({verdict})", results(&t.results))?;
        }
        Ok(())
    }
}
