//! Between the slots of a training and the arrays of a checkpoint.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use bimetal_data::Loader;
use bimetal_precision::{LossScale, LossScaler};
use bimetal_tensor::Slot;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Trainer;
use super::slots::{HISTORY, KEPT, SCALE, array, info, model_slots, write};
use super::totals::{Bits, Totals};
use crate::checkpoint::{Cursor, RngState, ScaleState};
use crate::{Array, ArrayInfo, Checkpoint, Error, Logs, Meta, Result, compare_arrays};

/// A copy on the host of parameters and statistics.
pub(super) type Snapshot = Vec<(Slot, Vec<u8>)>;

/// Where the loop of a run stands, beside the slots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Attempted steps of this run.
    pub done: u64,
    /// Attempted steps of the trainer before this run.
    pub base: u64,
    /// Applied steps, of all runs.
    pub applied: u64,
    /// Skipped steps of this run.
    pub skipped: u64,
    /// The running means of the epoch.
    pub totals: Totals,
    pub history: Vec<Vec<(String, Bits)>>,
    /// Why a callback ended the run.
    pub stopped: Option<String>,
}

/// What the data was, so that a resume with other data is noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DataPrint {
    samples: usize,
    batch: usize,
    shuffle: Option<u64>,
    accumulate: usize,
}

impl DataPrint {
    pub fn new(train: &Loader, accumulate: usize) -> Self {
        Self {
            samples: train.samples(),
            batch: train.batch_size(),
            shuffle: train.shuffle_seed(),
            accumulate,
        }
    }
}

impl fmt::Display for DataPrint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples in batches of {}", self.samples, self.batch)?;
        match self.shuffle {
            Some(seed) => write!(f, " shuffled with seed {seed}")?,
            None => write!(f, " in order")?,
        }
        match self.accumulate {
            1 => Ok(()),
            n => write!(f, " and {n} batches a step"),
        }
    }
}

impl Position {
    pub fn remember(&mut self, epoch: usize, logs: &Logs) {
        self.history.truncate(epoch);
        let logs = logs.iter().map(|(n, v)| (n.to_string(), Bits(v)));
        self.history.push(logs.collect());
    }

    pub fn logs(&self) -> Vec<Logs> {
        let logs = |l: &Vec<(String, Bits)>| l.iter().map(|(n, v)| (n.clone(), v.0)).collect();
        self.history.iter().map(logs).collect()
    }
}

impl Trainer {
    /// Parameters and statistics as they are.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let slots = self.model_slots()?.into_iter();
        slots
            .map(|slot| {
                let bytes = slot.to_bytes()?;
                Ok((slot, bytes))
            })
            .collect()
    }

    /// Parameters and statistics.
    pub(super) fn model_slots(&self) -> Result<Vec<Slot>> {
        model_slots(&self.store)
    }

    /// Everything that a resume needs, or parameters and statistics alone.
    pub(super) fn checkpoint_arrays(
        &self,
        scaler: &LossScaler,
        weights_only: bool,
    ) -> Result<Vec<Array<'_>>> {
        if weights_only {
            return self.model_slots()?.iter().map(array).collect();
        }
        let mut arrays: Vec<Array<'_>> = self
            .run_slots(scaler)?
            .iter()
            .map(array)
            .collect::<Result<_>>()?;
        for (number, snapshot) in &self.kept {
            for (slot, bytes) in snapshot {
                let info = info(slot, kept_name(*number, slot));
                let data = Cow::Borrowed(bytes.as_slice());
                arrays.push(Array { info, data });
            }
        }
        Ok(arrays)
    }

    pub(super) fn run_slots(&self, scaler: &LossScaler) -> Result<Vec<Slot>> {
        let mut slots = self.store.state()?;
        slots.extend(self.optimizer.state());
        slots.extend(scaler.state());
        Ok(slots)
    }

    /// The JSON part of a checkpoint.
    pub(super) fn checkpoint_meta(
        &self,
        scaler: &LossScaler,
        position: &Position,
        train: &Loader,
    ) -> Result<Meta> {
        let cursor = train.state();
        let extra = [
            ("callbacks", self.callbacks.state()),
            ("trainer", json(position)?),
            (
                "data",
                json(&DataPrint::new(train, self.settings.accumulate))?,
            ),
            ("policy", Value::String(self.store.policies().to_string())),
        ];
        Ok(Meta {
            attempted: position.base + position.done,
            applied: position.applied,
            cursor: Cursor {
                epoch: cursor.epoch,
                index: cursor.index,
            },
            scale: scale_state(scaler)?,
            rng: RngState {
                seed: self.store.seed_value(),
            },
            instruction_set: self.store.device().info().architecture.clone(),
            extra: extra.map(|(k, v)| (k.to_string(), v)).into(),
        })
    }

    /// Puts a checkpoint's state into the slots, in one commit, and the loader where it stood; nothing has changed after an error.
    /// Gives the position and what the user should hear.
    pub(super) fn restore(
        &mut self,
        checkpoint: &Checkpoint,
        scaler: &LossScaler,
        train: &mut Loader,
    ) -> Result<(Position, Vec<String>)> {
        let meta = checkpoint.meta();
        let mut warnings = checkpoint.warnings().to_vec();
        let extra = |name: &str| meta.extra.get(name).cloned().unwrap_or(Value::Null);
        let unreadable = |what: &str, e: serde_json::Error| {
            Error::invalid(format!(
                "`{}` holds no {what} that this version reads ({e}); resume from a folder that a Trainer wrote, or take its \
                 weights with `load_weights`",
                checkpoint.folder().display()
            ))
        };
        let position: Position =
            serde_json::from_value(extra("trainer")).map_err(|e| unreadable("position", e))?;
        let data: DataPrint =
            serde_json::from_value(extra("data")).map_err(|e| unreadable("data settings", e))?;
        let now = DataPrint::new(train, self.settings.accumulate);
        if data != now {
            return Err(Error::invalid(format!(
                "the checkpoint `{}` was made with {data}, the run has {now}; set the same, or train afresh in another folder",
                checkpoint.folder().display()
            )));
        }
        let seed = self.store.seed_value();
        if meta.rng.seed != seed {
            return Err(Error::invalid(format!(
                "the checkpoint was made with seed {}, the run has seed {seed}; set the same to go on with its random numbers",
                meta.rng.seed
            )));
        }
        let architecture = &self.store.device().info().architecture;
        if meta.instruction_set != *architecture {
            warnings.push(format!(
                "the checkpoint was made on {}, this is {architecture}: the numbers will differ in their last bits",
                meta.instruction_set
            ));
        }
        let policy = self.store.policies().to_string();
        if extra("policy")
            .as_str()
            .is_some_and(|made_with| made_with != policy)
        {
            warnings.push(format!(
                "the checkpoint was made with the policy {}, the run has {policy}: the numbers will differ",
                extra("policy")
            ));
        }

        let (kept, found): (Vec<_>, Vec<_>) = checkpoint
            .infos()
            .into_iter()
            .partition(|a| a.name.starts_with(KEPT));
        let wanted = self.run_slots(scaler)?;
        let (wanted, found) = scale_may_differ(wanted, found, &mut warnings);
        let (wanted, found) = histories_may_differ(wanted, found, &mut warnings);
        let kept = self.kept_of(checkpoint, &kept)?;
        write(checkpoint, &wanted, &found)?;
        scaler.check_state()?;
        train.restore(bimetal_data::Cursor {
            epoch: meta.cursor.epoch,
            index: meta.cursor.index,
        })?;
        self.kept = kept;
        Ok((position, warnings))
    }

    /// The weights that callbacks had kept.
    fn kept_of(
        &self,
        checkpoint: &Checkpoint,
        kept: &[ArrayInfo],
    ) -> Result<BTreeMap<usize, Snapshot>> {
        let mut numbers: Vec<usize> = kept
            .iter()
            .filter_map(|a| a.name.strip_prefix(KEPT)?.split_once('/')?.0.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let model = self.model_slots()?;
        let mut all = BTreeMap::new();
        for number in numbers {
            let expected: Vec<_> = model
                .iter()
                .map(|s| info(s, kept_name(number, s)))
                .collect();
            let prefix = format!("{KEPT}{number}/");
            let of_number = |a: &&ArrayInfo| a.name.starts_with(&prefix);
            let found: Vec<_> = kept.iter().filter(of_number).cloned().collect();
            compare_arrays(&expected, &found)?;
            let snapshot = model.iter().zip(&expected).filter_map(|(slot, info)| {
                let (_, bytes) = checkpoint.array(&info.name)?;
                Some((slot.clone(), bytes.to_vec()))
            });
            all.insert(number, snapshot.collect());
        }
        Ok(all)
    }
}

fn kept_name(number: usize, slot: &Slot) -> String {
    format!("{KEPT}{number}/{}", slot.name())
}

fn json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value)
        .map_err(|e| Error::invalid(format!("cannot encode the checkpoint: {e}")))
}

/// A run may be resumed with another kind of loss scaling: its state then starts anew or is left behind.
fn scale_may_differ(
    wanted: Vec<Slot>,
    found: Vec<ArrayInfo>,
    warnings: &mut Vec<String>,
) -> (Vec<Slot>, Vec<ArrayInfo>) {
    let wants = wanted.iter().any(|s| s.name().starts_with(SCALE));
    let has = found.iter().any(|a| a.name.starts_with(SCALE));
    if wants == has {
        return (wanted, found);
    }
    warnings.push(match wants {
        true => {
            "the checkpoint was made without dynamic loss scaling; the scale starts anew".into()
        }
        false => {
            "the checkpoint was made with dynamic loss scaling, which this run does not use".into()
        }
    });
    (
        wanted
            .into_iter()
            .filter(|s| !s.name().starts_with(SCALE))
            .collect(),
        found
            .into_iter()
            .filter(|a| !a.name.starts_with(SCALE))
            .collect(),
    )
}

/// A run may be resumed with other layers in 8 bits, or other recipes: histories that do not fit start anew or are left behind.
fn histories_may_differ(
    wanted: Vec<Slot>,
    found: Vec<ArrayInfo>,
    warnings: &mut Vec<String>,
) -> (Vec<Slot>, Vec<ArrayInfo>) {
    let of_slots: Vec<ArrayInfo> = wanted.iter().map(|s| info(s, s.name())).collect();
    let fits = |name: &str| {
        let by_name = |a: &&ArrayInfo| a.name == name;
        !name.starts_with(HISTORY) || of_slots.iter().find(by_name) == found.iter().find(by_name)
    };
    let all = wanted.len() + found.len();
    let wanted: Vec<Slot> = wanted.into_iter().filter(|s| fits(s.name())).collect();
    let kept: Vec<ArrayInfo> = found.iter().filter(|a| fits(&a.name)).cloned().collect();
    if wanted.len() + kept.len() < all {
        warnings.push(
            "the checkpoint was made with other layers in 8 bits, or with another recipe for their scales; scales that do not fit start anew".into(),
        );
    }
    (wanted, kept)
}

fn scale_state(scaler: &LossScaler) -> Result<Option<ScaleState>> {
    let LossScale::Dynamic(settings) = scaler.settings() else {
        return Ok(None);
    };
    // Straight from the buffers: an expression would be one more plan.
    let mut state = ScaleState {
        scale: settings.initial,
        good_steps: 0,
        hysteresis: settings.hysteresis,
    };
    for slot in scaler.state() {
        let bytes: [u8; 4] = slot.to_bytes()?.try_into().unwrap_or_default();
        match slot.name() {
            "loss_scale/scale" => state.scale = f32::from_ne_bytes(bytes),
            "loss_scale/good_steps" => state.good_steps = u32::from_ne_bytes(bytes),
            _ => {
                let overflows = u32::from_ne_bytes(bytes);
                state.hysteresis = settings.hysteresis.saturating_sub(overflows);
            }
        }
    }
    Ok(Some(state))
}
