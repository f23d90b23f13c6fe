//! Steps that are looked at, for the precision report.

use bimetal_data::Loader;
use bimetal_precision::{LossScale, LossScaler};
use bimetal_tensor::{Slot, Tensor};

use super::slots::set;
use super::step::{Done, Stepper};
use super::totals::Totals;
use super::{Output, Task, TensorBatch, Trainer};
use crate::Result;

/// The loss of a batch, as it is differentiated.
pub(crate) fn mean_loss(output: &Output, batch: &TensorBatch) -> Tensor {
    output.loss.mean("loss", batch).0
}

/// All state of a training, on the host.
pub(crate) fn run_slots(t: &Trainer, scaler: &LossScaler) -> Result<Vec<(Slot, Vec<u8>)>> {
    let slots = t.run_slots(scaler)?.into_iter();
    let read = |slot: Slot| Ok((slot.to_bytes()?, slot));
    slots
        .map(|slot| read(slot).map(|(bytes, slot)| (slot, bytes)))
        .collect()
}

/// Puts back what [`run_slots`] gave.
pub(crate) fn set_slots(kept: &[(Slot, Vec<u8>)]) -> Result<()> {
    set(kept.iter().map(|(slot, bytes)| (slot, bytes.as_slice())))
}

impl Trainer {
    /// One step of one batch, with what its plan saw of the layers.
    pub(crate) fn watched_step(&mut self, task: &dyn Task, data: &mut Loader) -> Result<Done> {
        let mut stepper = Stepper {
            task,
            scaler: self.prepare()?,
            halt: None,
            params: self.store.trainable_slots()?,
            advice: Vec::new(),
            first: false,
        };
        let batches = stepper.load(self, data, 1)?;
        let step = stepper.submit(self, batches, Look::Unrounded)?;
        step.read(&mut Totals::default())
    }

    /// Whether the loss is scaled.
    pub(crate) fn scales_loss(&self) -> bool {
        let scaler = self.scaler.as_ref();
        scaler.is_some_and(|s| s.settings() != LossScale::None)
    }
}

/// What of a step's values is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing.
    No,
    /// The values as they are.
    Real,
    /// The values before rounding as well, from a pass in f32 beside the real one.
    Unrounded,
}
