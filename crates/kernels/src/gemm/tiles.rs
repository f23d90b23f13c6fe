//! The blocked product: packing and a fixed grid of tiles of C.
//!
//! The scheme is that of Goto and van de Geijn, "Anatomy of high-performance matrix
//! multiplication" (2008). Every element of C is summed in the same order whatever the tiles: chains
//! over `kc` steps of k, added up in ascending order. So neither the grid nor the number of threads
//! shows in the result.

use super::Level;
use super::factors::{Layout, PackA, PackB, Sink, Tile, k_step};
use super::grid::Grid;
use super::micro::{Family, Real};
use super::scratch::{Dst, Scratch};
use crate::par;
use std::ops::Range;

/// One product, or a batch of products of equal size.
pub struct Product<'a, T> {
    /// The instruction set.
    pub level: Level,
    /// The number of products.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The length of the sums.
    pub k: usize,
    /// The left operand.
    pub a: &'a dyn PackA<T>,
    /// The right operand.
    pub b: &'a dyn PackB<T>,
    /// Where results go.
    pub out: &'a dyn Sink<T>,
    /// Adds to what C holds, which must be memory of the accumulator type.
    pub add: bool,
}

/// Multiply-adds below which a second thread is no gain.
const SERIAL: usize = 1 << 19;
/// Multiply-adds of one matrix of a batch from which it is computed alone, its factors packed once.
const ALONE: usize = 1 << 23;
/// Tiles that it has then, so that the threads have enough to do.
const MANY: usize = 8;
/// Column panels for which it pays to read A from where it lies.
const DIRECT_PANELS: usize = 8;
/// Row panels for which it pays to read B from where it lies.
const DIRECT_ROWS: usize = 3;
/// Steps of k that one task packs where whole rows are read.
const PACK_KS: usize = 64;
/// Rows of B that are packed side by side there.
const PACK_ROWS: usize = 16;

/// Where a factor is read from.
#[derive(Clone, Copy)]
enum Source<T> {
    /// The matrix itself.
    Direct,
    /// A packed copy of the part that a chunk needs, made before its tiles.
    Shared(*const T),
    /// Packed block by block by each tile.
    Private,
}

// SAFETY: the shared copy is only read while tiles are computed.
unsafe impl<T> Send for Source<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Source<T> {}

/// A part of the product whose factors are packed together.
struct Chunk<T> {
    batches: Range<usize>,
    rows: Range<usize>,
    cols: Range<usize>,
    ks: Range<usize>,
    a: Source<T>,
    b: Source<T>,
    /// Unfinished sums, tile by tile, if they do not go to C itself.
    sums: Option<Dst<T>>,
}

fn chunks(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(step).map(move |i| i..(i + step).min(len))
}

impl<T: Real> Product<'_, T> {
    /// Computes everything, in parallel on the current pool.
    pub fn run(&self) {
        if self.batch == 0 || self.m == 0 || self.n == 0 {
            return;
        }
        let family = T::family(self.level);
        let direct = self.out.direct(0, 0, 0).is_some();
        let grid = Grid::new(&family, self.m, self.n, self.k, direct);
        let work = (self.m * self.n).saturating_mul(self.k);
        let tiles = self.m.div_ceil(grid.rows) * self.n.div_ceil(grid.cols);
        if work >= ALONE && tiles >= MANY || self.batch == 1 && work >= SERIAL {
            for batch in 0..self.batch {
                self.one(&family, &grid, batch);
            }
        } else {
            let (a, b) = self.sources(&grid);
            let chunk = Chunk {
                batches: 0..self.batch,
                rows: 0..self.m,
                cols: 0..self.n,
                ks: 0..self.k,
                a,
                b,
                sums: None,
            };
            self.tiles(&family, &grid, &chunk);
        }
    }

    /// Where the factors are read from if no one packs them in advance.
    fn sources(&self, grid: &Grid) -> (Source<T>, Source<T>) {
        let a = match self.a.direct(0, 0, 0) {
            Some((_, stride)) if self.a_pays_direct(grid, stride) => Source::Direct,
            _ => Source::Private,
        };
        let b = match self.b.direct(0, 0, 0) {
            Some(_) if self.m.div_ceil(grid.mr) <= DIRECT_ROWS => Source::Direct,
            _ => Source::Private,
        };
        (a, b)
    }

    fn a_pays_direct(&self, grid: &Grid, stride: usize) -> bool {
        if self.a.layout() == Layout::RowMajor && stride <= T::KC {
            // A panel is one short stretch of memory, or nearly.
            return true;
        }
        // Rows a multiple of 1 KiB apart meet in a few sets of the L1 cache.
        let aliased = (stride * size_of::<T>()).is_multiple_of(1024);
        self.n.div_ceil(grid.nr) <= if aliased { 1 } else { DIRECT_PANELS }
    }

    /// One matrix, chunk by chunk; what several tiles read is packed first, together.
    fn one(&self, family: &Family<T>, grid: &Grid, batch: usize) {
        let (a, b) = self.sources(grid);
        let private = |source| matches!(source, Source::Private);
        // Also what one tile reads of each long row: that would touch a page for a few values.
        let (tall, wide) = (self.m > grid.rows, self.n > grid.cols);
        let k_major = self.a.layout() == Layout::KMajor;
        let share_a = private(a) && (wide || tall && k_major);
        let share_b = private(b) && (tall || wide && self.b.rows_together());
        let mut steps = grid.chunk;
        if !share_a && !share_b {
            steps = (self.m, self.n, self.k.max(1));
        }
        let ks_len = steps.2.min(self.k);
        let unfinished = steps.2 < self.k && self.out.direct(batch, 0, 0).is_none();
        let take = |wanted: bool, len: usize| wanted.then(|| Scratch::take::<T>(len));
        let (height, width) = (steps.0.min(self.m), steps.1.min(self.n));
        let a_len = height.div_ceil(grid.mr) * self.panel_rows(grid) * row_stride(ks_len);
        let a_copy = take(share_a, a_len);
        let b_copy = take(share_b, width.next_multiple_of(grid.nr) * ks_len);
        let tiles = height.div_ceil(grid.rows) * width.div_ceil(grid.cols);
        let sums = take(unfinished, tiles * grid.rows * grid.cols);
        for rows in chunks(self.m, steps.0) {
            for cols in chunks(self.n, steps.1) {
                for ks in chunks(self.k.max(1), steps.2) {
                    let chunk = Chunk {
                        batches: batch..batch + 1,
                        rows: rows.clone(),
                        cols: cols.clone(),
                        ks: ks.start..ks.end.min(self.k),
                        a: a_copy.as_ref().map_or(a, |copy| Source::Shared(copy.ptr())),
                        b: b_copy.as_ref().map_or(b, |copy| Source::Shared(copy.ptr())),
                        sums: sums.as_ref().map(|sums| Dst(sums.ptr())),
                    };
                    self.pack_chunk(grid, &chunk);
                    self.tiles(family, grid, &chunk);
                }
            }
        }
    }

    /// Rows that a packed panel of A takes.
    fn panel_rows(&self, grid: &Grid) -> usize {
        match self.a.layout() {
            Layout::KMajor => k_step(grid.mr),
            Layout::RowMajor => grid.mr,
        }
    }

    /// Fills the shared copies.
    fn pack_chunk(&self, grid: &Grid, chunk: &Chunk<T>) {
        let batch = chunk.batches.start;
        let (rows, cols, ks) = (&chunk.rows, &chunk.cols, &chunk.ks);
        let k_major = self.a.layout() == Layout::KMajor;
        let panel_a = self.panel_rows(grid) * row_stride(ks.len());
        let panel_b = grid.nr * ks.len();
        // One list of tasks for both factors: blocks of ks, or panels.
        let by_ks = ks.len().div_ceil(PACK_KS);
        let tasks_a = match (chunk.a, k_major) {
            (Source::Shared(_), true) => by_ks,
            (Source::Shared(_), false) => rows.len().div_ceil(grid.mr),
            _ => 0,
        };
        let tasks_b = match (chunk.b, self.b.rows_together()) {
            (Source::Shared(_), true) => by_ks,
            (Source::Shared(_), false) => cols.len().div_ceil(grid.nr),
            _ => 0,
        };
        let some_ks = |t: usize| {
            let first = ks.start + t * PACK_KS;
            first..(first + PACK_KS).min(ks.end)
        };
        let pack_a = |dst: Dst<T>, t: usize| {
            let (rows, ks, offset, stride) = if k_major {
                (
                    rows.clone(),
                    some_ks(t),
                    t * PACK_KS * k_step(grid.mr),
                    panel_a,
                )
            } else {
                let first = rows.start + t * grid.mr;
                let rows = first..(first + grid.mr).min(rows.end);
                (rows, ks.clone(), t * panel_a, row_stride(ks.len()))
            };
            // SAFETY: the ranges lie in the matrix, and each task has its own part of the copy.
            unsafe {
                let dst = dst.at(offset);
                self.a
                    .pack(self.level, batch, rows, ks, grid.mr, dst, stride);
            }
        };
        let pack_b = |dst: Dst<T>, t: usize| {
            let (panels, ks) = match self.b.rows_together() {
                true => (0..cols.len().div_ceil(grid.nr), some_ks(t)),
                false => (t..t + 1, ks.clone()),
            };
            // Few rows at a time, each read to its end: memory is fetched ahead along them.
            let step = match panels.len() {
                1 => ks.len().max(1),
                _ => PACK_ROWS,
            };
            let end = (cols.start + panels.end * grid.nr).min(cols.end);
            let cols = cols.start + panels.start * grid.nr..end;
            for k in ks.clone().step_by(step) {
                let ks = k..(k + step).min(ks.end);
                let offset = panels.start * panel_b + (k - chunk.ks.start) * grid.nr;
                // SAFETY: the ranges lie in the matrix, and each task has its own part of the copy.
                unsafe {
                    let (dst, cols) = (dst.at(offset), cols.clone());
                    self.b
                        .pack_panels(self.level, batch, ks, cols, grid.nr, dst, panel_b);
                }
            }
        };
        par::for_each(tasks_a + tasks_b, |t| match (chunk.a, chunk.b) {
            (Source::Shared(copy), _) if t < tasks_a => pack_a(Dst(copy.cast_mut()), t),
            (_, Source::Shared(copy)) => pack_b(Dst(copy.cast_mut()), t - tasks_a),
            _ => {}
        });
    }

    /// Computes all tiles of a chunk.
    fn tiles(&self, family: &Family<T>, grid: &Grid, chunk: &Chunk<T>) {
        let row_tiles = chunk.rows.len().div_ceil(grid.rows);
        let per_matrix = row_tiles * chunk.cols.len().div_ceil(grid.cols);
        let tasks = chunk.batches.len() * per_matrix;
        let work = (chunk.rows.len() * chunk.cols.len()).saturating_mul(chunk.ks.len());
        let tile = |t: usize| {
            let (batch, t) = (chunk.batches.start + t / per_matrix, t % per_matrix);
            // Column by column: tiles that follow each other use the same B.
            let row = chunk.rows.start + t % row_tiles * grid.rows;
            let col = chunk.cols.start + t / row_tiles * grid.cols;
            let rows = row..(row + grid.rows).min(chunk.rows.end);
            let cols = col..(col + grid.cols).min(chunk.cols.end);
            self.tile(family, grid, chunk, batch, t, rows, cols);
        };
        if tasks == 1 || chunk.batches.len().saturating_mul(work) < SERIAL {
            (0..tasks).for_each(tile);
        } else {
            let together = (SERIAL / 2 * per_matrix / work.max(1)).max(1);
            par::for_each(par::pieces(tasks, together), |g| {
                par::piece(tasks, together, g).for_each(&tile);
            });
        }
    }

    fn tile(
        &self,
        family: &Family<T>,
        grid: &Grid,
        chunk: &Chunk<T>,
        batch: usize,
        index: usize,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let (height, width) = (rows.len(), cols.len());
        let direct = self.out.direct(batch, rows.start, cols.start);
        let own = (direct.is_none() && chunk.sums.is_none())
            .then(|| Scratch::take::<T>(grid.rows * grid.cols));
        let (c, ldc) = match (direct, chunk.sums, &own) {
            (Some(direct), ..) => direct,
            (None, Some(sums), _) => (sums.at(index * grid.rows * grid.cols), grid.cols),
            (None, None, Some(own)) => (own.ptr(), grid.cols),
            (None, None, None) => return,
        };
        if self.k == 0 && !self.add {
            for i in 0..height {
                // SAFETY: row `i` of the tile.
                unsafe { std::slice::from_raw_parts_mut(c.add(i * ldc), width) }.fill(T::default());
            }
        }
        let a_block = matches!(chunk.a, Source::Private).then(|| {
            let rows = height.div_ceil(grid.mr) * self.panel_rows(grid);
            Scratch::take::<T>(rows * row_stride(grid.kc))
        });
        let b_panel =
            (!matches!(chunk.b, Source::Shared(_))).then(|| Scratch::take::<T>(grid.kc * grid.nr));
        for k in chunk.ks.clone().step_by(grid.kc) {
            let ks = k..(k + grid.kc).min(chunk.ks.end);
            // SAFETY: all ranges lie in the matrices and the scratch has the sizes taken above.
            unsafe {
                let a = self.a_block(grid, chunk, batch, &rows, &ks, a_block.as_ref());
                for col in cols.clone().step_by(grid.nr) {
                    let panel = col..(col + grid.nr).min(cols.end);
                    let (b, sb) = self.b_panel(grid, chunk, batch, &panel, &ks, b_panel.as_ref());
                    let wide = panel.len() > grid.nr / 2;
                    for (p, row) in rows.clone().step_by(grid.mr).enumerate() {
                        let r = grid.mr.min(rows.end - row);
                        let c = c.add((row - rows.start) * ldc + (col - cols.start));
                        let micro = (family.pick)(r, wide, a.k_major);
                        let pa = a.ptr.wrapping_add(p * a.panel);
                        micro(
                            ks.len(),
                            pa,
                            a.stride,
                            b,
                            sb,
                            c,
                            ldc,
                            panel.len(),
                            k > 0 || self.add,
                        );
                    }
                }
            }
        }
        if direct.is_none() && chunk.ks.end == self.k {
            let len = (height - 1) * ldc + width;
            // SAFETY: the scratch holds that many values of this tile alone.
            let data = unsafe { std::slice::from_raw_parts_mut(c, len) };
            let (row, col) = (rows.start, cols.start);
            let tile = Tile {
                batch,
                row,
                rows: height,
                col,
                cols: width,
                data,
                ld: ldc,
            };
            self.out.store(self.level, tile);
        }
    }

    /// The rows of a tile for some ks, wherever they come from.
    ///
    /// # Safety
    /// The ranges lie in the matrix; `block` has room for them if the source is private.
    unsafe fn a_block(
        &self,
        grid: &Grid,
        chunk: &Chunk<T>,
        batch: usize,
        rows: &Range<usize>,
        ks: &Range<usize>,
        block: Option<&Scratch>,
    ) -> ABlock<T> {
        let k_major = self.a.layout() == Layout::KMajor;
        let (ptr, stride, panel) = match (chunk.a, block) {
            (Source::Shared(copy), _) => {
                let full = row_stride(chunk.ks.len());
                let (step, stride) = if k_major {
                    (k_step(grid.mr), k_step(grid.mr))
                } else {
                    (1, full)
                };
                let panel = self.panel_rows(grid) * full;
                let first = (rows.start - chunk.rows.start) / grid.mr * panel;
                let ptr = copy.wrapping_add(first + (ks.start - chunk.ks.start) * step);
                (ptr, stride, panel)
            }
            (Source::Private, Some(block)) => {
                let ptr = block.ptr::<T>();
                let (stride, panel) = match k_major {
                    true => (k_step(grid.mr), ks.len() * k_step(grid.mr)),
                    false => (row_stride(ks.len()), row_stride(ks.len()) * grid.mr),
                };
                let between = if k_major { panel } else { stride };
                let (rows, ks) = (rows.clone(), ks.clone());
                // SAFETY: the caller's contract.
                unsafe {
                    self.a
                        .pack(self.level, batch, rows, ks, grid.mr, ptr, between)
                };
                (ptr.cast_const(), stride, panel)
            }
            _ => {
                let direct = self.a.direct(batch, rows.start, ks.start);
                let (ptr, stride) = direct.unwrap_or((std::ptr::null(), 0));
                (
                    ptr,
                    stride,
                    if k_major { grid.mr } else { stride * grid.mr },
                )
            }
        };
        ABlock {
            ptr,
            stride,
            panel,
            k_major,
        }
    }

    /// A panel of columns for some ks, wherever it comes from, and the stride between ks.
    ///
    /// # Safety
    /// The ranges lie in the matrix; `panel` has room for them if the source is not shared.
    unsafe fn b_panel(
        &self,
        grid: &Grid,
        chunk: &Chunk<T>,
        batch: usize,
        cols: &Range<usize>,
        ks: &Range<usize>,
        panel: Option<&Scratch>,
    ) -> (*const T, usize) {
        match chunk.b {
            Source::Shared(copy) => {
                let first = (cols.start - chunk.cols.start) / grid.nr * grid.nr * chunk.ks.len();
                let k = ks.start - chunk.ks.start;
                return (copy.wrapping_add(first + k * grid.nr), grid.nr);
            }
            // The kernels read whole vectors of B, so a narrower panel has to be packed.
            Source::Direct if cols.len().is_multiple_of(grid.nr / 2) => {
                if let Some(direct) = self.b.direct(batch, ks.start, cols.start) {
                    return direct;
                }
            }
            _ => {}
        }
        let Some(panel) = panel else {
            return (std::ptr::null(), 0);
        };
        let ptr = panel.ptr();
        // SAFETY: the caller's contract.
        unsafe {
            self.b
                .pack(self.level, batch, ks.clone(), cols.clone(), grid.nr, ptr)
        };
        (ptr.cast_const(), grid.nr)
    }
}

/// The distance between packed rows of `k` values: never a multiple of 1 KiB.
fn row_stride(k: usize) -> usize {
    let k = k.next_multiple_of(16);
    if k.is_multiple_of(64) { k + 16 } else { k }
}

/// Rows of A, ready for the kernels.
struct ABlock<T> {
    ptr: *const T,
    /// The kernels' stride.
    stride: usize,
    /// Values from one panel of `mr` rows to the next.
    panel: usize,
    k_major: bool,
}
