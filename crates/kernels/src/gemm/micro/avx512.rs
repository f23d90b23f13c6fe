//! AVX-512 kernels: 14 rows by two vectors, 28 of the 32 registers.

macro_rules! kernels {
    ($t:ident, $lanes:literal, $mask:ty, $zero:ident, $load:ident, $set:ident, $fma:ident,
     $add:ident, $mload:ident, $mstore:ident) => {
        pub mod $t {
            use std::arch::x86_64::*;

            // SAFETY (to call): AVX-512F; `a` and `b` readable as `Micro` says, `b` for whole
            // vectors; `c` writable for R x cols.
            #[target_feature(enable = "avx512f")]
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
                    let tail = <$mask>::MAX >> (V * $lanes - cols);
                    for (i, row) in acc.iter().enumerate() {
                        for v in 0..V {
                            let mask = if v + 1 == V { tail } else { <$mask>::MAX };
                            let p = c.add(i * ldc + v * $lanes);
                            let mut x = row[v];
                            if add {
                                x = $add($mload(mask, p), x);
                            }
                            $mstore(p, mask, x);
                        }
                    }
                }
            }

            crate::gemm::micro::family!($t, nr = 2 * $lanes,
                rows = [1 2 3 4 5 6 7 8 9 10 11 12 13 14] max 14);
        }
    };
}

kernels!(
    f32,
    16,
    u16,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps,
    _mm512_maskz_loadu_ps,
    _mm512_mask_storeu_ps
);
kernels!(
    f64,
    8,
    u8,
    _mm512_setzero_pd,
    _mm512_loadu_pd,
    _mm512_set1_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd,
    _mm512_maskz_loadu_pd,
    _mm512_mask_storeu_pd
);
