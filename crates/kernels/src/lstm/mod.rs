//! A whole sequence of long short-term memory (Hochreiter and Schmidhuber 1997) and its gradients.
//!
//! The products with the recurrent weights cannot wait for each other's steps, but the rows of a batch can: a task takes some of
//! them through all steps, with the weights packed once and state and gates in its caches. What does not depend on the step
//! before, the product of the inputs and the gradients of the weights, is left to one large product each outside of here.
//!
//! Gates lie in PyTorch's order i, f, g, o. Sums are f32; gates are rounded to their dtype before they are used, so that the gradient
//! sees the values of the forward pass. Bits do not depend on the number of threads: every sum is one chain over ascending k.
mod backward;
mod cell;
mod forward;
mod product;
#[cfg(test)]
mod tests;

pub use backward::{Grads, Saved, lstm_grad};
pub use forward::{Outputs, Start, lstm};

use crate::gemm::Scratch;
use std::ops::{Deref, DerefMut};

/// `len` zeros in memory that the thread keeps for the next time: pages of the system would be fresh in every step.
fn zeros(len: usize) -> Zeros {
    Zeros(Scratch::zeros(len), len)
}

/// See [`zeros`].
struct Zeros(Scratch, usize);

impl Deref for Zeros {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: that many values were set to zero.
        unsafe { std::slice::from_raw_parts(self.0.ptr(), self.1) }
    }
}

impl DerefMut for Zeros {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and nobody else has the block.
        unsafe { std::slice::from_raw_parts_mut(self.0.ptr(), self.1) }
    }
}

/// Rows of a batch that a task takes through all steps.
const ROWS: usize = 32;

/// The sizes of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Rows.
    pub batch: usize,
    /// Steps.
    pub time: usize,
    /// Units.
    pub hidden: usize,
    /// The cell state is kept before steps 0, `every`, 2 `every`, ..; the gradient computes those between again.
    pub every: usize,
}

impl Sizes {
    /// Kept cell states of a row.
    fn kept(&self) -> usize {
        self.time.div_ceil(self.every.max(1))
    }
}
