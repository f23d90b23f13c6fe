//! The one description of the 8- and 16-bit floats, and exact conversions from and to f32.
//!
//! Everything here is branch-free, so that the compiler vectorises the loops built on it.
//!
//! f64 and i64 sources reach a narrow float through f32 *rounded to odd*: truncated, with the last
//! bit set if anything was cut off. A value so rounded keeps its side of every rounding boundary of
//! a format at least two bits narrower, so that the second rounding is the only one that counts
//! (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
//! rounding to odd", 2008).

use half::{bf16, f16};

/// Layout of a binary float narrower than f32.
pub(super) trait MiniFloat: Copy {
    /// Mantissa bits without the hidden one.
    const MANTISSA: u32;
    /// Exponent bias.
    const BIAS: u32;
    /// Position of the sign bit.
    const SIGN: u32;
    /// Magnitude bits of the largest finite value.
    const MAX: u32;
    /// Magnitude bits of what is too large: infinity, or NaN in a format without one.
    const OVERFLOW: u32;
    /// Magnitude bits of the quiet NaN.
    const NAN: u32;
    /// Mantissa bits kept from an f32 NaN (16-bit hardware conversions keep them; ml_dtypes' 8-bit ones do not).
    const NAN_PAYLOAD: u32;

    /// The value with these bits.
    fn from_raw(bits: u32) -> Self;
    /// The bits of this value.
    fn raw(self) -> u32;
}

macro_rules! minifloat {
    ($type:ty, $bits:ty, mantissa $m:literal, bias $bias:literal, max $max:literal,
     overflow $overflow:literal, nan $nan:literal, payload $payload:literal) => {
        impl MiniFloat for $type {
            const MANTISSA: u32 = $m;
            const BIAS: u32 = $bias;
            const SIGN: u32 = <$bits>::BITS - 1;
            const MAX: u32 = $max;
            const OVERFLOW: u32 = $overflow;
            const NAN: u32 = $nan;
            const NAN_PAYLOAD: u32 = $payload;

            #[inline(always)]
            fn from_raw(bits: u32) -> Self {
                Self::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn raw(self) -> u32 {
                self.to_bits() as u32
            }
        }
    };
}

minifloat!(super::F8E4M3, u8, mantissa 3, bias 7, max 0x7e, overflow 0x7f, nan 0x7f, payload 0);
minifloat!(super::F8E5M2, u8, mantissa 2, bias 15, max 0x7b, overflow 0x7c, nan 0x7e, payload 0);
minifloat!(f16, u16, mantissa 10, bias 15, max 0x7bff, overflow 0x7c00, nan 0x7e00, payload 0x3ff);
minifloat!(bf16, u16, mantissa 7, bias 127, max 0x7f7f, overflow 0x7f80, nan 0x7fc0, payload 0x7f);

const F32_INFINITY: u32 = 0x7f80_0000;
const F32_NAN: u32 = 0x7fc0_0000;

/// Whether the exponent range is not that of f32. With the range of f32 (bfloat16) subnormals round
/// like normals, and what is too large carries into the infinity by itself.
const fn has_own_exponents<F: MiniFloat>() -> bool {
    F::BIAS != 127
}

/// Mantissa bits of f32 that the format lacks.
const fn dropped<F: MiniFloat>() -> u32 {
    23 - F::MANTISSA
}

/// f32 bits of the smallest normal value of the format.
const fn smallest_normal<F: MiniFloat>() -> u32 {
    (128 - F::BIAS) << 23
}

/// f32 bits of the power of two whose f32 spacing is the subnormal spacing of the format: adding it
/// makes the adder round a subnormal, to nearest even.
const fn subnormal_magic<F: MiniFloat>() -> u32 {
    smallest_normal::<F>() + (dropped::<F>() << 23)
}

/// The f32 magnitude `bits` rounded to the mantissa of the format, exponent unbounded; of a NaN,
/// nothing of use.
#[inline(always)]
const fn round_mantissa<F: MiniFloat>(bits: u32) -> u32 {
    let drop = dropped::<F>();
    let even = (bits >> drop) & 1;
    (bits + ((1 << (drop - 1)) - 1) + even) & !((1 << drop) - 1)
}

/// `if condition { a } else { b }` in one line.
#[inline(always)]
const fn select(condition: bool, a: u32, b: u32) -> u32 {
    if condition { a } else { b }
}

/// `a > b` for magnitudes. Signed, because vector units without AVX-512 compare only so.
#[inline(always)]
const fn above(a: u32, b: u32) -> bool {
    a as i32 > b as i32
}

/// f32 bits of the largest finite value of the format.
const fn max_as_f32<F: MiniFloat>() -> u32 {
    (F::MAX << dropped::<F>()) + ((127 - F::BIAS) << 23)
}

/// Rounds f32 to the format, to nearest even, once.
///
/// Too large a value becomes infinity (NaN where the format has none), or the largest finite one of
/// its sign if `SATURATE`. NaN stays NaN.
#[inline(always)]
pub(super) fn encode<F: MiniFloat, const SATURATE: bool>(value: f32) -> F {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 31) << F::SIGN;

    let rounded = round_mantissa::<F>(magnitude);
    let normal = rounded.wrapping_sub((127 - F::BIAS) << 23) >> dropped::<F>();
    let mut out = normal;
    if has_own_exponents::<F>() {
        let magic = subnormal_magic::<F>();
        let units = (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits();
        let subnormal = units.wrapping_sub(magic);
        out = select(above(smallest_normal::<F>(), magnitude), subnormal, out);
    }
    if SATURATE || has_own_exponents::<F>() {
        let overflow = if SATURATE { F::MAX } else { F::OVERFLOW };
        out = select(above(rounded, max_as_f32::<F>()), overflow, out);
    }
    let nan = F::NAN | ((magnitude >> dropped::<F>()) & F::NAN_PAYLOAD);
    out = select(above(magnitude, F32_INFINITY), nan, out);
    F::from_raw(sign | out)
}

/// [`encode`] followed by [`decode`], without leaving f32; NaN keeps its payload.
#[inline(always)]
pub(super) fn round<F: MiniFloat, const SATURATE: bool>(value: f32) -> f32 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = bits & 0x8000_0000;

    let mut out = round_mantissa::<F>(magnitude);
    if has_own_exponents::<F>() {
        let magic = f32::from_bits(subnormal_magic::<F>());
        let subnormal = ((f32::from_bits(magnitude) + magic) - magic).to_bits();
        out = select(above(smallest_normal::<F>(), magnitude), subnormal, out);
    }
    if SATURATE || has_own_exponents::<F>() {
        let max = max_as_f32::<F>();
        let infinity = select(F::OVERFLOW == F::NAN, F32_NAN, F32_INFINITY);
        let overflow = if SATURATE { max } else { infinity };
        out = select(above(out, max), overflow, out);
    }
    let nan = magnitude | F32_NAN;
    out = select(above(magnitude, F32_INFINITY), nan, out);
    f32::from_bits(sign | out)
}

/// The exact value of the bits `raw` of the format.
pub(super) const fn decode_raw<F: MiniFloat>(raw: u32) -> f32 {
    let magnitude = raw & ((1 << F::SIGN) - 1);
    let sign = (raw >> F::SIGN) << 31;
    if !has_own_exponents::<F>() {
        return f32::from_bits(sign | (magnitude << dropped::<F>()));
    }
    let normal = (magnitude << dropped::<F>()) + ((127 - F::BIAS) << 23);
    // Counted in units of the smallest subnormal, so that no f32 subnormal takes part.
    let unit = f32::from_bits(smallest_normal::<F>() - (F::MANTISSA << 23));
    let subnormal = (magnitude as f32 * unit).to_bits();
    let mut out = select(magnitude < 1 << F::MANTISSA, subnormal, normal);

    let is_nan = magnitude > F::OVERFLOW || F::OVERFLOW == F::NAN;
    let payload = (magnitude & F::NAN_PAYLOAD) << dropped::<F>();
    let special = select(is_nan, F32_NAN | payload, F32_INFINITY);
    out = select(magnitude > F::MAX, special, out);
    f32::from_bits(sign | out)
}

/// The exact value of a 16-bit float; for the 8-bit ones a table is faster.
#[inline(always)]
pub(super) fn decode<F: MiniFloat>(value: F) -> f32 {
    decode_raw::<F>(value.raw())
}

/// All 256 values of an 8-bit format.
pub(super) const fn decode_table<F: MiniFloat>() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = decode_raw::<F>(i as u32);
        i += 1;
    }
    table
}

/// One of the two values of the format around `value`: the one farther from 0 if `noise` (in [0, 1)) is smaller than how far `value` has come from the
/// other to it. A finite value stays finite.
#[inline(always)]
pub(super) fn round_stochastic<F: MiniFloat>(value: f32, noise: f32) -> f32 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    if !above(F32_INFINITY, magnitude) {
        return round::<F, false>(value);
    }
    let out = if has_own_exponents::<F>() {
        // The distance between neighbours here, and how many of them fit: exact, as powers of two are.
        let exponent = (magnitude & F32_INFINITY).max(smallest_normal::<F>());
        let unit = exponent - (F::MANTISSA << 23);
        let steps = f32::from_bits(magnitude) * f32::from_bits((254 << 23) - unit);
        let low = steps as i32 as f32;
        let up = (noise < steps - low) as i32 as f32;
        ((low + up) * f32::from_bits(unit)).to_bits()
    } else {
        let drop = dropped::<F>();
        let rest = magnitude & ((1 << drop) - 1);
        let up = noise < rest as f32 / (1u32 << drop) as f32;
        magnitude - rest + ((up as u32) << drop)
    };
    f32::from_bits(bits & 0x8000_0000 | out.min(max_as_f32::<F>()))
}

/// f64 rounded to odd in f32; NaN, infinities and exact values are themselves.
#[inline(always)]
pub(super) fn f64_to_f32_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = nearest as f64;
    let bits = nearest.to_bits();
    // Of the two f32 around an inexact value one is odd. If the nearest is even, the other one
    // lies on the far side of the value (below infinity that is f32::MAX).
    let step = if back.abs() < value.abs() {
        1
    } else {
        u32::MAX
    };
    let other = bits.wrapping_add(step);
    let keep = back == value || value.is_nan() || bits & 1 == 1;
    f32::from_bits(if keep { bits } else { other })
}

/// i64 rounded to odd at no fewer than 42 bits, as f64.
#[inline(always)]
pub(super) fn i64_to_f64_odd(value: i64) -> f64 {
    const LOW: i64 = 0x7ff;
    let sticky = (value & !LOW) | (((value & LOW != 0) as i64) << 11);
    let exact = value.unsigned_abs() < 1 << 53;
    (if exact { value } else { sticky }) as f64
}
