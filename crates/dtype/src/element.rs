//! Rust types that are tensor elements.

use super::minifloat::{decode, encode, f64_to_f32_odd, i64_to_f64_odd};
use super::{DType, DTypeError, F8E4M3, F8E5M2};
use bytemuck::{NoUninit, Pod};
use half::{bf16, f16};
use std::fmt::Debug;

/// A Rust type that can be an element of a tensor: one per [`DType`].
///
/// Sealed: `bool`, `u8`, `u32`, `i32`, `i64`, [`F8E4M3`], [`F8E5M2`], `half::f16`, `half::bf16`,
/// `f32` and `f64` implement it.
#[allow(private_bounds)]
pub trait Element:
    Scalar + NoUninit + PartialEq + PartialOrd + Default + Debug + Send + Sync + 'static
{
    /// The element type that stands for this Rust type at run time.
    const DTYPE: DType;

    /// The value as f64: exact, except that an `i64` beyond 2^53 rounds.
    fn to_f64(self) -> f64;

    /// The nearest value, by the rules of [`cast_slice`](super::cast_slice) without saturation.
    ///
    /// On the two `half` types plain `f16::from_f64` is that crate's own function, which may round
    /// twice; write `<f16 as Element>::from_f64`.
    fn from_f64(value: f64) -> Self;

    /// The bytes of `values` in native order; a `bool` is one byte, 0 or 1.
    fn as_bytes(values: &[Self]) -> &[u8] {
        bytemuck::cast_slice(values)
    }

    /// Reads values back from bytes of any alignment; any byte but 0 is a true `bool`.
    ///
    /// Fails if the length is no multiple of the element size.
    fn vec_from_bytes(bytes: &[u8]) -> Result<Vec<Self>, DTypeError> {
        let size = Self::DTYPE.size();
        if !bytes.len().is_multiple_of(size) {
            return Err(DTypeError::Length {
                dtype: Self::DTYPE,
                found: bytes.len(),
                expected: None,
            });
        }
        Ok(bytes.chunks_exact(size).map(Self::load).collect())
    }
}

/// Loading, storing and converting, the private half of [`Element`].
///
/// A value is first widened without loss to one of four carriers, then narrowed to its target with
/// one rounding; so 11 x 11 casts need 11 widenings and 4 x 11 narrowings.
pub(super) trait Scalar: Copy {
    /// Plain bytes of the same size: any bit pattern is valid.
    type Storage: Pod;
    /// `i32`, `i64`, `f32` or `f64`, the smallest that holds every value.
    type Wide: Wide;

    fn from_storage(storage: Self::Storage) -> Self;
    fn into_storage(self) -> Self::Storage;
    fn widen(self) -> Self::Wide;

    fn narrow_i32<const SATURATE: bool>(value: i32) -> Self;
    fn narrow_i64<const SATURATE: bool>(value: i64) -> Self;
    fn narrow_f32<const SATURATE: bool>(value: f32) -> Self;
    fn narrow_f64<const SATURATE: bool>(value: f64) -> Self;

    /// Reads the value from exactly as many bytes as it has.
    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        Self::from_storage(bytemuck::pod_read_unaligned(bytes))
    }
    /// Writes the value to exactly as many bytes as it has.
    #[inline(always)]
    fn store(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(bytemuck::bytes_of(&self.into_storage()));
    }
}

/// A carrier type of casts.
pub(super) trait Wide: Copy {
    fn narrow<T: Scalar, const SATURATE: bool>(self) -> T;
}

macro_rules! wide {
    ($($type:ty, $narrow:ident;)*) => {$(
        impl Wide for $type {
            #[inline(always)]
            fn narrow<T: Scalar, const SATURATE: bool>(self) -> T {
                T::$narrow::<SATURATE>(self)
            }
        }
    )*};
}
wide!(i32, narrow_i32; i64, narrow_i64; f32, narrow_f32; f64, narrow_f64;);

/// Implements both traits. `narrow` lists the conversions from the four carriers;
/// `SATURATE` names the mode inside them.
macro_rules! element {
    ($type:ty, $dtype:ident, $storage:ty => $load:expr, $store:expr, $wide:ty => $widen:expr,
     narrow $mode:ident $i32:expr, $i64:expr, $f32:expr, $f64:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline]
            fn to_f64(self) -> f64 {
                self.widen() as f64
            }
            #[inline]
            fn from_f64(value: f64) -> Self {
                Self::narrow_f64::<false>(value)
            }
        }

        impl Scalar for $type {
            type Storage = $storage;
            type Wide = $wide;

            #[inline(always)]
            fn from_storage(storage: $storage) -> Self {
                $load(storage)
            }
            #[inline(always)]
            fn into_storage(self) -> $storage {
                $store(self)
            }
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow_i32<const $mode: bool>(value: i32) -> Self {
                $i32(value)
            }
            #[inline(always)]
            fn narrow_i64<const $mode: bool>(value: i64) -> Self {
                $i64(value)
            }
            #[inline(always)]
            fn narrow_f32<const $mode: bool>(value: f32) -> Self {
                $f32(value)
            }
            #[inline(always)]
            fn narrow_f64<const $mode: bool>(value: f64) -> Self {
                $f64(value)
            }
        }
    };
}

/// Types for which Rust's `as` already has the rules of a cast: integers truncate and saturate
/// from floats (NaN gives 0) and wrap from integers, `f32` and `f64` round once to nearest even.
macro_rules! native {
    ($($type:ty, $dtype:ident, $wide:ty;)*) => {$(
        element!($type, $dtype, $type => |v| v, |v| v, $wide => |v: $type| v as $wide,
            narrow S |v| v as $type, |v| v as $type, |v| v as $type, |v| v as $type);
    )*};
}
native!(u8, U8, i32; u32, U32, i64; i32, I32, i32; i64, I64, i64; f32, F32, f32; f64, F64, f64;);

element!(bool, Bool, u8 => |v| v != 0, |v| v as u8, i32 => |v| v as i32,
    narrow S |v| v != 0, |v| v != 0, |v| v != 0.0, |v| v != 0.0);

macro_rules! mini {
    ($($type:ty, $dtype:ident, $widen:expr;)*) => {$(
        element!($type, $dtype, $type => |v| v, |v| v, f32 => $widen,
            narrow S
            |v| encode::<$type, S>(f64_to_f32_odd(v as f64)),
            |v| encode::<$type, S>(f64_to_f32_odd(i64_to_f64_odd(v))),
            encode::<$type, S>,
            |v| encode::<$type, S>(f64_to_f32_odd(v)));
    )*};
}
mini!(
    F8E4M3, F8E4M3, F8E4M3::to_f32;
    F8E5M2, F8E5M2, F8E5M2::to_f32;
    f16, F16, decode::<f16>;
    bf16, BF16, decode::<bf16>;
);
