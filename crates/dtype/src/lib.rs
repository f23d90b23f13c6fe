//! Element types: names, limits, promotion, rounding and casts.

mod cast;
mod element;
mod error;
mod float8;
mod minifloat;
mod names;
mod promote;
mod round;

pub use cast::{CastMode, cast_slice};
pub use element::Element;
pub use error::DTypeError;
pub use float8::{F8E4M3, F8E5M2};
pub use round::{round_f32, round_f32_slice, round_f64, round_stochastic_slice};

/// The element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// Boolean, one byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 32-bit integer: counters and random bits.
    U32,
    /// Signed 32-bit integer: the index type.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// OCP 8-bit float, 4 exponent and 3 mantissa bits, no infinities (`float8_e4m3fn`).
    F8E4M3,
    /// OCP 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5M2,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 11] = [
        DType::Bool,
        DType::U8,
        DType::U32,
        DType::I32,
        DType::I64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::F8E4M3 | DType::F8E5M2 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 | DType::F32 | DType::F64
        )
    }

    /// Whether this is an integer type; `Bool` is neither an integer nor a float.
    pub const fn is_int(self) -> bool {
        matches!(self, DType::U8 | DType::U32 | DType::I32 | DType::I64)
    }

    /// Whether this is one of the two 16-bit floats, `F16` or `BF16`.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// The largest finite value, as f64 (for `I64` that rounds up to 2^63).
    pub const fn max_finite(self) -> f64 {
        match self {
            DType::Bool => 1.0,
            DType::U8 => u8::MAX as f64,
            DType::U32 => u32::MAX as f64,
            DType::I32 => i32::MAX as f64,
            DType::I64 => i64::MAX as f64,
            DType::F8E4M3 => 448.0,
            DType::F8E5M2 => 57344.0,
            DType::F16 => 65504.0,
            DType::BF16 => 3.389_531_389_251_535_5e38,
            DType::F32 => f32::MAX as f64,
            DType::F64 => f64::MAX,
        }
    }

    /// The smallest positive normal value; 1 for integers and `Bool`.
    pub const fn smallest_normal(self) -> f64 {
        match self {
            DType::F8E4M3 => power_of_two(-6),
            DType::F8E5M2 | DType::F16 => power_of_two(-14),
            DType::BF16 | DType::F32 => power_of_two(-126),
            DType::F64 => f64::MIN_POSITIVE,
            _ => 1.0,
        }
    }

    /// The smallest positive value, `smallest_normal * epsilon`; 1 for integers and `Bool`.
    pub const fn smallest_subnormal(self) -> f64 {
        self.smallest_normal() * self.epsilon()
    }

    /// The distance from 1 to the next larger value; 1 for integers and `Bool`.
    pub const fn epsilon(self) -> f64 {
        match self {
            DType::F8E4M3 => power_of_two(-3),
            DType::F8E5M2 => power_of_two(-2),
            DType::F16 => power_of_two(-10),
            DType::BF16 => power_of_two(-7),
            DType::F32 => f32::EPSILON as f64,
            DType::F64 => f64::EPSILON,
            _ => 1.0,
        }
    }
}

/// 2^`exponent` as f64, for normal results.
const fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_kinds() {
        assert_eq!(DType::F8E4M3.size(), 1);
        assert_eq!(DType::BF16.size(), 2);
        assert_eq!(DType::F64.size(), 8);
        assert!(DType::ALL.windows(2).all(|w| w[0] < w[1]));
        for dtype in DType::ALL {
            assert_eq!(
                dtype.is_float() as u8 + dtype.is_int() as u8,
                (dtype != DType::Bool) as u8
            );
        }
        assert!(DType::F16.is_half() && DType::BF16.is_half() && !DType::F32.is_half());
    }

    /// Numbers printed by `ml_dtypes.finfo` and `numpy.finfo`.
    #[test]
    fn limits_match_ml_dtypes() {
        let expected = [
            (DType::F8E4M3, 448.0, 0.015625, 0.001953125, 0.125),
            (
                DType::F8E5M2,
                57344.0,
                6.103515625e-5,
                1.52587890625e-5,
                0.25,
            ),
            (
                DType::F16,
                65504.0,
                6.103515625e-5,
                5.960464477539063e-8,
                0.0009765625,
            ),
            (
                DType::BF16,
                3.3895313892515355e38,
                1.1754943508222875e-38,
                9.183549615799121e-41,
                0.0078125,
            ),
            (
                DType::F32,
                f32::MAX as f64,
                f32::MIN_POSITIVE as f64,
                f32::from_bits(1) as f64,
                f32::EPSILON as f64,
            ),
            (
                DType::F64,
                f64::MAX,
                f64::MIN_POSITIVE,
                f64::from_bits(1),
                f64::EPSILON,
            ),
        ];
        for (dtype, max, normal, subnormal, epsilon) in expected {
            assert_eq!(dtype.max_finite(), max, "{dtype}");
            assert_eq!(dtype.smallest_normal(), normal, "{dtype}");
            assert_eq!(dtype.smallest_subnormal(), subnormal, "{dtype}");
            assert_eq!(dtype.epsilon(), epsilon, "{dtype}");
        }
        assert_eq!(DType::I32.max_finite(), 2147483647.0);
        assert_eq!(DType::U8.epsilon(), 1.0);
    }
}
