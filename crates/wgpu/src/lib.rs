//! The wgpu backend of bimetal: Vulkan, Metal and DX12, and software Vulkan for tests on machines without a GPU.
//!
//! ```no_run
//! let device = bimetal_wgpu::wgpu()?;
//! println!("{}", device.info().name);
//! # Ok::<(), bimetal_tensor::Error>(())
//! ```
//!
//! Kernels are WGSL. F32, F16, BF16, both 8-bit floats, I32, U32, U8 and Bool work on every adapter: what it lacks is stored in its bits and computed in f32, which the
//! device's info calls emulated. F64 and I64 do not: an operation of such a dtype is an error that names it.

mod open;

pub use open::wgpu;
