//! The graph as data: for passes over it (derivatives, checks, export) and for backends.
mod composite;
mod custom;
mod exponents;
mod op;

pub use crate::decompose::decompose;
pub use crate::eval::{IdHasher, IdMap, IdSet, last_read};
pub use crate::tensor::NodeId;
pub use composite::{AttentionSpec, Composite, DropoutSpec, LSTM_KEPT, OptimRule};
pub use custom::{CustomHandle, CustomOp, HostView, HostViewMut};
pub use exponents::{
    EXPONENT_BINS, INFINITE_BIN, LOWEST_EXPONENT, RoundingLimits, bin_exponent, exponent_bin,
};
pub use op::{
    ArgOp, Attr, Axes, AxisSet, Binary, Conv2d, Distribution, Literal, MatmulPrecision, Op, Pool2d,
    RandomKey, ReduceOp, Unary,
};
