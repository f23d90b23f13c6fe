//! What a step tells about itself.
use bimetal_precision::{Checks, Culprit, NonFinite, StepOutcome};
use bimetal_tensor::{DType, Error, Result, Slot, Tensor};
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
    /// All parameters that this group's pattern describes are frozen.
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
                "all parameters that the group `{pattern}` describes are frozen"
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
    blame: Option<Arc<Blame>>,
}

/// What it takes to say who is to blame for a skipped step.
#[derive(Debug)]
struct Blame {
    checks: Checks,
    /// The versions of the parameters after the step: if they are still the same, nothing has changed since.
    versions: Vec<u64>,
    found: OnceLock<Option<NonFinite>>,
}

const NUMBERS: usize = 8;

/// What one read fetches, in this order.
pub(crate) struct Numbers<'a> {
    pub loss: &'a Tensor,
    pub finite: &'a Tensor,
    pub scale: &'a Tensor,
    pub norm: &'a Tensor,
    pub lr: &'a Tensor,
    pub first_bad: &'a Tensor,
    /// The first of what the checks look at.
    pub first_checked: Option<&'a Tensor>,
    pub halted: Option<&'a Tensor>,
}

impl Numbers<'_> {
    /// As one tensor (f32 `[8]`).
    pub fn pack(self) -> Tensor {
        let none = self.first_bad.zeros_like();
        let all = [
            self.loss,
            self.finite,
            self.scale,
            self.norm,
            self.lr,
            self.first_bad,
            self.first_checked.unwrap_or(&none),
            self.halted.unwrap_or(&none),
        ];
        let all = all.map(|t| t.cast(DType::F32));
        Tensor::stack(&all.each_ref(), 0)
    }
}

impl StepHandle {
    pub(crate) fn new(
        stats: Tensor,
        params: Arc<[Slot]>,
        attempted: u64,
        notices: Vec<Notice>,
        checks: Option<&Checks>,
    ) -> StepHandle {
        let blame = checks.map(|checks| Blame {
            checks: checks.clone(),
            versions: params.iter().map(Slot::version).collect(),
            found: OnceLock::new(),
        });
        StepHandle {
            stats,
            values: Arc::default(),
            params,
            attempted,
            notices,
            blame: blame.map(Arc::new),
        }
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

    /// Whether the step was applied, and if not, who is to blame. With numerics checks on
    /// ([`Grads::check_numerics`](bimetal_precision::Grads::check_numerics)) a step that was skipped is computed again to find the operation, if no step has
    /// been taken since; otherwise the layer is named if the step's plan looked at layers, else the parameter.
    ///
    /// A step that changed nothing because an earlier one had set its [`Halt`](bimetal_precision::Halt) was skipped, without a culprit of its own.
    ///
    /// A learning rate that is not finite or is negative is an error; nothing was changed then.
    pub fn outcome(&self) -> Result<StepOutcome> {
        let unmoved = |b: &Blame| {
            self.params
                .iter()
                .map(Slot::version)
                .eq(b.versions.iter().copied())
        };
        let again = self.blame.as_ref().is_some_and(|b| unmoved(b));
        self.outcome_with(again)
    }

    /// As [`StepHandle::outcome`], where later steps were submitted and it is known that they changed nothing, since the same
    /// [`Halt`](bimetal_precision::Halt) stopped them.
    pub fn outcome_of_halted(&self) -> Result<StepOutcome> {
        self.outcome_with(true)
    }

    fn outcome_with(&self, again: bool) -> Result<StepOutcome> {
        let [_, finite, _, _, lr, first_bad, _, halted] = self.read()?;
        if finite != 0.0 {
            crate::schedule::rate("the schedule's learning rate", lr as f64)?;
            return Ok(match halted != 0.0 {
                true => StepOutcome::Skipped { culprit: None },
                false => StepOutcome::Applied,
            });
        }
        let slot = (first_bad >= 0.0)
            .then(|| self.params.get(first_bad as usize))
            .flatten();
        let parameter = slot.map(|s| Culprit::parameter(s.name()));
        let culprit = match self.cause(again)? {
            Some(cause) => Some(
                parameter
                    .unwrap_or(Culprit::parameter(""))
                    .with_cause(cause),
            ),
            None => parameter,
        };
        Ok(StepOutcome::Skipped { culprit })
    }

    fn cause(&self, again: bool) -> Result<Option<NonFinite>> {
        let Some(blame) = &self.blame else {
            return Ok(None);
        };
        if let Some(found) = blame.found.get() {
            return Ok(found.clone());
        }
        let [_, _, scale, _, _, _, first_checked, _] = self.read()?;
        let exact = match again {
            true => blame.checks.replay(scale)?,
            false => None,
        };
        let seen = || blame.checks.place(first_checked as usize).cloned();
        let found = exact.or_else(seen);
        Ok(blame.found.get_or_init(|| found).clone())
    }

    /// Whether the step changed nothing because an earlier one had set the [`Halt`](bimetal_precision::Halt) that both were given. Its other numbers are those it would
    /// have had, and do not count.
    pub fn halted(&self) -> Result<bool> {
        Ok(self.read()?[7] != 0.0)
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
