//! The innermost kernels: a block of C held in registers.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::Level;
use super::convert::Convert;

/// `C[R x cols] (+)= A[R x k] * B[k x cols]` for a fixed number of rows `R`.
///
/// Arguments: k; A and its stride (between rows if row-major, between k if k-major); B and the
/// stride between its rows; C and the stride between its rows; cols; whether to add to C. Every
/// element is one chain of multiply-adds over ascending k, started at zero, whatever R and cols.
pub type Micro<T> = unsafe fn(usize, *const T, usize, *const T, usize, *mut T, usize, usize, bool);

/// A family of kernels of one type and instruction set.
pub struct Family<T> {
    /// Most rows of a block.
    pub mr: usize,
    /// Most columns of a block: two vectors.
    pub nr: usize,
    /// The kernel for (rows, whether more than nr/2 columns, whether A is k-major).
    pub pick: fn(usize, bool, bool) -> Micro<T>,
}

/// The accumulator types: f32 and f64.
pub trait Real: Convert + PartialOrd + Send + Sync + 'static {
    /// Steps along k between additions to C.
    const KC: usize;
    /// The kernels for a level.
    fn family(level: Level) -> Family<Self>;
    /// The sum.
    fn plus(self, other: Self) -> Self;
    /// The product.
    fn times(self, other: Self) -> Self;
    /// The quotient.
    fn over(self, other: Self) -> Self;
    /// Whether it is NaN.
    fn nan(self) -> bool;
    /// `self * a + b`, rounded once if `FUSED`.
    fn times_plus<const FUSED: bool>(self, a: Self, b: Self) -> Self;
    /// The nearest value.
    fn from_f64(value: f64) -> Self;
}

macro_rules! real {
    ($t:ident, $kc:literal) => {
        impl Real for $t {
            const KC: usize = $kc;

            fn family(level: Level) -> Family<$t> {
                #[cfg(target_arch = "x86_64")]
                match level {
                    Level::Avx512 => return avx512::$t::family(),
                    Level::Avx2 => return avx2::$t::family(),
                    Level::Portable => {}
                }
                let _ = level;
                portable::$t::family()
            }

            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                self + other
            }

            #[inline(always)]
            fn times(self, other: $t) -> $t {
                self * other
            }

            #[inline(always)]
            fn over(self, other: $t) -> $t {
                self / other
            }

            #[inline(always)]
            fn nan(self) -> bool {
                self.is_nan()
            }

            #[inline(always)]
            fn times_plus<const FUSED: bool>(self, a: $t, b: $t) -> $t {
                if FUSED {
                    self.mul_add(a, b)
                } else {
                    self * a + b
                }
            }

            #[inline(always)]
            fn from_f64(value: f64) -> $t {
                value as $t
            }
        }
    };
}

real!(f32, 256);
real!(f64, 192);

/// Writes `family()` for a `micro<R, V, K_MAJOR>` in scope and the row counts given.
macro_rules! family {
    ($t:ident, nr = $nr:expr, rows = [$($r:literal)*] max $max:literal) => {
        pub fn family() -> crate::gemm::micro::Family<$t> {
            fn pick(rows: usize, wide: bool, k_major: bool) -> crate::gemm::micro::Micro<$t> {
                match (rows, wide, k_major) {
                    $(
                        ($r, true, true) => micro::<$r, 2, true>,
                        ($r, true, false) => micro::<$r, 2, false>,
                        ($r, false, true) => micro::<$r, 1, true>,
                        ($r, false, false) => micro::<$r, 1, false>,
                    )*
                    _ => unreachable!("a block has 1 to {} rows", $max),
                }
            }
            crate::gemm::micro::Family { mr: $max, nr: $nr, pick }
        }
    };
}
use family;
