//! A product whose right factor is packed once for many steps.
use super::{Zeros, zeros};
use crate::gemm::micro::{Family, Real};
use crate::simd::simd_level;

/// A matrix `[k, n]` in panels of columns, as the innermost kernels read it.
pub(super) struct Packed {
    family: Family<f32>,
    k: usize,
    n: usize,
    panels: Zeros,
}

impl Packed {
    /// Packs `value(k, column)`.
    pub(super) fn new(k: usize, n: usize, value: impl Fn(usize, usize) -> f32) -> Packed {
        let family = f32::family(simd_level());
        let nr = family.nr;
        let mut panels = zeros(n.div_ceil(nr) * nr * k);
        for (p, panel) in panels.chunks_mut((nr * k).max(1)).enumerate() {
            for (i, row) in panel.chunks_mut(nr).enumerate() {
                for (j, v) in row.iter_mut().enumerate().take(n - p * nr) {
                    *v = value(i, p * nr + j);
                }
            }
        }
        Packed {
            family,
            k,
            n,
            panels,
        }
    }

    /// The distance of rows of A for which they do not meet in few sets of the first cache.
    pub(super) fn stride(k: usize) -> usize {
        k.next_multiple_of(16) + 16
    }

    /// `c[rows, n] = a[rows, k] b`, rows of A [`Packed::stride`] apart, those of C n.
    pub(super) fn multiply(&self, a: &[f32], rows: usize, c: &mut [f32]) {
        let (k, n, nr) = (self.k, self.n, self.family.nr);
        let stride = Packed::stride(k);
        assert!(rows == 0 || a.len() >= (rows - 1) * stride + k && c.len() >= rows * n);
        if rows == 0 {
            return;
        }
        // Equal panels of rows instead of full ones and a rest.
        let height = rows.div_ceil(rows.div_ceil(self.family.mr));
        for (p, panel) in self.panels.chunks((nr * k).max(1)).enumerate() {
            let cols = nr.min(n - p * nr);
            for row in (0..rows).step_by(height) {
                let count = height.min(rows - row);
                let micro = (self.family.pick)(count, cols > nr / 2, false);
                for from in (0..k).step_by(f32::KC) {
                    let steps = f32::KC.min(k - from);
                    // SAFETY: `count` rows of `steps` values of A, whole rows of the panel, and a block of C, all inside of
                    // the slices as asserted; the family is that of a level this machine has.
                    unsafe {
                        micro(
                            steps,
                            a.as_ptr().add(row * stride + from),
                            stride,
                            panel.as_ptr().add(from * nr),
                            nr,
                            c.as_mut_ptr().add(row * n + p * nr),
                            n,
                            cols,
                            from > 0,
                        );
                    }
                }
            }
        }
    }
}
