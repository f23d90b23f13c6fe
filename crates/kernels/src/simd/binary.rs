//! Arithmetic of two values, and the fused multiply-add.
use super::isa::{map2, map3, pick};
use super::level::SimdLevel;
use super::ops::BinaryOp;
use super::pow;

/// `dst[i] = f(a[i], b[i])`; all have the same length.
pub type Binary<T> = fn(&mut [T], &[T], &[T]);
/// `dst[i] = f(a[i], b[i], c[i])`.
pub type Ternary<T> = fn(&mut [T], &[T], &[T], &[T]);

macro_rules! floats {
    ($name:ident, $at:ident, $t:ty, $pow:expr) => {
        /// The float instruction of `op`; all but `Pow` as IEEE 754 rounds them, `Pow` within 1 ulp.
        pub fn $name(op: BinaryOp) -> Binary<$t> {
            $at(super::simd_level(), op)
        }

        pub fn $at(level: SimdLevel, op: BinaryOp) -> Binary<$t> {
            macro_rules! each {
                ($f:expr) => {
                    pick!(level, fn(dst: &mut [$t], a: &[$t], b: &[$t]) { map2(dst, a, b, $f) })
                };
            }
            match op {
                BinaryOp::Add => each!(|x: $t, y: $t| x + y),
                BinaryOp::Sub => each!(|x: $t, y: $t| x - y),
                BinaryOp::Mul => each!(|x: $t, y: $t| x * y),
                BinaryOp::Div => each!(|x: $t, y: $t| x / y),
                // The comparison is false for NaN, so y passes if it is NaN, and x by the test.
                BinaryOp::Max => each!(|x: $t, y: $t| {
                    let m = if x > y { x } else { y };
                    if x.is_nan() { x } else { m }
                }),
                BinaryOp::Min => each!(|x: $t, y: $t| {
                    let m = if x < y { x } else { y };
                    if x.is_nan() { x } else { m }
                }),
                BinaryOp::Pow => each!($pow),
                BinaryOp::Rem => each!(|x: $t, y: $t| {
                    let r = x % y;
                    // Python: the sign of the divisor, also of a zero.
                    if r == 0.0 {
                        (0.0 as $t).copysign(y)
                    } else if (r < 0.0) != (y < 0.0) {
                        r + y
                    } else {
                        r
                    }
                }),
            }
        }
    };
}
floats!(binary_f32, binary_f32_at, f32, pow::pow::<I>);
floats!(binary_f64, binary_f64_at, f64, f64::powf);

macro_rules! integers {
    ($name:ident, $at:ident, $t:ty, $pow:expr) => {
        /// The integer instruction of `op`; nothing traps (see [`BinaryOp`]).
        pub fn $name(op: BinaryOp) -> Binary<$t> {
            $at(super::simd_level(), op)
        }

        pub fn $at(level: SimdLevel, op: BinaryOp) -> Binary<$t> {
            macro_rules! each {
                ($f:expr) => {
                    pick!(level, fn(dst: &mut [$t], a: &[$t], b: &[$t]) { map2(dst, a, b, $f) })
                };
            }
            match op {
                BinaryOp::Add => each!(<$t>::wrapping_add),
                BinaryOp::Sub => each!(<$t>::wrapping_sub),
                BinaryOp::Mul => each!(<$t>::wrapping_mul),
                BinaryOp::Div => each!(|x: $t, y: $t| if y == 0 { 0 } else { x.wrapping_div(y) }),
                BinaryOp::Max => each!(|x: $t, y: $t| x.max(y)),
                BinaryOp::Min => each!(|x: $t, y: $t| x.min(y)),
                BinaryOp::Pow => each!($pow),
                #[allow(unused_comparisons)]
                BinaryOp::Rem => each!(|x: $t, y: $t| {
                    let r = if y == 0 { 0 } else { x.wrapping_rem(y) };
                    if r != 0 && (r < 0) != (y < 0) { r.wrapping_add(y) } else { r }
                }),
            }
        }
    };
}
integers!(
    binary_i32,
    binary_i32_at,
    i32,
    |x: i32, y: i32| match (y, x) {
        (0.., _) => x.wrapping_pow(y as u32),
        (_, 1) => 1,
        (_, -1) => 1 - 2 * (y & 1),
        _ => 0,
    }
);
integers!(
    binary_i64,
    binary_i64_at,
    i64,
    |x: i64, y: i64| match (y, x) {
        (0.., _) => pow_i64(x, y as u64),
        (_, 1) => 1,
        (_, -1) => 1 - 2 * (y & 1),
        _ => 0,
    }
);
integers!(binary_u32, binary_u32_at, u32, u32::wrapping_pow);

/// Square and multiply for exponents beyond `u32`.
fn pow_i64(mut base: i64, mut exponent: u64) -> i64 {
    let mut result = 1i64;
    while exponent != 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    result
}

/// `a * b + c` with a single rounding.
pub fn mul_add_f32() -> Ternary<f32> {
    mul_add_f32_at(super::simd_level())
}

pub fn mul_add_f32_at(level: SimdLevel) -> Ternary<f32> {
    pick!(level, fn(dst: &mut [f32], a: &[f32], b: &[f32], c: &[f32]) {
        map3(dst, a, b, c, f32::mul_add)
    })
}

/// `a * b + c` with a single rounding, f64.
pub fn mul_add_f64() -> Ternary<f64> {
    pick!(super::simd_level(), fn(dst: &mut [f64], a: &[f64], b: &[f64], c: &[f64]) {
        map3(dst, a, b, c, f64::mul_add)
    })
}

#[cfg(test)]
#[path = "test_binary.rs"]
mod tests;
