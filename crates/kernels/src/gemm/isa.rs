//! Vector routines that the compiler does not find by itself, per instruction set.

use half::f16;

/// One instruction set. The functions are inlined into bodies that [`by_level!`](super::by_level)
/// compiles for it.
pub trait Isa {
    /// The same for element functions.
    type Simd: crate::simd::isa::Isa;

    /// Whether `mul_add` is one instruction.
    const FUSED: bool;

    /// Fetches the line of an address, which may be anything, into the caches.
    fn prefetch<T>(_address: *const T) {}

    /// Widens `n` binary16 values.
    ///
    /// # Safety
    /// The processor has the instruction set; `n` values on both sides.
    unsafe fn f16_to_f32(src: *const u16, n: usize, dst: *mut f32);

    /// Rounds `n` values to binary16, to nearest even.
    ///
    /// # Safety
    /// The processor has the instruction set; `n` values on both sides.
    unsafe fn f32_to_f16(src: *const f32, n: usize, dst: *mut u16);

    /// Copies `n` values, few of them as a rule.
    ///
    /// # Safety
    /// The processor has the instruction set; `n` values on both sides.
    unsafe fn copy_run(src: *const f32, n: usize, dst: *mut f32);

    /// `dst[k * ld + lane] = src[lane * stride + k]`.
    ///
    /// # Safety
    /// The processor has the instruction set; `lanes` runs of `ks` values lie `stride` apart in `src`, and as many of `lanes` values `ld` apart in `dst`.
    unsafe fn transpose(
        src: *const f32,
        stride: usize,
        lanes: usize,
        ks: usize,
        dst: *mut f32,
        ld: usize,
    );
}

/// Copies a few values one by one: a library call would cost more.
///
/// # Safety
/// `n` values on both sides.
#[inline(always)]
pub unsafe fn copy_any<T: Copy>(src: *const T, n: usize, dst: *mut T) {
    for i in 0..n {
        // SAFETY: `i < n`.
        unsafe { *dst.add(i) = *src.add(i) }
    }
}

/// No more than the target guarantees.
pub struct Portable;

/// Element by element, for what is left of a block.
///
/// # Safety
/// As [`Isa::transpose`], for the lanes from `lane0` and the ks from `k0`.
#[inline(always)]
unsafe fn transpose_rest<T: Copy>(
    src: *const T,
    stride: usize,
    lanes: std::ops::Range<usize>,
    ks: std::ops::Range<usize>,
    dst: *mut T,
    ld: usize,
) {
    for k in ks {
        for lane in lanes.clone() {
            // SAFETY: inside the caller's ranges.
            unsafe { *dst.add(k * ld + lane) = *src.add(lane * stride + k) }
        }
    }
}

/// The transpose of any type, without vector code.
///
/// # Safety
/// `src` readable for lanes x ks, `dst` writable for ks x lanes.
#[inline(always)]
pub unsafe fn transpose_any<T: Copy>(
    src: *const T,
    stride: usize,
    lanes: usize,
    ks: usize,
    dst: *mut T,
    ld: usize,
) {
    // SAFETY: the caller's contract.
    unsafe { transpose_rest(src, stride, 0..lanes, 0..ks, dst, ld) }
}

impl Isa for Portable {
    type Simd = crate::simd::isa::Portable;

    const FUSED: bool = cfg!(target_arch = "aarch64");

    #[inline(always)]
    unsafe fn f16_to_f32(src: *const u16, n: usize, dst: *mut f32) {
        for i in 0..n {
            // SAFETY: `n` elements on both sides.
            unsafe { *dst.add(i) = f16::from_bits(src.add(i).read_unaligned()).to_f32() }
        }
    }

    #[inline(always)]
    unsafe fn f32_to_f16(src: *const f32, n: usize, dst: *mut u16) {
        for i in 0..n {
            // SAFETY: `n` elements on both sides.
            unsafe { *dst.add(i) = f16::from_f32(*src.add(i)).to_bits() }
        }
    }

    #[inline(always)]
    unsafe fn copy_run(src: *const f32, n: usize, dst: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { copy_any(src, n, dst) }
    }

    #[inline(always)]
    unsafe fn transpose(
        src: *const f32,
        stride: usize,
        lanes: usize,
        ks: usize,
        dst: *mut f32,
        ld: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe { transpose_any(src, stride, lanes, ks, dst, ld) }
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Isa, copy_any, transpose_rest};
    use std::arch::x86_64::*;

    /// AVX2 with FMA and F16C.
    pub struct Avx2;
    /// AVX-512 (F, BW, DQ, VL).
    pub struct Avx512;

    /// Runs `$wide` on every full block of `$lanes` and once more on a padded copy of the rest.
    macro_rules! blocks {
        ($src:ident, $n:ident, $dst:ident, $lanes:literal, $wide:expr) => {{
            let mut i = 0;
            while i + $lanes <= $n {
                $wide($src.add(i), $dst.add(i));
                i += $lanes;
            }
            if i < $n {
                let (mut from, mut to) =
                    ([Default::default(); $lanes], [Default::default(); $lanes]);
                std::ptr::copy_nonoverlapping($src.add(i), from.as_mut_ptr(), $n - i);
                $wide(from.as_ptr(), to.as_mut_ptr());
                std::ptr::copy_nonoverlapping(to.as_ptr(), $dst.add(i), $n - i);
            }
        }};
    }

    /// The first `n` of 16 lanes, all from 16 on.
    #[inline(always)]
    fn first(n: usize) -> u16 {
        if n < 16 { !(u16::MAX << n) } else { u16::MAX }
    }

    impl Isa for Avx512 {
        type Simd = crate::simd::isa::Avx512;

        const FUSED: bool = true;

        #[inline(always)]
        fn prefetch<T>(address: *const T) {
            // SAFETY: a prefetch never faults; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        }

        #[inline(always)]
        unsafe fn f16_to_f32(src: *const u16, n: usize, dst: *mut f32) {
            for i in (0..n).step_by(16) {
                let mask = first(n - i);
                // SAFETY: the mask leaves out what is beyond `n`; the caller runs on AVX-512.
                unsafe {
                    let x = _mm256_maskz_loadu_epi16(mask, src.add(i).cast());
                    _mm512_mask_storeu_ps(dst.add(i), mask, _mm512_cvtph_ps(x));
                }
            }
        }

        #[inline(always)]
        unsafe fn f32_to_f16(src: *const f32, n: usize, dst: *mut u16) {
            for i in (0..n).step_by(16) {
                let mask = first(n - i);
                // SAFETY: the mask leaves out what is beyond `n`; the caller runs on AVX-512.
                unsafe {
                    let x = _mm512_maskz_loadu_ps(mask, src.add(i));
                    let x = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
                    _mm256_mask_storeu_epi16(dst.add(i).cast(), mask, x);
                }
            }
        }

        #[inline(always)]
        unsafe fn copy_run(src: *const f32, n: usize, dst: *mut f32) {
            for i in (0..n).step_by(16) {
                let mask = first(n - i);
                // SAFETY: the mask leaves out what is beyond `n`; the caller runs on AVX-512.
                unsafe {
                    let x = _mm512_maskz_loadu_ps(mask, src.add(i));
                    _mm512_mask_storeu_ps(dst.add(i), mask, x);
                }
            }
        }

        #[inline(always)]
        unsafe fn transpose(
            src: *const f32,
            stride: usize,
            lanes: usize,
            ks: usize,
            dst: *mut f32,
            ld: usize,
        ) {
            // SAFETY: the caller's contract, block by block.
            unsafe {
                for lane in (0..lanes).step_by(16) {
                    let few = lanes - lane;
                    if few < 4 {
                        transpose_rest(src, stride, lane..lanes, 0..ks, dst, ld);
                        continue;
                    }
                    for k in (0..ks).step_by(16) {
                        let (src, dst) = (src.add(lane * stride + k), dst.add(k * ld + lane));
                        if few < 16 || ks - k < 16 {
                            part16(src, stride, few, ks - k, dst, ld);
                        } else {
                            block16(src, stride, dst, ld);
                        }
                    }
                }
            }
        }
    }

    /// [`block16`] with fewer lanes or ks: what is missing is neither read nor written.
    #[inline(always)]
    unsafe fn part16(
        src: *const f32,
        stride: usize,
        lanes: usize,
        ks: usize,
        dst: *mut f32,
        ld: usize,
    ) {
        let (some_lanes, some_ks) = (first(lanes), first(ks));
        // SAFETY: lanes x ks values on both sides; the caller runs on AVX-512.
        unsafe {
            turn16(
                |lane| match lane < lanes {
                    true => _mm512_maskz_loadu_ps(some_ks, src.add(lane * stride)),
                    false => _mm512_setzero_ps(),
                },
                |k, x| {
                    if k < ks {
                        _mm512_mask_storeu_ps(dst.add(k * ld), some_lanes, x);
                    }
                },
            )
        }
    }

    /// Transposes a block in memory.
    #[inline(always)]
    unsafe fn block16(src: *const f32, stride: usize, dst: *mut f32, ld: usize) {
        // SAFETY: 16 x 16 values on both sides; the caller runs on AVX-512.
        unsafe {
            turn16(
                |lane| _mm512_loadu_ps(src.add(lane * stride)),
                |k, x| _mm512_storeu_ps(dst.add(k * ld), x),
            )
        }
    }

    /// Transposes 16 x 16 values: pairs, quads within 128 bits, then the 128-bit quarters twice.
    #[inline(always)]
    unsafe fn turn16(load: impl Fn(usize) -> __m512, store: impl Fn(usize, __m512)) {
        // SAFETY: the caller runs on AVX-512.
        unsafe {
            let mut r = [_mm512_setzero_ps(); 16];
            for (i, x) in r.iter_mut().enumerate() {
                *x = load(i);
            }
            let mut t = r;
            for i in (0..16).step_by(2) {
                t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
                t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
            }
            // r[4g + q]: column 4*quarter + q of rows 4g..4g+4, for each quarter.
            for g in (0..16).step_by(4) {
                r[g] = _mm512_shuffle_ps::<0x44>(t[g], t[g + 2]);
                r[g + 1] = _mm512_shuffle_ps::<0xee>(t[g], t[g + 2]);
                r[g + 2] = _mm512_shuffle_ps::<0x44>(t[g + 1], t[g + 3]);
                r[g + 3] = _mm512_shuffle_ps::<0xee>(t[g + 1], t[g + 3]);
            }
            for q in 0..4 {
                let lo0 = _mm512_shuffle_f32x4::<0x88>(r[q], r[4 + q]);
                let hi0 = _mm512_shuffle_f32x4::<0xdd>(r[q], r[4 + q]);
                let lo1 = _mm512_shuffle_f32x4::<0x88>(r[8 + q], r[12 + q]);
                let hi1 = _mm512_shuffle_f32x4::<0xdd>(r[8 + q], r[12 + q]);
                let out = [
                    _mm512_shuffle_f32x4::<0x88>(lo0, lo1),
                    _mm512_shuffle_f32x4::<0x88>(hi0, hi1),
                    _mm512_shuffle_f32x4::<0xdd>(lo0, lo1),
                    _mm512_shuffle_f32x4::<0xdd>(hi0, hi1),
                ];
                for (quarter, x) in out.into_iter().enumerate() {
                    store(4 * quarter + q, x);
                }
            }
        }
    }

    impl Isa for Avx2 {
        type Simd = crate::simd::isa::Avx2;

        const FUSED: bool = true;

        #[inline(always)]
        fn prefetch<T>(address: *const T) {
            // SAFETY: a prefetch never faults; SSE is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        }

        #[inline(always)]
        unsafe fn f16_to_f32(src: *const u16, n: usize, dst: *mut f32) {
            // SAFETY: `n` elements on both sides; the caller runs on F16C.
            unsafe {
                blocks!(src, n, dst, 8, |s: *const u16, d: *mut f32| {
                    _mm256_storeu_ps(d, _mm256_cvtph_ps(_mm_loadu_si128(s.cast())))
                })
            }
        }

        #[inline(always)]
        unsafe fn f32_to_f16(src: *const f32, n: usize, dst: *mut u16) {
            // SAFETY: `n` elements on both sides; the caller runs on F16C.
            unsafe {
                blocks!(src, n, dst, 8, |s: *const f32, d: *mut u16| {
                    let x = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(s));
                    _mm_storeu_si128(d.cast(), x)
                })
            }
        }

        #[inline(always)]
        unsafe fn copy_run(src: *const f32, n: usize, dst: *mut f32) {
            // SAFETY: every vector lies within `n`; the last one may overlap the one before.
            unsafe {
                if n >= 8 {
                    let mut i = 0;
                    while i < n {
                        let at = i.min(n - 8);
                        _mm256_storeu_ps(dst.add(at), _mm256_loadu_ps(src.add(at)));
                        i += 8;
                    }
                } else if n >= 4 {
                    for at in [0, n - 4] {
                        _mm_storeu_ps(dst.add(at), _mm_loadu_ps(src.add(at)));
                    }
                } else {
                    copy_any(src, n, dst);
                }
            }
        }

        #[inline(always)]
        unsafe fn transpose(
            src: *const f32,
            stride: usize,
            lanes: usize,
            ks: usize,
            dst: *mut f32,
            ld: usize,
        ) {
            let (full_lanes, full_ks) = (lanes / 8 * 8, ks / 8 * 8);
            // SAFETY: the caller's contract, block by block.
            unsafe {
                for lane in (0..full_lanes).step_by(8) {
                    for k in (0..full_ks).step_by(8) {
                        block8(
                            src.add(lane * stride + k),
                            stride,
                            dst.add(k * ld + lane),
                            ld,
                        );
                    }
                }
                transpose_rest(src, stride, 0..full_lanes, full_ks..ks, dst, ld);
                transpose_rest(src, stride, full_lanes..lanes, 0..ks, dst, ld);
            }
        }
    }

    /// Transposes 8 x 8 values: pairs, quads within 128 bits, then the halves.
    #[inline(always)]
    unsafe fn block8(src: *const f32, stride: usize, dst: *mut f32, ld: usize) {
        // SAFETY: 8 x 8 values on both sides; the caller runs on AVX2.
        unsafe {
            let mut r = [_mm256_setzero_ps(); 8];
            for (i, x) in r.iter_mut().enumerate() {
                *x = _mm256_loadu_ps(src.add(i * stride));
            }
            let mut t = r;
            for i in (0..8).step_by(2) {
                t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
                t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
            }
            for g in [0, 4] {
                r[g] = _mm256_shuffle_ps::<0x44>(t[g], t[g + 2]);
                r[g + 1] = _mm256_shuffle_ps::<0xee>(t[g], t[g + 2]);
                r[g + 2] = _mm256_shuffle_ps::<0x44>(t[g + 1], t[g + 3]);
                r[g + 3] = _mm256_shuffle_ps::<0xee>(t[g + 1], t[g + 3]);
            }
            for q in 0..4 {
                let lo = _mm256_permute2f128_ps::<0x20>(r[q], r[4 + q]);
                let hi = _mm256_permute2f128_ps::<0x31>(r[q], r[4 + q]);
                _mm256_storeu_ps(dst.add(q * ld), lo);
                _mm256_storeu_ps(dst.add((4 + q) * ld), hi);
            }
        }
    }
}

/// Defines `name(level, args..)`, which runs `body::<I, T>(args..)` compiled for the level.
///
/// The body must be `#[inline(always)]`. The type parameter may be left out.
#[doc(hidden)]
#[macro_export]
macro_rules! __by_level {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$T:ident: $bound:path>($($arg:ident: $ty:ty),* $(,)?) = $body:ident) => {
        $crate::gemm::by_level!(@ [$(#[$meta])*] [$vis] $name [<$T: $bound>] [::<$T>] [, $T] ($($arg: $ty),*) $body);
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:ident) => {
        $crate::gemm::by_level!(@ [$(#[$meta])*] [$vis] $name [] [] [] ($($arg: $ty),*) $body);
    };
    (@ [$($meta:tt)*] [$vis:vis] $name:ident [$($decl:tt)*] [$($call:tt)*] [$($more:tt)*] ($($arg:ident: $ty:ty),*) $body:ident) => {
        $($meta)*
        ///
        /// # Safety
        /// The processor has the instruction set of `level`; the arguments are in the bounds that the sentence above says.
        $vis unsafe fn $name $($decl)* (level: $crate::gemm::Level, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::gemm::Level;
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                unsafe fn avx512 $($decl)* ($($arg: $ty),*) {
                    // SAFETY: the caller's contract; the features are on.
                    unsafe { $body::<$crate::gemm::isa::Avx512 $($more)*>($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2 $($decl)* ($($arg: $ty),*) {
                    // SAFETY: the caller's contract; the features are on.
                    unsafe { $body::<$crate::gemm::isa::Avx2 $($more)*>($($arg),*) }
                }
                match level {
                    // SAFETY: a level is used only where the processor has it.
                    Level::Avx512 => return unsafe { avx512 $($call)* ($($arg),*) },
                    // SAFETY: as above.
                    Level::Avx2 => return unsafe { avx2 $($call)* ($($arg),*) },
                    Level::Portable => {}
                }
            }
            let _ = level;
            // SAFETY: the caller's contract.
            unsafe { $body::<$crate::gemm::isa::Portable $($more)*>($($arg),*) }
        }
    };
}
pub use __by_level as by_level;
