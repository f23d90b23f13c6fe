//! The CUDA backend of bimetal: NVIDIA's GPUs, with products on Tensor Cores.
//!
//! ```no_run
//! let device = bimetal_cuda::cuda(0)?;
//! println!("{}", device.info().name);
//! # Ok::<(), bimetal_tensor::Error>(())
//! ```
//!
//! Nothing of CUDA is needed to build this. To open a device it wants NVIDIA's driver, NVRTC (the compiler of kernels) and the headers of CUDA; [`cuda`] says which
//! one is missing. The kernels are those of `bimetal-cubecl`. [`cuda_source`] and [`compile`] go without a device and a driver: they show what the compiler
//! makes of a kernel.
#![allow(unsafe_code)]

mod nvrtc;
mod offline;
mod open;
mod probe;

pub use nvrtc::{compile, nvrtc_version};
pub use offline::{cuda_source, offline_units};
pub use open::cuda;
pub use probe::{CudaProperties, cuda_properties};
