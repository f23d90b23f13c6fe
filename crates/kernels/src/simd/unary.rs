//! The table of f32 functions of one value.
use super::isa::{map, pick};
use super::level::SimdLevel;
use super::ops::UnaryOp;
use super::{erf, exp, log, trig};

/// `dst[i] = f(src[i])`; both have the same length.
pub type Unary<T> = fn(&mut [T], &[T]);

/// The f32 instruction of `op`.
///
/// Within 2 ulp over the whole range (silu and both forms of gelu 2.25, or 3 without a hardware fused
/// multiply-add), at the infinities the limit (0 for silu and gelu at minus infinity). The `*Grad` functions
/// cross zero: they are within 4.5 ulp of `max(|f(x)|, 1/8)`.
pub fn unary_f32(op: UnaryOp) -> Unary<f32> {
    unary_f32_at(super::simd_level(), op)
}

pub fn unary_f32_at(level: SimdLevel, op: UnaryOp) -> Unary<f32> {
    macro_rules! each {
        ($f:expr) => {
            pick!(level, fn(dst: &mut [f32], src: &[f32]) { map(dst, src, $f) })
        };
    }
    match op {
        UnaryOp::Neg => each!(|x: f32| -x),
        UnaryOp::Abs => each!(f32::abs),
        UnaryOp::Sign => each!(sign),
        UnaryOp::Square => each!(|x: f32| x * x),
        UnaryOp::Sqrt => each!(f32::sqrt),
        UnaryOp::Rsqrt => each!(|x: f32| 1.0 / x.sqrt()),
        UnaryOp::Recip => each!(|x: f32| 1.0 / x),
        UnaryOp::Exp => each!(exp::exp::<I>),
        UnaryOp::Expm1 => each!(exp::expm1::<I>),
        UnaryOp::Log => each!(log::log::<I>),
        UnaryOp::Log1p => each!(log::log1p::<I>),
        UnaryOp::Sin => pick!(level, fn(dst: &mut [f32], src: &[f32]) {
            map(dst, src, trig::sin::<I>);
            trig::repair(dst, src, f64::sin);
        }),
        UnaryOp::Cos => pick!(level, fn(dst: &mut [f32], src: &[f32]) {
            map(dst, src, trig::cos::<I>);
            trig::repair(dst, src, f64::cos);
        }),
        UnaryOp::Tanh => each!(exp::tanh::<I>),
        UnaryOp::Sigmoid => each!(exp::sigmoid::<I>),
        UnaryOp::Erf => each!(erf::erf::<I>),
        UnaryOp::Relu => each!(|x: f32| if x > 0.0 || x.is_nan() { x } else { 0.0 }),
        UnaryOp::Silu => each!(exp::silu::<I>),
        UnaryOp::SiluGrad => each!(exp::silu_grad::<I>),
        UnaryOp::Gelu => each!(erf::gelu::<I>),
        UnaryOp::GeluGrad => each!(erf::gelu_grad::<I>),
        UnaryOp::GeluTanh => each!(erf::gelu_tanh::<I>),
        UnaryOp::GeluTanhGrad => each!(erf::gelu_tanh_grad::<I>),
        UnaryOp::Softplus => each!(exp::softplus::<I>),
        UnaryOp::Floor => each!(f32::floor),
        UnaryOp::Ceil => each!(f32::ceil),
        UnaryOp::Round => each!(f32::round_ties_even),
        UnaryOp::Trunc => each!(f32::trunc),
    }
}

#[inline(always)]
fn sign(x: f32) -> f32 {
    let y = if x > 0.0 { 1.0 } else { x };
    if x < 0.0 { -1.0 } else { y }
}

#[cfg(test)]
#[path = "test_unary.rs"]
mod tests;
