//! Reverse-mode differentiation over the bimetal graph.
//!
//! A derivative is more graph: [`grad`] walks the graph of a loss backwards, adds for every node the operations that carry the
//! gradient of its result to its operands, and returns the ends of them as tensors. Nothing runs until a value is asked for, and
//! derivatives of derivatives need nothing more. The gradient of a value has the value's dtype; only 8-bit floats, in which a
//! gradient means nothing, carry theirs in f32 until it is handed out.
//!
//! ```
//! use bimetal_autodiff::grad;
//! use bimetal_tensor::{Result, Tensor};
//!
//! /// The loss of a linear model and its gradient for the weights `[d, 1]`.
//! fn loss(x: &Tensor, y: &Tensor, w: &Tensor) -> Result<(Tensor, Tensor)> {
//!     let loss = (x.matmul(w) - y).square().mean_all();
//!     let g = grad(&loss, &[w])?.remove(0);
//!     Ok((loss, g))
//! }
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
