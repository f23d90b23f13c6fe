//! Kernels over the rows of a matrix: softmax, norms, cross-entropy and their gradients.
//!
//! A row is the last axis, everything else is flattened: `[rows, cols]`. Data is of any float dtype up to f32
//! (f64 goes through the decomposition of the composite); computation and statistics are f32. A row is
//! computed by one thread in the fixed order of [`crate::simd`]'s reductions, sums over rows go by fixed
//! blocks and a tree: bits do not depend on the number of threads.
// The executor is the consumer of this list.
#![allow(unused_imports)]

mod access;
mod columns;
mod loss;
mod norm;
mod norm_grad;
mod softmax;

#[cfg(test)]
mod test_norm;
#[cfg(test)]
mod test_softmax;
#[cfg(test)]
mod test_speed;

pub use access::{Rows, RowsMut};
pub use loss::{BadTarget, CrossEntropy, Targets, cross_entropy, cross_entropy_grad};
pub use norm::{layer_norm, rms_norm};
pub use norm_grad::{NormGrad, layer_norm_grad, rms_norm_grad};
pub use softmax::{log_softmax, log_softmax_grad, softmax, softmax_grad};
