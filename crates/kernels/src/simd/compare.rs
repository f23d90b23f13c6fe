//! Comparisons, booleans and selection. A boolean register holds 0 or 1 in each byte.
use super::isa::{map, map2, map3, pick};
use super::level::SimdLevel;
use super::ops::{CmpOp, LogicOp};

/// `dst[i] = a[i] op b[i]`.
pub type Compare<T> = fn(&mut [u8], &[T], &[T]);
/// `dst[i] = a[i] op b[i]` of booleans.
pub type Logic = fn(&mut [u8], &[u8], &[u8]);
/// `dst[i] = mask[i] ? a[i] : b[i]`.
pub type Select<T> = fn(&mut [T], &[u8], &[T], &[T]);
/// `dst[i] = p(a[i])`.
pub type Test<T> = fn(&mut [u8], &[T]);

/// A register type of the instruction set.
pub trait Register: Copy + Default + PartialEq + 'static {
    /// The comparison `op` for `level`.
    fn compare_at(level: SimdLevel, op: CmpOp) -> Compare<Self>;
    /// The selection for `level`.
    fn select_at(level: SimdLevel) -> Select<Self>;
}

macro_rules! register {
    ($($t:ty)*) => {$(
        impl Register for $t {
            fn compare_at(level: SimdLevel, op: CmpOp) -> Compare<$t> {
                macro_rules! each {
                    ($f:expr) => {
                        pick!(level, fn(dst: &mut [u8], a: &[$t], b: &[$t]) { map2(dst, a, b, $f) })
                    };
                }
                match op {
                    CmpOp::Eq => each!(|x: $t, y: $t| (x == y) as u8),
                    CmpOp::Ne => each!(|x: $t, y: $t| (x != y) as u8),
                    CmpOp::Lt => each!(|x: $t, y: $t| (x < y) as u8),
                    CmpOp::Le => each!(|x: $t, y: $t| (x <= y) as u8),
                    CmpOp::Gt => each!(|x: $t, y: $t| (x > y) as u8),
                    CmpOp::Ge => each!(|x: $t, y: $t| (x >= y) as u8),
                }
            }

            fn select_at(level: SimdLevel) -> Select<$t> {
                pick!(level, fn(dst: &mut [$t], mask: &[u8], a: &[$t], b: &[$t]) {
                    map3(dst, mask, a, b, |m: u8, x: $t, y: $t| if m != 0 { x } else { y })
                })
            }
        }
    )*};
}
register!(f32 f64 i32 i64 u32 u8);

/// The comparison `op` of a register type; for floats as IEEE 754 says (NaN differs from everything).
pub fn compare<T: Register>(op: CmpOp) -> Compare<T> {
    T::compare_at(super::simd_level(), op)
}

/// The selection of a register type: `a` where the mask is not 0, else `b`, bits unchanged.
pub fn select<T: Register>() -> Select<T> {
    T::select_at(super::simd_level())
}

/// The boolean function `op`.
pub fn logic(op: LogicOp) -> Logic {
    let level = super::simd_level();
    match op {
        LogicOp::And => pick!(level, fn(dst: &mut [u8], a: &[u8], b: &[u8]) {
            map2(dst, a, b, |x: u8, y: u8| x & y)
        }),
        LogicOp::Or => pick!(level, fn(dst: &mut [u8], a: &[u8], b: &[u8]) {
            map2(dst, a, b, |x: u8, y: u8| x | y)
        }),
        LogicOp::Xor => pick!(level, fn(dst: &mut [u8], a: &[u8], b: &[u8]) {
            map2(dst, a, b, |x: u8, y: u8| x ^ y)
        }),
    }
}

/// Boolean negation.
pub fn not() -> Test<u8> {
    pick!(super::simd_level(), fn(dst: &mut [u8], a: &[u8]) { map(dst, a, |x: u8| x ^ 1) })
}

/// The float registers that have the tests below.
pub trait Float: Register {
    /// [`is_finite`] for `level`.
    fn is_finite_at(level: SimdLevel) -> Test<Self>;
    /// [`is_nan`] for `level`.
    fn is_nan_at(level: SimdLevel) -> Test<Self>;
}

macro_rules! float {
    ($($t:ty)*) => {$(
        impl Float for $t {
            fn is_finite_at(level: SimdLevel) -> Test<$t> {
                pick!(level, fn(dst: &mut [u8], a: &[$t]) {
                    map(dst, a, |x: $t| x.is_finite() as u8)
                })
            }

            fn is_nan_at(level: SimdLevel) -> Test<$t> {
                pick!(level, fn(dst: &mut [u8], a: &[$t]) { map(dst, a, |x: $t| x.is_nan() as u8) })
            }
        }
    )*};
}
float!(f32 f64);

/// Neither infinite nor NaN.
pub fn is_finite<T: Float>() -> Test<T> {
    T::is_finite_at(super::simd_level())
}

/// Is NaN.
pub fn is_nan<T: Float>() -> Test<T> {
    T::is_nan_at(super::simd_level())
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f32; 6] = [1.0, f32::NAN, -0.0, f32::INFINITY, -3.0, 7.0];
    const Y: [f32; 6] = [2.0, f32::NAN, 0.0, f32::INFINITY, f32::NAN, -7.0];

    #[test]
    fn comparisons_treat_nan_as_ieee_says() {
        // Repeated, so that vector bodies and tails are both reached.
        let (a, b) = (X.repeat(33), Y.repeat(33));
        let wide = |v: &[f32]| v.iter().map(|&x| x as f64).collect::<Vec<_>>();
        let table = [
            (CmpOp::Eq, [0, 0, 1, 1, 0, 0]),
            (CmpOp::Ne, [1, 1, 0, 0, 1, 1]),
            (CmpOp::Lt, [1, 0, 0, 0, 0, 0]),
            (CmpOp::Le, [1, 0, 1, 1, 0, 0]),
            (CmpOp::Gt, [0, 0, 0, 0, 0, 1]),
            (CmpOp::Ge, [0, 0, 1, 1, 0, 1]),
        ];
        for &level in SimdLevel::available() {
            for (op, want) in table {
                let mut got = vec![9; a.len()];
                f32::compare_at(level, op)(&mut got, &a, &b);
                assert_eq!(got, want.repeat(33), "{level} {op:?}");
                f64::compare_at(level, op)(&mut got, &wide(&a), &wide(&b));
                assert_eq!(got, want.repeat(33), "{level} {op:?}");
            }
            let mut got = [9; 3];
            i64::compare_at(level, CmpOp::Lt)(&mut got, &[-1, 0, 1 << 40], &[0, 0, 1]);
            assert_eq!(got, [1, 0, 0]);
            u32::compare_at(level, CmpOp::Lt)(&mut got, &[u32::MAX, 0, 1], &[0, 1, 1]);
            assert_eq!(got, [0, 1, 0]);
        }
    }

    #[test]
    fn selection_and_tests() {
        let (a, b) = (X.repeat(11), Y.repeat(11));
        let mask: Vec<u8> = (0..a.len()).map(|i| (i % 3 == 0) as u8).collect();
        for &level in SimdLevel::available() {
            let mut got = vec![0.0; a.len()];
            f32::select_at(level)(&mut got, &mask, &a, &b);
            for i in 0..a.len() {
                let want = if mask[i] == 1 { a[i] } else { b[i] };
                assert_eq!(got[i].to_bits(), want.to_bits());
            }
            let mut t = vec![9; a.len()];
            f32::is_finite_at(level)(&mut t, &a);
            assert_eq!(t, [1, 0, 1, 0, 1, 1].repeat(11));
            f32::is_nan_at(level)(&mut t, &a);
            assert_eq!(t, [0, 1, 0, 0, 0, 0].repeat(11));
        }
    }

    #[test]
    fn booleans() {
        let (a, b) = ([0, 0, 1, 1].repeat(9), [0, 1, 0, 1].repeat(9));
        let mut got = vec![9; 36];
        for (op, want) in [
            (LogicOp::And, [0, 0, 0, 1]),
            (LogicOp::Or, [0, 1, 1, 1]),
            (LogicOp::Xor, [0, 1, 1, 0]),
        ] {
            logic(op)(&mut got, &a, &b);
            assert_eq!(got, want.repeat(9));
        }
        not()(&mut got, &a);
        assert_eq!(got, [1, 1, 0, 0].repeat(9));
    }
}
