//! What to do, in words.

use bimetal_tensor::DType;
use serde::{Deserialize, Serialize};

use super::report::{LayerReport, PrecisionReport};
use super::values::Values;

/// How urgent an advice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Numbers become infinite: training suffers or stops.
    Overflow,
    /// So many numbers are lost that it may matter.
    Loss,
    /// Worth knowing.
    Note,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Advice {
    /// How urgent it is.
    pub severity: Severity,
    /// The layer it is about; empty for the whole model.
    pub path: String,
    /// What was found and what to do.
    pub text: String,
}

/// Shares from which on a loss is told.
const GRADIENTS_LOST: f64 = 0.01;
const ACTIVATIONS_LOST: f64 = 0.05;
const UPDATES_LOST: f64 = 0.25;

pub(super) fn of(report: &PrecisionReport) -> Vec<Advice> {
    let mut all = Vec::new();
    for layer in &report.layers {
        let texts = [
            (Severity::Overflow, overflow(layer)),
            (Severity::Overflow, gradient_overflow(layer)),
            (Severity::Loss, gradients_lost(layer, report)),
            (Severity::Loss, activations_lost(layer)),
            (Severity::Loss, updates_lost(layer)),
            (Severity::Note, near_the_limit(layer)),
        ];
        all.extend(texts.into_iter().filter_map(|(severity, text)| {
            Some(Advice {
                severity,
                path: layer.path.clone(),
                text: text?,
            })
        }));
    }
    all.extend(scale(report).map(|text| Advice {
        severity: Severity::Note,
        path: String::new(),
        text,
    }));
    all.sort_by_key(|a| a.severity);
    all
}

fn percent(share: f64) -> String {
    let p = 100.0 * share;
    match p {
        p if p >= 10.0 || p == p.round() => format!("{p:.0} %"),
        p if p >= 0.095 => format!("{p:.1} %"),
        p if p >= 0.01 => format!("{p:.2} %"),
        _ => "less than 0.01 %".to_string(),
    }
}

/// What else the layer could compute in.
fn instead(d: DType) -> &'static str {
    match d {
        DType::BF16 => "float32",
        DType::F16 => "float32 or bfloat16",
        _ => "float32, bfloat16 or a scale of its own",
    }
}

fn overflow(layer: &LayerReport) -> Option<String> {
    let results = layer.activations.as_ref().filter(|v| v.overflow > 0);
    let (place, v) = match (results, &layer.inner) {
        (Some(v), _) => (String::new(), v),
        (None, Some((place, v))) if v.overflow > 0 => (format!(", inside, in {place}"), v),
        _ => return None,
    };
    Some(format!(
        "`{}` overflows in {} of batches{place} (largest {:.3e}, {} holds {}): {}",
        layer.path,
        percent(v.overflow_steps_share()),
        v.amax,
        v.dtype,
        v.dtype.max_finite(),
        instead(v.dtype)
    ))
}

fn gradients(layer: &LayerReport) -> impl Iterator<Item = (&'static str, &Values)> {
    let both = [
        ("gradients of the results", &layer.activation_grads),
        ("gradients of the weights", &layer.weight_grads),
    ];
    both.into_iter()
        .filter_map(|(what, v)| Some((what, v.as_ref()?)))
}

/// A scale cannot help what overflows without one.
fn gradient_overflow(layer: &LayerReport) -> Option<String> {
    let (what, v) = gradients(layer).find(|(_, v)| v.amax > v.dtype.max_finite())?;
    Some(format!(
        "the {what} of `{}` reach {:.3e} even without a loss scale and overflow {}: {}, or a smaller loss",
        layer.path,
        v.amax,
        v.dtype,
        instead(v.dtype)
    ))
}

fn gradients_lost(layer: &LayerReport, report: &PrecisionReport) -> Option<String> {
    let worst = gradients(layer).filter(|(_, v)| v.underflow_share() > GRADIENTS_LOST);
    let (what, v) =
        worst.max_by(|(_, a), (_, b)| a.underflow_share().total_cmp(&b.underflow_share()))?;
    let now = report.loss_scale.unwrap_or(1.0);
    let room = report
        .scales
        .filter(|s| s.highest > now && v.dtype == DType::F16);
    let advice = match (room, report.loss_scale) {
        (Some(s), None) => format!("scale the loss, by up to 2^{}", s.highest.log2()),
        (Some(s), Some(_)) => format!("a larger loss scale, up to 2^{}", s.highest.log2()),
        (None, _) => instead(v.dtype).to_string(),
    };
    Some(format!(
        "{} of the {what} of `{}` become zero in {}: {advice}",
        percent(v.underflow_share()),
        layer.path,
        v.dtype
    ))
}

fn activations_lost(layer: &LayerReport) -> Option<String> {
    let v = layer.activations.as_ref()?;
    (v.underflow_share() > ACTIVATIONS_LOST).then(|| {
        format!(
            "{} of the results of `{}` become zero in {} (mean magnitude {:.1e}): {}, or a larger output scale",
            percent(v.underflow_share()),
            layer.path,
            v.dtype,
            v.mean,
            instead(v.dtype)
        )
    })
}

fn updates_lost(layer: &LayerReport) -> Option<String> {
    let u = layer.updates.as_ref()?;
    let param = layer.param?;
    (u.lost_share() > UPDATES_LOST).then(|| {
        let advice = match param {
            DType::F32 | DType::F64 => "a larger learning rate, if the layer is meant to learn",
            _ => "keep parameters in f32 (`mixed_float16` or `mixed_bfloat16`)",
        };
        format!(
            "{} of the updates of `{}` are lost in {param}: {advice}",
            percent(u.lost_share()),
            layer.path
        )
    })
}

fn near_the_limit(layer: &LayerReport) -> Option<String> {
    let v = layer.activations.as_ref()?;
    let share = v.amax / v.dtype.max_finite();
    (v.overflow == 0 && share > 0.25).then(|| {
        format!(
            "the results of `{}` reach {:.3e}, {} of what {} holds: watch it, or {}",
            layer.path,
            v.amax,
            percent(share),
            v.dtype,
            instead(v.dtype)
        )
    })
}

fn scale(report: &PrecisionReport) -> Option<String> {
    let s = report.scales?;
    let (low, high) = (s.lowest.log2(), s.highest.log2());
    let now = match report.loss_scale {
        Some(scale) => format!("2^{:.0} was used", scale.log2()),
        None => "none was used".to_string(),
    };
    Some(match s.is_lossless() {
        true => format!("a loss scale from 2^{low} to 2^{high} loses no gradient of f16; {now}"),
        false => format!(
            "no loss scale keeps every gradient of f16: 2^{high} is the largest without overflow, and with it {} of them become zero; {now}",
            percent(s.lost_at_highest)
        ),
    })
}
