//! Kernels in plain Rust, which the compiler vectorises for the target's own instructions.

use super::Real;

/// aarch64 always has fused multiply-add; elsewhere it would be a library call.
const FUSED: bool = cfg!(target_arch = "aarch64");

macro_rules! kernels {
    ($t:ident, $lanes:literal, rows = [$($r:literal)*] max $max:literal) => {
        pub mod $t {
            use super::{FUSED, Real};

            // SAFETY (to call): `a` and `b` readable as `Micro` says, `b` for whole vectors; `c`
            // writable for R x cols.
            unsafe fn micro<const R: usize, const V: usize, const K_MAJOR: bool>(
                k: usize,
                a: *const $t,
                sa: usize,
                b: *const $t,
                sb: usize,
                c: *mut $t,
                ldc: usize,
                cols: usize,
                add: bool,
            ) {
                let mut acc = [[[0.0; $lanes]; V]; R];
                // SAFETY: reads stay within k rows of B and the R x k block of A, writes within
                // R x cols of C.
                unsafe {
                    for kk in 0..k {
                        let b = b.add(kk * sb).cast::<[[$t; $lanes]; V]>().read_unaligned();
                        for (i, row) in acc.iter_mut().enumerate() {
                            let x = *if K_MAJOR { a.add(kk * sa + i) } else { a.add(i * sa + kk) };
                            for (row, b) in row.iter_mut().zip(&b) {
                                for (y, &b) in row.iter_mut().zip(b) {
                                    *y = x.times_plus::<FUSED>(b, *y);
                                }
                            }
                        }
                    }
                    for (i, row) in acc.iter().enumerate() {
                        for (j, &x) in row.as_flattened().iter().enumerate().take(cols) {
                            let p = c.add(i * ldc + j);
                            *p = if add { *p + x } else { x };
                        }
                    }
                }
            }

            crate::gemm::micro::family!($t, nr = 2 * $lanes, rows = [$($r)*] max $max);
        }
    };
}

// Blocks sized to the registers: 16 of 128 bits with SSE2, 32 with NEON.
#[cfg(not(target_arch = "aarch64"))]
kernels!(f32, 4, rows = [1 2 3 4] max 4);
#[cfg(not(target_arch = "aarch64"))]
kernels!(f64, 2, rows = [1 2 3 4] max 4);
#[cfg(target_arch = "aarch64")]
kernels!(f32, 8, rows = [1 2 3 4 5 6] max 6);
#[cfg(target_arch = "aarch64")]
kernels!(f64, 4, rows = [1 2 3 4 5 6] max 6);
