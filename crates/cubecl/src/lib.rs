//! Every GPU kernel of bimetal, written once with [cubecl](https://docs.rs/cubecl), and the backend that runs plans on them.
//!
//! `bimetal-wgpu` and `bimetal-cuda` open a device and hand its client to [`GpuBackend`]; the rest is the same for both:
//!
//! - **Memory is words of 32 bits.** Kernels convert 8- and 16-bit floats with integer operations, so that every dtype of at most 32 bits works on every
//!   device, with the same bits.
//! - **Programs become code.** What a plan knows when it is compiled (programs, sizes, strides) is a compile-time argument of its kernels; what
//!   changes from step to step (the scalar table) is a buffer.
//! - **Nothing stale is handed out.** The first launch of each kernel is checked; a failure names the kernel and the device, and marks the device as failed.
#![allow(unsafe_code)]
// In kernels a compile-time condition around a run-time one, and `x = x & y`, are not what they look like.
#![allow(clippy::collapsible_if, clippy::assign_op_pattern)]

mod backend;
mod code;
mod interpret;
mod kernels;
mod math;
mod matrix_units;
mod memory;
mod philox;
mod plan;
mod replay;
mod words;

pub use backend::{GpuBackend, Limits};
pub use kernels::tensor_cores::offline::{MatrixKernel, matrix_kernels};
pub use matrix_units::{MatrixUnits, UnitShape};
