//! Batches and positions in the data.

use crate::Array;

/// One batch on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The arrays, each `[size, ...]`, in the order of the source's fields.
    pub arrays: Vec<Array>,
    /// Rows of each array, padding included.
    pub size: usize,
    /// Rows that are samples; the others, at the end, are padding. Less than `size` only with
    /// [`pad_and_mask`](crate::Loader::pad_and_mask).
    pub valid: usize,
    /// Index of the batch in its epoch, from 0; the same on every rank.
    pub index: u64,
    /// The epoch, from 0.
    pub epoch: u64,
}

impl Batch {
    /// An F32 array `[size]`: 1 for samples, 0 for padding.
    pub fn mask(&self) -> Array {
        Array::from(
            (0..self.size)
                .map(|row| if row < self.valid { 1.0f32 } else { 0.0 })
                .collect::<Vec<_>>(),
        )
    }

    /// The position right after this batch: what to save once the batch has been used.
    pub fn cursor_after(&self) -> Cursor {
        Cursor {
            epoch: self.epoch,
            index: self.index.saturating_add(1),
        }
    }
}

/// A position in the data: the next batch to hand out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The batch in the epoch, from 0; the number of batches of an epoch means that the epoch is over.
    pub index: u64,
}
