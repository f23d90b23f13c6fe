//! Reductions of a slice, in an order that depends on its length alone.
//!
//! Within a block of [`BLOCK`] elements, element i goes to lane `i % 32`; lanes then fold in halves (l with
//! l + 16, then l + 8, 4, 2, 1). Blocks combine in a [`Tree`]. Nothing is fused, so all instruction
//! sets give the same bits.
use super::isa::pick;
use super::level::SimdLevel;
use super::tree::Tree;

/// Elements reduced in lanes before the tree takes over.
pub const BLOCK: usize = 1024;
/// Partial results of a block.
pub const LANES: usize = 32;

/// What to reduce by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Integers wrap around. 0 if empty.
    Sum,
    /// 0 if empty.
    SumSquares,
    /// 1 if empty.
    Prod,
    /// NaN if any element is. The lowest value of the type (minus infinity) if empty.
    Max,
    /// NaN if any element is. The highest value of the type (infinity) if empty.
    Min,
}

/// A reduction of a slice of any length.
pub type Reduce<T> = fn(&[T]) -> T;

/// Folds the lanes of an accumulator.
#[inline(always)]
pub fn fold_lanes<T: Copy>(mut acc: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            acc[l] = f(acc[l], acc[l + width]);
        }
        width /= 2;
    }
    acc[0]
}

/// `f` over `map(x)` in lanes, for one block.
#[inline(always)]
pub fn block<A: Copy, T: Copy>(
    x: &[A],
    identity: T,
    map: impl Fn(A) -> T,
    f: impl Fn(T, T) -> T,
) -> T {
    let mut acc = [identity; LANES];
    let (body, tail) = x.as_chunks::<LANES>();
    for group in body {
        for l in 0..LANES {
            acc[l] = f(acc[l], map(group[l]));
        }
    }
    for (a, &v) in acc.iter_mut().zip(tail) {
        *a = f(*a, map(v));
    }
    fold_lanes(acc, f)
}

/// `f` over `map(x)`, blocks and tree.
#[inline(always)]
pub fn whole<A: Copy, T: Copy>(
    x: &[A],
    identity: T,
    map: impl Fn(A) -> T + Copy,
    f: impl Fn(T, T) -> T + Copy,
) -> T {
    let mut tree = Tree::new(identity, f);
    for part in x.chunks(BLOCK) {
        tree.push(block(part, identity, map, f));
    }
    tree.finish()
}

/// `f` over `map(x, y)`, blocks and tree; the slices have one length.
#[inline(always)]
pub fn whole2<A: Copy, B: Copy>(x: &[A], y: &[B], map: impl Fn(A, B) -> f32 + Copy) -> f32 {
    let mut tree = Tree::new(0.0, |a: f32, b: f32| a + b);
    for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
        let mut acc = [0.0f32; LANES];
        let ((xs, x_tail), (ys, y_tail)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
        for (xg, yg) in xs.iter().zip(ys) {
            for l in 0..LANES {
                acc[l] += map(xg[l], yg[l]);
            }
        }
        for ((a, &p), &q) in acc.iter_mut().zip(x_tail).zip(y_tail) {
            *a += map(p, q);
        }
        tree.push(fold_lanes(acc, |a, b| a + b));
    }
    tree.finish()
}

/// The larger; NaN if either is.
#[inline(always)]
pub fn max_f32(a: f32, b: f32) -> f32 {
    let m = if a > b { a } else { b };
    if a.is_nan() { a } else { m }
}

macro_rules! reductions {
    ($name:ident, $at:ident, $combine:ident, $argmax:ident, $argmin:ident, $t:ty, $low:expr, $high:expr,
     add $add:expr, mul $mul:expr, nan $nan:expr) => {
        /// The reduction of a slice by `op`.
        pub fn $name(op: ReduceOp) -> Reduce<$t> {
            $at(super::simd_level(), op)
        }

        #[allow(clippy::redundant_closure_call)]
        pub fn $at(level: SimdLevel, op: ReduceOp) -> Reduce<$t> {
            macro_rules! each {
                        ($identity:expr, $map:expr, $f:expr) => {
                            pick!(level, fn(x: &[$t]) -> $t { whole(x, $identity, $map, $f) })
                        };
                    }
            match op {
                ReduceOp::Sum => each!(0 as $t, |v: $t| v, $add),
                ReduceOp::SumSquares => each!(0 as $t, |v: $t| $mul(v, v), $add),
                ReduceOp::Prod => each!(1 as $t, |v: $t| v, $mul),
                ReduceOp::Max => each!($low, |v: $t| v, |a: $t, b: $t| {
                    let m = if a > b { a } else { b };
                    if $nan(a) { a } else { m }
                }),
                ReduceOp::Min => each!($high, |v: $t| v, |a: $t, b: $t| {
                    let m = if a < b { a } else { b };
                    if $nan(a) { a } else { m }
                }),
            }
        }

        /// Combines two results of `op`, for a [`Tree`] over separately reduced blocks.
        pub fn $combine(op: ReduceOp) -> fn($t, $t) -> $t {
            match op {
                ReduceOp::Sum | ReduceOp::SumSquares => $add,
                ReduceOp::Prod => $mul,
                ReduceOp::Max => |a, b| if $nan(a) || a > b { a } else { b },
                ReduceOp::Min => |a, b| if $nan(a) || a < b { a } else { b },
            }
        }

        /// The index of the first largest element, or of the first NaN; 0 if empty.
        pub fn $argmax(x: &[$t]) -> usize {
            let m = $name(ReduceOp::Max)(x);
            x.iter().position(|&v| v == m || $nan(v)).unwrap_or(0)
        }

        /// The index of the first smallest element, or of the first NaN; 0 if empty.
        pub fn $argmin(x: &[$t]) -> usize {
            let m = $name(ReduceOp::Min)(x);
            x.iter().position(|&v| v == m || $nan(v)).unwrap_or(0)
        }
    };
}
reductions!(reduce_f32, reduce_f32_at, combine_f32, argmax_f32, argmin_f32, f32, f32::NEG_INFINITY, f32::INFINITY,
    add |a: f32, b: f32| a + b, mul |a: f32, b: f32| a * b, nan f32::is_nan);
reductions!(reduce_f64, reduce_f64_at, combine_f64, argmax_f64, argmin_f64, f64, f64::NEG_INFINITY, f64::INFINITY,
    add |a: f64, b: f64| a + b, mul |a: f64, b: f64| a * b, nan f64::is_nan);
reductions!(reduce_i32, reduce_i32_at, combine_i32, argmax_i32, argmin_i32, i32, i32::MIN, i32::MAX,
    add i32::wrapping_add, mul i32::wrapping_mul, nan |_: i32| false);
reductions!(reduce_i64, reduce_i64_at, combine_i64, argmax_i64, argmin_i64, i64, i64::MIN, i64::MAX,
    add i64::wrapping_add, mul i64::wrapping_mul, nan |_: i64| false);

/// Whether all booleans are set; true if empty.
pub fn all(x: &[u8]) -> bool {
    pick!(super::simd_level(), fn(x: &[u8]) -> u8 {
        whole(x, 1, |v: u8| v, |a: u8, b: u8| a & b)
    })(x)
        != 0
}

/// Whether any boolean is set; false if empty.
pub fn any(x: &[u8]) -> bool {
    pick!(super::simd_level(), fn(x: &[u8]) -> u8 {
        whole(x, 0, |v: u8| v, |a: u8, b: u8| a | b)
    })(x)
        != 0
}

/// Whether no element is infinite or NaN; true if empty.
pub fn all_finite(x: &[f32]) -> bool {
    all_finite_at(super::simd_level())(x)
}

pub fn all_finite_at(level: SimdLevel) -> fn(&[f32]) -> bool {
    pick!(level, fn(x: &[f32]) -> bool {
        // The largest magnitude, as an integer: an exponent of all ones is the largest there is.
        whole(x, 0, |v: f32| v.to_bits() & 0x7fff_ffff, |a: u32, b: u32| a.max(b)) < 0x7f80_0000
    })
}

/// [`all_finite`] in f64.
pub fn all_finite_f64(x: &[f64]) -> bool {
    x.iter().all(|v| v.is_finite())
}

#[cfg(test)]
#[path = "test_reduce.rs"]
mod tests;
