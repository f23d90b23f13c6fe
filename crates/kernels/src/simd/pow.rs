//! Powers in f32, through f64.
use super::isa::Isa;

/// `log2(a)` of a positive f32 in f64, absolute error about 2^-39 times the result.
#[inline(always)]
fn log2_64<I: Isa>(a: f32) -> f64 {
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    let bits = (a as f64).to_bits();
    let e = (bits.wrapping_sub(SQRT_HALF) as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((e << 52) as u64));
    // log m = 2 atanh(s): the Taylor series, |s| <= 0.1716.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = I::mul_add64(1.0 / 15.0, z, 1.0 / 13.0);
    let p = I::mul_add64(p, z, 1.0 / 11.0);
    let p = I::mul_add64(p, z, 1.0 / 9.0);
    let p = I::mul_add64(p, z, 1.0 / 7.0);
    let p = I::mul_add64(p, z, 1.0 / 5.0);
    let p = I::mul_add64(p, z, 1.0 / 3.0);
    let p = I::mul_add64(p, z, 1.0);
    // The exponent fits an i32, which converts on every instruction set.
    I::mul_add64(p * s, 2.0 * std::f64::consts::LOG2_E, (e as i32) as f64)
}

/// `2^y` for `|y| <= 1000`, relative error about 2^-37.
#[inline(always)]
fn exp2_64<I: Isa>(y: f64) -> f64 {
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let t = y + MAGIC;
    let n = t.to_bits().wrapping_sub(MAGIC.to_bits());
    let r = (y - (t - MAGIC)) * std::f64::consts::LN_2;
    let mut p = 1.0 / 362_880.0;
    for c in [40_320.0, 5_040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        p = I::mul_add64(p, r, 1.0 / c);
    }
    f64::from_bits(p.to_bits().wrapping_add(n << 52))
}

/// `a^b` with the special cases of C99 (`pow(x, 0) = pow(1, y) = 1` even for NaN).
#[inline(always)]
pub fn pow<I: Isa>(a: f32, b: f32) -> f32 {
    let abs = a.abs();
    let l = if abs > 0.0 {
        log2_64::<I>(abs)
    } else {
        f64::NEG_INFINITY
    };
    let l = if abs < f32::INFINITY { l } else { abs as f64 };
    let l = if abs == 1.0 { 0.0 } else { l };
    let y = l * b as f64;
    // |a| = 1 with an infinite exponent.
    let y = if abs == 1.0 { 0.0 } else { y };
    let y = if y > 300.0 { 300.0 } else { y };
    let y = if y < -300.0 { -300.0 } else { y };
    let r = exp2_64::<I>(y) as f32;
    let half = b * 0.5;
    let integer = b.trunc() == b;
    let odd = integer & (half.trunc() != half);
    let negative = a.to_bits() >> 31 == 1;
    let r = if negative & odd { -r } else { r };
    let r = if (a < 0.0) & (abs < f32::INFINITY) & !integer {
        f32::NAN
    } else {
        r
    };
    let r = if b.is_nan() { f32::NAN } else { r };
    if (b == 0.0) | (a == 1.0) { 1.0 } else { r }
}
