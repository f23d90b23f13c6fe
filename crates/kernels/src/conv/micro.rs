//! The innermost kernels of convolutions whose windows are read where they lie: a block of the
//! result held in registers.

use crate::gemm::Level;

/// `C[R x cols] (+)= A[k][R] * windows[k x cols]`: value (t, q) is at `b[..] + taps[t]`.
///
/// Arguments: taps; A and the stride between its ks; where each vector (or half) of positions lies;
/// C and the stride between its rows; cols; whether to add to C. Every element is one chain over
/// ascending k, as in the kernels of a matrix product.
pub type Micro =
    unsafe fn(&[usize], *const f32, usize, &[*const f32; 4], *mut f32, usize, usize, bool);

/// `sums[(row, tap)][lanes] += sum over positions of x[row][position + tap] * g[position][lanes]` for
/// some rows of windows.
///
/// Arguments: rows and columns of positions; rows of x, the steps between their rows and columns; g;
/// sums.
pub type MicroGrad =
    unsafe fn([usize; 2], &[*const f32; MOST_ROWS], [usize; 2], *const f32, *mut f32);

/// Window rows that a [`MicroGrad`] takes at most.
pub const MOST_ROWS: usize = 8;

/// The kernels of one instruction set.
pub struct Family {
    /// Values in a vector.
    pub lanes: usize,
    /// Most rows of a block of two vectors.
    pub mr: usize,
    /// Values of half a vector that can be read apart, if so.
    pub half: Option<usize>,
    /// The kernel for (rows, two vectors, halves).
    pub pick: fn(usize, bool, bool) -> Micro,
    /// Most window rows for (columns of a window, two vectors), 0 if there is no kernel.
    pub grad_rows: fn(usize, bool) -> usize,
    /// The kernel for (columns of a window, window rows, two vectors).
    pub pick_grad: fn(usize, usize, bool) -> Option<MicroGrad>,
}

/// The kernels of a level, if it has any.
pub fn family(level: Level) -> Option<Family> {
    #[cfg(target_arch = "x86_64")]
    return match level {
        Level::Avx512 => Some(avx512::FAMILY),
        Level::Avx2 => Some(avx2::FAMILY),
        Level::Portable => None,
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        None
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($features:literal, $lanes:literal, $half:expr, rows = [$($r:literal)*] max $mr:literal,
     grad = [$(($kw:literal, $two:literal, $most:literal, [$($rows:literal)*]))*],
     $vec:ty, $zero:ident, $load:expr, $halves:expr, $set:ident, $fma:ident, $add:ident, $read:expr, $write:expr, $store:ident) => {
        use super::{Family, Micro, MicroGrad, MOST_ROWS};
        use std::arch::x86_64::*;

        // SAFETY (to call): the features; `a` and all windows readable; `c` writable for R x cols.
        #[target_feature(enable = $features)]
        unsafe fn micro<const R: usize, const V: usize, const HALVES: bool>(
            taps: &[usize],
            a: *const f32,
            sa: usize,
            b: &[*const f32; 4],
            c: *mut f32,
            ldc: usize,
            cols: usize,
            add: bool,
        ) {
            let mut acc = [[$zero(); V]; R];
            let mut a = a;
            // SAFETY: the caller's contract; what the mask leaves out of C is not touched.
            unsafe {
                for &tap in taps {
                    let mut vb = [$zero(); V];
                    for (v, x) in vb.iter_mut().enumerate() {
                        *x = if HALVES {
                            $halves(b[2 * v].add(tap), b[2 * v + 1].add(tap))
                        } else {
                            $load(b[v].add(tap))
                        };
                    }
                    for (i, row) in acc.iter_mut().enumerate() {
                        let x = $set(*a.add(i));
                        for v in 0..V {
                            row[v] = $fma(x, vb[v], row[v]);
                        }
                    }
                    a = a.wrapping_add(sa);
                }
                let last = cols - (V - 1) * $lanes;
                for (i, row) in acc.iter().enumerate() {
                    for v in 0..V {
                        let len = if v + 1 == V { last } else { $lanes };
                        let p = c.add(i * ldc + v * $lanes);
                        let mut x = row[v];
                        if add {
                            x = $add($read(p, len), x);
                        }
                        $write(p, len, x);
                    }
                }
            }
        }

        // SAFETY (to call): the features; R rows of x and the rows of g readable for all positions,
        // the sums writable.
        #[target_feature(enable = $features)]
        unsafe fn grad<const KW: usize, const R: usize, const V: usize>(
            grid: [usize; 2],
            x: &[*const f32; MOST_ROWS],
            steps: [usize; 2],
            g: *const f32,
            sums: *mut f32,
        ) {
            // Plain loops over constants: only they leave all of it in registers.
            let mut acc = [[[$zero(); V]; KW]; R];
            let mut g = g;
            // SAFETY: the caller's contract.
            unsafe {
                for i in 0..grid[0] {
                    let mut rows = [std::ptr::null::<f32>(); R];
                    for r in 0..R {
                        rows[r] = x[r].add(i * steps[0]);
                    }
                    let mut at = 0;
                    for _ in 0..grid[1] {
                        let mut vg = [$zero(); V];
                        for v in 0..V {
                            vg[v] = $load(g.add(v * $lanes));
                        }
                        for r in 0..R {
                            for t in 0..KW {
                                let x = $set(*rows[r].add(at + t));
                                for v in 0..V {
                                    acc[r][t][v] = $fma(x, vg[v], acc[r][t][v]);
                                }
                            }
                        }
                        at += steps[1];
                        g = g.wrapping_add(V * $lanes);
                    }
                }
                for r in 0..R {
                    for t in 0..KW {
                        for v in 0..V {
                            let p = sums.add(((r * KW + t) * V + v) * $lanes);
                            $store(p, $add($load(p), acc[r][t][v]));
                        }
                    }
                }
            }
        }

        fn pick(rows: usize, two: bool, halves: bool) -> Micro {
            match (rows, two, halves) {
                $(
                    ($r, true, true) => micro::<$r, 2, true>,
                    ($r, true, false) => micro::<$r, 2, false>,
                    ($r, false, true) => micro::<$r, 1, true>,
                    ($r, false, false) => micro::<$r, 1, false>,
                )*
                _ => unreachable!("a block has 1 to {} rows", $mr),
            }
        }

        fn grad_rows(width: usize, two: bool) -> usize {
            match (width, two) {
                $(($kw, $two) => $most,)*
                _ => 0,
            }
        }

        fn pick_grad(width: usize, rows: usize, two: bool) -> Option<MicroGrad> {
            match (width, rows, two) {
                $($(($kw, $rows, $two) => Some(grad::<$kw, $rows, { 1 + $two as usize }>),)*)*
                _ => None,
            }
        }

        pub const FAMILY: Family = Family {
            lanes: $lanes,
            mr: $mr,
            half: $half,
            pick,
            grad_rows,
            pick_grad,
        };
    };
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    kernels!(
        "avx512f,avx512dq",
        16,
        Some(8),
        rows = [1 2 3 4 5 6 7 8 9 10 11 12 13 14] max 14,
        grad = [
            (1, true, 8, [1 2 3 4 5 6 7 8])
            (1, false, 8, [1 2 3 4 5 6 7 8])
            (3, true, 4, [1 2 3 4])
            (3, false, 6, [1 2 3 4 5 6])
            (5, true, 2, [1 2])
            (5, false, 3, [1 2 3])
        ],
        __m512,
        _mm512_setzero_ps,
        |p: *const f32| _mm512_loadu_ps(p),
        |p: *const f32, q: *const f32| _mm512_insertf32x8::<1>(
            _mm512_castps256_ps512(_mm256_loadu_ps(p)),
            _mm256_loadu_ps(q)
        ),
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        |p: *mut f32, n: usize| _mm512_maskz_loadu_ps(u16::MAX >> (16 - n), p),
        |p: *mut f32, n: usize, x| _mm512_mask_storeu_ps(p, u16::MAX >> (16 - n), x),
        _mm512_storeu_ps
    );
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    /// The first `n` of eight lanes.
    #[target_feature(enable = "avx2")]
    fn first(n: usize) -> __m256i {
        _mm256_cmpgt_epi32(
            _mm256_set1_epi32(n as i32),
            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
        )
    }

    kernels!(
        "avx2,fma",
        8,
        None,
        rows = [1 2 3 4 5 6] max 6,
        grad = [
            (1, true, 4, [1 2 3 4])
            (1, false, 8, [1 2 3 4 5 6 7 8])
            (3, true, 2, [1 2])
            (3, false, 4, [1 2 3 4])
            (5, true, 1, [1])
            (5, false, 2, [1 2])
        ],
        __m256,
        _mm256_setzero_ps,
        |p: *const f32| _mm256_loadu_ps(p),
        |p: *const f32, _q: *const f32| _mm256_loadu_ps(p),
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        |p: *mut f32, n: usize| _mm256_maskload_ps(p, first(n)),
        |p: *mut f32, n: usize, x| _mm256_maskstore_ps(p, first(n), x),
        _mm256_storeu_ps
    );
}
