//! How values combine: typed loops in a fixed order.
use crate::exec::view::Arg;
use bimetal_kernels::simd::isa::pick;
use bimetal_kernels::simd::{self, simd_level};
use bimetal_tensor::DType;
use bimetal_tensor::graph::ReduceOp;

/// Independent partial results of a run: enough for the widest vector register.
pub(super) const LANES: usize = 32;

/// An accumulator's type.
pub(crate) trait Fold: Copy + Send + Sync + 'static {
    const ZERO: Self;
    fn identity(op: ReduceOp) -> Self;
    fn sum(a: Self, b: Self) -> Self;
    fn product(a: Self, b: Self) -> Self;
    fn largest(a: Self, b: Self) -> Self;
    fn smallest(a: Self, b: Self) -> Self;
    fn divided(self, n: usize) -> Self;
    /// [`run`] on the vector registers of this machine, where the type has them.
    fn run(op: ReduceOp, v: &[Self]) -> Self {
        run_plain(op, v)
    }
    /// [`lane_rows`] likewise.
    fn lane_rows(
        op: ReduceOp,
        lanes: &mut [Self],
        width: usize,
        first: usize,
        v: &[Self],
        pitch: usize,
    ) {
        lane_rows_plain(op, lanes, width, first, v, pitch);
    }
}

macro_rules! float {
    ($t:ty) => {
        impl Fold for $t {
            const ZERO: $t = 0.0;
            fn identity(op: ReduceOp) -> $t {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => 0.0,
                    ReduceOp::Prod => 1.0,
                    ReduceOp::Max => <$t>::NEG_INFINITY,
                    ReduceOp::Min => <$t>::INFINITY,
                }
            }
            #[inline(always)]
            fn sum(a: $t, b: $t) -> $t {
                a + b
            }
            #[inline(always)]
            fn product(a: $t, b: $t) -> $t {
                a * b
            }
            #[inline(always)]
            fn largest(a: $t, b: $t) -> $t {
                // NaN wins, as `b` because it compares as nothing, as `a` because it differs from itself.
                if a >= b || a != a { a } else { b }
            }
            #[inline(always)]
            fn smallest(a: $t, b: $t) -> $t {
                if a <= b || a != a { a } else { b }
            }
            fn divided(self, n: usize) -> $t {
                self / n as $t
            }
            fn run(op: ReduceOp, v: &[$t]) -> $t {
                pick!(simd_level(), fn(op: ReduceOp, v: &[$t]) -> $t { run_plain(op, v) })(op, v)
            }
            fn lane_rows(
                op: ReduceOp,
                lanes: &mut [$t],
                width: usize,
                first: usize,
                v: &[$t],
                pitch: usize,
            ) {
                pick!(
                    simd_level(),
                    fn(
                        op: ReduceOp, lanes: &mut [$t], width: usize, first: usize, v: &[$t], pitch: usize,
                    ) {
                        lane_rows_plain(op, lanes, width, first, v, pitch)
                    }
                )(op, lanes, width, first, v, pitch)
            }
        }
    };
}
float!(f32);
float!(f64);

macro_rules! int {
    ($t:ty) => {
        impl Fold for $t {
            const ZERO: $t = 0;
            fn identity(op: ReduceOp) -> $t {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => 0,
                    ReduceOp::Prod => 1,
                    ReduceOp::Max => <$t>::MIN,
                    ReduceOp::Min => <$t>::MAX,
                }
            }
            #[inline(always)]
            fn sum(a: $t, b: $t) -> $t {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn product(a: $t, b: $t) -> $t {
                a.wrapping_mul(b)
            }
            #[inline(always)]
            fn largest(a: $t, b: $t) -> $t {
                a.max(b)
            }
            #[inline(always)]
            fn smallest(a: $t, b: $t) -> $t {
                a.min(b)
            }
            fn divided(self, n: usize) -> $t {
                if n == 0 { 0 } else { self / n as $t }
            }
        }
    };
}
int!(i32);
int!(i64);
int!(u32);

/// A Bool: any for sum and max, all for product and min.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
#[repr(transparent)]
pub(crate) struct Flag(u8);

impl Fold for Flag {
    const ZERO: Flag = Flag(0);
    fn identity(op: ReduceOp) -> Flag {
        Flag(matches!(op, ReduceOp::Prod | ReduceOp::Min) as u8)
    }
    #[inline(always)]
    fn sum(a: Flag, b: Flag) -> Flag {
        Flag(a.0 | b.0)
    }
    #[inline(always)]
    fn product(a: Flag, b: Flag) -> Flag {
        Flag(a.0 & b.0)
    }
    #[inline(always)]
    fn largest(a: Flag, b: Flag) -> Flag {
        Flag(a.0 | b.0)
    }
    #[inline(always)]
    fn smallest(a: Flag, b: Flag) -> Flag {
        Flag(a.0 & b.0)
    }
    fn divided(self, _: usize) -> Flag {
        self
    }
}

/// Calls `$f::<T>($args)` with the Rust type of accumulator dtype `$ty`.
macro_rules! by_type {
    ($ty:expr, $f:ident ( $($arg:expr),* $(,)? )) => {
        match $ty {
            DType::F32 => $f::<f32>($($arg),*),
            DType::F64 => $f::<f64>($($arg),*),
            DType::I32 => $f::<i32>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            DType::U32 => $f::<u32>($($arg),*),
            _ => $f::<$crate::exec::reduce::fold::Flag>($($arg),*),
        }
    };
}
pub(crate) use by_type;

/// Whether accumulators of this dtype exist.
pub(crate) fn is_accumulator(ty: DType) -> bool {
    matches!(
        ty,
        DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::Bool
    )
}

/// Combines two accumulators.
#[inline(always)]
fn combine<T: Fold>(op: ReduceOp, a: T, b: T) -> T {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => T::sum(a, b),
        ReduceOp::Prod => T::product(a, b),
        ReduceOp::Max => T::largest(a, b),
        ReduceOp::Min => T::smallest(a, b),
    }
}

/// Combines all values as a tree of neighbours.
pub(crate) fn tree<T: Fold>(op: ReduceOp, v: &mut [T]) -> T {
    let n = v.len();
    let mut s = 1;
    while s < n {
        for i in (0..n - s).step_by(2 * s) {
            v[i] = combine(op, v[i], v[i + s]);
        }
        s *= 2;
    }
    v.first().copied().unwrap_or_else(|| T::identity(op))
}

#[inline(always)]
fn lanes<T: Fold>(v: &[T], start: T, f: impl Fn(T, T) -> T) -> T {
    let mut acc = [start; LANES];
    let (whole, rest) = v.as_chunks::<LANES>();
    for c in whole {
        for i in 0..LANES {
            acc[i] = f(acc[i], c[i]);
        }
    }
    for (a, x) in acc.iter_mut().zip(rest) {
        *a = f(*a, *x);
    }
    let mut s = LANES / 2;
    while s > 0 {
        for i in 0..s {
            acc[i] = f(acc[i], acc[i + s]);
        }
        s /= 2;
    }
    acc[0]
}

#[inline(always)]
fn run_plain<T: Fold>(op: ReduceOp, v: &[T]) -> T {
    let start = T::identity(op);
    match op {
        ReduceOp::Sum | ReduceOp::Mean => lanes(v, start, T::sum),
        ReduceOp::Prod => lanes(v, start, T::product),
        ReduceOp::Max => lanes(v, start, T::largest),
        ReduceOp::Min => lanes(v, start, T::smallest),
    }
}

/// Combines the values of one run, in an order that depends on its length alone: element `i` in lane `i % LANES`, then the
/// lanes in halves.
#[inline]
pub(crate) fn run<T: Fold>(op: ReduceOp, v: &[T]) -> T {
    T::run(op, v)
}

/// `acc[c] = op(acc[c], v[r][c])` for every row `r` in order.
pub(crate) fn rows<T: Fold>(op: ReduceOp, acc: &mut [T], v: &[T]) {
    lane_rows(op, acc, acc.len(), 0, v, acc.len());
}

/// Rows of a strip that are on their way.
const AHEAD: usize = 8;

/// Asks for values to be brought closer.
#[inline(always)]
fn ahead<T>(values: &[T]) {
    // SAFETY: the bytes of the values, which nobody looks at.
    let bytes =
        unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
    simd::prefetch(bytes);
}

#[inline(always)]
fn lane_rows_plain<T: Fold>(
    op: ReduceOp,
    lanes: &mut [T],
    width: usize,
    first: usize,
    v: &[T],
    pitch: usize,
) {
    #[inline(always)]
    fn go<T: Fold>(
        lanes: &mut [T],
        width: usize,
        first: usize,
        v: &[T],
        pitch: usize,
        f: impl Fn(T, T) -> T,
    ) {
        let count = lanes.len() / width;
        let mut lane = first % count;
        for (at, row) in (0..).step_by(pitch).zip(v.chunks(pitch)) {
            let Some(row) = row.get(..width) else {
                return;
            };
            // A strip jumps from row to row, which the processor does not foresee.
            if pitch > width
                && let Some(next) = v.get(at + AHEAD * pitch..)
            {
                ahead(&next[..width.min(next.len())]);
            }
            for (a, x) in lanes[lane * width..][..width].iter_mut().zip(row) {
                *a = f(*a, *x);
            }
            lane = if lane + 1 == count { 0 } else { lane + 1 };
        }
    }
    match op {
        ReduceOp::Sum | ReduceOp::Mean => go(lanes, width, first, v, pitch, T::sum),
        ReduceOp::Prod => go(lanes, width, first, v, pitch, T::product),
        ReduceOp::Max => go(lanes, width, first, v, pitch, T::largest),
        ReduceOp::Min => go(lanes, width, first, v, pitch, T::smallest),
    }
}

/// Rows of `width` values, `pitch` apart, into `lanes`, row number `first + r` into lane `(first + r) % LANES`: column by column what [`run`]
/// does with its values.
#[inline]
pub(crate) fn lane_rows<T: Fold>(
    op: ReduceOp,
    lanes: &mut [T],
    width: usize,
    first: usize,
    v: &[T],
    pitch: usize,
) {
    if width > 0 {
        T::lane_rows(op, lanes, width, first, v, pitch);
    }
}

/// Combines the lanes into the first, as [`run`] does.
pub(crate) fn lane_tree<T: Fold>(op: ReduceOp, lanes: &mut [T], width: usize) {
    let count = lanes.len() / width.max(1);
    let mut s = LANES / 2;
    while s > 0 {
        for i in 0..s.min(count.saturating_sub(s)) {
            let (a, b) = lanes.split_at_mut((i + s) * width);
            rows(op, &mut a[i * width..][..width], &b[..width]);
        }
        s /= 2;
    }
}

/// A register's values as a slice; one number is repeated in `spare`.
///
/// # Safety
/// The register has `n` values of type `T` (one if splat).
pub(crate) unsafe fn values<T: Fold>(a: Arg, n: usize, spare: &mut Vec<T>) -> &[T] {
    if a.splat {
        // SAFETY: the caller's contract.
        let v = unsafe { *a.ptr.cast::<T>() };
        spare.clear();
        spare.resize(n, v);
        return spare;
    }
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(a.ptr.cast(), n) }
}
