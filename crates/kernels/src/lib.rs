//! The CPU kernels of bimetal: products, convolutions, rows and element-wise loops with explicit SIMD.
//!
//! Plain functions over slices and strides, below tensors and graphs: `bimetal-cpu` calls them, and so can programs that have arrays of
//! their own. The instruction set is chosen at run time ([`simd::simd_level`]), products accumulate half and 8-bit floats in f32, and no
//! result depends on the number of threads of the [rayon] pool that a kernel is called from.
//!
//! The functions are for backends: they change whenever a backend needs them to.
#![allow(unsafe_code)]
pub mod attention;
pub mod batch_norm;
pub mod conv;
pub mod gemm;
pub mod lstm;
pub mod par;
pub mod pool;
pub mod rows;
pub mod simd;
#[cfg(test)]
mod testutil;
