//! Reading `steps.jsonl`: one line per attempted step with the bits of its loss.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::Result;

/// The bits of the loss and the outcome of every step of a run.
pub struct StepLog {
    steps: BTreeMap<u64, (String, String)>,
}

impl StepLog {
    /// Reads a log.
    ///
    /// A resumed run repeats the steps after its checkpoint, so a step may stand there more than
    /// once; then all its lines must say the same. A line that is no JSON is an error: a resumed
    /// run has to remove what a kill left half written.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut steps = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let at = number + 1;
            let json: Value = serde_json::from_str(line)
                .map_err(|e| format!("line {at} is no JSON object ({e}): {line}"))?;
            let step = json["step"]
                .as_u64()
                .ok_or_else(|| format!("line {at} has no number `step`"))?;
            let bits = json["loss_bits"]
                .as_str()
                .ok_or_else(|| format!("line {at} has no text `loss_bits`"))?;
            let entry = (bits.to_string(), json["outcome"].to_string());
            if let Some(before) = steps.insert(step, entry.clone())
                && before != entry
            {
                return Err(format!(
                    "step {step} was {before:?} before the kill and {entry:?} after it"
                ));
            }
        }
        Ok(Self { steps })
    }

    /// The number of different steps.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Compares with the uninterrupted run step by step and names the first difference.
    pub fn must_equal(&self, reference: &Self) -> Result {
        let all = self.steps.keys().chain(reference.steps.keys());
        let different = all
            .filter(|step| self.steps.get(step) != reference.steps.get(step))
            .min();
        match different {
            None => Ok(()),
            Some(step) => Err(format!(
                "step {step} has (loss_bits, outcome) {}, the uninterrupted run has {}",
                shown(self.steps.get(step)),
                shown(reference.steps.get(step))
            )),
        }
    }
}

fn shown(entry: Option<&(String, String)>) -> String {
    entry.map_or("no such step".to_string(), |entry| format!("{entry:?}"))
}

#[cfg(test)]
mod tests {
    use super::StepLog;

    fn line(step: u64, bits: &str) -> String {
        format!(
            "{{\"step\":{step},\"loss\":1.0,\"loss_bits\":\"{bits}\",\"scale\":1.0,\"outcome\":\"applied\"}}\n"
        )
    }

    #[test]
    fn repeated_steps_must_agree() {
        let whole = StepLog::parse(&(line(1, "a") + &line(2, "b"))).unwrap();
        let repeated = StepLog::parse(&(line(1, "a") + &line(2, "b") + &line(2, "b"))).unwrap();
        assert_eq!(repeated.must_equal(&whole), Ok(()));
        assert!(StepLog::parse(&(line(2, "b") + &line(2, "c"))).is_err());
    }

    #[test]
    fn differences_and_missing_steps_are_named() {
        let whole = StepLog::parse(&(line(1, "a") + &line(2, "b"))).unwrap();
        let other = StepLog::parse(&(line(1, "a") + &line(2, "x"))).unwrap();
        assert!(other.must_equal(&whole).unwrap_err().contains("step 2"));
        let short = StepLog::parse(&line(1, "a")).unwrap();
        assert!(
            short
                .must_equal(&whole)
                .unwrap_err()
                .contains("no such step")
        );
    }

    #[test]
    fn half_a_line_is_an_error() {
        assert!(StepLog::parse("{\"step\":1,\"lo").is_err());
    }
}
