//! The four operations on one plane.

use super::Pool2d;
use crate::gemm::{Isa, Real, Scratch, by_level};
use bimetal_tensor::DType;

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
            crate::gemm::Elements {
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

by_level!(
    pub(super) fn max<T: Real>(pool: &Pool2d, dtype: DType, x: *const u8, values: *mut u8, indices: *mut i32) = max_body
);

#[inline(always)]
unsafe fn max_body<I: Isa, T: Real>(
    pool: &Pool2d,
    dtype: DType,
    x: *const u8,
    values: *mut u8,
    indices: *mut i32,
) {
    let ((big, small), [oh, ow]) = (pool.sizes(), pool.output());
    let stride = pool.stride[1];
    let best = Scratch::take::<T>(small);
    let own = indices.is_null().then(|| Scratch::take::<i32>(small));
    let at = own.as_ref().map_or(indices, |own| own.ptr());
    // SAFETY: planes of these sizes.
    unsafe {
        let plane = load::<I, T>(x, dtype, big);
        let x = plane.ptr::<T>().cast_const();
        let best = best.ptr::<T>();
        for y in 0..oh {
            for x in 0..ow {
                let (rows, cols) = (pool.window(0, y), pool.window(1, x));
                let inside = !rows.is_empty() && !cols.is_empty();
                let first = if inside {
                    rows.start * pool.input[1] + cols.start
                } else {
                    0
                };
                *best.add(y * ow + x) = T::from_f64(f64::NEG_INFINITY);
                *at.add(y * ow + x) = first as i32;
            }
        }
        pool.taps(|out, from, len| {
            for i in 0..len {
                let (value, old) = (*x.add(from + i * stride), *best.add(out + i));
                // The first of equals; NaN wins. No branches, so that it vectorises.
                let better = (value > old) | (value.nan() & !old.nan());
                *best.add(out + i) = if better { value } else { old };
                let index = (from + i * stride) as i32;
                *at.add(out + i) = if better { index } else { *at.add(out + i) };
            }
        });
        if !values.is_null() {
            T::store::<I>(best, small, values, dtype);
        }
    }
}

by_level!(
    pub(super) fn max_grad<T: Real>(pool: &Pool2d, dtype: DType, indices: *const i32, dy: *const u8, dx: *mut u8) = max_grad_body
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
    let sums = zeros::<T>(big);
    // SAFETY: planes of these sizes; every index is checked.
    unsafe {
        let gradient = load::<I, T>(dy, dtype, small);
        for i in 0..small {
            let at = *indices.add(i) as usize;
            if at < big {
                let sum = sums.ptr::<T>().add(at);
                *sum = (*sum).plus(*gradient.ptr::<T>().add(i));
            }
        }
        T::store::<I>(sums.ptr(), big, dx, dtype);
    }
}

by_level!(
    pub(super) fn avg<T: Real>(pool: &Pool2d, dtype: DType, x: *const u8, y: *mut u8) = avg_body
);

#[inline(always)]
unsafe fn avg_body<I: Isa, T: Real>(pool: &Pool2d, dtype: DType, x: *const u8, y: *mut u8) {
    let ((big, small), [oh, ow]) = (pool.sizes(), pool.output());
    let stride = pool.stride[1];
    let sums = zeros::<T>(small);
    // SAFETY: planes of these sizes.
    unsafe {
        let plane = load::<I, T>(x, dtype, big);
        let (x, sums) = (plane.ptr::<T>().cast_const(), sums.ptr::<T>());
        pool.taps(|out, from, len| {
            for i in 0..len {
                *sums.add(out + i) = (*sums.add(out + i)).plus(*x.add(from + i * stride));
            }
        });
        for y in 0..oh {
            for x in 0..ow {
                let sum = sums.add(y * ow + x);
                *sum = (*sum).over(T::from_f64(pool.count(y, x) as f64));
            }
        }
        T::store::<I>(sums, small, y, dtype);
    }
}

by_level!(
    pub(super) fn avg_grad<T: Real>(pool: &Pool2d, dtype: DType, dy: *const u8, dx: *mut u8) = avg_grad_body
);

#[inline(always)]
unsafe fn avg_grad_body<I: Isa, T: Real>(pool: &Pool2d, dtype: DType, dy: *const u8, dx: *mut u8) {
    let ((big, small), [oh, ow]) = (pool.sizes(), pool.output());
    let stride = pool.stride[1];
    let sums = zeros::<T>(big);
    // SAFETY: planes of these sizes.
    unsafe {
        let gradient = load::<I, T>(dy, dtype, small);
        let (gradient, sums) = (gradient.ptr::<T>(), sums.ptr::<T>());
        for y in 0..oh {
            for x in 0..ow {
                let share = gradient.add(y * ow + x);
                *share = (*share).over(T::from_f64(pool.count(y, x) as f64));
            }
        }
        pool.taps(|out, to, len| {
            for i in 0..len {
                let sum = sums.add(to + i * stride);
                *sum = (*sum).plus(*gradient.add(out + i));
            }
        });
        T::store::<I>(sums, big, dx, dtype);
    }
}
