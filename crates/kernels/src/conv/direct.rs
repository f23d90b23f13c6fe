//! Products of weights and windows, image by image: the windows are read where they lie, vector by
//! vector, instead of being gathered while packing.
//!
//! That pays where a vector of positions lies together in the image: in rows of whole (or half)
//! vectors, or in all rows at once, the padding between them included and dropped again.

use super::micro::{self, Family};
use crate::gemm::{Isa, Level, Real, Scratch, Sink, Tile, by_level};

/// Weights that are read from the L2 cache for each image.
const MOST_WEIGHTS: usize = 1 << 18;

/// Multiply-adds that are worth a task.
const TASK: usize = 1 << 19;

/// Units of that many multiply-adds that make a task.
pub fn together(work: usize) -> usize {
    (TASK / work.max(1)).max(1)
}

/// How positions become vectors.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Cut {
    /// Rows of whole vectors.
    Rows,
    /// Rows of half vectors.
    Halves,
    /// One row, with what lies between the rows of positions.
    Through,
}

/// A matrix `[m, taps]` per group, ready to be multiplied with the windows of an image.
pub struct Direct {
    level: Level,
    family: Family,
    groups: usize,
    m: usize,
    mr: usize,
    kc: usize,
    /// `[group, panel of mr rows, tap, mr]`.
    packed: Scratch,
    taps: Vec<usize>,
    /// Values between groups, and between rows of positions.
    group_step: usize,
    row_step: usize,
    cols: usize,
    cut: Cut,
}

impl Direct {
    /// Whether windows of these positions, `cols` in a row and rows `row_step` apart, and weights
    /// `[groups * m, k]` are multiplied faster here.
    pub fn pays(level: Level, m: usize, k: usize, cols: usize, row_step: usize) -> bool {
        let Some(family) = micro::family(level) else {
            return false;
        };
        m > 0 && k > 0 && m * k <= MOST_WEIGHTS && cut(&family, cols, row_step).is_some()
    }

    /// `None` where it does not pay; `weights` are `[groups * m, taps]`.
    ///
    /// # Safety
    /// `weights` readable.
    pub unsafe fn new(
        level: Level,
        groups: usize,
        m: usize,
        weights: *const f32,
        taps: Vec<usize>,
        group_step: usize,
        cols: usize,
        row_step: usize,
    ) -> Option<Direct> {
        let k = taps.len();
        if !Direct::pays(level, m, k, cols, row_step) {
            return None;
        }
        let family = micro::family(level)?;
        let cut = cut(&family, cols, row_step)?;
        // Equal panels and equal sums, as in a matrix product.
        let mr = m.div_ceil(m.div_ceil(family.mr));
        let kc = k.div_ceil(k.div_ceil(<f32 as Real>::KC));
        let panels = m.div_ceil(mr);
        let packed = Scratch::take::<f32>(groups * panels * k * mr);
        for p in 0..groups * panels {
            let first = p / panels * m + p % panels * mr;
            let rows = mr.min(m - p % panels * mr);
            // SAFETY: rows of the weights, and a panel.
            unsafe {
                let dst = packed.ptr::<f32>().add(p * k * mr);
                turn(level, weights.add(first * k), k, rows, dst, mr);
            }
        }
        Some(Direct {
            level,
            family,
            groups,
            m,
            mr,
            kc,
            packed,
            taps,
            group_step,
            row_step,
            cols,
            cut,
        })
    }

    /// Products with all windows at `rows` rows of positions, from `staged` on: columns `col..` of
    /// matrix `batch`.
    ///
    /// # Safety
    /// The windows are readable, and a vector behind the last.
    pub unsafe fn run(
        &self,
        staged: *const f32,
        rows: usize,
        out: &dyn Sink<f32>,
        batch: usize,
        col: usize,
    ) {
        let (lanes, k) = (self.family.lanes, self.taps.len());
        let cols = rows * self.cols;
        let width = match self.cut {
            Cut::Through => (rows - 1) * self.row_step + self.cols,
            _ => cols,
        };
        let ld = width.next_multiple_of(lanes);
        let panels = self.m.div_ceil(self.mr);
        let mut own = None;
        for p in 0..self.groups * panels {
            let (group, panel) = (p / panels, p % panels);
            let height = self.mr.min(self.m - panel * self.mr);
            let row = group * self.m + panel * self.mr;
            let direct = match self.cut {
                Cut::Through if self.row_step != self.cols => None,
                _ => out.direct(batch, row, col),
            };
            let (c, ldc) = match direct {
                Some(direct) => direct,
                None => {
                    let own = own.get_or_insert_with(|| Scratch::take::<f32>(self.mr * ld));
                    (own.ptr(), ld)
                }
            };
            let staged = staged.wrapping_add(group * self.group_step);
            for first in (0..k).step_by(self.kc) {
                let taps = &self.taps[first..(first + self.kc).min(k)];
                let a = self
                    .packed
                    .ptr::<f32>()
                    .wrapping_add((p * k + first) * self.mr);
                for q in (0..width).step_by(2 * lanes) {
                    let len = (2 * lanes).min(width - q);
                    let at = self.vectors(staged, q, width);
                    let micro = (self.family.pick)(height, len > lanes, self.cut == Cut::Halves);
                    // SAFETY: the caller's contract; the tile has these rows and columns.
                    unsafe { micro(taps, a, self.mr, &at, c.add(q), ldc, len, first > 0) };
                }
            }
            if direct.is_some() {
                continue;
            }
            // SAFETY: the scratch has these rows.
            let data = unsafe {
                if self.cut == Cut::Through {
                    close_up(self.level, c, ld, height, rows, self.cols, self.row_step);
                }
                std::slice::from_raw_parts_mut(c, (height - 1) * ld + cols)
            };
            let tile = Tile {
                batch,
                row,
                rows: height,
                col,
                cols,
                data,
                ld,
            };
            out.store(self.level, tile);
        }
    }

    /// Where the vectors, or halves, of the positions from `q` on lie.
    fn vectors(&self, staged: *const f32, q: usize, end: usize) -> [*const f32; 4] {
        let step = match (self.cut, self.family.half) {
            (Cut::Halves, Some(half)) => half,
            _ => self.family.lanes,
        };
        std::array::from_fn(|i| {
            let q = q + i * step;
            let at = match self.cut {
                // Nobody reads what is behind the last.
                _ if q >= end => 0,
                Cut::Through => q,
                _ => q / self.cols * self.row_step + q % self.cols,
            };
            staged.wrapping_add(at)
        })
    }
}

fn cut(family: &Family, cols: usize, row_step: usize) -> Option<Cut> {
    if cols == 0 {
        return None;
    }
    if cols.is_multiple_of(family.lanes) {
        return Some(Cut::Rows);
    }
    if family.half.is_some_and(|half| cols.is_multiple_of(half)) {
        return Some(Cut::Halves);
    }
    // More waste would cost more than gathering does.
    (row_step <= cols + cols / 3).then_some(Cut::Through)
}

by_level!(
    /// `dst[t * mr + i] = src[i * k + t]`.
    fn turn(src: *const f32, k: usize, rows: usize, dst: *mut f32, mr: usize) = turn_body
);

#[inline(always)]
#[allow(clippy::extra_unused_type_parameters)] // by_level! names the set; the compiler vectorises for it
unsafe fn turn_body<I: Isa>(src: *const f32, k: usize, rows: usize, dst: *mut f32, mr: usize) {
    for t in 0..k {
        for i in 0..rows {
            // SAFETY: rows x k values on both sides.
            unsafe { *dst.add(t * mr + i) = *src.add(i * k + t) }
        }
    }
}

by_level!(
    /// Drops what lies between rows of positions.
    fn close_up(c: *mut f32, ld: usize, height: usize, rows: usize, cols: usize, step: usize) = close_up_body
);

#[inline(always)]
#[allow(clippy::extra_unused_type_parameters)] // by_level! names the set; the compiler vectorises for it
unsafe fn close_up_body<I: Isa>(
    c: *mut f32,
    ld: usize,
    height: usize,
    rows: usize,
    cols: usize,
    step: usize,
) {
    if step == cols {
        return;
    }
    for i in 0..height {
        let c = c.wrapping_add(i * ld);
        for y in 1..rows {
            // SAFETY: inside of row `i`.
            unsafe {
                let (src, dst) = (c.add(y * step), c.add(y * cols));
                let mut x = 0;
                // Each vector is read before it is written, at a lower address.
                while x + 8 <= cols {
                    let eight = src.add(x).cast::<[f32; 8]>().read_unaligned();
                    dst.add(x).cast::<[f32; 8]>().write_unaligned(eight);
                    x += 8;
                }
                while x < cols {
                    *dst.add(x) = *src.add(x);
                    x += 1;
                }
            }
        }
    }
}
