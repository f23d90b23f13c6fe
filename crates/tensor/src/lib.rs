//! Lazy tensors, the operation graph, fusion and execution plans of bimetal.
//!
//! A [`Tensor`] is a node of a graph of plain data; shape, dtype and device are values. Building expressions computes nothing and cannot
//! fail: a mistake makes an invalid tensor that carries the first error, with its source line, to whoever asks for a value. Asking (for
//! instance [`Tensor::to_vec`], or [`eval`] for several at once) turns the graph into a [`plan`], in which chains of element-wise
//! operations are fused, looks for the same plan among those compiled before, and runs it on the tensor's [`Device`].
//!
//! ```
//! use bimetal_tensor::{DType, Tensor};
//!
//! # fn main() -> bimetal_tensor::Result<()> {
//! let device = bimetal_cpu::cpu();
//! let x = Tensor::arange(6, &device).reshape(&[2, 3]).cast(DType::F32);
//! let y = (&x * 0.5 + 1).sum(&[-1], false); // numbers never change a dtype
//! assert_eq!(y.to_vec::<f32>()?, [4.5, 9.0]);
//!
//! let error = x.matmul(&y).relu().eval().unwrap_err(); // the mistake is `matmul`'s
//! assert_eq!(error.op(), "matmul");
//! # Ok(())
//! # }
//! ```
//!
//! Graphs never change; state lives in [`Slot`]s, which [`commit`] writes, all or none. [`graph`] is what passes over the graph see
//! (derivatives live in `bimetal-autodiff`), [`plan`] what a [`Backend`] executes.
mod backend;
mod decompose;
mod device;
mod error;
mod eval;
pub mod graph;
mod label;
mod lower;
mod ops;
pub mod plan;
mod shape;
mod slot;
mod tensor;

pub use backend::{
    Backend, Bindings, Buffer, DeviceInfo, ExecError, Executable, MemoryReport, Support,
};
pub use bimetal_dtype::{
    CastMode, DType, DTypeError, Element, F8E4M3, F8E5M2, cast_slice, round_f32, round_f32_slice,
    round_f64, round_stochastic_slice,
};
pub use device::Device;
pub use error::{Error, ErrorKind, Result};
pub use eval::{commit, eval};
pub use half::{bf16, f16};
pub use label::{Label, PathGuard};
pub use shape::{MAX_RANK, Shape, Strides};
pub use slot::Slot;
pub use tensor::Tensor;
