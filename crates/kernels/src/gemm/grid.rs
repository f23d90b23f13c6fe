//! Block sizes: of the shape, the instruction set and how many threads there are. No block size shows in the result.

use super::micro::{Family, Real};
use crate::par;

/// Multiply-adds that are worth a task.
const TASK: usize = 1 << 22;
/// Tiles for each thread that a large matrix is cut into at least; a single thread gains nothing from them.
const TILES: usize = 8;
/// Rows and columns of a tile at most: with them a block of A and the tile of C stay in a 512 KiB L2.
const TILE_ROWS: usize = 144;
const TILE_COLS: usize = 512;
/// Rows or columns that are packed together.
const CHUNK: usize = 2048;
/// Values of both factors that are packed together, and the least k of that: few enough to be found in the L2 cache.
const CHUNK_VALUES: usize = 3 << 16;
const CHUNK_K: usize = 256;
/// The same where unfinished sums would have to be kept aside.
const LONG_CHUNK_VALUES: usize = 1 << 20;
const LONG_CHUNK_K: usize = 512;

/// How a product is cut.
pub struct Grid {
    /// Rows of a panel of A.
    pub mr: usize,
    /// Columns of a panel of B.
    pub nr: usize,
    /// Rows of a tile, a multiple of `mr`.
    pub rows: usize,
    /// Columns of a tile, a multiple of `nr`.
    pub cols: usize,
    /// Steps of k between additions to C.
    pub kc: usize,
    /// Rows and columns of a chunk, multiples of a tile, and its ks, a multiple of `kc`.
    pub chunk: (usize, usize, usize),
}

impl Grid {
    /// For a product that is not empty; `direct` if sums go to C itself.
    pub fn new<T: Real>(family: &Family<T>, m: usize, n: usize, k: usize, direct: bool) -> Grid {
        let nr = family.nr;
        let panels = m.div_ceil(family.mr);
        // Equal panels instead of full ones and a rest, which would run at a lower rate.
        let mr = m.div_ceil(panels);
        let panels = m.div_ceil(mr);
        let col_panels = n.div_ceil(nr);
        let tiles = match par::threads() {
            1 => 1,
            threads => threads * TILES,
        };
        let wanted = ((m * n).saturating_mul(k) / TASK).clamp(1, tiles);
        let least_rows = panels.div_ceil((TILE_ROWS / mr).max(1));
        let least_cols = col_panels.div_ceil((TILE_COLS / nr).max(1));
        // Enough tiles, then the least traffic: every row of tiles reads B, every column A.
        let cost = |row_tiles: usize| {
            let col_tiles = wanted.div_ceil(row_tiles).clamp(least_cols, col_panels);
            let missing = wanted.saturating_sub(row_tiles * col_tiles);
            (missing, m * col_tiles + n * row_tiles, row_tiles, col_tiles)
        };
        let most_rows = panels.min(least_rows.max(wanted));
        let best = (least_rows..=most_rows).map(cost).min();
        let (_, _, row_tiles, col_tiles) = best.unwrap_or((0, 0, least_rows, least_cols));
        let rows = panels.div_ceil(row_tiles) * mr;
        let cols = col_panels.div_ceil(col_tiles) * nr;
        let kc = k.div_ceil(k.div_ceil(T::KC).max(1)).max(1);

        let chunk_rows = (CHUNK / rows).max(1) * rows;
        let chunk_cols = (CHUNK / cols).max(1) * cols;
        let values = chunk_rows.min(m) + chunk_cols.min(n);
        let (most_values, least_k) = match direct {
            true => (CHUNK_VALUES, CHUNK_K),
            false => (LONG_CHUNK_VALUES, LONG_CHUNK_K),
        };
        let blocks = ((most_values / values).max(least_k) / kc).max(1);
        // Chunks of equal length, so that the last one is not a mere rest.
        let chunks = k.div_ceil(blocks * kc).max(1);
        let chunk_ks = k.div_ceil(kc).div_ceil(chunks).max(1) * kc;
        Grid {
            mr,
            nr,
            rows,
            cols,
            kc,
            chunk: (chunk_rows, chunk_cols, chunk_ks),
        }
    }
}
