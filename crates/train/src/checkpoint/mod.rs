//! Checkpoints: folders that are either whole or not there.

mod array;
mod compare;

pub use array::{Array, ArrayInfo};
pub use compare::{StateMismatch, compare_arrays};
