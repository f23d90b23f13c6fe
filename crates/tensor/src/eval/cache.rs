//! Compiled plans by key.
use super::trace::Flat;
use crate::plan::Plan;
use crate::{Executable, Label};
use std::collections::HashMap;
use std::sync::Arc;

/// A plan ready to run.
pub(crate) struct Compiled {
    pub exe: Box<dyn Executable>,
    pub plan: Arc<Plan>,
    pub output_of: Vec<u32>,
}

/// A key, its plan, and when it was last used.
type Entry = (Arc<Flat>, Arc<Compiled>, u64);

/// Plans of one device: a hit compares the whole key. The least recently used one leaves when the cache is full.
#[derive(Default)]
pub(crate) struct Cache {
    entries: HashMap<u64, Vec<Entry>>,
    structures: HashMap<u64, u32>,
    count: usize,
    clock: u64,
}

const CAPACITY: usize = 256;
/// One structure compiled more often than this hints at a value that changes from step to step inside the key.
const MANY: u32 = 8;
/// Small graphs (an initial value, a metric) are cheap to compile for every size they come in.
const LARGE: usize = 64;

impl Cache {
    pub fn get(&mut self, hash: u64, key: &Flat) -> Option<Arc<Compiled>> {
        self.clock += 1;
        let e = self
            .entries
            .get_mut(&hash)?
            .iter_mut()
            .find(|e| *e.0 == *key)?;
        e.2 = self.clock;
        Some(e.1.clone())
    }

    /// Adds a plan; returns how often the structure (operations without sizes and attributes) was compiled if that is news.
    pub fn insert(&mut self, hash: u64, key: Flat, plan: Arc<Compiled>) -> Option<u32> {
        let nodes = key.nodes.len();
        let structure = super::trace::hash_of(
            &key.nodes
                .iter()
                .map(|n| (std::mem::discriminant(&n.op), n.inputs))
                .collect::<Vec<_>>(),
        );
        if self.count >= CAPACITY {
            self.evict();
        }
        self.clock += 1;
        self.count += 1;
        self.entries
            .entry(hash)
            .or_default()
            .push((Arc::new(key), plan, self.clock));
        let n = self.structures.entry(structure).or_insert(0);
        *n += 1;
        (*n == MANY + 1 && nodes >= LARGE).then_some(*n)
    }

    fn evict(&mut self) {
        let oldest = self
            .entries
            .iter()
            .flat_map(|(h, v)| v.iter().map(move |e| (e.2, *h)))
            .min();
        if let Some((clock, hash)) = oldest
            && let Some(v) = self.entries.get_mut(&hash)
        {
            v.retain(|e| e.2 != clock);
            if v.is_empty() {
                self.entries.remove(&hash);
            }
            self.count -= 1;
        }
    }
}

/// Says once that a structure keeps being compiled anew.
pub(crate) fn warn_many(n: u32, label: Option<&Label>) {
    let place = label
        .map(|l| format!(" (last node: {l})"))
        .unwrap_or_default();
    eprintln!(
        "bimetal: warning: one graph structure has been compiled {n} times with other sizes or attributes{place}; pad batches to one \
         size, or pass values that change as tensors or scalars"
    );
}
