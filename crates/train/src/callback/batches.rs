//! Counting batches across executions and epochs.

use super::Resumed;

/// Turns the batch index of `on_batch_end` into a number of batches, whatever the size of an execution.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchCounter {
    last: Option<usize>,
    total: u64,
}

impl BatchCounter {
    pub fn new(resumed: Option<&Resumed>) -> Self {
        match resumed {
            None => Self::default(),
            Some(r) => Self {
                last: r.batch.checked_sub(1),
                total: r.step,
            },
        }
    }

    /// Batches since training began, before and after the execution that ends with `batch`.
    pub fn advance(&mut self, batch: usize) -> (u64, u64) {
        let before = self.total;
        let added = match self.last {
            Some(last) if batch > last => batch - last,
            // A new epoch.
            _ => batch + 1,
        };
        self.last = Some(batch);
        self.total += added as u64;
        (before, self.total)
    }
}
