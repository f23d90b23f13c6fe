//! The precision report: what each layer's numbers look like, and what to do about it.

use std::path::Path;

use bimetal_tensor::DType;
use serde::{Deserialize, Serialize};

use super::advice::{self, Advice};
use super::values::{ScaleRange, Updates, Values, dtype, optional_dtype};
use super::watch::{Kind, Seen};
use super::{html, text};
use crate::{Error, Result};

/// Each layer's numbers over a few steps: ranges, what their dtypes lose of them, and advice.
///
/// Percentages of underflow and overflow are of the values before rounding, taken from a pass in f32 over the same weights, batches and random numbers that is
/// computed beside the real one: a layer is not blamed for what an earlier layer has lost. Gradients are those of the scaled loss, as they are rounded in
/// training; their magnitudes and exponents are given without the scale.
///
/// `Display` is a table, [`PrecisionReport::to_json`] and [`PrecisionReport::to_html`] are for machines and for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PrecisionReport {
    /// What the model is called on the page.
    pub title: String,
    /// The store's policies.
    pub policy: String,
    /// Steps that were looked at.
    pub steps: u64,
    /// Those of them that were skipped.
    pub skipped: u64,
    /// The loss scale of the last step; `None` without scaling.
    pub loss_scale: Option<f64>,
    /// The losses.
    pub losses: Vec<f64>,
    /// The scales that lose no gradient of any layer in f16; `None` if there is none in f16.
    pub scales: Option<ScaleRange>,
    /// The layers in the order in which they compute, then operations outside of layers that round to 8 or 16 bits.
    pub layers: Vec<LayerReport>,
    /// What to do, the most urgent first.
    pub advice: Vec<Advice>,
}

/// A layer's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LayerReport {
    /// The layer's path, such as `decoder.7.mlp.down`; outside of layers the source line.
    pub path: String,
    /// Whether these are operations outside of layers.
    pub outside: bool,
    /// The operation that counts, such as `matmul`.
    pub op: String,
    /// Numbers in the parameters.
    pub parameters: u64,
    /// The dtype parameters are kept in.
    #[serde(with = "optional_dtype")]
    pub param: Option<DType>,
    /// The dtype the operation computes with.
    #[serde(with = "dtype")]
    pub compute: DType,
    /// The dtype of the results.
    #[serde(with = "dtype")]
    pub output: DType,
    /// The results.
    pub activations: Option<Values>,
    /// The gradients of the results.
    pub activation_grads: Option<Values>,
    /// The gradients of the parameters.
    pub weight_grads: Option<Values>,
    /// How steps change the parameters.
    pub updates: Option<Updates>,
    /// Of the values inside of the layer those that overflow most, or else lose most, and the operation and source line they come from.
    pub inner: Option<(String, Values)>,
    /// The scales that lose no gradient here.
    pub scales: Option<ScaleRange>,
    /// Values inside, by place.
    #[serde(skip)]
    all_inner: Vec<(String, Values)>,
}

impl PrecisionReport {
    pub(crate) fn new(title: String, policy: String) -> PrecisionReport {
        PrecisionReport {
            title,
            policy,
            steps: 0,
            skipped: 0,
            loss_scale: None,
            losses: Vec::new(),
            scales: None,
            layers: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// Adds what was read of a step.
    pub(crate) fn add(&mut self, seen: Vec<Seen>, loss: f64, scale: f64, applied: bool) {
        self.steps += 1;
        self.skipped += u64::from(!applied);
        self.losses.push(loss);
        for seen in seen {
            let at = match self.layers.iter().position(|l| l.path == seen.row.path) {
                Some(at) => at,
                None => {
                    self.layers.push(LayerReport::new(&seen));
                    self.layers.len() - 1
                }
            };
            self.layers[at].add(&seen, scale, applied);
        }
    }

    /// Draws the conclusions.
    pub(crate) fn finish(mut self, loss_scale: Option<f64>) -> PrecisionReport {
        self.loss_scale = loss_scale;
        for layer in &mut self.layers {
            let grads = [&layer.activation_grads, &layer.weight_grads];
            layer.scales = ScaleRange::of(grads.into_iter().flatten());
            // Worst last: overflow, then underflow.
            let losses = |v: &Values| (v.overflow_share(), v.underflow_share());
            let worst = std::mem::take(&mut layer.all_inner).into_iter();
            layer.inner =
                worst
                    .filter(|(_, v)| v.overflow + v.underflow > 0)
                    .max_by(|(_, a), (_, b)| {
                        losses(a)
                            .partial_cmp(&losses(b))
                            .unwrap_or(std::cmp::Ordering::Equal)
                    });
        }
        let all = self.layers.iter();
        let grads = all.flat_map(|l| [&l.activation_grads, &l.weight_grads]);
        self.scales = ScaleRange::of(grads.flatten());
        self.layers.sort_by_key(|l| l.outside);
        self.advice = advice::of(&self);
        self
    }

    /// The layer at a path.
    pub fn layer(&self, path: &str) -> Option<&LayerReport> {
        self.layers.iter().find(|l| l.path == path)
    }

    /// With another title.
    pub fn titled(mut self, title: impl Into<String>) -> PrecisionReport {
        self.title = title.into();
        self
    }

    /// All of it as JSON, which serde reads back.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|e| Error::invalid(format!("a report is no JSON: {e}")))
    }

    /// A page that needs no network and no server: one row a layer, with histograms, in columns that sort.
    pub fn to_html(&self) -> String {
        html::page(self)
    }

    /// Writes `precision.txt`, `precision.json` and `precision.html` to a folder, which is made if need be.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<()> {
        let json = self.to_json()?;
        super::write_files(
            dir.as_ref(),
            &[
                ("precision.txt", &self.to_string()),
                ("precision.json", &json),
                ("precision.html", &self.to_html()),
            ],
        )
    }
}

/// A table of one line a layer, with the advice below.
impl std::fmt::Display for PrecisionReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text::table(self, f)
    }
}

impl LayerReport {
    fn new(seen: &Seen) -> LayerReport {
        let row = &seen.row;
        LayerReport {
            path: row.path.clone(),
            outside: row.outside,
            op: row.op.to_string(),
            parameters: row.parameters,
            param: row.param,
            compute: row.compute,
            output: row.output,
            activations: None,
            activation_grads: None,
            weight_grads: None,
            updates: None,
            inner: None,
            scales: None,
            all_inner: Vec::new(),
        }
    }

    fn add(&mut self, seen: &Seen, scale: f64, applied: bool) {
        let kinds = [
            (Kind::Activation, &mut self.activations),
            (Kind::ActivationGrad, &mut self.activation_grads),
            (Kind::WeightGrad, &mut self.weight_grads),
        ];
        for (kind, values) in kinds {
            let looks = &seen.looks[kind as usize];
            let Some(first) = looks.first() else {
                continue;
            };
            // The dtype with the fewest bits speaks for all: the others lose less.
            let dtype = looks.iter().map(|l| l.dtype).min_by_key(|d| d.size());
            let values = values.get_or_insert_with(|| Values::new(dtype.unwrap_or(first.dtype)));
            let raw: Vec<_> = looks.iter().map(|l| l.raw.clone()).collect();
            let scale = if kind == Kind::Activation { 1.0 } else { scale };
            values.add(&raw, scale);
            values.not_finite_steps += u64::from(looks.iter().any(|l| !l.finite));
        }
        for (place, look) in &seen.inner {
            let at = match self
                .all_inner
                .iter()
                .position(|(p, v)| p == place && v.dtype == look.dtype)
            {
                Some(at) => at,
                None => {
                    self.all_inner
                        .push((place.clone(), Values::new(look.dtype)));
                    self.all_inner.len() - 1
                }
            };
            let values = &mut self.all_inner[at].1;
            values.add(std::slice::from_ref(&look.raw), 1.0);
            values.not_finite_steps += u64::from(!look.finite);
        }
        if applied && !seen.updates.is_empty() {
            self.updates.get_or_insert_default().add(&seen.updates);
        }
    }

    /// The share of steps in which a result, or a value inside of the layer, overflowed.
    pub fn overflow_steps_share(&self) -> f64 {
        let inner = self.inner.as_ref().map(|(_, v)| v);
        let all = self.activations.iter().chain(inner);
        all.map(Values::overflow_steps_share).fold(0.0, f64::max)
    }
}
