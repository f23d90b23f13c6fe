//! Means over batches.

use serde::{Deserialize, Serialize};

use crate::Logs;

/// Weighted means of named values over batches, in f64; it survives a checkpoint to the last bit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Totals(Vec<Total>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Total {
    name: String,
    sum: Bits,
    count: Bits,
}

impl Totals {
    pub fn add(&mut self, name: &str, sum: f64, count: f64) {
        match self.0.iter_mut().find(|t| t.name == name) {
            Some(total) => {
                total.sum.0 += sum;
                total.count.0 += count;
            }
            None => self.0.push(Total {
                name: name.into(),
                sum: Bits(sum),
                count: Bits(count),
            }),
        }
    }

    pub fn logs(&self) -> Logs {
        let counted = self.0.iter().filter(|t| t.count.0 != 0.0);
        counted
            .map(|t| (t.name.as_str(), t.sum.0 / t.count.0))
            .collect()
    }
}

/// An f64 that JSON keeps to the last bit, NaN and infinities among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bits(pub f64);

impl Serialize for Bits {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0.is_finite() {
            true => s.serialize_f64(self.0),
            false => s.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(f64),
            Text(String),
        }
        match Either::deserialize(d)? {
            Either::Number(value) => Ok(Bits(value)),
            Either::Text(text) => text.parse().map(Bits).map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighted_and_keep_their_order() {
        let mut totals = Totals::default();
        totals.add("loss", 2.0 * 30.0, 30.0);
        totals.add("accuracy", 20.0, 30.0);
        totals.add("loss", 8.0, 2.0);
        totals.add("accuracy", 2.0, 2.0);
        totals.add("nothing", 0.0, 0.0);
        let logs: Vec<_> = totals
            .logs()
            .iter()
            .map(|(n, v)| (n.to_string(), v))
            .collect();
        assert_eq!(
            logs,
            [
                ("loss".into(), 68.0 / 32.0),
                ("accuracy".into(), 22.0 / 32.0)
            ]
        );
    }

    #[test]
    fn every_value_survives_json() {
        for value in [
            0.1 + 0.2,
            -0.0,
            1e-310,
            f64::MAX,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ] {
            let mut totals = Totals::default();
            totals.add("x", value, 3.0);
            let json = serde_json::to_string(&totals).unwrap();
            let back: Totals = serde_json::from_str(&json).unwrap();
            let same = back.0[0].sum.0.to_bits() == value.to_bits();
            assert!(
                same || (value.is_nan() && back.0[0].sum.0.is_nan()),
                "{json}"
            );
        }
    }
}
