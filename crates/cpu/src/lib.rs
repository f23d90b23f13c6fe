//! The CPU backend of bimetal: the default device and the numerical oracle.
//!
//! [`cpu`] gives a device with one worker a core; every result has the same bits whatever the number of workers. Fused
//! programs are interpreted over blocks that stay in the L1 cache, matrix products convert their operands while packing them,
//! and memory is kept for reuse.
//!
//! ```
//! use bimetal_tensor::Tensor;
//!
//! let device = bimetal_cpu::cpu();
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &device);
//! assert_eq!((&x * &x).sum_all().item()?, 14.0);
//! # Ok::<(), bimetal_tensor::Error>(())
//! ```
#![allow(unsafe_code)]
mod alloc;
mod backend;
mod exec;

pub use backend::{CpuBackend, cpu};
pub use bimetal_kernels::simd::{SimdLevel, simd_level};
