//! What a step tells about itself.
use bimetal_precision::{Culprit, StepOutcome};
use bimetal_tensor::{Error, Result, Slot, Tensor};
use std::sync::{Arc, OnceLock};

/// Something worth telling the user, once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The loss does not depend on this parameter: it is not updated.
    NoGradient {
        /// The path of the parameter.
        parameter: String,
    },
    /// No parameter is described by this group's pattern: a typing error, or the parameters are frozen.
    UnusedGroup {
        /// The pattern.
        pattern: String,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Notice::NoGradient { parameter } => {
                write!(
                    f,
                    "the loss does not depend on `{parameter}`, which is not updated"
                )
            }
            Notice::UnusedGroup { pattern } => write!(
                f,
                "the parameter group `{pattern}` describes no parameter that is trained; is it a typing error?"
            ),
        }
    }
}

/// A step that has been submitted. Asking it for a number waits for the device, and fetches all its numbers at once; a loop that asks every 50 steps does not wait
/// in between.
#[derive(Clone, Debug)]
#[must_use = "a skipped step is seen only by asking `outcome`"]
pub struct StepHandle {
    stats: Tensor,
    values: Arc<OnceLock<[f32; NUMBERS]>>,
    params: Arc<[Slot]>,
    attempted: u64,
    notices: Vec<Notice>,
}

const NUMBERS: usize = 6;

impl StepHandle {
    pub(crate) fn new(
        stats: Tensor,
        params: Arc<[Slot]>,
        attempted: u64,
        notices: Vec<Notice>,
    ) -> StepHandle {
        StepHandle {
            stats,
            values: Arc::default(),
            params,
            attempted,
            notices,
        }
    }

    /// One tensor (f32 `[6]`) of what [`StepHandle`] reads: loss, finite, scale, norm, learning rate, first bad parameter.
    pub(crate) fn pack(
        loss: &Tensor,
        finite: &Tensor,
        scale: &Tensor,
        norm: &Tensor,
        lr: &Tensor,
        first_bad: &Tensor,
    ) -> Tensor {
        let d = bimetal_tensor::DType::F32;
        let all = [loss, finite, scale, norm, lr, first_bad].map(|t| t.cast(d));
        Tensor::stack(&all.each_ref(), 0)
    }

    fn read(&self) -> Result<[f32; NUMBERS]> {
        if let Some(v) = self.values.get() {
            return Ok(*v);
        }
        let v = self.stats.to_vec::<f32>()?;
        let v = <[f32; NUMBERS]>::try_from(v)
            .map_err(|v| Error::other("step", format!("{} numbers came back", v.len())))?;
        Ok(*self.values.get_or_init(|| v))
    }

    /// Whether the step was applied, and if not, who is to blame. A learning rate that is not finite or is negative is an error; nothing was changed then.
    pub fn outcome(&self) -> Result<StepOutcome> {
        let [_, finite, _, _, lr, first_bad] = self.read()?;
        if finite == 0.0 {
            let slot = (first_bad >= 0.0)
                .then(|| self.params.get(first_bad as usize))
                .flatten();
            return Ok(StepOutcome::Skipped {
                culprit: slot.map(|s| Culprit::parameter(s.name())),
            });
        }
        crate::schedule::rate("the schedule's learning rate", lr as f64)?;
        Ok(StepOutcome::Applied)
    }

    /// The unscaled loss.
    pub fn loss(&self) -> Result<f32> {
        Ok(self.read()?[0])
    }

    /// The loss scale the step was computed with, 1 if there is none.
    pub fn scale(&self) -> Result<f32> {
        Ok(self.read()?[2])
    }

    /// The global norm of the unscaled gradients, before clipping.
    pub fn norm(&self) -> Result<f32> {
        Ok(self.read()?[3])
    }

    /// The learning rate.
    pub fn lr(&self) -> Result<f32> {
        Ok(self.read()?[4])
    }

    /// The number of this step among the attempted ones, from 1.
    pub fn attempted(&self) -> u64 {
        self.attempted
    }

    /// What came to light in this step, each thing once in a training.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }
}
