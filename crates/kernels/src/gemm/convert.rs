//! Rows of any float type to and from the accumulator type.

use super::isa::{Isa, copy_any, transpose_any};
use bimetal_dtype::{DType, F8E4M3, F8E5M2, round_f32, round_f64};
use half::{bf16, f16};

/// Values gathered at a time from a strided row: a few cache lines of the stack.
const GATHER: usize = 128;

/// Loads and stores of an accumulator type.
pub trait Convert: Copy + Default {
    /// The element type that needs no conversion.
    const DTYPE: DType;

    /// Loads `n` consecutive elements, without rounding them to `from.round_to` unless that has to
    /// happen in the same step.
    ///
    /// # Safety
    /// `src` readable for `n` elements of `from.dtype` (aligned to it), `dst` writable for `n`.
    unsafe fn load<I: Isa>(src: *const u8, from: Elements, n: usize, dst: *mut Self);

    /// Rounds `n` values in place to the values of `to`.
    ///
    /// # Safety
    /// `values` readable and writable for `n`.
    unsafe fn round<I: Isa>(values: *mut Self, n: usize, to: DType);

    /// Stores `n` values, each rounded once, to nearest even.
    ///
    /// # Safety
    /// `src` readable for `n`, `dst` writable for `n` elements of `dtype` (aligned to it).
    unsafe fn store<I: Isa>(src: *const Self, n: usize, dst: *mut u8, dtype: DType);

    /// Copies `n` values, few of them as a rule.
    ///
    /// # Safety
    /// `n` values on both sides.
    unsafe fn copy_run<I: Isa>(src: *const Self, n: usize, dst: *mut Self);

    /// `dst[k * ld + lane] = src[lane * stride + k]`.
    ///
    /// # Safety
    /// `src` readable for lanes x ks, `dst` writable for ks x lanes.
    unsafe fn transpose<I: Isa>(
        src: *const Self,
        stride: usize,
        lanes: usize,
        ks: usize,
        dst: *mut Self,
        ld: usize,
    );
}

/// Applies `f` to `n` elements.
///
/// # Safety
/// `src` readable and `dst` writable for `n` elements.
#[inline(always)]
unsafe fn map<S: Copy, D>(src: *const S, n: usize, dst: *mut D, f: impl Fn(S) -> D) {
    for i in 0..n {
        // SAFETY: the caller's contract.
        unsafe { *dst.add(i) = f(*src.add(i)) }
    }
}

/// Copies a row; a library call costs more than it does for a short one.
///
/// # Safety
/// `n` values on both sides.
#[inline(always)]
unsafe fn copy<I: Isa>(src: *const f32, n: usize, dst: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        if n <= 128 {
            I::copy_run(src, n, dst);
        } else {
            std::ptr::copy_nonoverlapping(src, dst, n);
        }
    }
}

/// An exact f32 as the element type it was rounded to: only for 16-bit bf16.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    (round_f32(value, DType::BF16).to_bits() >> 16) as u16
}

impl Convert for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    unsafe fn load<I: Isa>(src: *const u8, from: Elements, n: usize, dst: *mut f32) {
        // SAFETY: the caller's contract, with `src` seen as elements of `dtype`.
        unsafe {
            match from.dtype {
                DType::F32 => copy::<I>(src.cast(), n, dst),
                DType::F16 => I::f16_to_f32(src.cast(), n, dst),
                DType::BF16 => map(src.cast::<u16>(), n, dst, |x| {
                    f32::from_bits((x as u32) << 16)
                }),
                DType::F8E4M3 => map(src, n, dst, |x| F8E4M3::from_bits(x).to_f32()),
                DType::F8E5M2 => map(src, n, dst, |x| F8E5M2::from_bits(x).to_f32()),
                DType::F64 => match from.round_to {
                    // Through f32 it would be rounded twice.
                    Some(to) => map(src.cast::<f64>(), n, dst, |x| round_f64(x, to) as f32),
                    None => map(src.cast::<f64>(), n, dst, |x| x as f32),
                },
                other => integers(src, other, n, dst, |x| x as f32),
            }
        }
    }

    #[inline(always)]
    unsafe fn round<I: Isa>(values: *mut f32, n: usize, to: DType) {
        let p = values.cast_const();
        // SAFETY: the caller's contract; each value is read before it is written.
        unsafe {
            match to {
                DType::F16 => map(p, n, values, |x| round_f32(x, DType::F16)),
                DType::BF16 => map(p, n, values, |x| round_f32(x, DType::BF16)),
                DType::F8E4M3 => map(p, n, values, |x| round_f32(x, DType::F8E4M3)),
                DType::F8E5M2 => map(p, n, values, |x| round_f32(x, DType::F8E5M2)),
                _ => {}
            }
        }
    }

    #[inline(always)]
    unsafe fn store<I: Isa>(src: *const f32, n: usize, dst: *mut u8, dtype: DType) {
        // SAFETY: the caller's contract, with `dst` seen as elements of `dtype`.
        unsafe {
            match dtype {
                DType::F32 => copy::<I>(src, n, dst.cast()),
                DType::F16 => I::f32_to_f16(src, n, dst.cast()),
                DType::BF16 => map(src, n, dst.cast::<u16>(), bf16_bits),
                DType::F8E4M3 => map(src, n, dst, |x| F8E4M3::from_f32(x).to_bits()),
                DType::F8E5M2 => map(src, n, dst, |x| F8E5M2::from_f32(x).to_bits()),
                DType::F64 => map(src, n, dst.cast::<f64>(), |x| x as f64),
                _ => {}
            }
        }
    }

    #[inline(always)]
    unsafe fn copy_run<I: Isa>(src: *const f32, n: usize, dst: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { I::copy_run(src, n, dst) }
    }

    #[inline(always)]
    unsafe fn transpose<I: Isa>(
        src: *const f32,
        stride: usize,
        lanes: usize,
        ks: usize,
        dst: *mut f32,
        ld: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe { I::transpose(src, stride, lanes, ks, dst, ld) }
    }
}

impl Convert for f64 {
    const DTYPE: DType = DType::F64;

    #[inline(always)]
    unsafe fn load<I: Isa>(src: *const u8, from: Elements, n: usize, dst: *mut f64) {
        // SAFETY: the caller's contract, with `src` seen as elements of `dtype`.
        unsafe {
            match from.dtype {
                DType::F64 => std::ptr::copy_nonoverlapping(src.cast(), dst, n),
                DType::F32 => map(src.cast::<f32>(), n, dst, |x| x as f64),
                DType::F16 => map(src.cast::<f16>(), n, dst, |x| x.to_f64()),
                DType::BF16 => map(src.cast::<bf16>(), n, dst, |x| x.to_f64()),
                DType::F8E4M3 => map(src, n, dst, |x| F8E4M3::from_bits(x).to_f32() as f64),
                DType::F8E5M2 => map(src, n, dst, |x| F8E5M2::from_bits(x).to_f32() as f64),
                other => integers(src, other, n, dst, |x| x as f64),
            }
        }
    }

    #[inline(always)]
    unsafe fn round<I: Isa>(values: *mut f64, n: usize, to: DType) {
        if to.is_float() && to != DType::F64 {
            // SAFETY: the caller's contract.
            unsafe { map(values.cast_const(), n, values, |x| round_f64(x, to)) }
        }
    }

    #[inline(always)]
    unsafe fn store<I: Isa>(src: *const f64, n: usize, dst: *mut u8, dtype: DType) {
        // After `round_f64` the value is one of `dtype`, so the second conversion is exact.
        let exact = |x| round_f64(x, dtype) as f32;
        // SAFETY: the caller's contract, with `dst` seen as elements of `dtype`.
        unsafe {
            match dtype {
                DType::F64 => std::ptr::copy_nonoverlapping(src, dst.cast(), n),
                DType::F32 => map(src, n, dst.cast::<f32>(), exact),
                DType::F16 => map(src, n, dst.cast::<f16>(), |x| f16::from_f32(exact(x))),
                DType::BF16 => map(src, n, dst.cast::<u16>(), |x| bf16_bits(exact(x))),
                DType::F8E4M3 => map(src, n, dst, |x| F8E4M3::from_f32(exact(x)).to_bits()),
                DType::F8E5M2 => map(src, n, dst, |x| F8E5M2::from_f32(exact(x)).to_bits()),
                _ => {}
            }
        }
    }

    #[inline(always)]
    unsafe fn copy_run<I: Isa>(src: *const f64, n: usize, dst: *mut f64) {
        // SAFETY: the caller's contract.
        unsafe { copy_any(src, n, dst) }
    }

    #[inline(always)]
    unsafe fn transpose<I: Isa>(
        src: *const f64,
        stride: usize,
        lanes: usize,
        ks: usize,
        dst: *mut f64,
        ld: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe { transpose_any(src, stride, lanes, ks, dst, ld) }
    }
}

/// Loads integers and booleans, for completeness: no fast path.
///
/// # Safety
/// As [`Convert::load`].
unsafe fn integers<T>(src: *const u8, dtype: DType, n: usize, dst: *mut T, f: impl Fn(i64) -> T) {
    // SAFETY: the caller's contract, with `src` seen as elements of `dtype`.
    unsafe {
        match dtype {
            DType::Bool | DType::U8 => map(src, n, dst, |x| f(x as i64)),
            DType::I32 => map(src.cast::<i32>(), n, dst, |x| f(x as i64)),
            DType::U32 => map(src.cast::<u32>(), n, dst, |x| f(x as i64)),
            DType::I64 => map(src.cast::<i64>(), n, dst, f),
            _ => {}
        }
    }
}

/// A stored row: elements of `dtype`, each rounded to `round_to` when it is loaded.
#[derive(Clone, Copy)]
pub struct Elements {
    /// The dtype of the operand in memory.
    pub dtype: DType,
    /// The dtype that elements are rounded to as they are read, if any.
    pub round_to: Option<DType>,
}

impl Elements {
    /// Whether the values in memory can be used as they are.
    pub fn is_plain<T: Convert>(self) -> bool {
        self.dtype == T::DTYPE && self.round_to.is_none_or(|to| to.size() >= size_of::<T>())
    }

    /// Loads `n` elements that lie `stride` elements apart.
    ///
    /// # Safety
    /// All of them readable and aligned, `dst` writable for `n`.
    #[inline(always)]
    pub unsafe fn load<I: Isa, T: Convert>(
        self,
        src: *const u8,
        stride: isize,
        n: usize,
        dst: *mut T,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if stride == 1 {
                T::load::<I>(src, self, n, dst);
            } else {
                match self.dtype.size() {
                    1 => self.gather::<I, T, u8>(src, stride, n, dst),
                    2 => self.gather::<I, T, u16>(src, stride, n, dst),
                    4 => self.gather::<I, T, u32>(src, stride, n, dst),
                    _ => self.gather::<I, T, u64>(src, stride, n, dst),
                }
            }
            if let Some(to) = self.round_to {
                T::round::<I>(dst, n, to);
            }
        }
    }

    /// Brings strided elements together, `W` being as wide as one, and loads them.
    ///
    /// # Safety
    /// As [`Elements::load`].
    #[inline(always)]
    unsafe fn gather<I: Isa, T: Convert, W: Copy + Default>(
        self,
        src: *const u8,
        stride: isize,
        n: usize,
        dst: *mut T,
    ) {
        let src = src.cast::<W>();
        let mut row = [W::default(); GATHER];
        let mut i = 0;
        while i < n {
            let len = GATHER.min(n - i);
            for (j, w) in row.iter_mut().enumerate().take(len) {
                // SAFETY: element `i + j < n` of the row.
                unsafe { *w = *src.offset((i + j) as isize * stride) }
            }
            // SAFETY: `len` elements on both sides.
            unsafe { T::load::<I>(row.as_ptr().cast(), self, len, dst.add(i)) }
            i += len;
        }
    }
}
