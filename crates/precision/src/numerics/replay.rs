//! Computing a step again that changed nothing.
use super::watch::topological;
use bimetal_tensor::graph::NodeId;
use bimetal_tensor::{Slot, Tensor};
use std::collections::HashMap;

/// The same expressions over the state as it is now, with `instead` in place of one slot's value. Nothing in them has been computed yet.
pub(super) fn afresh(roots: &[Tensor], instead: Option<(&Slot, &Tensor)>) -> Vec<Tensor> {
    let mut fresh: HashMap<NodeId, Tensor> = HashMap::new();
    let at = |fresh: &HashMap<NodeId, Tensor>, t: &Tensor| match fresh.get(&t.id()) {
        Some(new) => new.output(t.output_index()),
        None => t.clone(),
    };
    for t in topological(roots) {
        let new = match (t.slot(), instead) {
            (Some(slot), Some((moved, value))) if slot.id() == moved.id() => value.clone(),
            (Some(slot), _) => t.label().inherit(|| slot.read()),
            (None, _) => {
                let inputs: Vec<Tensor> = t.inputs().iter().map(|x| at(&fresh, x)).collect();
                t.with_inputs(&inputs)
            }
        };
        fresh.insert(t.id(), new);
    }
    roots.iter().map(|t| at(&fresh, t)).collect()
}
