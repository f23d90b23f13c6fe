//! The error function and GELU in both forms, f32.
use super::exp::{Parts, clamp, exp_parts, gate, gate_grad};
use super::isa::Isa;

/// Near 0 an odd polynomial, beyond 1 `1 - exp(-g(|x|))` with `g = -log erfc`: both minimax (Remez).
#[inline(always)]
pub fn erf<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let z = a * a;
    let p = I::mul_add(7.806_903e-5, z, -7.997_853e-4);
    let p = I::mul_add(p, z, 0.005_187_162);
    let p = I::mul_add(p, z, -0.026_853_347);
    let p = I::mul_add(p, z, 0.112_835_79);
    let p = I::mul_add(p, z, -0.376_126_26);
    let p = I::mul_add(p, z, 0.128_379_17);
    let small = I::mul_add(a, p, a);
    // erf(3.95) rounds to 1.
    let b = if a > 3.95 { 3.95 } else { a };
    let g = I::mul_add(-1.876_070_7e-4, b, 0.002_960_134_3);
    let g = I::mul_add(g, b, -0.021_889_707);
    let g = I::mul_add(g, b, 0.103_218_295);
    let g = I::mul_add(g, b, 0.638_012_2);
    let g = I::mul_add(g, b, 1.127_171_6);
    let g = I::mul_add(g, b, 3.205_890_5e-4);
    let big = 1.0 - exp_parts::<I>(-g, 0.0).normal::<I>();
    (if a < 1.0 { small } else { big }).copysign(x)
}

/// Beyond it `x * Phi(-x)` is 0 in f32.
const TAIL: f32 = 14.5;

/// The parts of `exp(-a^2/2)` for `0 <= a <= TAIL`.
#[inline(always)]
fn density<I: Isa>(a: f32) -> Parts {
    // The square is split at 12 bits: its error would be magnified by the exponential.
    let hi = f32::from_bits(a.to_bits() & 0xffff_f000);
    exp_parts::<I>(-0.5 * hi * hi, -0.5 * (a - hi) * (a + hi))
}

/// `G` with `a Phi(-a) = exp(-a^2/2) G(a)` for `0.75 <= a <= TAIL`.
///
/// `G` is `a / 2` times the scaled complementary error function of `a / sqrt 2`. It rises slowly to
/// 1 / sqrt(2 pi), so that a polynomial in `(a - 4.25) / (a + 4.25)` serves the whole range (the idea is Shepherd
/// and Laframboise, Math. Comp. 36, 1981; coefficients by the Remez exchange, 2^-26.7).
#[inline(always)]
fn tail_factor<I: Isa>(a: f32) -> f32 {
    let u = (a - 4.25) / (a + 4.25);
    let g = I::mul_add(-1.876_595_2e-4, u, 8.422_459_4e-4);
    let g = I::mul_add(g, u, 6.389_77e-4);
    let g = I::mul_add(g, u, -0.010_047_432);
    let g = I::mul_add(g, u, 0.032_970_782);
    let g = I::mul_add(g, u, -0.067_622_02);
    let g = I::mul_add(g, u, 0.098_854_56);
    let g = I::mul_add(g, u, -0.103_451_14);
    let g = I::mul_add(g, u, 0.067_212_25);
    I::mul_add(g, u, 0.379_777_1)
}

/// `P` with `Phi(-a) = 1/2 - a P(a^2)` for `0 <= a < 0.75`: minimax (Remez), 2^-26.6.
#[inline(always)]
fn near_factor<I: Isa>(a: f32) -> f32 {
    let z = a * a;
    let p = I::mul_add(1.160_964_45e-4, z, -0.001_196_408);
    let p = I::mul_add(p, z, 0.009_977_83);
    let p = I::mul_add(p, z, -0.066_490_94);
    I::mul_add(p, z, 0.398_942_3)
}

/// `x Phi(x) = max(x, 0) - |x| Phi(-|x|)`, which keeps its relative accuracy in the left tail.
#[inline(always)]
pub fn gelu<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let a = if a > TAIL { TAIL } else { a };
    let far = density::<I>(a).times_small::<I>(tail_factor::<I>(a));
    let near = a * I::mul_add(-a, near_factor::<I>(a), 0.5);
    let relu = if x > 0.0 { x } else { 0.0 };
    relu - if a < 0.75 { near } else { far }
}

/// Beyond it the derivative of GELU is 0 or 1 to within `2^-29`.
const FLAT: f32 = 6.5;

/// `Q` with `Phi(-a) = exp(-a^2/2) Q(a)` for `0 <= a <= FLAT`, as a polynomial in `a / (a + 3)` (the idea is that of [`tail_factor`]; where `a` is small its
/// rounding counts little). Its error times the exponential is below 2^-30 (Remez).
#[inline(always)]
fn share_factor<I: Isa>(a: f32) -> f32 {
    let v = a / (a + 3.0);
    let q = I::mul_add(-0.032_879_51, v, 0.083_147_65);
    let q = I::mul_add(q, v, 0.035_935_152);
    let q = I::mul_add(q, v, -0.153_425_71);
    let q = I::mul_add(q, v, -0.287_562_43);
    let q = I::mul_add(q, v, 1.053_186_7);
    let q = I::mul_add(q, v, -1.196_827);
    I::mul_add(q, v, 0.5)
}

/// `Phi(x) + x phi(x)`; both terms share one exponential. It crosses zero, so that errors count absolutely and the exponent needs no more than f32.
#[inline(always)]
pub fn gelu_grad<I: Isa>(x: f32) -> f32 {
    const INV_SQRT_TAU: f32 = 0.398_942_3;
    let a = x.abs();
    let flat = a > FLAT;
    let a = if flat { FLAT } else { a };
    let e = exp_parts::<I>(-0.5 * a * a, 0.0).normal::<I>();
    let g = e * I::mul_add(-INV_SQRT_TAU, a, share_factor::<I>(a));
    let g = if flat { 0.0 } else { g };
    if x < 0.0 { g } else { 1.0 - g }
}

/// 2 sqrt(2/pi) = C1 + C1_LO, and 0.044715 times that.
const C1: f32 = 1.595_769_2;
const C1_LO: f32 = (1.595_769_121_605_730_7 - C1 as f64) as f32;
const C2: f32 = 0.071_354_814;
const C2_LO: f32 = (0.044715 * 1.595_769_121_605_730_7 - C2 as f64) as f32;

/// The parts of `exp(-|y|)`, `y = 2 sqrt(2/pi) (x + 0.044715 x^3)`, for `|x| <= 11`.
///
/// y reaches 100, where one ulp of it is 2^-17: hence the error-free products.
#[inline(always)]
fn tanh_form<I: Isa>(a: f32) -> Parts {
    let (z, z_lo) = I::two_prod(a, a);
    let (w, w_lo) = I::two_prod(z, C2);
    let w_lo = I::mul_add(z, C2_LO, I::mul_add(z_lo, C2, w_lo)) + C1_LO;
    // Two-sum (Knuth): the order of the magnitudes varies.
    let s = C1 + w;
    let t = s - C1;
    let s_lo = (C1 - (s - t)) + (w - t) + w_lo;
    let (y, y_lo) = I::two_prod(a, s);
    exp_parts::<I>(-y, -I::mul_add(a, s_lo, y_lo))
}

/// `x sigmoid(y)`, which is `x/2 (1 + tanh(y/2))`.
#[inline(always)]
pub fn gelu_tanh<I: Isa>(x: f32) -> f32 {
    let x = if x < -11.0 { -11.0 } else { x };
    let a = x.abs();
    gate::<I>(x, tanh_form::<I>(if a > 11.0 { 11.0 } else { a }))
}

#[inline(always)]
pub fn gelu_tanh_grad<I: Isa>(x: f32) -> f32 {
    let x = clamp(x, -11.0, 11.0);
    let dy = I::mul_add(3.0 * C2, x * x, C1);
    gate_grad::<I>(x, dy, tanh_form::<I>(x.abs()))
}
