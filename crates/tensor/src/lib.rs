//! Lazy tensors, the operation graph, fusion and execution plans of bimetal.
mod backend;
mod decompose;
mod device;
mod dtype;
mod error;
mod eval;
pub mod graph;
mod label;
mod lower;
mod ops;
pub mod plan;
mod shape;
mod slot;
mod tensor;

pub use backend::{
    Backend, Bindings, Buffer, DeviceInfo, ExecError, Executable, MemoryReport, Support,
};
pub use device::Device;
pub use dtype::{
    CastMode, DType, DTypeError, Element, F8E4M3, F8E5M2, cast_slice, round_f32, round_f32_slice,
    round_f64,
};
pub use error::{Error, ErrorKind, Result};
pub use eval::{commit, eval};
pub use label::{Label, PathGuard};
pub use shape::{MAX_RANK, Shape, Strides};
pub use slot::Slot;
pub use tensor::Tensor;
