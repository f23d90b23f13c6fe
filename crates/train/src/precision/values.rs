//! What is known of the values of a layer.

use bimetal_tensor::DType;
use bimetal_tensor::graph::{EXPONENT_BINS, INFINITE_BIN, bin_exponent};
use serde::{Deserialize, Serialize};

/// Statistics of values that a layer rounds to one dtype, over all steps that were looked at.
///
/// The values are those *before* rounding: of a pass in f32 over the same weights and batch. Underflow, subnormal and overflow count what rounding them
/// to `dtype` (to the nearest, ties to even) makes zero, subnormal and infinite, zeros and what is not finite left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Values {
    /// The dtype they are rounded to.
    #[serde(with = "dtype")]
    pub dtype: DType,
    /// All values.
    pub count: u64,
    /// Exact zeros.
    pub zeros: u64,
    /// NaN and infinite values.
    pub not_finite: u64,
    /// Values that are not zero and become zero.
    pub underflow: u64,
    /// Values that become subnormal: they keep fewer bits.
    pub subnormal: u64,
    /// Finite values that become infinite.
    pub overflow: u64,
    /// The largest finite magnitude; of gradients without the loss scale.
    pub amax: f64,
    /// The mean magnitude of all finite values, zeros among them.
    pub mean: f64,
    /// The root of the sum of squares of the finite values, of the last step.
    pub norm: f64,
    /// Counts by exponent, the floor of the base 2 logarithm of the magnitude, ascending and without empty ones; of gradients without the loss scale.
    pub exponents: Vec<(i32, u64)>,
    /// Steps that were looked at.
    pub steps: u64,
    /// Steps in which a value overflowed.
    pub overflow_steps: u64,
    /// Steps in which the values as they were really computed had one that was not finite, for instance because an earlier layer overflowed.
    pub not_finite_steps: u64,
    /// The sum of magnitudes, of which `mean` is made.
    pub(super) sum: f64,
}

/// One exponent histogram as the device gave it.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub counts: Vec<i32>,
    pub lost: [u64; 3],
    /// Minimum, maximum, sum, sum of magnitudes, sum of squares.
    pub moments: [f64; 5],
}

impl Raw {
    pub fn not_finite(&self) -> u64 {
        let bins = |row: usize| {
            let row = &self.counts[row * EXPONENT_BINS..];
            (row[INFINITE_BIN] + row[INFINITE_BIN + 1]) as u64
        };
        bins(0) + bins(1)
    }

    /// The largest finite magnitude.
    pub fn amax(&self) -> f64 {
        let [low, high, ..] = self.moments;
        match low <= high {
            true => low.abs().max(high.abs()),
            false => 0.0,
        }
    }
}

impl Values {
    pub(super) fn new(dtype: DType) -> Values {
        Values {
            dtype,
            count: 0,
            zeros: 0,
            not_finite: 0,
            underflow: 0,
            subnormal: 0,
            overflow: 0,
            amax: 0.0,
            mean: 0.0,
            norm: 0.0,
            exponents: Vec::new(),
            steps: 0,
            overflow_steps: 0,
            not_finite_steps: 0,
            sum: 0.0,
        }
    }

    /// Adds tensors of one step, whose elements were multiplied by `scale`.
    pub(super) fn add(&mut self, parts: &[Raw], scale: f64) {
        let shift = scale.log2().round() as i32;
        let (mut squares, mut overflow) = (0.0, 0);
        for raw in parts {
            for (bin, n) in raw.counts.iter().enumerate() {
                let (bin, n) = (bin % EXPONENT_BINS, *n as u64);
                self.count += n;
                match bin_exponent(bin) {
                    _ if n == 0 => {}
                    None if bin == 0 => self.zeros += n,
                    None => self.not_finite += n,
                    Some(e) => self.count_exponent(e - shift, n),
                }
            }
            self.underflow += raw.lost[0];
            self.subnormal += raw.lost[1];
            overflow += raw.lost[2];
            self.amax = self.amax.max(raw.amax() / scale);
            self.sum += raw.moments[3] / scale;
            squares += raw.moments[4] / scale / scale;
        }
        self.overflow += overflow;
        self.overflow_steps += u64::from(overflow > 0);
        self.steps += 1;
        self.norm = squares.sqrt();
        self.mean = self.sum / (self.count - self.not_finite).max(1) as f64;
    }

    fn count_exponent(&mut self, e: i32, n: u64) {
        match self.exponents.binary_search_by_key(&e, |(e, _)| *e) {
            Ok(i) => self.exponents[i].1 += n,
            Err(i) => self.exponents.insert(i, (e, n)),
        }
    }

    fn share(&self, n: u64) -> f64 {
        let counted = self.count - self.zeros - self.not_finite;
        n as f64 / counted.max(1) as f64
    }

    /// The share of the values that are not zero and become zero.
    pub fn underflow_share(&self) -> f64 {
        self.share(self.underflow)
    }

    /// The share of the values that are not zero and become subnormal.
    pub fn subnormal_share(&self) -> f64 {
        self.share(self.subnormal)
    }

    /// The share of the values that are not zero and become infinite.
    pub fn overflow_share(&self) -> f64 {
        self.share(self.overflow)
    }

    /// The share of steps in which a value became infinite.
    pub fn overflow_steps_share(&self) -> f64 {
        self.overflow_steps as f64 / self.steps.max(1) as f64
    }

    /// The share of the values below `2^exponent` among those that are not zero.
    pub fn share_below(&self, exponent: i32) -> f64 {
        let below = self.exponents.iter().filter(|(e, _)| *e < exponent);
        self.share(below.map(|(_, n)| n).sum())
    }
}

/// How a step moves the parameters of a layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Updates {
    /// Counts by exponent of each element's change relative to its weight; weights that are zero are left out.
    pub exponents: Vec<(i32, u64)>,
    /// The norm of the change relative to the norm of the weights, the mean over applied steps.
    pub ratio: f64,
    /// The largest change relative to its weight.
    pub amax: f64,
    /// Elements with a gradient that is not zero.
    pub with_gradient: u64,
    /// Those among them whose weight stayed as it was: the change was lost in rounding.
    pub lost: u64,
    /// Applied steps that were looked at.
    pub steps: u64,
}

impl Updates {
    /// The share of elements with a gradient whose weight stayed as it was.
    pub fn lost_share(&self) -> f64 {
        self.lost as f64 / self.with_gradient.max(1) as f64
    }

    /// Adds the parameters of one step: their relative changes, squared norms of change and weight, counts.
    pub(super) fn add(&mut self, parts: &[(Raw, [f64; 2], [u64; 2])]) {
        let (mut change, mut weight) = (0.0, 0.0);
        for (raw, squares, counts) in parts {
            change += squares[0];
            weight += squares[1];
            self.with_gradient += counts[0];
            self.lost += counts[1];
            self.amax = self.amax.max(raw.amax());
            let mut all = Values::new(DType::F32);
            all.exponents = std::mem::take(&mut self.exponents);
            all.add(std::slice::from_ref(raw), 1.0);
            self.exponents = all.exponents;
        }
        let ratio = (change / weight.max(f64::MIN_POSITIVE)).sqrt();
        self.ratio = (self.ratio * self.steps as f64 + ratio) / (self.steps + 1) as f64;
        self.steps += 1;
    }
}

/// Powers of two by which the loss can be multiplied so that the gradients of f16 fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleRange {
    /// The smallest scale with which no gradient becomes zero.
    pub lowest: f64,
    /// The largest scale with which no gradient becomes infinite.
    pub highest: f64,
    /// The share of the gradients that become zero with the largest scale: 0 if there is a scale that loses nothing.
    pub lost_at_highest: f64,
}

impl ScaleRange {
    /// Of gradients in f16; `None` if all are zero or of another dtype.
    pub(super) fn of<'a>(
        gradients: impl Iterator<Item = &'a Values> + Clone,
    ) -> Option<ScaleRange> {
        let half = gradients.filter(|g| g.dtype == DType::F16 && !g.exponents.is_empty());
        let amax = half.clone().map(|g| g.amax).fold(0.0, f64::max);
        let smallest = half.clone().map(|g| g.exponents[0].0).min()?;
        let mut highest = (65520.0 / amax).log2().ceil() - 1.0;
        while amax * (highest + 1.0).exp2() < 65520.0 {
            highest += 1.0;
        }
        let (mut lost, mut all) = (0.0, 0.0);
        for g in half {
            let n = (g.count - g.zeros - g.not_finite) as f64;
            lost += n * g.share_below(-24 - highest as i32);
            all += n;
        }
        Some(ScaleRange {
            lowest: f64::from(-24 - smallest).exp2(),
            highest: highest.exp2(),
            lost_at_highest: lost / f64::max(all, 1.0),
        })
    }

    /// Whether some scale loses nothing.
    pub fn is_lossless(&self) -> bool {
        self.lowest <= self.highest
    }
}

impl std::fmt::Display for ScaleRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (low, high) = (self.lowest.log2(), self.highest.log2());
        match self.is_lossless() {
            true => f.pad(&format!("2^{low} to 2^{high}")),
            false => f.pad(&format!(
                "none (2^{high} loses {:.2} %)",
                100.0 * self.lost_at_highest
            )),
        }
    }
}

/// Dtypes by name.
pub(super) mod dtype {
    use bimetal_tensor::DType;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(d: &DType, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(d)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<DType, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// The same where there may be none.
pub(super) mod optional_dtype {
    use bimetal_tensor::DType;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(d: &Option<DType>, s: S) -> Result<S::Ok, S::Error> {
        match d {
            Some(d) => s.collect_str(d),
            None => s.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<DType>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|t| t.parse().map_err(de::Error::custom))
            .transpose()
    }
}
