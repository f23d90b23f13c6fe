//! The two OCP 8-bit floats.
//!
//! Source: "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0, 2023; conversions agree
//! with `ml_dtypes`.

use super::minifloat::{decode_table, encode};
use bytemuck::{Pod, Zeroable};
use std::cmp::Ordering;
use std::fmt;

macro_rules! float8 {
    ($(#[$doc:meta])* $name:ident, $overflow:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The value with these bits; all 256 patterns are valid.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// The bits of the value.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            #[doc = concat!("Rounds to nearest even; what is too large becomes ", $overflow, ". NaN stays NaN.")]
            #[inline]
            pub fn from_f32(value: f32) -> Self {
                encode::<Self, false>(value)
            }

            /// Rounds to nearest even; what is too large, infinities included, becomes the
            /// largest finite value of its sign. NaN stays NaN.
            #[inline]
            pub fn from_f32_saturating(value: f32) -> Self {
                encode::<Self, true>(value)
            }

            /// The exact value.
            #[inline]
            pub fn to_f32(self) -> f32 {
                static TABLE: [f32; 256] = decode_table::<$name>();
                TABLE[self.0 as usize]
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl From<$name> for f32 {
            fn from(value: $name) -> f32 {
                value.to_f32()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    };
}

float8!(
    /// 8-bit float with 4 exponent and 3 mantissa bits: up to ±448, NaN, no infinities (`float8_e4m3fn`).
    F8E4M3,
    "NaN"
);
float8!(
    /// 8-bit float with 5 exponent and 2 mantissa bits: up to ±57344, infinities and NaN (`float8_e5m2`).
    F8E5M2,
    "infinity"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_as_floats() {
        assert_eq!(F8E4M3::from_f32(0.0), F8E4M3::from_f32(-0.0));
        assert_ne!(F8E4M3::from_f32(f32::NAN), F8E4M3::from_f32(f32::NAN));
        assert!(F8E5M2::from_f32(-2.0) < F8E5M2::from_f32(1.0));
        assert_eq!(F8E4M3::from_f32(0.3).to_string(), "0.3125");
        assert_eq!(format!("{:?}", F8E5M2::from_f32(3.0)), "3.0");
    }

    #[test]
    fn overflow() {
        // 464 lies half-way between 448 and the 480 that the format lacks; 448 is even.
        assert_eq!(F8E4M3::from_f32(464.0).to_f32(), 448.0);
        assert!(F8E4M3::from_f32(464.1).to_f32().is_nan());
        assert!(F8E4M3::from_f32(f32::NEG_INFINITY).to_f32().is_nan());
        assert_eq!(
            F8E4M3::from_f32_saturating(f32::NEG_INFINITY).to_f32(),
            -448.0
        );
        assert_eq!(F8E4M3::from_f32_saturating(1e30).to_f32(), 448.0);
        assert!(F8E4M3::from_f32_saturating(f32::NAN).to_f32().is_nan());
        assert_eq!(F8E5M2::from_f32(61439.0).to_f32(), 57344.0);
        assert_eq!(F8E5M2::from_f32(61440.0).to_f32(), f32::INFINITY);
        assert_eq!(F8E5M2::from_f32_saturating(61440.0).to_f32(), 57344.0);
        assert_eq!(F8E5M2::from_f32_saturating(f32::INFINITY).to_f32(), 57344.0);
    }
}
