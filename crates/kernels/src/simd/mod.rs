//! The vector instruction set that fused element-wise programs and row kernels are built from.
//!
//! Every instruction processes one chunk of a register: a slice of `f32`, `f64`, `i32`, `i64`,
//! `u32` or `u8` (booleans, 0 or 1). A table such as [`unary_f32`] turns an operation into a
//! function pointer for the instruction set of this machine.
//!
//! The loop bodies are scalar functions without branches, written once; LLVM vectorises them in
//! wrappers that enable an instruction set ([`isa`]). So the body and the tail of a loop run the
//! same IEEE operations and an element's bits do not depend on its position, on the length of
//! the chunk or on the number of threads. Instruction sets with a fused multiply-add may differ
//! from those without in the last bit of a transcendental function, nowhere else.
// The executor of fused programs is the consumer of much of this list.
#![allow(unused_imports)]

pub mod isa;

mod binary;
mod cast;
mod compare;
mod convert;
mod erf;
mod exp;
mod level;
mod log;
mod ops;
mod philox;
mod pow;
mod random;
mod reduce;
mod stream;
mod tree;
mod trig;
mod unary;
mod unary_other;

#[cfg(test)]
mod test_speed;
#[cfg(test)]
mod test_ulp;

pub use binary::{
    Binary, Ternary, binary_f32, binary_f64, binary_i32, binary_i64, binary_u32, mul_add_f32,
    mul_add_f64,
};
pub use cast::{Cast, CastTo, cast};
pub use compare::{
    Compare, Float, Logic, Register, Select, Test, compare, is_finite, is_nan, logic, not, select,
};
pub use convert::{
    Load, Round, Store, load_copy, load_f32, load_u8, round_to, store_copy, store_f32, store_u8,
};
pub use exp::{exp as exp_f32, exp_neg, exp_share, sigmoid as sigmoid_f32, tanh as tanh_f32};
pub use level::{SimdLevel, simd_level};
pub use log::log as log_f32;
pub use ops::{BinaryOp, CmpOp, LogicOp, UnaryOp};
pub use philox::philox_fill_u32;
pub use random::{
    Draw, bernoulli_threshold, fill_bernoulli, fill_normal, fill_uniform, least_word,
    select_at_least,
};
pub use reduce::{
    BLOCK, LANES, Reduce, ReduceOp, all, all_finite, all_finite_f64, any, argmax_f32, argmax_f64,
    argmax_i32, argmax_i64, argmin_f32, argmin_f64, argmin_i32, argmin_i64, combine_f32,
    combine_f64, combine_i32, combine_i64, fold_lanes, max_f32, reduce_f32, reduce_f64, reduce_i32,
    reduce_i64, whole, whole2,
};
pub use stream::{fence, prefetch, stream};
pub use tree::Tree;
pub use unary::{Unary, unary_f32};
pub use unary_other::{unary_f64, unary_i32, unary_i64};
