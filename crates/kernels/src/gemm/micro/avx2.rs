//! AVX2 kernels: 6 rows by two vectors, 12 of the 16 registers.

macro_rules! kernels {
    ($t:ident, $lanes:literal, $int:ty, $zero:ident, $load:ident, $store:ident, $set:ident,
     $fma:ident, $add:ident, $mload:ident, $mstore:ident) => {
        pub mod $t {
            use std::arch::x86_64::*;

            /// A window of `$lanes` integers in here is a mask of the first lanes.
            static MASKS: [$int; 2 * $lanes] = {
                let mut masks = [0; 2 * $lanes];
                let mut i = 0;
                while i < $lanes {
                    masks[i] = -1;
                    i += 1;
                }
                masks
            };

            // SAFETY (to call): AVX2 and FMA; `a` and `b` readable as `Micro` says, `b` for whole
            // vectors; `c` writable for R x cols.
            #[target_feature(enable = "avx2,fma")]
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
                let mut acc = [[$zero(); V]; R];
                let (mut a, mut b) = (a, b);
                // SAFETY: reads stay within k rows of B and the R x k block of A; what the mask
                // leaves out of C is not touched.
                unsafe {
                    for _ in 0..k {
                        let mut vb = [$zero(); V];
                        for (v, x) in vb.iter_mut().enumerate() {
                            *x = $load(b.add(v * $lanes));
                        }
                        for (i, row) in acc.iter_mut().enumerate() {
                            let x = $set(*if K_MAJOR { a.add(i) } else { a.add(i * sa) });
                            for v in 0..V {
                                row[v] = $fma(x, vb[v], row[v]);
                            }
                        }
                        b = b.wrapping_add(sb);
                        a = a.wrapping_add(if K_MAJOR { sa } else { 1 });
                    }
                    let tail = cols - (V - 1) * $lanes;
                    let mask = _mm256_loadu_si256(MASKS.as_ptr().add($lanes - tail).cast());
                    for (i, row) in acc.iter().enumerate() {
                        for v in 0..V {
                            let p = c.add(i * ldc + v * $lanes);
                            let mut x = row[v];
                            if v + 1 == V && tail < $lanes {
                                if add {
                                    x = $add($mload(p, mask), x);
                                }
                                $mstore(p, mask, x);
                            } else {
                                if add {
                                    x = $add($load(p), x);
                                }
                                $store(p, x);
                            }
                        }
                    }
                }
            }

            crate::gemm::micro::family!($t, nr = 2 * $lanes, rows = [1 2 3 4 5 6] max 6);
        }
    };
}

kernels!(
    f32,
    8,
    i32,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps,
    _mm256_maskload_ps,
    _mm256_maskstore_ps
);
kernels!(
    f64,
    4,
    i64,
    _mm256_setzero_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_set1_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd,
    _mm256_maskload_pd,
    _mm256_maskstore_pd
);
