//! Where the exponents of a tensor's elements lie, as data: the bins of `Composite::ExponentHistogram`, and what rounding to a dtype loses.
use crate::DType;

/// Bins of one sign: zero, the exponents from [`LOWEST_EXPONENT`] to 127, infinity, NaN.
pub const EXPONENT_BINS: usize = 280;

/// The exponent of the smallest number that f32 holds.
pub const LOWEST_EXPONENT: i32 = -149;

/// The bin of infinities; that of NaN comes after it, that of zero is 0.
pub const INFINITE_BIN: usize = EXPONENT_BINS - 2;

/// The bin of a number in f32.
pub const fn exponent_bin(x: f32) -> usize {
    let bits = x.to_bits() & 0x7fff_ffff;
    let exponent = (bits >> 23) as usize;
    match (exponent, bits & 0x7f_ffff) {
        (255, 0) => INFINITE_BIN,
        (255, _) => INFINITE_BIN + 1,
        (0, 0) => 0,
        // Bit i of a subnormal stands for 2^(i - 149).
        (0, mantissa) => 32 - mantissa.leading_zeros() as usize,
        (exponent, _) => exponent + 23,
    }
}

/// The exponent (the floor of the base 2 logarithm) that a bin stands for; `None` for zero, infinity and NaN.
pub const fn bin_exponent(bin: usize) -> Option<i32> {
    match bin {
        0 | INFINITE_BIN.. => None,
        bin => Some(bin as i32 - 1 + LOWEST_EXPONENT),
    }
}

/// Where rounding a number in f32 to a dtype, to the nearest and ties to even, loses it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RoundingLimits {
    /// Magnitudes up to this one become zero.
    pub zero_to: f32,
    /// Magnitudes below this one, and above `zero_to`, become subnormal.
    pub subnormal_below: f32,
    /// Magnitudes from this one on become infinite (NaN in F8E4M3, which has no infinity).
    pub overflow_from: f32,
}

impl RoundingLimits {
    /// The limits of a float dtype. F64 has those of F32, and so has what is no float.
    pub const fn of(dtype: DType) -> RoundingLimits {
        // The middle between two neighbours belongs to the one whose last mantissa bit is 0: zero below, the smallest normal number above.
        let (smallest, normal, overflow_from) = match dtype {
            // 464 lies between 448 and what would be 480; 448 is even.
            DType::F8E4M3 => (-9, -6, f32::from_bits(464f32.to_bits() + 1)),
            DType::F8E5M2 => (-16, -14, 61440.0),
            DType::F16 => (-24, -14, 65520.0),
            DType::BF16 => (-133, -126, 2.0 * (1.0 - 1.0 / 512.0) * power_of_two(127)),
            _ => {
                return RoundingLimits {
                    zero_to: 0.0,
                    subnormal_below: f32::MIN_POSITIVE,
                    overflow_from: f32::INFINITY,
                };
            }
        };
        let half = power_of_two(smallest - 1);
        RoundingLimits {
            zero_to: half,
            subnormal_below: power_of_two(normal) - half,
            overflow_from,
        }
    }
}

const fn power_of_two(exponent: i32) -> f32 {
    match exponent {
        -126.. => f32::from_bits(((exponent + 127) as u32) << 23),
        _ => f32::from_bits(1 << (exponent + 149)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CastMode, cast_slice};

    #[test]
    fn bins_are_floors_of_logarithms() {
        for e in -149..=127 {
            let low = 2f64.powi(e) as f32;
            let high = (2f64.powi(e + 1) as f32).next_down();
            for x in [low, high, -low, -high] {
                assert_eq!(bin_exponent(exponent_bin(x)), Some(e), "{x:e}");
            }
        }
        assert_eq!((exponent_bin(0.0), exponent_bin(-0.0)), (0, 0));
        assert_eq!(exponent_bin(f32::NEG_INFINITY), INFINITE_BIN);
        assert_eq!(exponent_bin(f32::NAN), INFINITE_BIN + 1);
        assert_eq!(bin_exponent(INFINITE_BIN), None);
    }

    /// The limits are where the casts of this crate, tested against ml_dtypes, change what they give.
    #[test]
    fn limits_are_those_of_the_casts() {
        for dtype in [DType::F8E4M3, DType::F8E5M2, DType::F16, DType::BF16] {
            let l = RoundingLimits::of(dtype);
            let round = |x: f32| {
                let (mut low, mut wide) = ([0u8; 2], [0u8; 4]);
                let low = &mut low[..dtype.size()];
                let mode = CastMode::default();
                cast_slice(&x.to_ne_bytes(), DType::F32, low, dtype, mode).unwrap();
                cast_slice(low, dtype, &mut wide, DType::F32, mode).unwrap();
                f32::from_ne_bytes(wide)
            };
            assert_eq!(round(l.zero_to), 0.0, "{dtype}");
            assert!(round(l.zero_to.next_up()) > 0.0, "{dtype}");
            let normal = dtype.smallest_normal() as f32;
            assert!(round(l.subnormal_below.next_down()) < normal, "{dtype}");
            assert_eq!(round(l.subnormal_below), normal, "{dtype}");
            assert!(round(l.overflow_from.next_down()).is_finite(), "{dtype}");
            assert!(!round(l.overflow_from).is_finite(), "{dtype}");
        }
    }
}
