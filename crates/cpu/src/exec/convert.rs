//! Elements between memory and registers.
use super::view::Arg;
use bimetal_kernels::gemm::Scratch;
use bimetal_kernels::gemm::{Isa, Real, by_level};
use bimetal_kernels::simd::{self, simd_level};
use bimetal_tensor::plan::register;
use bimetal_tensor::{DType, F8E4M3, F8E5M2, round_f64};
use half::{bf16, f16};

/// Whether registers hold this dtype as it lies in memory.
pub(crate) fn is_register(dtype: DType) -> bool {
    register(dtype) == dtype
}

/// Bytes of one element in a register.
pub(crate) fn width(dtype: DType) -> usize {
    register(dtype).size()
}

/// Copies `n` elements `step` apart.
///
/// # Safety
/// All of them are readable and aligned, and `dst` has room for them.
#[inline(always)]
unsafe fn each<S: Copy, D: Copy>(
    src: *const u8,
    step: isize,
    n: usize,
    dst: *mut u8,
    f: impl Fn(S) -> D,
) {
    let (src, dst) = (src.cast::<S>(), dst.cast::<D>());
    // SAFETY: the caller's contract.
    unsafe {
        match step {
            1 => {
                for i in 0..n {
                    *dst.add(i) = f(*src.add(i));
                }
            }
            0 => {
                let v = f(*src);
                for i in 0..n {
                    *dst.add(i) = v;
                }
            }
            _ => {
                for i in 0..n {
                    *dst.add(i) = f(*src.offset(i as isize * step));
                }
            }
        }
    }
}

/// Loads `n` elements `step` apart from `src`, exactly, in their register dtype to `dst`.
///
/// # Safety
/// The elements are readable and aligned; `dst` has room for them and overlaps none of them.
pub(crate) unsafe fn load(dtype: DType, src: *const u8, step: isize, n: usize, dst: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        if step == 1
            && dtype.is_float()
            && register(dtype) == DType::F32
            && let Some(f) = simd::load_f32(dtype)
        {
            let bytes = std::slice::from_raw_parts(src, n * dtype.size());
            return f(std::slice::from_raw_parts_mut(dst.cast(), n), bytes);
        }
        match dtype {
            DType::F32 | DType::I32 | DType::U32 => each::<u32, u32>(src, step, n, dst, |v| v),
            DType::F64 | DType::I64 => each::<u64, u64>(src, step, n, dst, |v| v),
            DType::Bool => each::<u8, u8>(src, step, n, dst, |v| v),
            DType::U8 => each::<u8, i32>(src, step, n, dst, |v| v as i32),
            DType::F16 => each::<f16, f32>(src, step, n, dst, f16::to_f32),
            DType::BF16 => {
                each::<u16, f32>(src, step, n, dst, |v| f32::from_bits((v as u32) << 16))
            }
            DType::F8E4M3 => each::<F8E4M3, f32>(src, step, n, dst, F8E4M3::to_f32),
            DType::F8E5M2 => each::<F8E5M2, f32>(src, step, n, dst, F8E5M2::to_f32),
        }
    }
}

by_level!(
    /// `dst[k * ld + lane] = src[lane * stride + k]`.
    fn transpose<T: Real>(src: *const T, stride: usize, lanes: usize, ks: usize, dst: *mut T, ld: usize) = transpose_body
);

/// # Safety
/// `src` readable for lanes x ks, `dst` writable for ks x lanes.
#[inline(always)]
unsafe fn transpose_body<I: Isa, T: Real>(
    src: *const T,
    stride: usize,
    lanes: usize,
    ks: usize,
    dst: *mut T,
    ld: usize,
) {
    // SAFETY: the caller's contract.
    unsafe { T::transpose::<I>(src, stride, lanes, ks, dst, ld) }
}

/// Loads a matrix whose rows and columns are `steps` apart, dense and row-major, as [`load`] loads its elements.
///
/// # Safety
/// As [`load`].
pub(crate) unsafe fn load_tile(
    dtype: DType,
    src: *const u8,
    steps: [isize; 2],
    [rows, cols]: [usize; 2],
    dst: *mut u8,
) {
    let (size, width) = (dtype.size() as isize, width(dtype));
    // SAFETY: the caller's contract.
    unsafe {
        if steps[0] != 1 || steps[1] == 1 {
            for row in 0..rows {
                let src = src.offset(row as isize * steps[0] * size);
                load(dtype, src, steps[1], cols, dst.add(row * cols * width));
            }
            return;
        }
        // Column by column, which lie together in memory, and then turned.
        let turned = Scratch::take::<u8>(rows * cols * width);
        let turned = turned.ptr::<u8>();
        for col in 0..cols {
            let src = src.offset(col as isize * steps[1] * size);
            load(dtype, src, 1, rows, turned.add(col * rows * width));
        }
        match width {
            4 => {
                let dst = dst.cast::<f32>();
                transpose(simd_level(), turned.cast(), rows, cols, rows, dst, cols);
            }
            8 => {
                let dst = dst.cast::<f64>();
                transpose(simd_level(), turned.cast(), rows, cols, rows, dst, cols);
            }
            _ => {
                for i in 0..rows * cols {
                    *dst.add(i) = *turned.add(i % cols * rows + i / cols);
                }
            }
        }
    }
}

/// Stores `n` elements of a register of dtype `from`, rounding once, `step` apart from `dst`.
///
/// # Safety
/// The register has the elements; the elements at `dst` are writable, aligned and nobody else's.
pub(crate) unsafe fn store(
    dtype: DType,
    dst: *mut u8,
    step: isize,
    n: usize,
    src: Arg,
    from: DType,
) {
    #[inline(always)]
    unsafe fn put<S: Copy, D: Copy>(
        dst: *mut u8,
        step: isize,
        n: usize,
        src: Arg,
        f: impl Fn(S) -> D,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if step == 1 && !src.splat {
                return each::<S, D>(src.ptr, 1, n, dst, f);
            }
            let (src, dst, by) = (src.ptr.cast::<S>(), dst.cast::<D>(), !src.splat as usize);
            for i in 0..n {
                *dst.offset(i as isize * step) = f(*src.add(i * by));
            }
        }
    }
    // SAFETY: the caller's contract.
    unsafe {
        if step == 1
            && !src.splat
            && from == DType::F32
            && let Some(f) = simd::store_f32(dtype)
        {
            let bytes = std::slice::from_raw_parts_mut(dst, n * dtype.size());
            return f(bytes, std::slice::from_raw_parts(src.ptr.cast(), n));
        }
        match (from, dtype) {
            (DType::F32, DType::F32) | (DType::I32, DType::I32) | (DType::U32, DType::U32) => {
                put::<u32, u32>(dst, step, n, src, |v| v)
            }
            (DType::F64, DType::F64) | (DType::I64, DType::I64) => {
                put::<u64, u64>(dst, step, n, src, |v| v)
            }
            (DType::Bool, DType::Bool) => put::<u8, u8>(dst, step, n, src, |v| v),
            (DType::I32, DType::U8) => put::<i32, u8>(dst, step, n, src, |v| v as u8),
            (DType::F32, DType::F16) => put::<f32, f16>(dst, step, n, src, f16::from_f32),
            (DType::F32, DType::BF16) => put::<f32, bf16>(dst, step, n, src, bf16::from_f32),
            (DType::F32, DType::F8E4M3) => put::<f32, F8E4M3>(dst, step, n, src, F8E4M3::from_f32),
            (DType::F32, DType::F8E5M2) => put::<f32, F8E5M2>(dst, step, n, src, F8E5M2::from_f32),
            (DType::F64, DType::F32) => put::<f64, f32>(dst, step, n, src, |v| v as f32),
            (DType::F64, d) => {
                // One rounding from f64, then exact in f32.
                for i in 0..n {
                    let v = *src.ptr.cast::<f64>().add(i * !src.splat as usize);
                    let v = round_f64(v, d) as f32;
                    let at = dst.offset(i as isize * step * d.size() as isize);
                    store(d, at, 1, 1, Arg::splat((&raw const v).cast()), DType::F32);
                }
            }
            // Other pairs are refused when the plan is compiled.
            _ => {}
        }
    }
}

/// Whether `store` can store registers of dtype `from` as `dtype`.
pub(crate) fn can_store(from: DType, dtype: DType) -> bool {
    register(dtype) == from || (from == DType::F64 && dtype.is_float())
}
