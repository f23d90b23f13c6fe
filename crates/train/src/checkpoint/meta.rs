//! The JSON files of a checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Format of the folder that this version writes, and the newest it reads.
pub(super) const FORMAT: u32 = 1;

/// Everything of a training state that is not an array: `meta.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Attempted steps: data position, save frequency and callbacks count these.
    pub attempted: u64,
    /// Applied steps: schedule, bias correction and moving averages count these.
    pub applied: u64,
    /// Position in the data: that of the last batch an executed step consumed.
    pub cursor: Cursor,
    /// State of the loss scale, `None` without loss scaling.
    pub scale: Option<ScaleState>,
    /// State of the random numbers.
    pub rng: RngState,
    /// Instruction set that the bits depend on (`"x86-64 avx2 fma f16c"`); a resume elsewhere warns.
    pub instruction_set: String,
    /// Whatever else is to survive: callback states, policy, tile choices.
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// Position in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Passes over the data completed.
    pub epoch: u64,
    /// Samples or batches consumed in this pass, as the data source counts.
    pub index: u64,
}

/// State of a dynamic loss scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleState {
    /// The factor on the loss.
    pub scale: f32,
    /// Finite steps in a row since the scale last changed.
    pub good_steps: u32,
    /// Overflows still tolerated before the scale goes down.
    pub hysteresis: u32,
}

/// State of counter-based random numbers: the key is the seed, all other coordinates are counters stored elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngState {
    /// The seed of the run.
    pub seed: u64,
}

/// What the folder must hold: `manifest.json`, written last.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub format: u32,
    pub step: u64,
    /// Grows with every save in one output folder: the newest is the one saved last, also after going back to an older step.
    pub sequence: u64,
    pub files: BTreeMap<String, FileEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub bytes: u64,
    pub crc32c: u32,
}
