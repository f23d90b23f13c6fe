//! Compiled plans and the kernels they consist of.
mod code;
mod composite;
mod conv;
mod convert;
mod cx;
mod frame;
mod host;
mod index;
mod map;
mod matmul;
mod ops;
mod plan;
mod reduce;
mod scan;
mod tile;
mod view;

pub(crate) use composite::native;
pub(crate) use plan::CpuPlan;
#[cfg(test)]
mod tests;
