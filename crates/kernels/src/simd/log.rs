//! Logarithms in f32.
//!
//! `x = 2^e (1 + f)` with `1 + f` in `[2/3, 4/3)`; then `log x = e ln 2 + log(1 + f)` (Cephes `logf` and
//! fdlibm use the same scheme with another interval).
use super::exp::{LN2_HI, LN2_LO, pow2};
use super::isa::Isa;

const TWO_THIRDS: u32 = 0x3f2a_aaab;

/// `e ln 2 + log(1 + f)`, with f in `[-1/3, 1/3]`.
#[inline(always)]
fn log_parts<I: Isa>(e: f32, f: f32) -> f32 {
    // Minimax (Remez) for log(1 + f) = f - f^2/2 + f^3 P(f), relative error 2^-29.7.
    let p = I::mul_add(0.117_181_025, f, -0.128_833_04);
    let p = I::mul_add(p, f, 0.108_230_95);
    let p = I::mul_add(p, f, -0.121_878_62);
    let p = I::mul_add(p, f, 0.142_989_53);
    let p = I::mul_add(p, f, -0.166_800_86);
    let p = I::mul_add(p, f, 0.199_997_65);
    let p = I::mul_add(p, f, -0.249_998_11);
    let p = I::mul_add(p, f, 0.333_333_34);
    let z = f * f;
    let r = I::mul_add(z * f, p, -0.5 * z);
    let r = I::mul_add(e, LN2_LO, r);
    I::mul_add(e, LN2_HI, f + r)
}

/// The natural logarithm.
#[inline(always)]
pub fn log<I: Isa>(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let y = if tiny { x * 8_388_608.0 } else { x };
    let bias = if tiny { 23 } else { 0 };
    let bits = y.to_bits();
    let e = (bits.wrapping_sub(TWO_THIRDS) as i32) >> 23;
    let m = f32::from_bits(bits.wrapping_sub((e << 23) as u32));
    let r = log_parts::<I>(e.wrapping_sub(bias) as f32, m - 1.0);
    // Infinity and NaN are their own logarithms.
    let r = if x < f32::INFINITY { r } else { x };
    let r = if x == 0.0 { f32::NEG_INFINITY } else { r };
    if x < 0.0 { f32::NAN } else { r }
}

#[inline(always)]
pub fn log1p<I: Isa>(x: f32) -> f32 {
    // The exponent comes from the rounded 1 + x, the fraction exactly from x.
    let u = 1.0 + x;
    let e = (u.to_bits().wrapping_sub(TWO_THIRDS) as i32) >> 23;
    let half = e >> 1;
    let (s1, s2) = (pow2(half.wrapping_neg()), pow2(half.wrapping_sub(e)));
    let f = I::mul_add(x * s1, s2, s1 * s2 - 1.0);
    let r = log_parts::<I>(e as f32, f);
    let r = if x < f32::INFINITY { r } else { x };
    let r = if x == -1.0 { f32::NEG_INFINITY } else { r };
    let r = if x == 0.0 { x } else { r };
    if x < -1.0 { f32::NAN } else { r }
}
