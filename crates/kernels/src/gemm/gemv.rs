//! Matrix times vector: one pass over the matrix where it lies, nothing packed.

use super::Level;
use super::isa::{Isa, by_level};
use super::micro::Real;
use super::operand::Operand;
use super::scratch::Scratch;
use crate::par;

/// Partial sums of a dot product: four AVX-512 vectors of f32. The same at every level.
const LANES: usize = 64;
/// Results that are summed together when they, and not k, lie together in memory.
const BLOCK: usize = 512;
/// Elements of the matrix that are worth a task.
pub const TASK: usize = 1 << 15;
/// Values of k whose columns are added in one pass over the sums.
const STEP: usize = 4;
/// Elements of a row converted at a time.
const CHUNK: usize = 512;

/// `y[i] = sum over k of matrix[i, k] * x[k]`, in parallel over fixed blocks of i.
///
/// `matrix` is the operand's matrix `batch`, `x` contiguous.
///
/// # Safety
/// All of the matrix readable, `x` readable for `ks`, `y` writable for `rows`.
pub unsafe fn gemv<T: Real>(
    level: Level,
    matrix: &Operand<'_>,
    batch: usize,
    rows: usize,
    ks: usize,
    x: *const T,
    y: *mut T,
) {
    let along_k = matrix.col_stride == 1 || matrix.row_stride != 1;
    let block = match along_k {
        true => (TASK / ks.max(1)).clamp(1, BLOCK),
        false => BLOCK,
    };
    let (x, y) = (Shared(x.cast_mut()), Shared(y));
    let task = |b: usize| {
        let (x, y) = (&x, &y);
        let first = b * block;
        let len = block.min(rows - first);
        // SAFETY: block `b` of the rows and of `y`.
        unsafe {
            let (x, y) = (x.0.cast_const(), y.0.add(first));
            if along_k {
                dots(level, matrix, matrix.at(batch, first, 0), len, ks, x, y);
            } else {
                sums(level, matrix, matrix.at(batch, first, 0), len, ks, x, y);
            }
        }
    };
    let blocks = rows.div_ceil(block);
    if rows * ks < 2 * TASK {
        (0..blocks).for_each(task);
    } else {
        par::for_each(blocks, task);
    }
}

struct Shared<T>(*mut T);
// SAFETY: `x` is only read, tasks write disjoint blocks of `y`.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

by_level!(
    /// Rows that lie together along k: a dot product each.
    fn dots<T: Real>(op: &Operand<'_>, src: *const u8, rows: usize, ks: usize, x: *const T, y: *mut T) = dots_body
);

#[inline(always)]
unsafe fn dots_body<I: Isa, T: Real>(
    op: &Operand<'_>,
    src: *const u8,
    rows: usize,
    ks: usize,
    x: *const T,
    y: *mut T,
) {
    let from = op.elements();
    let plain = from.is_plain::<T>() && op.col_stride == 1;
    let size = op.dtype.size() as isize;
    let mut chunk = [T::default(); CHUNK];
    for row in 0..rows {
        let src = src.wrapping_offset(row as isize * op.row_stride * size);
        let mut acc = [T::default(); LANES];
        let mut k = 0;
        while k < ks {
            let len = if plain { ks } else { CHUNK.min(ks - k) };
            // SAFETY: elements `k..k + len` of the row and of `x`.
            unsafe {
                let values = if plain {
                    src.cast::<T>()
                } else {
                    let src = src.wrapping_offset(k as isize * op.col_stride * size);
                    from.load::<I, T>(src, op.col_stride, len, chunk.as_mut_ptr());
                    chunk.as_ptr()
                };
                dot::<I, T>(values, x.add(k), len, &mut acc);
            }
            k += len;
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                acc[i] = acc[i].plus(acc[i + width]);
            }
        }
        // SAFETY: `row < rows`.
        unsafe { *y.add(row) = acc[0] }
    }
}

/// Adds products to the partial sums, element i to sum i mod `LANES`.
#[inline(always)]
unsafe fn dot<I: Isa, T: Real>(a: *const T, x: *const T, len: usize, acc: &mut [T; LANES]) {
    macro_rules! add {
        ($i:expr, $len:expr) => {
            for (l, sum) in acc.iter_mut().enumerate().take($len) {
                // SAFETY: `$i + l < len`.
                let (a, x) = unsafe { (*a.add($i + l), *x.add($i + l)) };
                *sum = if I::FUSED {
                    a.times_plus::<true>(x, *sum)
                } else {
                    a.times_plus::<false>(x, *sum)
                };
            }
        };
    }
    let full = len / LANES * LANES;
    for i in (0..full).step_by(LANES) {
        add!(i, LANES);
    }
    add!(full, len - full);
}

by_level!(
    /// Rows that lie next to each other for each k: all sums together, four ks at a time.
    fn sums<T: Real>(op: &Operand<'_>, src: *const u8, rows: usize, ks: usize, x: *const T, y: *mut T) = sums_body
);

#[inline(always)]
unsafe fn sums_body<I: Isa, T: Real>(
    op: &Operand<'_>,
    src: *const u8,
    rows: usize,
    ks: usize,
    x: *const T,
    y: *mut T,
) {
    let from = op.elements();
    let plain = from.is_plain::<T>();
    let k_bytes = op.col_stride * op.dtype.size() as isize;
    let buffer = (!plain).then(|| Scratch::take::<T>(STEP * BLOCK));
    let column = |k: usize, s: usize| {
        let src = src.wrapping_offset(k as isize * k_bytes);
        match &buffer {
            None => src.cast::<T>(),
            // SAFETY: `rows <= BLOCK` values of one k.
            Some(buffer) => unsafe {
                let to = buffer.ptr::<T>().add(s * BLOCK);
                from.load::<I, T>(src, 1, rows, to);
                to.cast_const()
            },
        }
    };
    // SAFETY: `rows` values of each k and of `y`, `ks` values of `x`.
    unsafe {
        for i in 0..rows {
            *y.add(i) = T::default();
        }
        let full = ks / STEP * STEP;
        for k in (0..full).step_by(STEP) {
            let columns: [_; STEP] = std::array::from_fn(|s| column(k + s, s));
            add_columns::<I, T, STEP>(columns, x.add(k), rows, y);
        }
        for k in full..ks {
            add_columns::<I, T, 1>([column(k, 0)], x.add(k), rows, y);
        }
    }
}

/// `y[i] += columns[0][i] * x[0] + ...`, in this order.
#[inline(always)]
unsafe fn add_columns<I: Isa, T: Real, const N: usize>(
    columns: [*const T; N],
    x: *const T,
    rows: usize,
    y: *mut T,
) {
    // SAFETY: `rows` values of each column and of `y`, N values of `x`.
    unsafe {
        let x: [T; N] = std::array::from_fn(|s| *x.add(s));
        for i in 0..rows {
            let mut sum = *y.add(i);
            for s in 0..N {
                let a = *columns[s].add(i);
                sum = if I::FUSED {
                    a.times_plus::<true>(x[s], sum)
                } else {
                    a.times_plus::<false>(x[s], sum)
                };
            }
            *y.add(i) = sum;
        }
    }
}
