//! Reverse-mode differentiation over the bimetal graph.
//!
//! A derivative is more graph: [`grad`] walks the graph of a loss backwards, adds for every node the operations that carry the
//! gradient of its result to its operands, and returns the ends of them as tensors. Nothing runs until a value is asked for, and
//! derivatives of derivatives need nothing more. The gradient of a value has the value's dtype; only 8-bit floats, in which a
//! gradient means nothing, carry theirs in f32 until it is handed out.
//!
//! ```
//! use bimetal_autodiff::grad;
//! use bimetal_tensor::Tensor;
//!
//! # fn main() -> bimetal_tensor::Result<()> {
//! let device = bimetal_cpu::cpu();
//! let x = Tensor::from_slice(&[2.0f32, -1.0], &[2], &device);
//! let loss = x.powi(3).sum_all();
//! let first = grad(&loss, &[&x])?.remove(0); // 3 x^2
//! let second = grad(&first.sum_all(), &[&x])?.remove(0); // 6 x
//! assert_eq!(first.to_vec::<f32>()?, [12.0, 3.0]);
//! assert_eq!(second.to_vec::<f32>()?, [12.0, -6.0]);
//! # Ok(())
//! # }
//! ```
//!
//! [`checkpoint`] trades time for memory: the values inside of a segment are computed again in the backward pass.
mod blame;
mod checkpoint;
mod contribution;
mod engine;
mod grad;
mod rules;
mod segments;
mod walk;

pub use checkpoint::{checkpoint, checkpoint_many};
pub use grad::{grad, grad_optional, vjp};
