//! Accumulators on the host: a device adds up a batch, these add up the batches.

/// A weighted mean from (sum, count) pairs, in f64.
///
/// ```
/// use bimetal_train::Mean;
/// let mut loss = Mean::new();
/// loss.update(6.0, 3.0);
/// loss.update(4.0, 1.0);
/// assert_eq!(loss.result(), Some(2.5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch: the sum of its values and their number, or the sum of their weights.
    pub fn update(&mut self, sum: f64, count: f64) {
        self.sum += sum;
        self.count += count;
    }

    /// The mean, `None` while nothing is counted.
    pub fn result(&self) -> Option<f64> {
        (self.count != 0.0).then(|| self.sum / self.count)
    }

    /// Starts anew, as at the beginning of an epoch.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The share of correct predictions, from (correct, total) pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accuracy {
    correct: u64,
    total: u64,
}

impl Accuracy {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch: correct predictions and predictions in all.
    pub fn update(&mut self, correct: u64, total: u64) {
        self.correct += correct;
        self.total += total;
    }

    /// The share in `[0, 1]`, `None` while nothing is counted.
    pub fn result(&self) -> Option<f64> {
        (self.total != 0).then(|| self.correct as f64 / self.total as f64)
    }

    /// Starts anew, as at the beginning of an epoch.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_last_batch_weighs_less() {
        let mut mean = Mean::new();
        assert_eq!(mean.result(), None);
        mean.update(32.0 * 0.5, 32.0);
        mean.update(1.0 * 8.0, 1.0);
        assert_eq!(mean.result(), Some(24.0 / 33.0));
        mean.reset();
        assert_eq!(mean.result(), None);
    }

    #[test]
    fn ten_million_small_values_do_not_stall() {
        // An f32 sum would stop growing at 2^24.
        let mut mean = Mean::new();
        mean.update(f64::from(1u32 << 24), f64::from(1u32 << 24));
        (0..1000).for_each(|_| mean.update(1.0, 1.0));
        assert_eq!(mean.result(), Some(1.0));
    }

    #[test]
    fn accuracy_of_two_batches() {
        let mut accuracy = Accuracy::new();
        assert_eq!(accuracy.result(), None);
        accuracy.update(30, 32);
        accuracy.update(1, 2);
        assert_eq!(accuracy.result(), Some(31.0 / 34.0));
    }
}
