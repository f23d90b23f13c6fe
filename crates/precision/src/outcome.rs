//! What became of a step.
use crate::NonFinite;
use bimetal_tensor::{DType, Error, Result};
use std::fmt;

/// What became of a training step.
///
/// A step with a gradient that is not finite is skipped: it changes nothing but the loss scale. The first few steps of a training in f16 are
/// often skipped, because the scale has to find its size.
#[derive(Clone, Debug, PartialEq)]
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

/// Who is to blame for a skipped step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Culprit {
    /// The path of the first parameter, in the order of the gradients, whose gradient is not finite; empty if all are and their norm is not.
    pub parameter: String,
    /// The operation where it began, with numerics checks on: the earliest, forward then backward, whose inputs are finite and whose result is not.
    pub cause: Option<Box<NonFinite>>,
}

impl Culprit {
    /// The parameter at `path` has a gradient that is not finite.
    pub fn parameter(path: impl Into<String>) -> Culprit {
        Culprit {
            parameter: path.into(),
            cause: None,
        }
    }

    /// It began with `cause`.
    pub fn with_cause(self, cause: NonFinite) -> Culprit {
        Culprit {
            cause: Some(Box::new(cause)),
            ..self
        }
    }

    /// The path of the layer: that of the cause, or else that of the parameter. Empty if neither is in a layer.
    pub fn layer(&self) -> &str {
        match &self.cause {
            Some(cause) if cause.path().is_empty() => match &cause.name[..] {
                "" => "",
                name => parent(name),
            },
            Some(cause) => cause.path(),
            None => parent(&self.parameter),
        }
    }

    /// What may help.
    pub fn advice(&self) -> String {
        let layer = match self.layer() {
            "" => "it".to_string(),
            path => format!("`{path}`"),
        };
        let check = "lower the learning rate, clip gradients, and look there for a division by 0 or the logarithm or root of a number that is 0 or less";
        match self.cause.as_ref().map(|c| c.dtype) {
            Some(DType::F32 | DType::F64 | DType::BF16) => format!(
                "{layer} computes with a wide range already, so another dtype will not help: {check}"
            ),
            _ => format!(
                "give {layer} the policy `float32`, or train in `mixed_bfloat16`, which has the range of float32; if that does not help, {check}"
            ),
        }
    }
}

fn parent(parameter: &str) -> &str {
    parameter
        .rsplit_once('.')
        .map_or(parameter, |(layer, _)| layer)
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cause) = &self.cause {
            return write!(f, "{cause}");
        }
        match &self.parameter[..] {
            "" => write!(f, "the norm of the gradients is not finite"),
            path => write!(f, "the gradient of `{path}` is not finite"),
        }
    }
}

/// Ends a training that only skips: an error after so many skipped steps in a row.
///
/// Without it a model that gives NaN whatever the scale would train for ever without moving.
#[derive(Clone, Debug)]
pub struct SkipLimit {
    limit: u32,
    skipped: u32,
    /// How often each layer was to blame, in the order in which they first were, and the first culprit of each.
    blamed: Vec<(Culprit, u32)>,
}

impl Default for SkipLimit {
    /// 100 steps in a row.
    fn default() -> SkipLimit {
        SkipLimit::new(100)
    }
}

/// Layers that the error names.
const NAMED: usize = 5;

impl SkipLimit {
    /// At most `limit` skipped steps in a row; 0 means no limit.
    pub fn new(limit: u32) -> SkipLimit {
        SkipLimit {
            limit,
            skipped: 0,
            blamed: Vec::new(),
        }
    }

    /// The number of skipped steps in a row so far.
    pub fn skipped(&self) -> u32 {
        self.skipped
    }

    /// Counts a step; when the limit is reached an error that names the layers that were to blame most often, and says what may help.
    pub fn observe(&mut self, outcome: &StepOutcome) -> Result<()> {
        let StepOutcome::Skipped { culprit } = outcome else {
            *self = SkipLimit::new(self.limit);
            return Ok(());
        };
        self.skipped += 1;
        if let Some(culprit) = culprit {
            let known = |(c, _): &&mut (Culprit, u32)| c.layer() == culprit.layer();
            match self.blamed.iter_mut().find(known) {
                Some((_, times)) => *times += 1,
                None => self.blamed.push((culprit.clone(), 1)),
            }
        }
        if self.limit == 0 || self.skipped < self.limit {
            return Ok(());
        }
        // Stable: of equals the first, which is nearer to the cause, comes first.
        let mut blamed: Vec<_> = self.blamed.iter().collect();
        blamed.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        let detail = match blamed.first() {
            None => {
                "what was not finite is not known; look at it with `check_numerics`".to_string()
            }
            Some((worst, _)) => {
                let names = blamed.iter().take(NAMED).map(|(c, times)| match c.layer() {
                    "" => format!("outside of layers ({times} times)"),
                    layer => format!("`{layer}` ({times} times)"),
                });
                let names = names.collect::<Vec<_>>().join(", ");
                format!(
                    "most often {names}: {worst}. What may help: {}",
                    worst.advice()
                )
            }
        };
        Err(Error::other(
            "step",
            format!(
                "{} steps in a row were skipped, so the loss scale cannot be the reason; {detail}",
                self.skipped
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(path: &str) -> StepOutcome {
        StepOutcome::Skipped {
            culprit: Some(Culprit::parameter(path)),
        }
    }

    // pytorch#40497, #99640, #96755: the training freezes in silence.
    #[test]
    fn pitfall_01_a_training_that_only_skips_ends_with_the_layers_name() {
        let mut limit = SkipLimit::default();
        for _ in 0..99 {
            limit.observe(&skipped("head.weight")).unwrap();
        }
        let e = limit
            .observe(&skipped("head.weight"))
            .unwrap_err()
            .to_string();
        assert!(e.contains("100 steps in a row"), "{e}");
        assert!(e.contains("`head` (100 times)"), "{e}");
        assert!(e.contains("`head.weight`"), "{e}");
        assert!(
            e.contains("`float32`") && e.contains("learning rate"),
            "{e}"
        );
    }

    #[test]
    fn the_error_ranks_layers_by_how_often_they_were_to_blame() {
        let mut limit = SkipLimit::new(6);
        for path in ["a.weight", "b.weight", "c.bias", "b.bias", "c.weight"] {
            limit.observe(&skipped(path)).unwrap();
        }
        let e = limit.observe(&skipped("b.weight")).unwrap_err().to_string();
        assert!(
            e.contains(
                "most often `b` (3 times), `c` (2 times), `a` (1 times): the gradient of `b.weight`"
            ),
            "{e}"
        );
    }

    #[test]
    fn an_applied_step_starts_the_count_afresh() {
        let mut limit = SkipLimit::new(2);
        for _ in 0..10 {
            limit.observe(&skipped("a")).unwrap();
            limit.observe(&StepOutcome::Applied).unwrap();
        }
        let mut none = SkipLimit::new(0);
        for _ in 0..1000 {
            none.observe(&skipped("a")).unwrap();
        }
        assert_eq!(none.skipped(), 1000);
    }

    #[test]
    fn outcomes_read_well() {
        assert_eq!(StepOutcome::Applied.to_string(), "applied");
        assert_eq!(
            skipped("head.weight").to_string(),
            "skipped: the gradient of `head.weight` is not finite"
        );
        assert_eq!(
            StepOutcome::Skipped { culprit: None }.to_string(),
            "skipped"
        );
    }
}
