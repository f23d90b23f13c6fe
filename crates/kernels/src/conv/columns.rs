//! The matrix of all windows of staged images, which is never stored: its parts are gathered while
//! packing.

use super::stage::Staged;
use crate::gemm::{Isa, Layout, Level, PackA, PackB, Real, Scratch, Sink, Tile, by_level};
use std::ops::Range;

/// `[taps, positions]` for each group: value (t, q) is at offset `taps[t]` from position q.
///
/// Positions are numbered through all images: image, row, column.
pub struct Columns<'a, T> {
    pub staged: &'a Staged<T>,
    /// Values between rows of positions; those of a row lie together.
    pub row_step: usize,
    /// Rows and columns of positions in an image.
    pub grid: [usize; 2],
    /// Offsets of a window's values in one group.
    pub taps: Vec<usize>,
    /// Channels between groups.
    pub group_channels: usize,
    /// Images in one matrix of a batch; the matrices are numbered (group, part of the images).
    pub images: usize,
    pub parts: usize,
}

// SAFETY: the staged values are only read.
unsafe impl<T> Sync for Columns<'_, T> {}

/// Values that lie together both in the images and in the packed copy.
#[derive(Clone, Copy)]
struct Run {
    src: usize,
    dst: usize,
    len: usize,
}

impl<T> Columns<'_, T> {
    /// Positions of one matrix.
    pub fn positions(&self) -> usize {
        self.images * self.grid[0] * self.grid[1]
    }

    /// The first value that matrix `batch` refers to.
    fn base(&self, batch: usize) -> *const T {
        let (group, part) = (batch / self.parts, batch % self.parts);
        let channel = group * self.group_channels;
        let [image, plane, _] = self.staged.strides;
        let offset = channel * plane + part * self.images * image;
        self.staged.ptr.wrapping_add(offset)
    }

    /// Positions as runs.
    fn runs(&self, positions: Range<usize>) -> Vec<Run> {
        let [rows, cols] = self.grid;
        let mut out: Vec<Run> = Vec::new();
        let mut at = positions.start;
        while at < positions.end {
            let (line, col) = (at / cols, at % cols);
            let src = line / rows * self.staged.strides[0] + line % rows * self.row_step + col;
            let len = (cols - col).min(positions.end - at);
            let dst = at - positions.start;
            match out.last_mut() {
                Some(last) if last.src + last.len == src => last.len += len,
                _ => out.push(Run { src, dst, len }),
            }
            at += len;
        }
        out
    }
}

impl<T: Real> PackB<T> for Columns<'_, T> {
    fn rows_together(&self) -> bool {
        false
    }

    unsafe fn pack(
        &self,
        level: Level,
        batch: usize,
        ks: Range<usize>,
        cols: Range<usize>,
        nr: usize,
        dst: *mut T,
    ) {
        let (base, width) = (self.base(batch), cols.len());
        let runs = self.runs(cols);
        // SAFETY: the runs lie in the images, the rows in `dst`.
        unsafe { gather(level, base, &self.taps[ks], &runs, width, nr, nr, dst) }
    }
}

/// As the left factor: the rows are taps, and k runs over positions.
impl<T: Real> PackA<T> for Columns<'_, T> {
    fn layout(&self) -> Layout {
        Layout::RowMajor
    }

    unsafe fn pack(
        &self,
        level: Level,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        _mr: usize,
        dst: *mut T,
        stride: usize,
    ) {
        let (base, width) = (self.base(batch), ks.len());
        let runs = self.runs(ks);
        // SAFETY: the runs lie in the images, the rows in `dst`.
        unsafe {
            gather(
                level,
                base,
                &self.taps[rows],
                &runs,
                width,
                width,
                stride,
                dst,
            )
        }
    }
}

/// Positions that are transposed at a time.
const BLOCK: usize = 256;

/// The transposed matrix as the right factor: k runs over positions, the columns are taps.
pub struct Transposed<'a, T>(pub Columns<'a, T>);

impl<T: Real> PackB<T> for Transposed<'_, T> {
    fn rows_together(&self) -> bool {
        false
    }

    unsafe fn pack(
        &self,
        level: Level,
        batch: usize,
        ks: Range<usize>,
        cols: Range<usize>,
        nr: usize,
        dst: *mut T,
    ) {
        let (base, taps) = (self.0.base(batch), &self.0.taps[cols]);
        // Rows that do not meet in a few sets of the L1 cache.
        let ld = BLOCK + 16;
        let rows = Scratch::take::<T>(nr * ld);
        for k in ks.clone().step_by(BLOCK) {
            let block = k..(k + BLOCK).min(ks.end);
            let width = block.len();
            let runs = self.0.runs(block);
            // SAFETY: the runs lie in the images, the rows in the scratch and in `dst`.
            unsafe {
                gather(level, base, taps, &runs, width, width, ld, rows.ptr());
                let dst = dst.add((k - ks.start) * nr);
                transpose(level, rows.ptr(), ld, taps.len(), width, dst, nr);
            }
        }
    }
}

by_level!(
    /// `dst[k * nr + lane] = src[lane * ld + k]`, zero for further lanes.
    fn transpose<T: Real>(src: *const T, ld: usize, lanes: usize, ks: usize, dst: *mut T, nr: usize) = transpose_body
);

#[inline(always)]
unsafe fn transpose_body<I: Isa, T: Real>(
    src: *const T,
    ld: usize,
    lanes: usize,
    ks: usize,
    dst: *mut T,
    nr: usize,
) {
    // SAFETY: lanes x ks of the source, ks x nr of the destination.
    unsafe {
        T::transpose::<I>(src, ld, lanes, ks, dst, nr);
        for k in 0..ks {
            for lane in lanes..nr {
                *dst.add(k * nr + lane) = T::default();
            }
        }
    }
}

by_level!(
    /// For every tap a row of all runs, `ld` values apart, zero from `width` to `full`.
    fn gather<T: Real>(base: *const T, taps: &[usize], runs: &[Run], width: usize, full: usize, ld: usize, dst: *mut T) = gather_body
);

#[inline(always)]
unsafe fn gather_body<I: Isa, T: Real>(
    base: *const T,
    taps: &[usize],
    runs: &[Run],
    width: usize,
    full: usize,
    ld: usize,
    dst: *mut T,
) {
    for (row, tap) in taps.iter().enumerate() {
        // SAFETY: the caller's runs.
        unsafe {
            let (src, dst) = (base.add(*tap), dst.add(row * ld));
            for run in runs {
                T::copy_run::<I>(src.add(run.src), run.len, dst.add(run.dst));
            }
            for i in width..full {
                *dst.add(i) = T::default();
            }
        }
    }
}

/// Splits tiles of `[filters, positions]`, one matrix per group, by image.
pub struct ByImage<'a, T> {
    pub inner: &'a dyn Sink<T>,
    /// Positions of an image.
    pub positions: usize,
    /// Filters of a group.
    pub filters: usize,
    /// The first of the images.
    pub image: usize,
}

impl<T: Real> Sink<T> for ByImage<'_, T> {
    fn store(&self, level: Level, tile: Tile<'_, T>) {
        let (mut at, end) = (tile.col, tile.col + tile.cols);
        while at < end {
            let (image, col) = (at / self.positions, at % self.positions);
            let cols = (self.positions - col).min(end - at);
            let part = Tile {
                batch: self.image + image,
                row: tile.batch * self.filters + tile.row,
                rows: tile.rows,
                col,
                cols,
                data: &mut tile.data[at - tile.col..],
                ld: tile.ld,
            };
            self.inner.store(level, part);
            at += cols;
        }
    }
}
