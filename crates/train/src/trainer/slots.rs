//! Slots as arrays of a checkpoint, and back.

use std::borrow::Cow;

use bimetal_layers::ParamStore;
use bimetal_tensor::{Slot, Tensor, commit};

use crate::{Array, ArrayInfo, Checkpoint, Result, compare_arrays};

/// What the names of weights that callbacks keep begin with.
pub(super) const KEPT: &str = "kept/";
/// What the names of histories of 8-bit products begin with.
pub(super) const HISTORY: &str = "f8/";
/// What the names of the loss scale's state begin with.
pub(super) const SCALE: &str = "loss_scale/";

/// Slots as the arrays of a checkpoint, by name: for loops written by hand.
///
/// ```no_run
/// # fn f(store: bimetal_layers::ParamStore, checkpoint: bimetal_train::Checkpoint) -> bimetal_train::Result<()> {
/// use bimetal_train::{Checkpoints, Meta, load_slots, slot_arrays};
///
/// let state = store.state()?; // and those of the optimizer and of the loss scaler
/// Checkpoints::open("runs/a")?.save(&slot_arrays(&state)?, &Meta::default())?;
/// load_slots(&state, &checkpoint)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// A device failure.
pub fn slot_arrays(slots: &[Slot]) -> Result<Vec<Array<'static>>> {
    slots.iter().map(array).collect()
}

/// Sets slots from a checkpoint that holds them and nothing else, all in one commit; see [`slot_arrays`].
///
/// # Errors
/// One that names every missing, extra and differently shaped array; nothing has changed then.
pub fn load_slots(slots: &[Slot], checkpoint: &Checkpoint) -> Result<()> {
    write(checkpoint, slots, &checkpoint.infos())
}

/// Takes parameters and statistics from a checkpoint, whatever else is in it: to go on from pre-trained weights, or to
/// evaluate. Masters are saved in f32, so a checkpoint of a `float32` model fits the `mixed_float16` or `mixed_float8` one and back.
///
/// ```no_run
/// # fn f(store: bimetal_layers::ParamStore) -> bimetal_train::Result<()> {
/// let best = bimetal_train::load_checkpoint("runs/a/best")?;
/// bimetal_train::load_weights(&store, &best)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// One that names every missing, extra and differently shaped parameter; nothing has changed then.
pub fn load_weights(store: &ParamStore, checkpoint: &Checkpoint) -> Result<()> {
    store.check()?;
    let wanted = model_slots(store)?;
    let rest: Vec<String> = store
        .state()?
        .iter()
        .map(|s| s.name().to_string())
        .collect();
    let ours = |a: &ArrayInfo| wanted.iter().any(|s| s.name() == a.name);
    let other = |a: &ArrayInfo| {
        [KEPT, "optim/", SCALE, HISTORY]
            .iter()
            .any(|prefix| a.name.starts_with(prefix))
            || (rest.contains(&a.name) && !ours(a))
    };
    let found: Vec<_> = checkpoint
        .infos()
        .into_iter()
        .filter(|a| !other(a))
        .collect();
    write(checkpoint, &wanted, &found)
}

pub(super) fn model_slots(store: &ParamStore) -> Result<Vec<Slot>> {
    let params = store.params();
    let buffers = store.buffers();
    let all = params.iter().chain(&buffers);
    Ok(all
        .map(|p| p.slot().cloned())
        .collect::<bimetal_tensor::Result<_>>()?)
}

pub(super) fn info(slot: &Slot, name: impl Into<String>) -> ArrayInfo {
    ArrayInfo::new(name, slot.dtype(), &slot.shape()[..])
}

pub(super) fn array(slot: &Slot) -> Result<Array<'static>> {
    Ok(Array {
        info: info(slot, slot.name()),
        data: Cow::Owned(slot.to_bytes()?),
    })
}

/// Writes the arrays of a checkpoint into slots, all in one commit, after checking that they fit.
pub(super) fn write(checkpoint: &Checkpoint, slots: &[Slot], found: &[ArrayInfo]) -> Result<()> {
    let expected: Vec<_> = slots.iter().map(|s| info(s, s.name())).collect();
    compare_arrays(&expected, found)?;
    let arrays = slots
        .iter()
        .filter_map(|s| Some((s, checkpoint.array(s.name())?.1)));
    set(arrays)
}

/// Writes bytes into slots, all in one commit.
pub(super) fn set<'a>(values: impl Iterator<Item = (&'a Slot, &'a [u8])>) -> Result<()> {
    let values: Vec<(&Slot, Tensor)> = values
        .map(|(s, bytes)| {
            (
                s,
                Tensor::from_bytes(bytes, &s.shape(), s.dtype(), s.device()),
            )
        })
        .collect();
    let writes: Vec<(&Slot, &Tensor)> = values.iter().map(|(s, t)| (*s, t)).collect();
    Ok(commit(&[], &writes)?)
}
