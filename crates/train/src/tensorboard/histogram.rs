//! Histograms in TensorBoard's bucket scheme.

use std::sync::LazyLock;

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

        // A reader takes the previous limit as the left edge, so an empty bucket stays only where a filled one follows.
        let (mut kept_limits, mut kept_counts) = (Vec::new(), Vec::new());
        for (i, &n) in buckets.iter().enumerate() {
            let next_is_filled = buckets.get(i + 1).is_some_and(|&next| next > 0);
            if n > 0 || next_is_filled {
                kept_limits.push(limits[i]);
                kept_counts.push(n as f64);
            }
        }
        Self {
            min,
            max,
            count,
            sum,
            sum_squares,
            limits: kept_limits,
            counts: kept_counts,
            non_finite,
        }
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
    fn empty() {
        let h = Histogram::new([]);
        assert_eq!((h.count(), h.min, h.max), (0, 0.0, 0.0));
        assert_eq!(h.buckets().count(), 0);
    }
}
