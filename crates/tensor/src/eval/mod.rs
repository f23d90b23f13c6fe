//! Evaluation: a traced graph is looked up in the plan cache, lowered if it is new, and run.
mod cache;
mod read;
pub(crate) mod trace;
mod values;

pub(crate) use cache::Cache;
pub use read::last_read;
pub use trace::{IdHasher, IdMap, IdSet};

use crate::lower::{Lowered, lower};
use crate::{Bindings, Buffer, Device, Error, Result, Slot, Tensor};
use cache::Compiled;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use trace::{Trace, hash_of, trace};

/// Computes tensors together, in one plan, and keeps their values. The graph behind them stays differentiable.
///
/// Errors: the first mistake made while the tensors were built, a state that has moved on, an index out of range, a device failure.
pub fn eval(tensors: &[&Tensor]) -> Result<()> {
    commit(tensors, &[])
}

/// Computes tensors and writes state, in one plan: all checks come before the first write, which is last. Values computed by this call stay
/// readable; reads of the written slots that were built before it and not evaluated are out of date.
///
/// Each value must have its slot's shape and dtype; a slot may be written once. Errors as in [`eval`]; no state has changed then, unless the device
/// failed during the writes, which poisons the written slots.
pub fn commit(tensors: &[&Tensor], writes: &[(&Slot, &Tensor)]) -> Result<()> {
    let mut device: Option<&Device> = None;
    let wanted: Vec<&Tensor> = tensors
        .iter()
        .copied()
        .filter(|t| t.value().is_none())
        .collect();
    for t in tensors.iter().chain(writes.iter().map(|(_, t)| t)) {
        t.check()?;
    }
    let owned = wanted
        .iter()
        .filter_map(|t| t.device())
        .chain(writes.iter().map(|(s, _)| s.device()));
    for d in owned {
        if device.is_some_and(|o| !o.same(d)) {
            return Err(Error::device(
                "eval",
                "tensors of two devices cannot be evaluated together",
            ));
        }
        device = Some(d);
    }
    let mut written = IdSet::default();
    written.reserve(writes.len());
    for (slot, t) in writes {
        if t.meta() != slot.meta() {
            return Err(Error::shape(
                "commit",
                &[t.meta().shape, slot.shape()],
                format!(
                    "`{}` is {} {}, the value is {} {}",
                    slot.name(),
                    slot.dtype(),
                    slot.shape(),
                    t.dtype(),
                    t.meta().shape
                ),
            ));
        }
        if !written.insert(slot.id()) {
            return Err(Error::argument(
                "commit",
                format!("`{}` is written twice", slot.name()),
            ));
        }
    }
    let Some(device) = device else {
        return match wanted.first() {
            None => Ok(()),
            Some(_) => Err(Error::device(
                "eval",
                "a bare number has no device to be computed on; use `Tensor::full(shape, value, dtype, device)`",
            )),
        };
    };
    // Reads and the check of their versions happen under the gate, so that no step moves the state in between.
    if writes.is_empty() {
        let _gate = device.0.gate.read().unwrap_or_else(PoisonError::into_inner);
        run(device, &wanted, writes)
    } else {
        let _gate = device
            .0
            .gate
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        run(device, &wanted, writes)
    }
}

fn run(device: &Device, wanted: &[&Tensor], writes: &[(&Slot, &Tensor)]) -> Result<()> {
    let expected = device.0.nodes.load(Ordering::Relaxed);
    let fused = device.0.fusion.load(Ordering::Relaxed);
    let t = trace(wanted, writes, fused, expected)?;
    device.0.nodes.store(t.flat.nodes.len(), Ordering::Relaxed);
    let hash = hash_of(&t.flat);
    let hit = device
        .0
        .cache
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(hash, &t.flat);
    let Trace {
        flat,
        labels,
        leaves,
        slots,
        scalars,
    } = t;
    let compiled = match hit {
        Some(c) => c,
        None => {
            let Lowered { plan, output_of } =
                lower(&flat, &labels, scalars.len(), slots.len(), device)?;
            let plan = Arc::new(plan);
            let exe = device.backend().compile(&plan)?;
            device.0.compiled.fetch_add(1, Ordering::Relaxed);
            let c = Arc::new(Compiled {
                exe,
                plan,
                output_of,
            });
            let mut cache = device
                .0
                .cache
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(n) = cache.insert(hash, flat, c.clone()) {
                cache::warn_many(n, labels.last().copied());
            }
            c
        }
    };
    let mut outputs: Vec<Option<Buffer>> = vec![None; compiled.plan.outputs];
    for (t, &o) in wanted.iter().zip(&compiled.output_of) {
        let m = t.meta();
        if outputs[o as usize].is_none() {
            outputs[o as usize] = Some(device.alloc(m.shape.numel() * m.dtype.size())?);
        }
    }
    let outputs: Vec<Buffer> = outputs.into_iter().flatten().collect();
    let slot_buffers: Vec<Buffer> = slots.iter().map(|s| s.buffer().clone()).collect();
    let bindings = Bindings {
        leaves: &leaves,
        slots: &slot_buffers,
        outputs: &outputs,
        scalars: &scalars,
    };
    if let Err(e) = compiled.exe.run(&bindings) {
        if e.state_written {
            for (slot, _) in writes {
                slot.poison("the device failed during the writes");
            }
        }
        let label = compiled.plan.steps.get(e.step).and_then(|s| {
            labels
                .get(s.node as usize)
                .copied()
                .or(compiled.plan.labels.get(s.node as usize))
        });
        let label = label.cloned().unwrap_or_else(crate::Label::current);
        let op = compiled
            .plan
            .steps
            .get(e.step)
            .map_or("eval", |s| s.kernel.name());
        return Err(e.into_error(op, label));
    }
    if compiled.plan.saved_bytes > 0 {
        device
            .0
            .saved
            .store(compiled.plan.saved_bytes, Ordering::Relaxed);
    }
    for (t, &o) in wanted.iter().zip(&compiled.output_of) {
        if let (Some(cell), Some(b)) = (t.node.values.get(t.out as usize), outputs.get(o as usize))
        {
            let _ = cell.set(b.clone());
        }
    }
    for (slot, _) in writes {
        slot.unpoison();
        slot.bump();
    }
    Ok(())
}

/// Writes one slot.
pub(crate) fn write_slot(slot: &Slot, value: &Tensor) -> Result<()> {
    commit(&[], &[(slot, value)])
}

/// Runs `f` while no plan writes state.
pub(crate) fn shared<R>(device: &Device, f: impl FnOnce() -> R) -> R {
    let _gate = device.0.gate.read().unwrap_or_else(PoisonError::into_inner);
    f()
}
