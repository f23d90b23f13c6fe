//! Gradients of several replicas of a model as one.
use crate::scaler::widen;
use crate::{Grads, Scaled};
use bimetal_tensor::{Error, Result, Slot, Tensor, eval};
use std::collections::BTreeMap;

impl Grads<Scaled> {
    /// The mean over the replicas of a model that live in this process, each on a share of the batch: one set of gradients for each replica, all with the same bits. What
    /// a communicator does between processes.
    ///
    /// Gradients are added in f32, in the order of the replicas, and computed at once. Whether they are finite is decided on the sums, so that a NaN on one replica
    /// skips the step on all of them, and their scales move alike; norms and clipping are those of the whole batch.
    ///
    /// Errors: replicas with different parameters, or with different settings of the loss scale.
    pub fn all_reduce(replicas: &[Grads<Scaled>]) -> Result<Vec<Grads<Scaled>>> {
        let Some((first, rest)) = replicas.split_first() else {
            return Ok(Vec::new());
        };
        let bad = |what: String| Error::argument("all_reduce", what);
        for (rank, other) in rest.iter().enumerate().map(|(i, g)| (i + 1, g)) {
            let (mut a, mut b) = (first.slots(), other.slots());
            let unlike = a
                .by_ref()
                .zip(b.by_ref())
                .find(|(a, b)| a.name() != b.name() || a.shape() != b.shape());
            if let Some((a, b)) = unlike {
                return Err(bad(format!(
                    "replica 0 has a gradient of {a:?} where replica {rank} has one of {b:?}; all must hold the same model"
                )));
            }
            if first.slots().len() != other.slots().len() {
                return Err(bad(format!(
                    "replica 0 has {} gradients, replica {rank} has {}; all must hold the same model",
                    first.slots().len(),
                    other.slots().len()
                )));
            }
            let (one, two) = (first.scaler().settings(), other.scaler().settings());
            if one != two {
                return Err(bad(format!(
                    "replica 0 scales its loss by {one:?}, replica {rank} by {two:?}; all must do the same"
                )));
            }
        }
        let mut loss = first.loss().clone();
        let mut sums: Vec<Tensor> = first.raw().iter().map(|(_, g)| widen(g)).collect();
        for other in rest {
            loss = loss + other.loss();
            for (sum, (_, g)) in sums.iter_mut().zip(other.raw()) {
                *sum = &*sum + widen(g);
            }
        }
        let amax = largest(replicas);
        let seen = amax.values();
        let all: Vec<&Tensor> = sums.iter().chain([&loss]).chain(seen).collect();
        eval(&all)?;
        let loss = loss.settle()?;
        let sums = sums
            .iter()
            .map(Tensor::settle)
            .collect::<Result<Vec<_>>>()?;
        let count = replicas.len() as u32;
        replicas
            .iter()
            .map(|r| {
                let mean = r.origin().mean(&loss, sums.clone(), count)?;
                let of = |(slot, _): &(Slot, Tensor)| Some((slot.clone(), amax.get(slot.name())?));
                let seen = r.amax().iter().filter_map(of);
                let seen = seen.map(|(slot, t)| Ok((slot, t.settle()?)));
                Ok(mean.with_amax(seen.collect::<Result<_>>()?))
            })
            .collect()
    }
}

/// The largest magnitudes over all replicas, by the name of their history: replicas must find the same scales.
fn largest(replicas: &[Grads<Scaled>]) -> BTreeMap<&str, Tensor> {
    let mut all: BTreeMap<&str, Tensor> = BTreeMap::new();
    for (slot, amax) in replicas.iter().flat_map(|r| r.amax()) {
        let t = match all.get(slot.name()) {
            Some(other) => other.maximum(amax),
            None => amax.clone(),
        };
        all.insert(slot.name(), t);
    }
    all
}
