//! Which instruction set the kernels use.

use std::sync::OnceLock;

/// An instruction set that the kernels are written for; later ones include the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    /// What every processor of the target has (SSE2, NEON).
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// The best level of this processor, or the lower one that `BIMETAL_SIMD` names.
    pub(crate) fn current() -> Level {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let wanted = match std::env::var("BIMETAL_SIMD").as_deref() {
                Ok("portable") => Level::Portable,
                Ok("avx2") => Level::Avx2,
                _ => Level::Avx512,
            };
            wanted.min(Level::supported())
        })
    }

    /// The best level of this processor.
    pub(crate) fn supported() -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 =
                has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            if avx2 && avx512 {
                return Level::Avx512;
            }
            if avx2 {
                return Level::Avx2;
            }
        }
        Level::Portable
    }

    /// Every level that this processor can run, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Level> {
        [Level::Portable, Level::Avx2, Level::Avx512]
            .into_iter()
            .filter(|l| *l <= Level::supported())
            .collect()
    }
}
