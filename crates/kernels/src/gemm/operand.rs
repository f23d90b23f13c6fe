//! Packing a strided matrix of any float type.

use super::Level;
use super::convert::Elements;
use super::factors::{Layout, PackA, PackB, k_step};
use super::isa::{Isa, by_level};
use super::micro::Real;
use super::scratch::Scratch;
use bimetal_dtype::DType;
use std::ops::Range;

/// Steps of k that memory is fetched ahead of packing.
const AHEAD: isize = 4;

/// A strided matrix in memory, or a batch of them.
///
/// The pointer is only read. Strides are in elements and may be zero or negative.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Element (0, 0) of the matrix whose offset is 0.
    pub ptr: *const u8,
    /// The element type in memory.
    pub dtype: DType,
    /// Rounds every value to this type when it is loaded, as if a cast copy had been multiplied.
    pub round_to: Option<DType>,
    /// Elements from one row to the next.
    pub row_stride: isize,
    /// Elements from one column to the next.
    pub col_stride: isize,
    /// Elements from `ptr` to each matrix of the batch; equal entries broadcast.
    pub offsets: &'a [isize],
}

// SAFETY: the memory is only read, and the caller keeps it alive and unwritten.
unsafe impl Send for Operand<'_> {}
// SAFETY: as above.
unsafe impl Sync for Operand<'_> {}

impl<'a> Operand<'a> {
    /// The type whose values take part.
    pub fn value_dtype(&self) -> DType {
        self.round_to.unwrap_or(self.dtype)
    }

    /// How elements are read.
    pub fn elements(&self) -> Elements {
        Elements {
            dtype: self.dtype,
            round_to: self.round_to,
        }
    }

    /// Rows and columns exchanged.
    pub fn transposed(self) -> Self {
        let (row_stride, col_stride) = (self.col_stride, self.row_stride);
        Operand {
            row_stride,
            col_stride,
            ..self
        }
    }

    /// Loads part of a row.
    ///
    /// # Safety
    /// The matrix has the row and the columns; `dst` has room for them.
    pub unsafe fn load_row<T: Real>(
        &self,
        level: Level,
        batch: usize,
        row: usize,
        cols: Range<usize>,
        dst: *mut T,
    ) {
        let src = self.at(batch, row, cols.start);
        // SAFETY: the caller's contract.
        unsafe { pack_rows(level, self, src, 1, cols.len(), dst, 0) }
    }

    /// The address of one element.
    pub fn at(&self, batch: usize, row: usize, col: usize) -> *const u8 {
        let element =
            self.offsets[batch] + row as isize * self.row_stride + col as isize * self.col_stride;
        self.ptr
            .wrapping_offset(element * self.dtype.size() as isize)
    }
}

impl<T: Real> PackA<T> for Operand<'_> {
    fn layout(&self) -> Layout {
        if self.row_stride == 1 && self.col_stride != 1 {
            Layout::KMajor
        } else {
            Layout::RowMajor
        }
    }

    fn direct(&self, batch: usize, row: usize, k: usize) -> Option<(*const T, usize)> {
        if !self.elements().is_plain::<T>() {
            return None;
        }
        let stride = match (PackA::<T>::layout(self), self.col_stride) {
            (Layout::KMajor, stride) => stride,
            (Layout::RowMajor, 1) => self.row_stride,
            _ => return None,
        };
        Some((self.at(batch, row, k).cast(), usize::try_from(stride).ok()?))
    }

    unsafe fn pack(
        &self,
        level: Level,
        batch: usize,
        rows: Range<usize>,
        ks: Range<usize>,
        mr: usize,
        dst: *mut T,
        stride: usize,
    ) {
        // SAFETY: the matrix has these rows and columns, `dst` holds them.
        unsafe {
            let src = self.at(batch, rows.start, ks.start);
            match PackA::<T>::layout(self) {
                Layout::RowMajor => pack_rows(level, self, src, rows.len(), ks.len(), dst, stride),
                Layout::KMajor => {
                    pack_k_major(level, self, src, rows.len(), ks.len(), mr, dst, stride)
                }
            }
        }
    }
}

impl<T: Real> PackB<T> for Operand<'_> {
    fn rows_together(&self) -> bool {
        self.row_stride != 1 || self.col_stride == 1
    }

    fn direct(&self, batch: usize, k: usize, col: usize) -> Option<(*const T, usize)> {
        if !self.elements().is_plain::<T>() || self.col_stride != 1 {
            return None;
        }
        let stride = usize::try_from(self.row_stride).ok()?;
        Some((self.at(batch, k, col).cast(), stride))
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
        // SAFETY: the matrix has these rows and columns, `dst` holds them.
        unsafe {
            let src = self.at(batch, ks.start, cols.start);
            if self.row_stride == 1 && self.col_stride != 1 {
                pack_transposed(level, self, src, ks.len(), cols.len(), nr, dst);
            } else {
                pack_cols(level, self, src, ks.len(), cols.len(), nr, dst);
            }
        }
    }

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
        // SAFETY: the matrix has these rows and columns, `dst` holds them.
        unsafe {
            if self.elements().is_plain::<T>() && self.col_stride == 1 {
                let src = self.at(batch, ks.start, cols.start).cast();
                let (ks, cols) = (ks.len(), cols.len());
                return pack_lines(level, src, self.row_stride, ks, cols, nr, dst, between);
            }
            for (p, first) in cols.clone().step_by(nr).enumerate() {
                let panel = first..(first + nr).min(cols.end);
                PackB::pack(
                    self,
                    level,
                    batch,
                    ks.clone(),
                    panel,
                    nr,
                    dst.add(p * between),
                );
            }
        }
    }
}

by_level!(
    /// Panels of B whose columns lie together and need no conversion: each row is read to its end.
    fn pack_lines<T: Real>(src: *const T, stride: isize, ks: usize, cols: usize, nr: usize, dst: *mut T, between: usize) = pack_lines_body
);

#[inline(always)]
unsafe fn pack_lines_body<I: Isa, T: Real>(
    src: *const T,
    stride: isize,
    ks: usize,
    cols: usize,
    nr: usize,
    dst: *mut T,
    between: usize,
) {
    for k in 0..ks {
        // SAFETY: row `k` of source and destination; the address ahead is not read.
        unsafe {
            let src = src.wrapping_offset(k as isize * stride);
            let ahead = src.wrapping_offset(AHEAD * stride);
            for (p, first) in (0..cols).step_by(nr).enumerate() {
                let to = dst.add(p * between + k * nr);
                let len = nr.min(cols - first);
                for line in (0..len).step_by(64 / size_of::<T>()) {
                    I::prefetch(ahead.wrapping_add(first + line));
                }
                T::copy_run::<I>(src.add(first), len, to);
                for i in len..nr {
                    *to.add(i) = T::default();
                }
            }
        }
    }
}

by_level!(
    /// A row-major block: each row loaded to `dst + row * stride`.
    fn pack_rows<T: Real>(op: &Operand<'_>, src: *const u8, rows: usize, ks: usize, dst: *mut T, stride: usize) = pack_rows_body
);

#[inline(always)]
unsafe fn pack_rows_body<I: Isa, T: Real>(
    op: &Operand<'_>,
    src: *const u8,
    rows: usize,
    ks: usize,
    dst: *mut T,
    stride: usize,
) {
    let row_bytes = op.row_stride * op.dtype.size() as isize;
    for row in 0..rows {
        // SAFETY: row `row` of source and destination.
        unsafe {
            let src = src.wrapping_offset(row as isize * row_bytes);
            op.elements()
                .load::<I, T>(src, op.col_stride, ks, dst.add(row * stride));
        }
    }
}

by_level!(
    /// A k-major block: panels of `mr` rows, `stride` apart, each with its rows together per k.
    fn pack_k_major<T: Real>(op: &Operand<'_>, src: *const u8, rows: usize, ks: usize, mr: usize, dst: *mut T, stride: usize) = pack_k_major_body
);

#[inline(always)]
unsafe fn pack_k_major_body<I: Isa, T: Real>(
    op: &Operand<'_>,
    src: *const u8,
    rows: usize,
    ks: usize,
    mr: usize,
    dst: *mut T,
    stride: usize,
) {
    let k_bytes = op.col_stride * op.dtype.size() as isize;
    let plain = op.elements().is_plain::<T>();
    let row = (!plain).then(|| Scratch::take::<T>(rows));
    for k in 0..ks {
        // SAFETY: one column of the source, spread over the panels.
        unsafe {
            let src = src.wrapping_offset(k as isize * k_bytes);
            let values = match &row {
                None => src.cast::<T>(),
                Some(row) => {
                    op.elements()
                        .load::<I, T>(src, op.row_stride, rows, row.ptr());
                    row.ptr::<T>().cast_const()
                }
            };
            for (panel, first) in (0..rows).step_by(mr).enumerate() {
                let to = dst.add(panel * stride + k * k_step(mr));
                I::prefetch(
                    src.wrapping_offset(AHEAD * k_bytes)
                        .cast::<T>()
                        .wrapping_add(first),
                );
                T::copy_run::<I>(values.add(first), mr.min(rows - first), to);
            }
        }
    }
}

by_level!(
    /// A panel of B whose columns lie together (or nothing does): row by row, the tail zero.
    fn pack_cols<T: Real>(op: &Operand<'_>, src: *const u8, ks: usize, cols: usize, nr: usize, dst: *mut T) = pack_cols_body
);

#[inline(always)]
unsafe fn pack_cols_body<I: Isa, T: Real>(
    op: &Operand<'_>,
    src: *const u8,
    ks: usize,
    cols: usize,
    nr: usize,
    dst: *mut T,
) {
    let k_bytes = op.row_stride * op.dtype.size() as isize;
    let plain = op.elements().is_plain::<T>() && op.col_stride == 1;
    for k in 0..ks {
        // SAFETY: row `k` of source and destination.
        unsafe {
            let src = src.wrapping_offset(k as isize * k_bytes);
            let to = dst.add(k * nr);
            if plain {
                T::copy_run::<I>(src.cast(), cols, to);
            } else {
                op.elements().load::<I, T>(src, op.col_stride, cols, to);
            }
            for i in cols..nr {
                *to.add(i) = T::default();
            }
        }
    }
}

by_level!(
    /// A panel of B whose rows (along k) lie together: transposed, the tail zero.
    fn pack_transposed<T: Real>(op: &Operand<'_>, src: *const u8, ks: usize, cols: usize, nr: usize, dst: *mut T) = pack_transposed_body
);

#[inline(always)]
unsafe fn pack_transposed_body<I: Isa, T: Real>(
    op: &Operand<'_>,
    src: *const u8,
    ks: usize,
    cols: usize,
    nr: usize,
    dst: *mut T,
) {
    // SAFETY: `ks` x `cols` of the source, `ks` x `nr` of the destination.
    unsafe {
        if cols < nr {
            for k in 0..ks {
                for i in cols..nr {
                    *dst.add(k * nr + i) = T::default();
                }
            }
        }
        if op.elements().is_plain::<T>()
            && let Ok(stride) = usize::try_from(op.col_stride)
        {
            return T::transpose::<I>(src.cast(), stride, cols, ks, dst, nr);
        }
        let col_bytes = op.col_stride * op.dtype.size() as isize;
        // Not a multiple of 1 KiB, where the rows would meet in a few sets of the L1 cache.
        let ld = ks.next_multiple_of(16) + 16;
        let rows = Scratch::take::<T>(cols * ld);
        for col in 0..cols {
            let src = src.wrapping_offset(col as isize * col_bytes);
            op.elements()
                .load::<I, T>(src, 1, ks, rows.ptr::<T>().add(col * ld));
        }
        T::transpose::<I>(rows.ptr(), ld, cols, ks, dst, nr);
    }
}
