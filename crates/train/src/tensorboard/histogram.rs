//! Histograms in TensorBoard's bucket scheme.

use std::sync::LazyLock;

use bimetal_tensor::graph::{EXPONENT_BINS, INFINITE_BIN, LOWEST_EXPONENT, bin_exponent};

/// A histogram over TensorBoard's exponential buckets: limits ±1e-12 · 1.1^n up to 1e20, 0 and ±`f64::MAX`
/// (the default buckets of TensorFlow's `histogram.cc`).
///
/// Non-finite values have no bucket; they are left out and counted apart, see [`Histogram::non_finite`].
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) count: u64,
    pub(super) sum: f64,
    pub(super) sum_squares: f64,
    /// Exclusive upper limits of `counts`; runs of empty buckets are merged.
    pub(super) limits: Vec<f64>,
    pub(super) counts: Vec<f64>,
    non_finite: u64,
}

/// Ascending limits of all buckets.
static LIMITS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let mut positive = Vec::new();
    let mut limit = 1e-12;
    while limit < 1e20 {
        positive.push(limit);
        limit *= 1.1;
    }
    positive.push(f64::MAX);
    let negative = positive.iter().rev().map(|v| -v);
    negative
        .chain([0.0])
        .chain(positive.iter().copied())
        .collect()
});

impl Histogram {
    /// The histogram of `values`.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let limits = &*LIMITS;
        let mut buckets = vec![0u64; limits.len()];
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut count, mut non_finite) = (0u64, 0u64);
        let (mut sum, mut sum_squares) = (0.0, 0.0);
        for v in values {
            if !v.is_finite() {
                non_finite += 1;
                continue;
            }
            // Bucket i holds limits[i - 1] <= v < limits[i]; f64::MAX itself goes into the last one.
            let i = limits.partition_point(|&limit| limit <= v);
            buckets[i.min(limits.len() - 1)] += 1;
            min = min.min(v);
            max = max.max(v);
            count += 1;
            sum += v;
            sum_squares += v * v;
        }
        if count == 0 {
            (min, max) = (0.0, 0.0);
        }
        let (limits, counts) = merged(limits.iter().copied().zip(buckets));
        Self {
            min,
            max,
            count,
            sum,
            sum_squares,
            limits,
            counts,
            non_finite,
        }
    }

    /// Of counts by sign and exponent, as [`bimetal_tensor::Tensor::exponent_histogram`] gives them, and minimum, maximum, sum and sum of squares: buckets of
    /// one power of two each. All values are divided by `scale`.
    pub(crate) fn of_exponents(counts: &[i32], moments: [f64; 4], scale: f64) -> Self {
        let at = |bin: usize| u64::from(counts.get(bin).copied().unwrap_or(0).unsigned_abs());
        let exponents = || (1..INFINITE_BIN).filter_map(|bin| Some((bin, bin_exponent(bin)?)));
        let power = |e: i32| f64::from(e).exp2() / scale;
        let negative = exponents().rev();
        let buckets = negative
            .map(|(bin, e)| (-power(e), at(EXPONENT_BINS + bin)))
            .chain([(power(LOWEST_EXPONENT), at(0))])
            .chain(exponents().map(|(bin, e)| (power(e + 1), at(bin))));
        let buckets: Vec<_> = buckets.collect();
        let special = [INFINITE_BIN, INFINITE_BIN + 1];
        let non_finite = special.map(|bin| at(bin) + at(EXPONENT_BINS + bin));
        let count = buckets.iter().map(|(_, n)| n).sum();
        let [min, max, sum, sum_squares] = match count {
            0 => [0.0; 4],
            _ => moments,
        };
        let (limits, counts) = merged(buckets.into_iter());
        Self {
            min: min / scale,
            max: max / scale,
            count,
            sum: sum / scale,
            sum_squares: sum_squares / scale / scale,
            limits,
            counts,
            non_finite: non_finite.iter().sum(),
        }
    }

    /// Adds the values of another histogram.
    pub(crate) fn join(mut self, other: &Self) -> Self {
        if self.count == 0 || other.count == 0 {
            let non_finite = self.non_finite + other.non_finite;
            let all = if self.count == 0 { other.clone() } else { self };
            return Self { non_finite, ..all };
        }
        let all = self.buckets().chain(other.buckets());
        let mut buckets: Vec<(f64, u64)> = all.map(|(limit, n)| (limit, n as u64)).collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets.dedup_by(|b, a| {
            let same = a.0 == b.0;
            if same {
                a.1 += b.1;
            }
            same
        });
        (self.limits, self.counts) = buckets.iter().map(|(limit, n)| (*limit, *n as f64)).unzip();
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
        self.sum_squares += other.sum_squares;
        self.non_finite += other.non_finite;
        self
    }

    /// Number of finite values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of NaN and infinite values, which are in no bucket.
    pub fn non_finite(&self) -> u64 {
        self.non_finite
    }

    /// The buckets as (exclusive upper limit, count), ascending; runs of empty buckets are merged into one.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.limits.iter().copied().zip(self.counts.iter().copied())
    }
}

/// Limits and counts without runs of empty buckets. A reader takes the previous limit as the left edge, so an empty bucket stays only where a filled one follows.
fn merged(buckets: impl Iterator<Item = (f64, u64)>) -> (Vec<f64>, Vec<f64>) {
    let mut buckets = buckets.peekable();
    let mut kept = Vec::new();
    while let Some((limit, n)) = buckets.next() {
        let next_is_filled = buckets.peek().is_some_and(|(_, next)| *next > 0);
        if n > 0 || next_is_filled {
            kept.push((limit, n as f64));
        }
    }
    kept.into_iter().unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let values = [-3.5, -1e-13, 0.0, 1e-13, 0.25, 0.25, 7.0, 1e30, f64::MAX];
        let h = Histogram::new(values);
        assert_eq!(h.count(), 9);
        assert_eq!(h.counts.iter().sum::<f64>(), 9.0);
        let mut left = -f64::MAX;
        for (right, n) in h.buckets() {
            assert!(left < right);
            let inside = values
                .iter()
                .filter(|&&v| left <= v && (v < right || right == f64::MAX && v == right))
                .count();
            assert_eq!(inside as f64, n, "[{left}, {right})");
            left = right;
        }
        // 0.25 sits between two neighbouring limits, not in a merged run.
        let i = h.limits.iter().position(|&l| l > 0.25).unwrap();
        assert!((h.limits[i] / h.limits[i - 1] - 1.1).abs() < 1e-12);
    }

    #[test]
    fn non_finite_values_are_counted_apart() {
        let h = Histogram::new([f64::NAN, f64::INFINITY, 1.0, f64::NEG_INFINITY]);
        assert_eq!((h.count(), h.non_finite()), (1, 3));
        assert_eq!((h.min, h.max, h.sum, h.sum_squares), (1.0, 1.0, 1.0, 1.0));
    }

    #[test]
    fn exponents_become_buckets_that_hold_their_values() {
        use bimetal_tensor::graph::exponent_bin;
        // No negative power of two: it lies on the other side of its limit.
        let values = [-3.5f32, -0.3, 0.0, 1e-40, 0.25, 0.3, 7.0, 6e4, f32::NAN];
        let scale = 4.0;
        let counts = |values: &[f32]| {
            let mut counts = vec![0; 2 * EXPONENT_BINS];
            for x in values {
                counts[exponent_bin(*x) + if *x < 0.0 { EXPONENT_BINS } else { 0 }] += 1;
            }
            let kept = || {
                values
                    .iter()
                    .filter(|x| x.is_finite())
                    .map(|x| f64::from(*x))
            };
            let low = kept().fold(f64::INFINITY, f64::min);
            let high = kept().fold(f64::NEG_INFINITY, f64::max);
            let squares = kept().map(|x| x * x).sum();
            Histogram::of_exponents(&counts, [low, high, kept().sum(), squares], scale)
        };
        let whole = counts(&values);
        let joined = counts(&values[..4]).join(&counts(&values[4..]));
        for h in [whole, joined] {
            assert_eq!((h.count(), h.non_finite()), (8, 1));
            assert_eq!((h.min, h.max), (-0.875, 15000.0));
            assert_eq!(h.counts.iter().sum::<f64>(), 8.0);
            let mut left = -f64::MAX;
            for (right, n) in h.buckets() {
                assert!(left < right);
                let inside = values.iter().map(|x| f64::from(*x) / scale);
                let inside = inside.filter(|v| left <= *v && *v < right).count();
                assert_eq!(inside as f64, n, "[{left}, {right})");
                left = right;
            }
        }
    }

    #[test]
    fn empty() {
        let h = Histogram::new([]);
        assert_eq!((h.count(), h.min, h.max), (0, 0.0, 0.0));
        assert_eq!(h.buckets().count(), 0);
    }
}
