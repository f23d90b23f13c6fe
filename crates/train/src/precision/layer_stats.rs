//! What one step of training saw of a layer.

use super::watch::{Kind, Look, Seen};
use crate::Histogram;

/// The numbers of one layer in one step, as they really were, computed by the step's own plan; see [`Callback::on_layers`](crate::Callback::on_layers).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerStats {
    /// The layer's path; outside of layers the source line.
    pub path: String,
    /// The results.
    pub activations: Option<Histogram>,
    /// The gradients of the results, without the loss scale.
    pub activation_grads: Option<Histogram>,
    /// The gradients of the parameters, without the loss scale and before clipping.
    pub weight_grads: Option<Histogram>,
    /// The norm of the gradients of the parameters.
    pub grad_norm: Option<f64>,
    /// The norm of the update relative to that of the parameters.
    pub update_ratio: Option<f64>,
}

impl LayerStats {
    pub(crate) fn of(seen: &[Seen], scale: f64) -> Vec<LayerStats> {
        // Lines outside of layers would be tags that move whenever a line is added above.
        let layers = seen.iter().filter(|s| !s.row.outside);
        layers.map(|s| LayerStats::of_layer(s, scale)).collect()
    }

    fn of_layer(seen: &Seen, scale: f64) -> LayerStats {
        let histogram = |kind: Kind, scale: f64| {
            let parts = seen.looks[kind as usize].iter().map(|look: &Look| {
                let [min, max, sum, _, squares] = look.raw.moments;
                Histogram::of_exponents(&look.raw.counts, [min, max, sum, squares], scale)
            });
            parts.reduce(|all, part| all.join(&part))
        };
        let gradients = &seen.looks[Kind::WeightGrad as usize];
        let squares: f64 = gradients.iter().map(|l| l.raw.moments[4]).sum();
        let (change, weight) = seen
            .updates
            .iter()
            .fold((0.0, 0.0), |all, (_, squares, _)| {
                (all.0 + squares[0], all.1 + squares[1])
            });
        LayerStats {
            path: seen.row.path.clone(),
            activations: histogram(Kind::Activation, 1.0),
            activation_grads: histogram(Kind::ActivationGrad, scale),
            weight_grads: histogram(Kind::WeightGrad, scale),
            grad_norm: (!gradients.is_empty()).then(|| squares.sqrt() / scale),
            update_ratio: (weight > 0.0).then(|| (change / weight).sqrt()),
        }
    }
}
