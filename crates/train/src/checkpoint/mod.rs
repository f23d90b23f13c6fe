//! Checkpoints: folders that are either whole or not there.
//!
//! A folder holds `state.safetensors` (arrays), `meta.json` (everything else) and `manifest.json` (size and
//! CRC-32C of both, written last). It is filled under a temporary name, synced and renamed.

mod array;
mod compare;
mod disk;
mod load;
mod meta;
mod save;
mod state;
#[cfg(test)]
mod tests;

pub use array::{Array, ArrayInfo};
pub use compare::{StateMismatch, compare_arrays};
pub use load::{Checkpoint, load_checkpoint, load_latest_checkpoint};
pub use meta::{Cursor, Meta, RngState, ScaleState};
pub(crate) use save::writable;
pub use save::{Checkpoints, save_checkpoint};

const STATE: &str = "state.safetensors";
const META: &str = "meta.json";
const MANIFEST: &str = "manifest.json";
const LATEST: &str = "latest";
const BEST: &str = "best";

/// `step-00001200`
fn folder_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a folder name, `None` for other names.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let step = digits.parse().ok()?;
    (folder_name(step) == name).then_some(step)
}
