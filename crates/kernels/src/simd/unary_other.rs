//! Functions of one f64 or integer value: the standard library, one element at a time.
//!
//! f64 is the dtype of oracles and checks, so accuracy counts here and speed does not.
use super::isa::map;
use super::ops::UnaryOp;
use super::unary::Unary;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// The f64 instruction of `op`.
pub fn unary_f64(op: UnaryOp) -> Unary<f64> {
    macro_rules! each {
        ($f:expr) => {
            |dst: &mut [f64], src: &[f64]| map(dst, src, $f)
        };
    }
    match op {
        UnaryOp::Neg => each!(|x: f64| -x),
        UnaryOp::Abs => each!(f64::abs),
        UnaryOp::Sign => each!(|x: f64| if x > 0.0 {
            1.0
        } else if x < 0.0 {
            -1.0
        } else {
            x
        }),
        UnaryOp::Square => each!(|x: f64| x * x),
        UnaryOp::Sqrt => each!(f64::sqrt),
        UnaryOp::Rsqrt => each!(|x: f64| 1.0 / x.sqrt()),
        UnaryOp::Recip => each!(f64::recip),
        UnaryOp::Exp => each!(f64::exp),
        UnaryOp::Expm1 => each!(f64::exp_m1),
        UnaryOp::Log => each!(f64::ln),
        UnaryOp::Log1p => each!(f64::ln_1p),
        UnaryOp::Sin => each!(f64::sin),
        UnaryOp::Cos => each!(f64::cos),
        UnaryOp::Tanh => each!(f64::tanh),
        UnaryOp::Sigmoid => each!(sigmoid),
        UnaryOp::Erf => each!(libm::erf),
        UnaryOp::Relu => each!(|x: f64| if x > 0.0 || x.is_nan() { x } else { 0.0 }),
        UnaryOp::Silu => each!(|x: f64| gate(x, x)),
        UnaryOp::SiluGrad => each!(|x: f64| gate_grad(x, x, 1.0)),
        UnaryOp::Gelu => each!(gelu),
        UnaryOp::GeluGrad => each!(gelu_grad),
        UnaryOp::GeluTanh => each!(|x: f64| gate(x, tanh_argument(x))),
        UnaryOp::GeluTanhGrad => each!(|x: f64| {
            let x = x.clamp(-50.0, 50.0);
            gate_grad(x, tanh_argument(x), C * (1.0 + 3.0 * 0.044715 * x * x))
        }),
        UnaryOp::Softplus => each!(|x: f64| relu(x) + (-x.abs()).exp().ln_1p()),
        UnaryOp::Floor => each!(f64::floor),
        UnaryOp::Ceil => each!(f64::ceil),
        UnaryOp::Round => each!(f64::round_ties_even),
        UnaryOp::Trunc => each!(f64::trunc),
    }
}

/// 2 sqrt(2 / pi).
const C: f64 = FRAC_2_SQRT_PI * SQRT_2;

fn tanh_argument(x: f64) -> f64 {
    C * (x + 0.044715 * x * x * x)
}

fn relu(x: f64) -> f64 {
    if x > 0.0 { x } else { 0.0 }
}

fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

fn gate(x: f64, y: f64) -> f64 {
    // Not -inf * 0.
    x.max(-1e300) * sigmoid(y) + if x.is_nan() { x } else { 0.0 }
}

fn gate_grad(x: f64, y: f64, dy: f64) -> f64 {
    let x = x.clamp(-1e300, 1e300);
    sigmoid(y) * (1.0 + x * dy * sigmoid(-y))
}

fn gelu(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        0.0
    } else {
        x * 0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
    }
}

fn gelu_grad(x: f64) -> f64 {
    const INV_SQRT_TAU: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 / 2.0;
    let x = x.clamp(-50.0, 50.0);
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2) + x * INV_SQRT_TAU * (-0.5 * x * x).exp()
}

macro_rules! integers {
    ($name:ident, $t:ty) => {
        /// The integer instruction of `op`: negation, absolute value, sign, square and relu wrap
        /// around, rounding is the identity; `None` for the rest.
        pub fn $name(op: UnaryOp) -> Option<Unary<$t>> {
            Some(match op {
                UnaryOp::Neg => |d, s| map(d, s, |x: $t| x.wrapping_neg()),
                UnaryOp::Abs => |d, s| map(d, s, |x: $t| x.wrapping_abs()),
                UnaryOp::Sign => |d, s| map(d, s, |x: $t| x.signum()),
                UnaryOp::Square => |d, s| map(d, s, |x: $t| x.wrapping_mul(x)),
                UnaryOp::Relu => |d, s| map(d, s, |x: $t| x.max(0)),
                UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => {
                    |d, s| map(d, s, |x: $t| x)
                }
                _ => return None,
            })
        }
    };
}
integers!(unary_i32, i32);
integers!(unary_i64, i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_and_refuse_floats() {
        let mut d = [0i32; 3];
        unary_i32(UnaryOp::Abs).unwrap()(&mut d, &[-3, i32::MIN, 5]);
        assert_eq!(d, [3, i32::MIN, 5]);
        let mut d = [0i64; 3];
        unary_i64(UnaryOp::Sign).unwrap()(&mut d, &[-3, 0, 5]);
        assert_eq!(d, [-1, 0, 1]);
        assert!(unary_i32(UnaryOp::Exp).is_none());
    }

    #[test]
    fn f64_limits() {
        for op in UnaryOp::ALL {
            let mut d = [0.0; 3];
            unary_f64(op)(&mut d, &[f64::NAN, 0.5, -0.5]);
            assert!(d[0].is_nan(), "{op:?}");
            // The derivatives are those of central differences.
            let base = match op {
                UnaryOp::GeluGrad => UnaryOp::Gelu,
                UnaryOp::GeluTanhGrad => UnaryOp::GeluTanh,
                UnaryOp::SiluGrad => UnaryOp::Silu,
                _ => continue,
            };
            for x in [-3.0, -0.7, 0.0, 0.4, 2.5] {
                let (mut y, mut g) = ([0.0; 2], [0.0]);
                unary_f64(base)(&mut y, &[x + 1e-5, x - 1e-5]);
                unary_f64(op)(&mut g, &[x]);
                assert!((g[0] - (y[0] - y[1]) / 2e-5).abs() < 1e-9, "{op:?} {x}");
            }
            let mut d = [0.0; 2];
            unary_f64(base)(&mut d, &[f64::NEG_INFINITY, f64::INFINITY]);
            assert_eq!(d, [0.0, f64::INFINITY]);
            unary_f64(op)(&mut d, &[f64::NEG_INFINITY, f64::INFINITY]);
            assert_eq!(d, [0.0, 1.0]);
        }
    }
}
