//! The four operations on one plane.

use super::Pool2d;
use crate::gemm::{Elements, Isa, Real, Scratch, by_level};
use bimetal_dtype::DType;

/// A plane as values of the accumulator type.
///
/// # Safety
/// `src` readable for `len` elements of `dtype`.
#[inline(always)]
unsafe fn load<I: Isa, T: Real>(src: *const u8, dtype: DType, len: usize) -> Scratch {
    let plane = Scratch::take::<T>(len);
    // SAFETY: the scratch has room.
    unsafe {
        T::load::<I>(
            src,
            Elements {
                dtype,
                round_to: None,
            },
            len,
            plane.ptr(),
        )
    };
    plane
}

/// A plane of zeros.
fn zeros<T: Real>(len: usize) -> Scratch {
    let plane = Scratch::take::<T>(len);
    // SAFETY: the scratch has room; zero bits are the number 0.
    unsafe { std::ptr::write_bytes(plane.ptr::<T>(), 0, len) };
    plane
}

/// Outputs of a row that are computed: whole vectors of every instruction set, and one more, because
/// the compiler leaves the last value of a strided row to a scalar loop.
fn wide(ow: usize) -> usize {
    ow.next_multiple_of(16) + 1
}

/// A plane with its padding, and room for the last outputs to be whole vectors.
struct Padded {
    plane: Scratch,
    row: usize,
}

impl Padded {
    /// # Safety
    /// `src` readable for a plane of x.
    #[inline(always)]
    unsafe fn new<I: Isa, T: Real>(pool: &Pool2d, dtype: DType, src: *const u8, fill: T) -> Padded {
        let ([oh, ow], [h, w]) = (pool.output(), pool.input);
        let [[top, _], [left, _]] = pool.padding;
        let last = wide(ow) * pool.stride[1] + pool.kernel[1];
        let row = last.max(left + w);
        let rows = ((oh - 1) * pool.stride[0] + pool.kernel[0]).max(top + h);
        let plane = Scratch::take::<T>(rows * row);
        let from = Elements {
            dtype,
            round_to: None,
        };
        // SAFETY: rows of the plane in both.
        unsafe {
            std::slice::from_raw_parts_mut(plane.ptr::<T>(), rows * row).fill(fill);
            for y in 0..h {
                let to = plane.ptr::<T>().add((top + y) * row + left);
                from.load::<I, T>(src.add(y * w * dtype.size()), 1, w, to);
            }
        }
        Padded { plane, row }
    }

    /// For each element of the windows of output row `y`: the row from where the first window has it,
    /// long enough for `wide` windows.
    ///
    /// # Safety
    /// Output row `y` exists; `wide` is [`wide`] of the width of y.
    #[inline(always)]
    unsafe fn taps<T>(
        &self,
        pool: &Pool2d,
        y: usize,
        wide: usize,
        mut f: impl FnMut(&[T], usize, usize),
    ) {
        for u in 0..pool.kernel[0] {
            for v in 0..pool.kernel[1] {
                let at = (y * pool.stride[0] + u) * self.row + v;
                // SAFETY: the row is long enough.
                f(
                    unsafe {
                        std::slice::from_raw_parts(
                            self.plane.ptr::<T>().add(at),
                            wide * pool.stride[1],
                        )
                    },
                    u,
                    v,
                );
            }
        }
    }
}

/// Calls `$f(src, out..)` with the distance of the values of `src` that count as a constant, if it
/// is a usual one, so that the compiler uses vectors.
macro_rules! strided {
    ($stride:expr, $f:ident($($arg:expr),*)) => {
        match $stride {
            1 => $f(1, $($arg),*),
            2 => $f(2, $($arg),*),
            stride => $f(stride, $($arg),*),
        }
    };
}

/// Lets the values of one element of all windows, and their indices, compete with the best so far.
#[inline(always)]
fn compete<T: Real>(stride: usize, src: &[T], best: &mut [T], at: &mut [i32], first: i32) {
    let mut index = first;
    for ((best, at), values) in best.iter_mut().zip(at).zip(src.chunks_exact(stride)) {
        let (value, old, old_at) = (values[0], *best, *at);
        // The first of equals; NaN wins. No branches, so that it becomes vectors.
        let better = ((value > old) | value.nan()) & !old.nan();
        *best = if better { value } else { old };
        *at = if better { index } else { old_at };
        index = index.wrapping_add(stride as i32);
    }
}

/// Adds the values of one element of all windows.
#[inline(always)]
fn accumulate<T: Real>(stride: usize, src: &[T], sums: &mut [T]) {
    for (sum, values) in sums.iter_mut().zip(src.chunks_exact(stride)) {
        *sum = sum.plus(values[0]);
    }
}

by_level!(
    pub fn max<T: Real>(pool: &Pool2d, dtype: DType, x: *const u8, values: *mut u8, indices: *mut i32) = max_body
);

#[inline(always)]
unsafe fn max_body<I: Isa, T: Real>(
    pool: &Pool2d,
    dtype: DType,
    x: *const u8,
    values: *mut u8,
    indices: *mut i32,
) {
    let ([oh, ow], [_, width]) = (pool.output(), pool.input);
    if oh * ow == 0 {
        return;
    }
    if halves(pool) {
        // SAFETY: the caller's contract.
        return unsafe { max_of_four::<I, T>(pool, dtype, x, values, indices) };
    }
    let [[top, _], [left, _]] = pool.padding;
    let lowest = T::from_f64(f64::NEG_INFINITY);
    // SAFETY: planes of these sizes.
    unsafe {
        let plane = Padded::new::<I, T>(pool, dtype, x, lowest);
        let wide = wide(ow);
        let scratch = (Scratch::take::<T>(wide), Scratch::take::<i32>(wide));
        let best = std::slice::from_raw_parts_mut(scratch.0.ptr::<T>(), wide);
        let at = std::slice::from_raw_parts_mut(scratch.1.ptr::<i32>(), wide);
        // Where each window begins in a row, or -1.
        let starts: Vec<i32> = (0..wide)
            .map(|x| match pool.window(1, x) {
                cols if cols.is_empty() => -1,
                cols => cols.start as i32,
            })
            .collect();
        for y in 0..oh {
            let rows = pool.window(0, y);
            best.fill(lowest);
            // The first element of each window in the plane, or 0.
            let row = (rows.start * width) as i32;
            for (at, start) in at.iter_mut().zip(&starts) {
                let outside = (*start < 0) | rows.is_empty();
                *at = if outside { 0 } else { row + start };
            }
            plane.taps::<T>(pool, y, wide, |from, u, v| {
                // Meaningless in the padding, which never wins.
                let row = (y * pool.stride[0] + u).wrapping_sub(top);
                let first = row.wrapping_mul(width).wrapping_add(v.wrapping_sub(left)) as i32;
                strided!(pool.stride[1], compete(from, best, at, first));
            });
            if !values.is_null() {
                let to = values.add(y * ow * dtype.size());
                T::store::<I>(best.as_ptr(), ow, to, dtype);
            }
            if !indices.is_null() {
                std::ptr::copy_nonoverlapping(at.as_ptr(), indices.add(y * ow), ow);
            }
        }
    }
}

/// Whether windows are the squares of four that halve an image.
fn halves(pool: &Pool2d) -> bool {
    pool.kernel == [2; 2] && pool.stride == [2; 2] && pool.padding == [[0; 2]; 2]
}

/// Outputs of a vector of every instruction set.
const LANES: usize = 16;

/// The maximum where [`halves`], all four elements of a window at once.
///
/// # Safety
/// Planes of the sizes of `pool`, which has outputs.
#[inline(always)]
unsafe fn max_of_four<I: Isa, T: Real>(
    pool: &Pool2d,
    dtype: DType,
    x: *const u8,
    values: *mut u8,
    indices: *mut i32,
) {
    let ([oh, ow], [height, width]) = (pool.output(), pool.input);
    let len = height * width;
    // SAFETY: every row is copied where a vector of it would end behind the plane.
    unsafe {
        let own = (dtype != T::DTYPE).then(|| load::<I, T>(x, dtype, len));
        let plane = own.as_ref().map_or(x.cast::<T>(), |own| own.ptr());
        for y in 0..oh {
            for j in (0..ow).step_by(LANES) {
                let n = LANES.min(ow - j);
                let first = 2 * (y * width + j);
                let (mut a, mut b) = ([T::default(); 2 * LANES], [T::default(); 2 * LANES]);
                if first + width + 2 * LANES <= len {
                    a = plane.add(first).cast::<[T; 2 * LANES]>().read_unaligned();
                    b = plane
                        .add(first + width)
                        .cast::<[T; 2 * LANES]>()
                        .read_unaligned();
                } else {
                    std::ptr::copy_nonoverlapping(plane.add(first), a.as_mut_ptr(), 2 * n);
                    std::ptr::copy_nonoverlapping(plane.add(first + width), b.as_mut_ptr(), 2 * n);
                }
                let (mut best, mut at) = ([T::default(); LANES], [0i32; LANES]);
                for l in 0..LANES {
                    let here = (first + 2 * l) as i32;
                    let (mut value, mut index) = (a[2 * l], here);
                    for (other, step) in [
                        (a[2 * l + 1], 1),
                        (b[2 * l], width as i32),
                        (b[2 * l + 1], width as i32 + 1),
                    ] {
                        // As in `compete`.
                        let better = ((other > value) | other.nan()) & !value.nan();
                        value = if better { other } else { value };
                        index = if better {
                            here.wrapping_add(step)
                        } else {
                            index
                        };
                    }
                    best[l] = value;
                    at[l] = index;
                }
                if !values.is_null() {
                    let to = values.add((y * ow + j) * dtype.size());
                    T::store::<I>(best.as_ptr(), n, to, dtype);
                }
                if !indices.is_null() {
                    // Bits are copied whatever they stand for.
                    I::copy_run(at.as_ptr().cast(), n, indices.add(y * ow + j).cast());
                }
            }
        }
    }
}

by_level!(
    pub fn max_grad<T: Real>(pool: &Pool2d, dtype: DType, indices: *const i32, dy: *const u8, dx: *mut u8) = max_grad_body
);

#[inline(always)]
unsafe fn max_grad_body<I: Isa, T: Real>(
    pool: &Pool2d,
    dtype: DType,
    indices: *const i32,
    dy: *const u8,
    dx: *mut u8,
) {
    let (big, small) = pool.sizes();
    // SAFETY: planes of these sizes; every index is checked.
    unsafe {
        // The accumulator type is summed where it goes.
        let plain = dtype == T::DTYPE;
        let sums = (!plain).then(|| Scratch::take::<T>(big));
        let gradient = (!plain).then(|| load::<I, T>(dy, dtype, small));
        let gradient = gradient.as_ref().map_or(dy.cast::<T>(), |g| g.ptr());
        let sum = sums.as_ref().map_or(dx.cast::<T>(), |sums| sums.ptr());
        std::slice::from_raw_parts_mut(sum, big).fill(T::default());
        for i in 0..small {
            let at = *indices.add(i) as usize;
            if at < big {
                let sum = sum.add(at);
                *sum = (*sum).plus(*gradient.add(i));
            }
        }
        if !plain {
            T::store::<I>(sum, big, dx, dtype);
        }
    }
}

by_level!(
    pub fn avg<T: Real>(pool: &Pool2d, dtype: DType, x: *const u8, y: *mut u8) = avg_body
);

#[inline(always)]
unsafe fn avg_body<I: Isa, T: Real>(pool: &Pool2d, dtype: DType, x: *const u8, y: *mut u8) {
    let [oh, ow] = pool.output();
    if oh * ow == 0 {
        return;
    }
    let out = y;
    // SAFETY: planes of these sizes.
    unsafe {
        let plane = Padded::new::<I, T>(pool, dtype, x, T::default());
        let wide = wide(ow);
        let scratch = Scratch::take::<T>(wide);
        let sums = std::slice::from_raw_parts_mut(scratch.ptr::<T>(), wide);
        let counts: Vec<T> = (0..ow)
            .map(|x| T::from_f64(pool.counted(1, x) as f64))
            .collect();
        for y in 0..oh {
            sums.fill(T::default());
            plane.taps::<T>(pool, y, wide, |from, _, _| {
                strided!(pool.stride[1], accumulate(from, sums));
            });
            let rows = T::from_f64(pool.counted(0, y) as f64);
            for (sum, cols) in sums.iter_mut().zip(&counts) {
                *sum = sum.over(rows.times(*cols));
            }
            let to = out.add(y * ow * dtype.size());
            T::store::<I>(sums.as_ptr(), ow, to, dtype);
        }
    }
}

by_level!(
    pub fn avg_grad<T: Real>(pool: &Pool2d, dtype: DType, dy: *const u8, dx: *mut u8) = avg_grad_body
);

#[inline(always)]
unsafe fn avg_grad_body<I: Isa, T: Real>(pool: &Pool2d, dtype: DType, dy: *const u8, dx: *mut u8) {
    let ((big, small), [oh, ow]) = (pool.sizes(), pool.output());
    let sums = zeros::<T>(big);
    // SAFETY: planes of these sizes.
    unsafe {
        let gradient = load::<I, T>(dy, dtype, small);
        let (gradient, sums) = (gradient.ptr::<T>(), sums.ptr::<T>());
        let counts: Vec<T> = (0..ow)
            .map(|x| T::from_f64(pool.counted(1, x) as f64))
            .collect();
        for y in 0..oh {
            let rows = T::from_f64(pool.counted(0, y) as f64);
            for (x, cols) in counts.iter().enumerate() {
                let share = gradient.add(y * ow + x);
                *share = (*share).over(rows.times(*cols));
            }
        }
        pool.taps(|out, to, len| {
            for i in 0..len {
                let sum = sums.add(to + i * pool.stride[1]);
                *sum = (*sum).plus(*gradient.add(out + i));
            }
        });
        T::store::<I>(sums, big, dx, dtype);
    }
}
