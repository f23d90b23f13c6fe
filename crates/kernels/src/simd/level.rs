//! Which instruction set the kernels use.
use std::fmt;
use std::sync::OnceLock;

/// An instruction set of the element-wise and row kernels.
///
/// Results are equal bits for any chunking and thread count within one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// The baseline of the target: SSE2 on x86-64, NEON on aarch64.
    Portable,
    /// AVX2 with FMA and F16C (x86-64-v3).
    Avx2,
    /// AVX-512 F, BW, DQ and VL (x86-64-v4).
    Avx512,
}

impl SimdLevel {
    /// The levels this machine can run, lowest first.
    pub fn available() -> &'static [SimdLevel] {
        const ALL: [SimdLevel; 3] = [SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512];
        match best() {
            SimdLevel::Portable => &ALL[..1],
            SimdLevel::Avx2 => &ALL[..2],
            SimdLevel::Avx512 => &ALL,
        }
    }

    /// This level, or the best this machine can run where it cannot run this one.
    pub fn supported(self) -> SimdLevel {
        self.min(best())
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SimdLevel::Portable => "portable",
            SimdLevel::Avx2 => "avx2",
            SimdLevel::Avx512 => "avx512",
        })
    }
}

/// The instruction set in use: the best of this machine, or a lower one named by the environment
/// variable `BIMETAL_SIMD` (`portable`, `avx2` or `avx512`), read once.
///
/// A name that is unknown or more than the machine has leaves the best one in force.
pub fn simd_level() -> SimdLevel {
    static LEVEL: OnceLock<SimdLevel> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let asked = std::env::var("BIMETAL_SIMD").unwrap_or_default();
        parse(&asked).map_or_else(best, SimdLevel::supported)
    })
}

fn parse(name: &str) -> Option<SimdLevel> {
    match name.to_ascii_lowercase().as_str() {
        "portable" => Some(SimdLevel::Portable),
        "avx2" => Some(SimdLevel::Avx2),
        "avx512" => Some(SimdLevel::Avx512),
        _ => None,
    }
}

/// Everything that the wrappers of [`super::isa::pick`] enable must be asked for here.
#[cfg(target_arch = "x86_64")]
fn detect() -> SimdLevel {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => SimdLevel::Avx512,
        (true, false) => SimdLevel::Avx2,
        _ => SimdLevel::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> SimdLevel {
    SimdLevel::Portable
}

fn best() -> SimdLevel {
    static BEST: OnceLock<SimdLevel> = OnceLock::new();
    *BEST.get_or_init(detect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for &level in SimdLevel::available() {
            assert_eq!(parse(&level.to_string()), Some(level));
            assert_eq!(level.supported(), level);
        }
        assert_eq!(parse("AVX2"), Some(SimdLevel::Avx2));
        assert_eq!(parse("sse9"), None);
        assert!(SimdLevel::Avx512.supported() <= best());
    }
}
