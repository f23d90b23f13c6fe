//! The CPU backend of bimetal: the default device and the numerical oracle.
#![allow(unsafe_code)]

#[allow(dead_code)]
mod gemm;
#[allow(dead_code)]
mod simd;
#[cfg(test)]
#[allow(dead_code)]
mod testutil;

pub use simd::{SimdLevel, simd_level};
