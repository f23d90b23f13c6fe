//! What the blocked product needs to know of its factors and of its result.

use super::Level;
use std::ops::Range;

/// How packed rows of A lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Each row together.
    RowMajor,
    /// Panels of `mr` rows; in a panel, the rows together for each k, `k_step` values from one k to the next.
    KMajor,
}

/// Values from one k to the next in a packed k-major panel: whole vectors, so that few loads and stores cross a cache line.
pub fn k_step(mr: usize) -> usize {
    mr.next_multiple_of(8)
}

/// The left factor.
pub trait PackA<T>: Sync {
    /// The layout that [`PackA::pack`] writes and [`PackA::direct`] has.
    fn layout(&self) -> Layout;

    /// Memory that already has the layout: address of (row, k), stride between rows or ks.
    fn direct(&self, _batch: usize, _row: usize, _k: usize) -> Option<(*const T, usize)> {
        None
    }

    /// Writes a block; `stride` is between rows (row-major) or panels (k-major).
    ///
    /// # Safety
    /// The ranges lie in the matrix; `dst` has room for them.
    unsafe fn pack(
        &self,
        level: Level,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        mr: usize,
        dst: *mut T,
        stride: usize,
    );
}

/// The right factor.
pub trait PackB<T>: Sync {
    /// Memory in which the columns lie together: address of (k, col), stride between ks.
    fn direct(&self, _batch: usize, _k: usize, _col: usize) -> Option<(*const T, usize)> {
        None
    }

    /// Whether the columns lie together, so that whole rows should be read at a time.
    fn rows_together(&self) -> bool;

    /// Writes a panel of at most `nr` columns to `dst[k][nr]`, zero beyond the last column.
    ///
    /// # Safety
    /// The ranges lie in the matrix; `dst` has room for them.
    unsafe fn pack(
        &self,
        level: Level,
        batch: usize,
        ks: Range<usize>,
        cols: Range<usize>,
        nr: usize,
        dst: *mut T,
    );

    /// Writes all panels of the columns, `between` apart.
    ///
    /// # Safety
    /// As [`PackB::pack`], for every panel.
    unsafe fn pack_panels(
        &self,
        level: Level,
        batch: usize,
        ks: Range<usize>,
        cols: Range<usize>,
        nr: usize,
        dst: *mut T,
        between: usize,
    ) {
        for (p, first) in cols.clone().step_by(nr).enumerate() {
            let panel = first..(first + nr).min(cols.end);
            // SAFETY: the caller's contract.
            unsafe { self.pack(level, batch, ks.clone(), panel, nr, dst.add(p * between)) }
        }
    }
}

/// A finished block of C before it is rounded: element (i, j) of it is `data[i * ld + j]`.
pub struct Tile<'a, T> {
    /// Index of the matrix in the batch.
    pub batch: usize,
    /// First row.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
    /// First column.
    pub col: usize,
    /// Number of columns.
    pub cols: usize,
    /// The values; free to be overwritten.
    pub data: &'a mut [T],
    /// Values from one row to the next, at least `cols`.
    pub ld: usize,
}

/// Where C goes.
pub trait Sink<T>: Sync {
    /// Memory that takes values as they are: address of (row, col), stride between rows.
    fn direct(&self, _batch: usize, _row: usize, _col: usize) -> Option<(*mut T, usize)> {
        None
    }

    /// Takes a finished tile; no two tiles overlap.
    fn store(&self, level: Level, tile: Tile<'_, T>);
}
