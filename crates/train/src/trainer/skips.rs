//! Ending a training that only skips.

use bimetal_precision::StepOutcome;

use crate::{Error, Result};

/// Counts skipped steps in a row and what they blame.
#[derive(Debug, Default)]
pub(super) struct Skips {
    row: u32,
    culprits: Vec<(String, u32)>,
}

impl Skips {
    /// Takes a step's outcome; an error when `limit` steps in a row were skipped, unless it is 0.
    pub fn observe(&mut self, outcome: &StepOutcome, limit: u32) -> Result<()> {
        let StepOutcome::Skipped { culprit } = outcome else {
            *self = Self::default();
            return Ok(());
        };
        self.row += 1;
        if let Some(culprit) = culprit {
            let culprit = culprit.to_string();
            match self.culprits.iter_mut().find(|(name, _)| *name == culprit) {
                Some((_, times)) => *times += 1,
                None => self.culprits.push((culprit, 1)),
            }
        }
        if limit == 0 || self.row < limit {
            return Ok(());
        }
        // The first of equals: what failed first is nearer to the cause.
        let most = self.culprits.iter().rev().max_by_key(|(_, times)| *times);
        let blame = match most {
            Some((name, times)) => format!("most often, {times} times, {name}"),
            None => "what was not finite is not known".into(),
        };
        Err(Error::invalid(format!(
            "{} steps in a row were skipped, so the loss scale cannot be the reason; {blame}. Look there for a \
             division by 0, a logarithm of 0 or a learning rate that is too high, or give that layer the policy `float32`",
            self.row
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_precision::Culprit;

    fn skipped(path: &str) -> StepOutcome {
        StepOutcome::Skipped {
            culprit: Some(Culprit::parameter(path)),
        }
    }

    #[test]
    fn the_error_names_what_failed_most_often() {
        let mut skips = Skips::default();
        for path in ["a.weight", "b.weight", "b.weight"] {
            skips.observe(&skipped(path), 4).unwrap();
        }
        let text = skips
            .observe(&skipped("c.weight"), 4)
            .unwrap_err()
            .to_string();
        assert!(text.contains("4 steps in a row"), "{text}");
        assert!(
            text.contains("most often, 2 times, the gradient of `b.weight`"),
            "{text}"
        );
    }

    #[test]
    fn an_applied_step_starts_anew_and_zero_is_no_limit() {
        let mut skips = Skips::default();
        for _ in 0..10 {
            skips.observe(&skipped("a"), 2).unwrap();
            skips.observe(&StepOutcome::Applied, 2).unwrap();
        }
        for _ in 0..1000 {
            skips.observe(&skipped("a"), 0).unwrap();
        }
    }
}
