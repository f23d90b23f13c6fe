//! Where a product goes: memory of any float type, or a closure.

use super::Level;
use super::factors::{Sink, Tile};
use super::isa::{Isa, by_level};
use super::micro::Real;
use bimetal_dtype::DType;

/// Where a product goes.
#[derive(Clone, Copy)]
pub enum Output<'a> {
    /// Memory. The sum is f64 if `F64` values take part or are stored, otherwise f32.
    Dense(Dense),
    /// A closure that is given every finished f32 tile once, from any thread, and stores what it
    /// makes of it. The tiles do not depend on the number of threads.
    Tiles(&'a (dyn Fn(Tile<'_, f32>) + Sync)),
    /// The same with f64 sums.
    Tiles64(&'a (dyn Fn(Tile<'_, f64>) + Sync)),
}

/// Row-major matrices of any float type; values are rounded once, to nearest even.
#[derive(Clone, Copy)]
pub struct Dense {
    /// Element (0, 0) of the first matrix.
    pub ptr: *mut u8,
    /// The element type in memory.
    pub dtype: DType,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one matrix to the next.
    pub batch_stride: usize,
}

// SAFETY: tasks write disjoint elements behind the pointer, which the caller keeps alive.
unsafe impl Send for Dense {}
// SAFETY: as above.
unsafe impl Sync for Dense {}

impl Dense {
    /// Contiguous `[batch, m, n]`.
    pub fn new(ptr: *mut u8, dtype: DType, m: usize, n: usize) -> Dense {
        Dense {
            ptr,
            dtype,
            row_stride: n,
            batch_stride: m * n,
        }
    }

    /// The address of an element.
    pub fn at(&self, batch: usize, row: usize, col: usize) -> *mut u8 {
        let element = batch * self.batch_stride + row * self.row_stride + col;
        self.ptr.wrapping_add(element * self.dtype.size())
    }
}

impl<T: Real> Sink<T> for Dense {
    fn direct(&self, batch: usize, row: usize, col: usize) -> Option<(*mut T, usize)> {
        (self.dtype == T::DTYPE).then(|| (self.at(batch, row, col).cast(), self.row_stride))
    }

    fn store(&self, level: Level, tile: Tile<'_, T>) {
        let dst = self.at(tile.batch, tile.row, tile.col);
        let row_bytes = self.row_stride * self.dtype.size();
        // SAFETY: the tile lies in the matrix, and no other tile overlaps it.
        unsafe {
            store_rows(
                level,
                tile.data.as_ptr(),
                tile.rows,
                tile.cols,
                tile.ld,
                dst,
                row_bytes,
                self.dtype,
            )
        }
    }
}

by_level!(
    /// Stores `rows` rows of `cols` values, rounding each to `dtype`.
    pub fn store_rows<T: Real>(src: *const T, rows: usize, cols: usize, ld: usize, dst: *mut u8, row_bytes: usize, dtype: DType) = store_rows_body
);

#[inline(always)]
unsafe fn store_rows_body<I: Isa, T: Real>(
    src: *const T,
    rows: usize,
    cols: usize,
    ld: usize,
    dst: *mut u8,
    row_bytes: usize,
    dtype: DType,
) {
    for row in 0..rows {
        // SAFETY: row `row` of both.
        unsafe { T::store::<I>(src.add(row * ld), cols, dst.add(row * row_bytes), dtype) }
    }
}

/// A closure that takes finished tiles.
struct Closure<'a, T>(&'a (dyn Fn(Tile<'_, T>) + Sync));

impl<T: Real> Sink<T> for Closure<'_, T> {
    fn store(&self, _level: Level, tile: Tile<'_, T>) {
        (self.0)(tile);
    }
}

/// A destination of one of the accumulator types.
pub enum AnySink<'a> {
    /// A product accumulated in f32.
    F32(Box<dyn Sink<f32> + 'a>),
    /// A product accumulated in f64.
    F64(Box<dyn Sink<f64> + 'a>),
}

impl<'a> Output<'a> {
    /// The destination; memory is filled from f64 sums if `wide` or if it stores f64.
    pub fn sink(self, wide: bool) -> AnySink<'a> {
        match self {
            Output::Dense(out) if wide || out.dtype == DType::F64 => AnySink::F64(Box::new(out)),
            Output::Dense(out) => AnySink::F32(Box::new(out)),
            Output::Tiles(f) => AnySink::F32(Box::new(Closure(f))),
            Output::Tiles64(f) => AnySink::F64(Box::new(Closure(f))),
        }
    }
}
