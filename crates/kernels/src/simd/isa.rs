//! How one generic loop becomes a function per instruction set.

use super::philox::Blocks;

/// What a loop body may ask of the instruction set it is compiled for.
pub trait Isa: Copy + 'static {
    /// Whether the hardware has a fused multiply-add.
    const FMA: bool;

    /// `a * b + c`: one rounding where the hardware has it, two elsewhere. Only for the insides of
    /// transcendental functions; the fused multiply-add of a program is [`f32::mul_add`].
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }

    /// [`Isa::mul_add`] in f64.
    #[inline(always)]
    fn mul_add64(a: f64, b: f64, c: f64) -> f64 {
        if Self::FMA {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }

    /// `(p, e)` with `p` the rounded product and `p + e = a * b` exactly.
    #[inline(always)]
    fn two_prod(a: f32, b: f32) -> (f32, f32) {
        let p = a * b;
        let e = if Self::FMA {
            a.mul_add(b, -p)
        } else {
            (a as f64 * b as f64 - p as f64) as f32
        };
        (p, e)
    }

    /// Eight f16 bit patterns to f32.
    #[inline(always)]
    fn f16_to_f32(h: [u16; 8]) -> [f32; 8] {
        h.map(super::convert::f16_decode)
    }

    /// Eight f32 to f16 bit patterns, nearest even.
    #[inline(always)]
    fn f32_to_f16(x: [f32; 8]) -> [u16; 8] {
        x.map(super::convert::f16_encode)
    }

    /// Consecutive blocks of Philox from block number `first`.
    #[inline(always)]
    fn philox(key: [u32; 2], ctr_hi: [u32; 2], first: u64, out: &mut Blocks) {
        *out = super::philox::blocks(key, ctr_hi, first);
    }

    /// The sum of 16 lanes in halves: l with l + 8, then l + 4, 2, 1. The same bits everywhere; left to itself the compiler adds one by one.
    #[inline(always)]
    fn sum16(x: [f32; 16]) -> f32 {
        halves(x, |a, b| a + b)
    }

    /// The largest of 16 lanes, in halves; where one is NaN, some lane.
    #[inline(always)]
    fn max16(x: [f32; 16]) -> f32 {
        halves(x, |a, b| if a > b { a } else { b })
    }

    /// Writes a line around the caches, where the machine can.
    ///
    /// # Safety
    /// `to` is writable and aligned to a line of 64 bytes.
    #[inline(always)]
    unsafe fn stream16(to: *mut f32, x: [f32; 16]) {
        // SAFETY: the caller's contract.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(x) }
    }
}

/// Combines lanes in halves.
#[inline(always)]
fn halves(mut x: [f32; 16], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = 8;
    while width > 0 {
        for l in 0..width {
            x[l] = f(x[l], x[l + width]);
        }
        width /= 2;
    }
    x[0]
}

/// The baseline of the target.
#[derive(Clone, Copy)]
pub struct Portable;
/// AVX2 + FMA + F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Avx2;
/// AVX-512 F/BW/DQ/VL.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Avx512;

impl Isa for Portable {
    const FMA: bool = cfg!(target_arch = "aarch64");
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Avx2, Avx512, Blocks, Isa};
    use std::arch::x86_64::*;
    use std::mem::transmute;

    /// Combines the lanes of a register in halves, from half a register of AVX-512 on.
    macro_rules! halves {
        ($wide:expr, $f128:ident) => {{
            let x = $wide;
            let x = $f128(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = $f128(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32($f128(x, _mm_movehdup_ps(x)))
        }};
    }

    /// The two halves of 16 lanes.
    #[inline(always)]
    fn pair(x: [f32; 16]) -> (__m256, __m256) {
        // SAFETY: both have the size of the array; only called where AVX is on.
        unsafe { transmute(x) }
    }

    #[inline(always)]
    fn sum16(x: [f32; 16]) -> f32 {
        let (a, b) = pair(x);
        // SAFETY: `Avx2` and `Avx512` bodies only run inside wrappers that enable AVX2.
        unsafe { halves!(_mm256_add_ps(a, b), _mm_add_ps) }
    }

    #[inline(always)]
    fn max16(x: [f32; 16]) -> f32 {
        let (a, b) = pair(x);
        // SAFETY: as in `sum16`.
        unsafe { halves!(_mm256_max_ps(a, b), _mm_max_ps) }
    }

    #[inline(always)]
    fn to_f32(h: [u16; 8]) -> [f32; 8] {
        // SAFETY: `Avx2` and `Avx512` bodies only run inside wrappers that enable F16C, which the
        // level's detection asked for; both arrays have the size of the vector and any bits are valid.
        unsafe { transmute(_mm256_cvtph_ps(transmute::<[u16; 8], __m128i>(h))) }
    }

    #[inline(always)]
    fn to_f16(x: [f32; 8]) -> [u16; 8] {
        // SAFETY: as in `to_f32`.
        unsafe {
            transmute(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(transmute::<
                [f32; 8],
                __m256,
            >(
                x
            )))
        }
    }

    impl Isa for Avx2 {
        const FMA: bool = true;
        #[inline(always)]
        fn f16_to_f32(h: [u16; 8]) -> [f32; 8] {
            to_f32(h)
        }
        #[inline(always)]
        fn f32_to_f16(x: [f32; 8]) -> [u16; 8] {
            to_f16(x)
        }
        #[inline(always)]
        fn sum16(x: [f32; 16]) -> f32 {
            sum16(x)
        }
        #[inline(always)]
        fn max16(x: [f32; 16]) -> f32 {
            max16(x)
        }
        #[inline(always)]
        unsafe fn stream16(to: *mut f32, x: [f32; 16]) {
            let (a, b) = pair(x);
            // SAFETY: the caller's contract, and AVX as above.
            unsafe {
                _mm256_stream_ps(to, a);
                _mm256_stream_ps(to.add(8), b);
            }
        }
    }

    impl Isa for Avx512 {
        const FMA: bool = true;
        #[inline(always)]
        fn f16_to_f32(h: [u16; 8]) -> [f32; 8] {
            to_f32(h)
        }
        #[inline(always)]
        fn f32_to_f16(x: [f32; 8]) -> [u16; 8] {
            to_f16(x)
        }
        #[inline(always)]
        fn sum16(x: [f32; 16]) -> f32 {
            sum16(x)
        }
        #[inline(always)]
        fn max16(x: [f32; 16]) -> f32 {
            max16(x)
        }
        #[inline(always)]
        unsafe fn stream16(to: *mut f32, x: [f32; 16]) {
            // SAFETY: the caller's contract; `Avx512` bodies only run inside wrappers that enable AVX-512F.
            unsafe { _mm512_stream_ps(to, transmute::<[f32; 16], __m512>(x)) }
        }
        #[inline(always)]
        fn philox(key: [u32; 2], ctr_hi: [u32; 2], first: u64, out: &mut Blocks) {
            // SAFETY: `Avx512` bodies only run inside wrappers that enable AVX-512F, which detection found.
            unsafe { crate::simd::philox::blocks_avx512(key, ctr_hi, first, out) }
        }
    }
}

/// `pick!(level, fn(args) -> result { body })`: compiles `body`, in which `I` names the [`Isa`],
/// once per instruction set and gives the function pointer for `level`.
#[doc(hidden)]
#[macro_export]
macro_rules! __pick {
    ($level:expr, fn($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {{
        fn portable($($arg: $ty),*) $(-> $ret)? {
            #[allow(dead_code)]
            type I = $crate::simd::isa::Portable;
            $body
        }
        #[cfg(target_arch = "x86_64")]
        fn avx2($($arg: $ty),*) $(-> $ret)? {
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            fn inner($($arg: $ty),*) $(-> $ret)? {
                #[allow(dead_code)]
                type I = $crate::simd::isa::Avx2;
                $body
            }
            // SAFETY: reached only through a level that detection found on this machine.
            unsafe { inner($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        fn avx512($($arg: $ty),*) $(-> $ret)? {
            #[target_feature(
                enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
            )]
            fn inner($($arg: $ty),*) $(-> $ret)? {
                #[allow(dead_code)]
                type I = $crate::simd::isa::Avx512;
                $body
            }
            // SAFETY: reached only through a level that detection found on this machine.
            unsafe { inner($($arg),*) }
        }
        // `supported` is what makes the calls above sound for any argument.
        let f: fn($($ty),*) $(-> $ret)? = match $level.supported() {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::SimdLevel::Avx512 => avx512,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::SimdLevel::Avx2 => avx2,
            _ => portable,
        };
        f
    }};
}
pub use __pick as pick;

/// `dst[i] = f(a[i])`.
#[inline(always)]
pub fn map<A: Copy, D>(dst: &mut [D], a: &[A], f: impl Fn(A) -> D) {
    debug_assert_eq!(dst.len(), a.len());
    for (d, &x) in dst.iter_mut().zip(a) {
        *d = f(x);
    }
}

/// `dst[i] = f(a[i], b[i])`.
#[inline(always)]
pub fn map2<A: Copy, B: Copy, D>(dst: &mut [D], a: &[A], b: &[B], f: impl Fn(A, B) -> D) {
    debug_assert!(dst.len() == a.len() && a.len() == b.len());
    for ((d, &x), &y) in dst.iter_mut().zip(a).zip(b) {
        *d = f(x, y);
    }
}

/// `dst[i] = f(a[i], b[i], c[i])`.
#[inline(always)]
pub fn map3<A: Copy, B: Copy, C: Copy, D>(
    dst: &mut [D],
    a: &[A],
    b: &[B],
    c: &[C],
    f: impl Fn(A, B, C) -> D,
) {
    debug_assert!(dst.len() == a.len() && a.len() == b.len() && b.len() == c.len());
    for (((d, &x), &y), &z) in dst.iter_mut().zip(a).zip(b).zip(c) {
        *d = f(x, y, z);
    }
}

#[cfg(test)]
mod tests {
    use super::Isa;
    use crate::simd::isa::pick;
    use crate::simd::simd_level;

    #[test]
    fn lanes_fold_in_halves_on_every_path() {
        let x: [f32; 16] = std::array::from_fn(|i| 1.0 / (i as f32 + 0.3) - 0.2);
        let four: [f32; 4] = std::array::from_fn(|i| (x[i] + x[i + 8]) + (x[i + 4] + x[i + 12]));
        let sum = (four[0] + four[2]) + (four[1] + four[3]);
        let got = pick!(simd_level(), fn(x: &[f32; 16]) -> (f32, f32) { (I::sum16(*x), I::max16(*x)) })(
            &x,
        );
        assert_eq!(got, (sum, x[0]));
        assert_eq!((super::Portable::sum16(x), super::Portable::max16(x)), got);
    }
}
