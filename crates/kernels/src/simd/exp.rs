//! The exponential family in f32.
//!
//! All share one reduction, `exp(x) = 2^n (1 + p)` with `n = round(x / ln 2)` and `p = expm1(r)`,
//! `|r| <= ln 2 / 2` (Cody and Waite, Software Manual for the Elementary Functions, 1980; the split of
//! ln 2 is that of fdlibm). Keeping `1 + p` apart lets a factor be applied with a single rounding and
//! the scaling come last, so that results in the subnormal range are rounded once.
use super::isa::Isa;
use super::log::log1p;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 = HI + LO; HI has 16 bits, so that `n * HI` is exact for every exponent n.
pub const LN2_HI: f32 = f32::from_bits(0x3f31_7200);
pub const LN2_LO: f32 = f32::from_bits(0x35bf_be8e);
/// Adding it rounds to an integer, held in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// `exp(hi + lo) = 2^n (1 + p)`, for `|hi| <= 2^15` and small `lo`.
#[derive(Clone, Copy)]
pub struct Parts {
    n: i32,
    p: f32,
}

/// `hi` must be clamped by the caller; NaN gives a NaN `p`.
#[inline(always)]
pub fn exp_parts<I: Isa>(hi: f32, lo: f32) -> Parts {
    let t = I::mul_add(hi, LOG2_E, MAGIC);
    let n = t.to_bits().wrapping_sub(MAGIC.to_bits()) as i32;
    let nf = t - MAGIC;
    let r = I::mul_add(nf, -LN2_HI, hi);
    // Subtracting the negated correction costs nothing where it is the constant 0.
    let r = I::mul_add(nf, -LN2_LO, r) - (-lo);
    // Minimax (Remez) for expm1(r) = r + r^2 Q(r), relative error 2^-26.
    let q = I::mul_add(0.001_383_786_2, r, 0.008_367_088);
    let q = I::mul_add(q, r, 0.041_667_75);
    let q = I::mul_add(q, r, 0.166_665_39);
    let q = I::mul_add(q, r, 0.499_999_97);
    Parts {
        n,
        p: I::mul_add(r * r, q, r),
    }
}

/// 2^n for -127 < n < 128.
#[inline(always)]
pub fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

impl Parts {
    /// `c * 2^n * (1 + p)`.
    #[inline(always)]
    pub fn times<I: Isa>(self, c: f32) -> f32 {
        // Two halves, because n may lie beyond the exponents of f32.
        let half = self.n >> 1;
        I::mul_add(c, self.p, c) * pow2(half) * pow2(self.n.wrapping_sub(half))
    }

    /// `c * 2^n * (1 + p)` for `-226 < n < 27`, in half the instructions: nothing that ends as 0 or a subnormal number is rounded before the last factor.
    #[inline(always)]
    pub fn times_small<I: Isa>(self, c: f32) -> f32 {
        I::mul_add(c, self.p, c) * pow2(self.n.wrapping_add(100)) * pow2(-100)
    }

    /// The value, where it is known not to be subnormal or infinite.
    #[inline(always)]
    pub fn normal<I: Isa>(self) -> f32 {
        let s = pow2(self.n);
        I::mul_add(s, self.p, s)
    }
}

/// `x` limited to `[lo, hi]`; NaN passes.
#[inline(always)]
pub fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x > hi { hi } else { x };
    if x < lo { lo } else { x }
}

/// `e^x`.
#[inline(always)]
pub fn exp<I: Isa>(x: f32) -> f32 {
    exp_parts::<I>(clamp(x, -104.0, 89.0), 0.0).times::<I>(1.0)
}

/// `exp(x)` for `x <= 0`, without the care for overflow.
#[inline(always)]
pub fn exp_neg<I: Isa>(x: f32) -> f32 {
    let x = if x < -104.0 { -104.0 } else { x };
    exp_parts::<I>(x, 0.0).times_small::<I>(1.0)
}

/// `exp(x)` for `x <= 0` as a share of something not small: 0 below `e^-87`, the last before the subnormal numbers. An exponential that ends among
/// those takes the processor a hundred times as long, and a mask of minus infinities is made of them.
#[inline(always)]
pub fn exp_share<I: Isa>(x: f32) -> f32 {
    let small = x < -87.0;
    let e = exp_parts::<I>(if small { -87.0 } else { x }, 0.0).normal::<I>();
    if small { 0.0 } else { e }
}

#[inline(always)]
pub fn expm1<I: Isa>(x: f32) -> f32 {
    let e = exp_parts::<I>(clamp(x, -30.0, 89.0), 0.0);
    // Half of the result, because 2^n itself may overflow where the result does not.
    let h = pow2(e.n.wrapping_sub(1));
    let y = I::mul_add(h, e.p, h - 0.5) * 2.0;
    if x.abs() < 2.0e-8 { x } else { y }
}

/// For |x| >= 0.625 `1 - 2 / (exp(2|x|) + 1)`, below an odd polynomial; the split is that of Cephes.
#[inline(always)]
pub fn tanh<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let e = exp_parts::<I>(if a > 10.0 { 20.0 } else { 2.0 * a }, 0.0).normal::<I>();
    let big = 1.0 - 2.0 / (e + 1.0);
    // Minimax (Remez) for tanh(a) = a + a^3 P(a^2), relative error 2^-27.7.
    let z = a * a;
    let p = I::mul_add(-0.005_692_296, z, 0.020_628_167);
    let p = I::mul_add(p, z, -0.053_736_515);
    let p = I::mul_add(p, z, 0.133_314_06);
    let p = I::mul_add(p, z, -0.333_332_8);
    let small = I::mul_add(z * a, p, a);
    (if a < 0.625 { small } else { big }).copysign(x)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<I: Isa>(x: f32) -> f32 {
    let e = exp_neg::<I>(-x.abs());
    let num = if x < 0.0 { e } else { 1.0 };
    num / (1.0 + e)
}

/// `x * sigmoid(y)` where `e` are the parts of `exp(-|y|)` and y has the sign of x.
#[inline(always)]
pub fn gate<I: Isa>(x: f32, e: Parts) -> f32 {
    let num = if x < 0.0 { e.times_small::<I>(x) } else { x };
    num / (1.0 + e.times_small::<I>(1.0))
}

/// The derivative of `x * sigmoid(y)`: `s + x dy s (1 - s)`.
#[inline(always)]
pub fn gate_grad<I: Isa>(x: f32, dy: f32, e: Parts) -> f32 {
    let e = e.times_small::<I>(1.0);
    let d = 1.0 / (1.0 + e);
    let ed = e * d;
    let (s, other) = if x < 0.0 { (ed, d) } else { (d, ed) };
    I::mul_add(x * dy * other, s, s)
}

/// The limit at minus infinity is 0.
#[inline(always)]
pub fn silu<I: Isa>(x: f32) -> f32 {
    let x = if x < -120.0 { -120.0 } else { x };
    let a = x.abs();
    gate::<I>(x, exp_parts::<I>(if a > 120.0 { -120.0 } else { -a }, 0.0))
}

#[inline(always)]
pub fn silu_grad<I: Isa>(x: f32) -> f32 {
    let x = clamp(x, -120.0, 120.0);
    gate_grad::<I>(x, 1.0, exp_parts::<I>(-x.abs(), 0.0))
}

#[inline(always)]
pub fn softplus<I: Isa>(x: f32) -> f32 {
    let relu = if x > 0.0 { x } else { 0.0 };
    relu + log1p::<I>(exp_neg::<I>(-x.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::isa::pick;
    use crate::simd::simd_level;

    #[test]
    fn a_share_is_the_exponential_or_nothing() {
        let both =
            pick!(simd_level(), fn(x: f32) -> (f32, f32) { (exp_share::<I>(x), exp_neg::<I>(x)) });
        for i in 0..=8700 {
            let (share, exp) = both(-0.01 * i as f32);
            assert!((share / exp - 1.0).abs() < 1e-6, "{i}: {share} {exp}");
        }
        for x in [-87.1, -90.0, -1e30, f32::NEG_INFINITY] {
            assert_eq!(both(x).0.to_bits(), 0, "{x}");
        }
        assert!(both(f32::NAN).0.is_nan());
    }
}
