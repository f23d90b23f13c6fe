//! The CPU backend of bimetal: the default device and the numerical oracle.
#![allow(unsafe_code)]

#[allow(dead_code)]
mod gemm;
#[cfg(test)]
#[allow(dead_code)]
mod testutil;
