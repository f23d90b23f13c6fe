//! Looking at the graph of a loss for what is likely a mistake.

use std::collections::HashSet;

use bimetal_tensor::{DType, Tensor};

/// Paths of the layers whose half-precision result a loss takes directly, each with the dtype.
///
/// Losses are built outside of layers and convert to f32 first: the first node of a layer under the loss is the model's output.
pub(super) fn half_outputs(loss: &Tensor) -> Vec<(String, DType)> {
    let mut found: Vec<(String, DType)> = Vec::new();
    let mut seen = HashSet::new();
    let mut work = vec![loss.clone()];
    while let Some(t) = work.pop() {
        if !seen.insert((t.id(), t.output_index())) {
            continue;
        }
        let path = t.label().path();
        if path.is_empty() {
            work.extend(t.inputs().iter().cloned());
        } else if matches!(t.dtype(), DType::F16 | DType::BF16)
            && !found.iter().any(|(known, _)| known == path)
        {
            found.push((path.to_string(), t.dtype()));
        }
    }
    found
}
