//! Casts between register types.
use super::isa::{map, pick};
use super::level::SimdLevel;

/// `dst[i] = src[i]` in another type.
pub type Cast<S, D> = fn(&mut [D], &[S]);

/// A value of one register type that can become `D`.
pub trait CastTo<D>: Sized {
    /// The cast for `level`.
    fn cast_at(level: SimdLevel) -> Cast<Self, D>;
}

/// The cast from `S` to `D`.
///
/// Float to integer truncates towards zero, saturates, and turns NaN into 0; between integers the low bits
/// stay; to float rounds to nearest even. Booleans are `u8`: anything but 0 becomes 1 (NaN too).
pub fn cast<S: CastTo<D>, D>() -> Cast<S, D> {
    S::cast_at(super::simd_level())
}

macro_rules! casts {
    ($($s:ty => $($d:ty)*;)*) => {$($(
        impl CastTo<$d> for $s {
            fn cast_at(level: SimdLevel) -> Cast<$s, $d> {
                pick!(level, fn(dst: &mut [$d], src: &[$s]) { map(dst, src, |x: $s| x as $d) })
            }
        }
    )*)*};
}
casts! {
    f32 => f64 i64 u32;
    f64 => f32 i32 i64 u32;
    i32 => f32 f64 i64 u32;
    i64 => f32 f64 i32 u32;
    u32 => f32 f64 i32 i64;
    u8 => f32 f64 i32 i64 u32;
}

impl CastTo<i32> for f32 {
    fn cast_at(level: SimdLevel) -> Cast<f32, i32> {
        pick!(level, fn(dst: &mut [i32], src: &[f32]) { map(dst, src, truncate) })
    }
}

/// `x as i32` in a form that LLVM vectorises.
#[inline(always)]
fn truncate(x: f32) -> i32 {
    const LIMIT: f32 = 2_147_483_648.0;
    let y = if x >= -LIMIT { x } else { -LIMIT };
    let y = if y < LIMIT { y } else { 0.0 };
    // SAFETY: NaN became -LIMIT, so y is a number in [-2^31, 2^31).
    let i: i32 = unsafe { y.to_int_unchecked() };
    let i = if x >= LIMIT { i32::MAX } else { i };
    if x.is_nan() { 0 } else { i }
}

macro_rules! to_bool {
    ($($s:ty)*) => {$(
        impl CastTo<u8> for $s {
            fn cast_at(level: SimdLevel) -> Cast<$s, u8> {
                pick!(level, fn(dst: &mut [u8], src: &[$s]) {
                    map(dst, src, |x: $s| (x != <$s>::default()) as u8)
                })
            }
        }
    )*};
}
to_bool!(f32 f64 i32 i64 u32);

#[cfg(test)]
mod tests {
    use super::*;

    fn check<S: CastTo<D> + Copy, D: Copy + Default + PartialEq + std::fmt::Debug>(
        src: &[S],
        want: &[D],
    ) {
        let (src, want) = (src.repeat(21), want.repeat(21));
        for &level in SimdLevel::available() {
            let mut got = vec![D::default(); src.len()];
            S::cast_at(level)(&mut got, &src);
            assert_eq!(got, want, "{level}");
        }
    }

    #[test]
    fn float_to_integer_truncates_and_saturates() {
        let x = [-1.9f32, 1.9, 3e9, -3e9, 1e20, f32::NAN, f32::INFINITY];
        check(&x, &[-1, 1, i32::MAX, i32::MIN, i32::MAX, 0, i32::MAX]);
        check(
            &x,
            &[
                -1,
                1,
                3_000_000_000i64,
                -3_000_000_000,
                i64::MAX,
                0,
                i64::MAX,
            ],
        );
        check(&x, &[0, 1, 3_000_000_000u32, 0, u32::MAX, 0, u32::MAX]);
        check(&[-2.5f64, f64::NAN, 1e300], &[-2, 0, i64::MAX]);
        check(&[-2.5f64, f64::NAN, 1e300], &[-2, 0, i32::MAX]);
        check(&[-2.5f64, f64::NAN, 1e300], &[0, 0, u32::MAX]);
    }

    #[test]
    fn the_rest() {
        check(&[16_777_217i32, -1], &[16_777_216.0f32, -1.0]);
        check(&[u32::MAX, 16_777_219], &[4_294_967_296.0f32, 16_777_220.0]);
        check(&[(1i64 << 53) + 1], &[(1i64 << 53) as f64]);
        check(&[(1i64 << 40) + 5, -1], &[5i32, -1]);
        check(&[-1i32], &[u32::MAX]);
        check(&[-1i32], &[-1i64]);
        check(&[u32::MAX], &[4_294_967_295i64]);
        check(&[1e300f64, 0.1], &[f32::INFINITY, 0.1]);
        check(&[0u8, 1], &[0.0f32, 1.0]);
        check(&[0.0f32, -0.0, f32::NAN, 1e-45], &[0u8, 0, 1, 1]);
        check(&[0i64, 1 << 40], &[0u8, 1]);
    }
}
