//! The context of one forward pass.
use crate::ParamStore;
use bimetal_precision::roll_amax;
use bimetal_tensor::graph::RandomKey;
use bimetal_tensor::{Label, PathGuard, Slot, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Streams of random numbers that must not meet.
pub(crate) const INIT: u8 = 0;
const TRAIN: u8 = 1;
const EVAL: u8 = 2;

/// The context of one forward pass: training or evaluation, random numbers, and the state updates that layers ask for. An optimizer's step consumes it.
#[must_use = "a context carries the state updates of its forward pass; give it to the optimizer's step"]
pub struct Ctx {
    store: ParamStore,
    training: bool,
    micro: u32,
    step: Tensor,
    calls: Mutex<HashMap<Box<str>, u32>>,
    updates: Mutex<Vec<(Slot, Tensor)>>,
}

impl Ctx {
    pub(crate) fn new(store: &ParamStore, training: bool) -> Ctx {
        let step = match store.applied() {
            Ok(slot) => slot.read(),
            Err(e) => Tensor::invalid(e),
        };
        Ctx {
            store: store.clone(),
            training,
            micro: 0,
            step,
            calls: Mutex::default(),
            updates: Mutex::default(),
        }
    }

    /// Whether this is a training pass.
    pub fn training(&self) -> bool {
        self.training
    }

    /// The store whose layers are run.
    pub fn store(&self) -> &ParamStore {
        &self.store
    }

    /// Says that nodes built while the guard lives belong to the layer at `path`.
    pub fn at(&self, path: &Arc<str>) -> PathGuard {
        PathGuard::push(path.clone())
    }

    /// A new random stream: keyed by the store's seed, the path of the layer that runs, how often it has asked in this pass, and the micro-batch.
    /// Give [`Ctx::step`] to the draw as well, so that each step draws anew. Evaluation has streams of its own.
    pub fn random_key(&self) -> RandomKey {
        let label = Label::current();
        let path = label.path();
        let mut calls = lock(&self.calls);
        let call = match calls.get_mut(path) {
            Some(n) => {
                *n += 1;
                *n
            }
            None => *calls.entry(path.into()).or_insert(0),
        };
        let domain = if self.training { TRAIN } else { EVAL };
        RandomKey::Value {
            stream: stream(domain, self.store.seed_value(), path, call),
            micro: self.micro,
        }
    }

    /// The number of applied steps in a graph (U32 scalar).
    pub fn step(&self) -> Tensor {
        self.step.clone()
    }

    /// The index of the micro-batch, counted over all ranks; 0 unless set.
    pub fn micro(&self) -> u32 {
        self.micro
    }

    /// The context of micro-batch number `micro`.
    pub fn with_micro(mut self, micro: u32) -> Ctx {
        self.micro = micro;
        self
    }

    /// The context of a pass that continues from updates which an earlier pass of the same step asked for.
    pub fn with_updates(self, updates: Vec<(Slot, Tensor)>) -> Ctx {
        *lock(&self.updates) = updates;
        self
    }

    /// The state as this pass has left it so far: the update asked for, if there is one, otherwise the present value.
    pub fn state(&self, slot: &Slot) -> Tensor {
        let updates = lock(&self.updates);
        let pending = updates.iter().find(|(s, _)| s.id() == slot.id());
        pending.map_or_else(|| slot.read(), |(_, value)| value.clone())
    }

    /// Asks for `slot` to become `value` if the step is applied; replaces what was asked before.
    pub fn update(&self, slot: &Slot, value: Tensor) {
        let value = value.detach();
        let mut updates = lock(&self.updates);
        match updates.iter_mut().find(|(s, _)| s.id() == slot.id()) {
            Some((_, old)) => *old = value,
            None => updates.push((slot.clone(), value)),
        }
    }

    /// Notes that a tensor whose history of largest magnitudes is `history` (f32 `[steps]`) had the largest magnitude `amax` (f32 scalar) in this pass. A history
    /// moves on once in a step, however often a layer is used and however many micro-batches there are; the largest counts.
    pub fn record_amax(&self, history: &Slot, amax: &Tensor) {
        let pending = {
            let updates = lock(&self.updates);
            let found = updates.iter().find(|(s, _)| s.id() == history.id());
            found.map(|(_, value)| value.clone())
        };
        let rolled = roll_amax(&history.read(), pending.as_ref(), amax);
        self.update(history, rolled);
    }

    /// The updates asked for, each slot once.
    pub fn into_updates(self) -> Vec<(Slot, Tensor)> {
        self.updates
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key of a random stream: FNV-1a (Fowler, Noll and Vo) over all that tells streams apart, the bits mixed by the finalizer of SplitMix64
/// (Steele et al. 2014). The same in every process.
pub(crate) fn stream(domain: u8, seed: u64, path: &str, call: u32) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let bytes = [domain].into_iter().chain(seed.to_le_bytes());
    let bytes = bytes.chain(path.bytes()).chain([0xff]);
    for byte in bytes.chain(call.to_le_bytes()) {
        hash = (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checkpoints continue with the same dropout masks, so these numbers may never change. Computed with an independent program.
    #[test]
    fn streams_are_fixed_for_ever() {
        assert_eq!(stream(INIT, 0, "", 0), STREAMS[0]);
        assert_eq!(stream(TRAIN, 42, "blocks.0.dropout", 3), STREAMS[1]);
        assert_ne!(stream(TRAIN, 0, "a", 0), stream(EVAL, 0, "a", 0));
    }

    const STREAMS: [u64; 2] = [0x3b7a317a967d02aa, 0xd157a4a3571ca9de];
}
