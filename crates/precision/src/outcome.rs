//! What became of a step.
use bimetal_tensor::{Error, Result};
use std::fmt;

/// What became of a training step.
///
/// A step with a gradient that is not finite is skipped: it changes nothing but the loss scale. The first few steps of a training in f16 are
/// often skipped, because the scale has to find its size.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum StepOutcome {
    /// Weights, moments, statistics and schedule advanced.
    Applied,
    /// Nothing changed but the loss scale.
    Skipped {
        /// Where the first number that is not finite was seen, if that is known.
        culprit: Option<Culprit>,
    },
}

impl StepOutcome {
    /// Whether the step was applied.
    pub fn is_applied(&self) -> bool {
        *self == StepOutcome::Applied
    }
}

impl fmt::Display for StepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepOutcome::Applied => write!(f, "applied"),
            StepOutcome::Skipped { culprit: None } => write!(f, "skipped"),
            StepOutcome::Skipped { culprit: Some(c) } => write!(f, "skipped: {c}"),
        }
    }
}

/// Where a number that is not finite was seen first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Culprit {
    /// The path of the first parameter, in the order of the gradients, whose gradient is not finite.
    pub parameter: String,
}

impl Culprit {
    /// The parameter at `path` has a gradient that is not finite.
    pub fn parameter(path: impl Into<String>) -> Culprit {
        Culprit {
            parameter: path.into(),
        }
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the gradient of `{}` is not finite", self.parameter)
    }
}

/// Ends a training that only skips: an error after so many skipped steps in a row.
///
/// Without it a model that gives NaN whatever the scale would train for ever without moving.
#[derive(Clone, Debug)]
pub struct SkipLimit {
    limit: u32,
    skipped: u32,
}

impl Default for SkipLimit {
    /// 100 steps in a row.
    fn default() -> SkipLimit {
        SkipLimit::new(100)
    }
}

impl SkipLimit {
    /// At most `limit` skipped steps in a row; 0 means no limit.
    pub fn new(limit: u32) -> SkipLimit {
        SkipLimit { limit, skipped: 0 }
    }

    /// The number of skipped steps in a row so far.
    pub fn skipped(&self) -> u32 {
        self.skipped
    }

    /// Counts a step; an error that names the culprit when the limit is reached.
    pub fn observe(&mut self, outcome: &StepOutcome) -> Result<()> {
        let StepOutcome::Skipped { culprit } = outcome else {
            self.skipped = 0;
            return Ok(());
        };
        self.skipped += 1;
        if self.limit == 0 || self.skipped < self.limit {
            return Ok(());
        }
        let why = culprit
            .as_ref()
            .map_or("the culprit is not known".to_string(), Culprit::to_string);
        Err(Error::other(
            "step",
            format!(
                "{} steps in a row were skipped, so the loss scale cannot be the reason; {why}: look for a division by 0, a logarithm \
                 of 0 or a learning rate that is too high there, or give that layer the policy `float32`",
                self.skipped
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped() -> StepOutcome {
        StepOutcome::Skipped {
            culprit: Some(Culprit::parameter("head.weight")),
        }
    }

    // pytorch#40497, #99640, #96755: the training freezes in silence.
    #[test]
    fn pitfall_01_a_training_that_only_skips_ends_with_the_layers_name() {
        let mut limit = SkipLimit::default();
        for _ in 0..99 {
            limit.observe(&skipped()).unwrap();
        }
        let e = limit.observe(&skipped()).unwrap_err().to_string();
        assert!(e.contains("100 steps in a row"), "{e}");
        assert!(e.contains("`head.weight`"), "{e}");
    }

    #[test]
    fn an_applied_step_starts_the_count_afresh() {
        let mut limit = SkipLimit::new(2);
        for _ in 0..10 {
            limit.observe(&skipped()).unwrap();
            limit.observe(&StepOutcome::Applied).unwrap();
        }
        let mut none = SkipLimit::new(0);
        for _ in 0..1000 {
            none.observe(&skipped()).unwrap();
        }
        assert_eq!(none.skipped(), 1000);
    }

    #[test]
    fn outcomes_read_well() {
        assert_eq!(StepOutcome::Applied.to_string(), "applied");
        assert_eq!(
            skipped().to_string(),
            "skipped: the gradient of `head.weight` is not finite"
        );
        assert_eq!(
            StepOutcome::Skipped { culprit: None }.to_string(),
            "skipped"
        );
    }
}
