//! Memory that is passed once: stores around the caches, and loads ahead of time.
//!
//! An ordinary store of a line that is in no cache reads it first. Where a result is larger than the caches anyway, a
//! streaming store saves that third of the traffic. None of this changes a value.
use super::level::SimdLevel;

/// A cache line.
const LINE: usize = 64;

/// Copies `src` to `dst`, of one length, around the caches where the machine can; [`fence`] must follow before other threads read it.
pub fn stream(dst: &mut [u8], src: &[u8]) {
    debug_assert_eq!(dst.len(), src.len());
    #[cfg(target_arch = "x86_64")]
    {
        let head = dst.as_ptr().align_offset(LINE).min(dst.len());
        let lines = (dst.len() - head) / LINE;
        let tail = head + lines * LINE;
        dst[..head].copy_from_slice(&src[..head]);
        dst[tail..].copy_from_slice(&src[tail..]);
        let (to, from) = (dst[head..].as_mut_ptr(), src[head..].as_ptr());
        // SAFETY: `lines` aligned lines of `dst`, as many bytes of `src`; AVX-512 only where detection found it.
        unsafe {
            match super::simd_level() {
                SimdLevel::Avx512 => x86::wide(to, from, lines),
                _ => x86::narrow(to, from, lines),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    dst.copy_from_slice(src);
}

/// Orders this thread's streaming stores before whatever it does next.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// Asks for the lines of `bytes` to be brought to the second-level cache.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint, for memory that is there.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    // SAFETY (to call): AVX-512F; `to` aligned and writable, `from` readable for `lines` lines.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn wide(to: *mut u8, from: *const u8, lines: usize) {
        for i in 0..lines {
            // SAFETY: line `i`.
            unsafe {
                let v = _mm512_loadu_si512(from.add(64 * i).cast());
                _mm512_stream_si512(to.add(64 * i).cast(), v);
            }
        }
    }

    // SAFETY (to call): as `wide`, on any x86-64.
    pub unsafe fn narrow(to: *mut u8, from: *const u8, lines: usize) {
        for i in 0..4 * lines {
            // SAFETY: a quarter of a line.
            unsafe {
                let v = _mm_loadu_si128(from.add(16 * i).cast());
                _mm_stream_si128(to.add(16 * i).cast(), v);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaming_is_a_copy() {
        let src: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for (from, to) in [(0, 0), (0, 1000), (3, 70), (1, 640), (64, 128), (5, 1000)] {
            let mut dst = vec![0; 1000];
            prefetch(&src[from..to]);
            stream(&mut dst[from..to], &src[from..to]);
            fence();
            assert_eq!(dst[from..to], src[from..to]);
            assert!(dst[..from].iter().chain(&dst[to..]).all(|b| *b == 0));
        }
    }
}
