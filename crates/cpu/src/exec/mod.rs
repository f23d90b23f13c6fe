//! Compiled plans and the kernels they consist of.
mod code;
mod convert;
mod cx;
mod map;
mod matmul;
mod ops;
mod plan;
mod reduce;
mod scratch;
mod view;
#[cfg(test)]
mod tests;

pub(crate) use plan::{CpuPlan, native};
