//! Lazy tensors, the operation graph, fusion and execution plans of bimetal.
mod dtype;
pub use dtype::DType;
