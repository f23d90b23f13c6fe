//! Two-dimensional pooling and its gradients, plane by plane.

use crate::gemm::{Dst, Level};
use crate::par;
use crate::simd::simd_level;
use bimetal_dtype::DType;
use std::ops::Range;

mod plane;
#[cfg(test)]
mod tests;

use plane::{avg, avg_grad, max, max_grad};

/// Sizes of a two-dimensional pooling of dense planes; `[height, width]` where there are two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool2d {
    /// Images times channels.
    pub planes: usize,
    /// Height and width of x.
    pub input: [usize; 2],
    /// Height and width of the window, at least 1.
    pub kernel: [usize; 2],
    /// Elements from one window to the next, at least 1.
    pub stride: [usize; 2],
    /// Elements before and after the rows, before and after the columns: minus infinity for the
    /// maximum, zero for the mean.
    pub padding: [[usize; 2]; 2],
    /// Whether padding counts as elements of a mean.
    pub count_include_pad: bool,
}

impl Pool2d {
    /// Height and width of the result.
    pub fn output(&self) -> [usize; 2] {
        std::array::from_fn(|a| {
            let padded = self.input[a] + self.padding[a][0] + self.padding[a][1];
            match padded.checked_sub(self.kernel[a]) {
                Some(room) => room / self.stride[a] + 1,
                None => 0,
            }
        })
    }

    fn sizes(&self) -> (usize, usize) {
        let [oh, ow] = self.output();
        (self.input[0] * self.input[1], oh * ow)
    }

    /// The part of window `o` along an axis that lies in x.
    fn window(&self, axis: usize, o: usize) -> Range<usize> {
        let (first, before) = (o * self.stride[axis], self.padding[axis][0]);
        let clip = |i: usize| i.saturating_sub(before).min(self.input[axis]);
        clip(first)..clip(first + self.kernel[axis])
    }

    /// Windows whose element `tap` along an axis lies in x.
    fn windows(&self, axis: usize, tap: usize) -> Range<usize> {
        let (stride, before, outputs) = (
            self.stride[axis],
            self.padding[axis][0],
            self.output()[axis],
        );
        let first = before.saturating_sub(tap).div_ceil(stride);
        let end = (self.input[axis] + before)
            .saturating_sub(tap)
            .div_ceil(stride);
        first.min(outputs)..end.min(outputs)
    }

    /// Elements of window `o` along an axis that a mean counts.
    fn counted(&self, axis: usize, o: usize) -> usize {
        match self.count_include_pad {
            true => self.kernel[axis],
            false => self.window(axis, o).len(),
        }
    }

    /// Calls `f` for each output row, each window row in x, and each tap along the width, with the
    /// outputs that have the tap and where the first of them finds it: (output, element, outputs).
    #[inline(always)]
    fn taps(&self, mut f: impl FnMut(usize, usize, usize)) {
        let [oh, ow] = self.output();
        for y in 0..oh {
            for i in self.window(0, y) {
                for v in 0..self.kernel[1] {
                    let xs = self.windows(1, v);
                    if !xs.is_empty() {
                        let j = xs.start * self.stride[1] + v - self.padding[1][0];
                        f(y * ow + xs.start, i * self.input[1] + j, xs.len());
                    }
                }
            }
        }
    }
}

/// The largest element of each window, and its index in the plane; either pointer may be null.
///
/// The first of equal elements wins and NaN beats everything, as in PyTorch. A window that lies in
/// the padding gives minus infinity and index 0. Values keep `dtype`.
///
/// # Safety
/// `x` readable for `planes x input` elements of `dtype`, `values` (of `dtype`) and `indices`
/// writable for `planes x output`, all aligned and apart.
pub unsafe fn max_pool2d(
    pool: &Pool2d,
    dtype: DType,
    x: *const u8,
    values: *mut u8,
    indices: *mut i32,
) {
    // SAFETY: the caller's contract.
    unsafe { max_at(simd_level(), pool, dtype, x, values, indices) }
}

/// The gradient of [`max_pool2d`]: every dy is added at its index.
///
/// Sums are f32 (f64 for f64) in the order of the windows, rounded once.
///
/// # Safety
/// `indices` and `dy` readable for `planes x output`, `dx` writable for `planes x input`, all
/// aligned and apart. Indices outside the plane are ignored.
pub unsafe fn max_pool2d_grad(
    pool: &Pool2d,
    dtype: DType,
    indices: *const i32,
    dy: *const u8,
    dx: *mut u8,
) {
    // SAFETY: the caller's contract.
    unsafe { max_grad_at(simd_level(), pool, dtype, indices, dy, dx) }
}

/// The mean of each window.
///
/// Sums are f32 (f64 for f64), divided before they are rounded.
///
/// # Safety
/// `x` readable for `planes x input`, `y` writable for `planes x output`, aligned and apart.
pub unsafe fn avg_pool2d(pool: &Pool2d, dtype: DType, x: *const u8, y: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { avg_at(simd_level(), pool, dtype, x, y) }
}

/// The gradient of [`avg_pool2d`].
///
/// # Safety
/// `dy` readable for `planes x output`, `dx` writable for `planes x input`, aligned and apart.
pub unsafe fn avg_pool2d_grad(pool: &Pool2d, dtype: DType, dy: *const u8, dx: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { avg_grad_at(simd_level(), pool, dtype, dy, dx) }
}

/// Elements that are worth a task.
const TASK: usize = 1 << 14;

/// Calls `f` with every plane, several to a task.
fn each_plane(pool: &Pool2d, f: impl Fn(usize) + Sync) {
    let (big, small) = pool.sizes();
    let together = TASK / big.max(small).max(1) + 1;
    par::for_each(par::pieces(pool.planes, together), |t| {
        par::piece(pool.planes, together, t).for_each(&f);
    });
}

/// Calls `$narrow` or `$wide`, as the type demands.
macro_rules! by_type {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        if $dtype == DType::F64 { $f::<f64>($($arg),*) } else { $f::<f32>($($arg),*) }
    };
}

unsafe fn max_at(
    level: Level,
    pool: &Pool2d,
    dtype: DType,
    x: *const u8,
    values: *mut u8,
    indices: *mut i32,
) {
    let ((big, small), size) = (pool.sizes(), dtype.size());
    let (x, values, indices) = (Dst(x.cast_mut()), Dst(values), Dst(indices));
    each_plane(pool, |p| {
        let x = x.at(p * big * size).cast_const();
        let values = if values.0.is_null() {
            values.0
        } else {
            values.at(p * small * size)
        };
        let indices = if indices.0.is_null() {
            indices.0
        } else {
            indices.at(p * small)
        };
        // SAFETY: each task has its own planes.
        unsafe { by_type!(dtype, max(level, pool, dtype, x, values, indices)) }
    });
}

unsafe fn max_grad_at(
    level: Level,
    pool: &Pool2d,
    dtype: DType,
    indices: *const i32,
    dy: *const u8,
    dx: *mut u8,
) {
    let ((big, small), size) = (pool.sizes(), dtype.size());
    let (indices, dy, dx) = (Dst(indices.cast_mut()), Dst(dy.cast_mut()), Dst(dx));
    each_plane(pool, |p| {
        let indices = indices.at(p * small).cast_const();
        let (dy, dx) = (dy.at(p * small * size).cast_const(), dx.at(p * big * size));
        // SAFETY: each task has its own planes.
        unsafe { by_type!(dtype, max_grad(level, pool, dtype, indices, dy, dx)) }
    });
}

unsafe fn avg_at(level: Level, pool: &Pool2d, dtype: DType, x: *const u8, y: *mut u8) {
    let ((big, small), size) = (pool.sizes(), dtype.size());
    let (x, y) = (Dst(x.cast_mut()), Dst(y));
    each_plane(pool, |p| {
        let (x, y) = (x.at(p * big * size).cast_const(), y.at(p * small * size));
        // SAFETY: each task has its own planes.
        unsafe { by_type!(dtype, avg(level, pool, dtype, x, y)) }
    });
}

unsafe fn avg_grad_at(level: Level, pool: &Pool2d, dtype: DType, dy: *const u8, dx: *mut u8) {
    let ((big, small), size) = (pool.sizes(), dtype.size());
    let (dy, dx) = (Dst(dy.cast_mut()), Dst(dx));
    each_plane(pool, |p| {
        let (dy, dx) = (dy.at(p * small * size).cast_const(), dx.at(p * big * size));
        // SAFETY: each task has its own planes.
        unsafe { by_type!(dtype, avg_grad(level, pool, dtype, dy, dx)) }
    });
}
