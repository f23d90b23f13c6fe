//! Products with a packed factor, of which only the part is computed that some query sees.

use super::Heads;
use crate::gemm::{Family, Isa, Level, Operand, PackB, Real, Scratch, by_level};
use std::ops::Range;

/// Values of a cache line, sets of the first cache, and lines of a set that a factor may fill.
const LINE: usize = 16;
const SETS: usize = 64;
const WAYS: usize = 8;

/// Whether `rows` rows of `len` values, `stride` apart, stay in the first cache: at some distances they meet in few of its sets.
fn stays(rows: usize, len: usize, stride: usize) -> bool {
    let (lines, apart) = (len.div_ceil(LINE), (stride / LINE).max(1));
    let step = 1 << apart.trailing_zeros().min(SETS.trailing_zeros());
    rows * lines <= WAYS * (SETS / step * lines.min(step))
}

/// A right factor in panels of `nr` columns, the columns of a panel together for each k: packed, or where it lies.
pub struct Packed {
    ptr: *const f32,
    /// Values from one column to the next, between panels.
    col: usize,
    /// Values from one k to the next.
    k: usize,
    ks: usize,
    cols: usize,
    nr: usize,
    _data: Option<Scratch>,
}

impl Packed {
    /// Packs the first rows and columns of a matrix.
    ///
    /// # Safety
    /// The matrix has `ks` rows and `cols` columns, readable and written by no one.
    pub unsafe fn new(level: Level, matrix: &Operand<'_>, ks: usize, cols: usize) -> Packed {
        let nr = f32::family(level).nr;
        // Whole vectors of a row can be read in place.
        if cols.is_multiple_of(nr / 2)
            && let Some((ptr, k)) = PackB::<f32>::direct(matrix, 0, 0, 0)
            && stays(ks, cols, k)
        {
            return Packed {
                ptr,
                col: 1,
                k,
                ks,
                cols,
                nr,
                _data: None,
            };
        }
        let data = Scratch::take::<f32>(ks * cols.next_multiple_of(nr));
        for first in (0..cols).step_by(nr) {
            let panel = first..(first + nr).min(cols);
            // SAFETY: the caller's contract; each panel has room for `ks * nr` values.
            unsafe {
                let dst = data.ptr::<f32>().add(first * ks);
                matrix.pack(level, 0, 0..ks, panel, nr, dst);
            }
        }
        Packed {
            ptr: data.ptr::<f32>(),
            col: ks,
            k: nr,
            ks,
            cols,
            nr,
            _data: Some(data),
        }
    }
}

/// A left factor in memory.
#[derive(Clone, Copy)]
pub struct Left {
    pub ptr: *const f32,
    /// Values from one row to the next, or where `turned` from one k to the next.
    pub stride: usize,
    /// Whether the rows lie together for each k, instead of the ks for each row.
    pub turned: bool,
}

impl Left {
    fn at(&self, row: usize, k: usize) -> *const f32 {
        let (row, k) = match self.turned {
            true => (row, k * self.stride),
            false => (row * self.stride, k),
        };
        self.ptr.wrapping_add(row + k)
    }

    /// The rows from `row` on.
    pub fn rows_from(self, row: usize) -> Left {
        Left {
            ptr: self.at(row, 0),
            ..self
        }
    }
}

/// `C[i, j] (+)= sum over k of A[i, k] B[k, j]`, over the ks that `ks` gives for some rows and columns. Where it gives none, C stays as
/// it is, unless B has no rows at all.
///
/// # Safety
/// A has `m` rows and as many columns as B has rows; C is writable for `m` rows of B's columns, `ld` apart.
pub unsafe fn multiply(
    family: &Family<f32>,
    m: usize,
    a: Left,
    b: &Packed,
    c: *mut f32,
    ld: usize,
    add: bool,
    ks: impl Fn(Range<usize>, Range<usize>) -> Range<usize>,
) {
    if b.ks == 0 && !add {
        for row in 0..m {
            // SAFETY: row `row` of C; zero bits are the number 0.
            unsafe { std::ptr::write_bytes(c.add(row * ld), 0, b.cols) };
        }
        return;
    }
    let mr = m.div_ceil(m.div_ceil(family.mr).max(1)).max(1);
    for first in (0..b.cols).step_by(b.nr) {
        let cols = first..(first + b.nr).min(b.cols);
        let wide = cols.len() > b.nr / 2;
        for row in (0..m).step_by(mr) {
            let rows = row..(row + mr).min(m);
            let micro = (family.pick)(rows.len(), wide, a.turned);
            let all = ks(rows, cols.clone());
            for k in all.clone().step_by(f32::KC) {
                let some = f32::KC.min(all.end - k);
                // SAFETY: the ranges lie in the matrices.
                unsafe {
                    let panel = b.ptr.add(first * b.col + k * b.k);
                    let c = c.add(row * ld + first);
                    let add = add || k > all.start;
                    micro(
                        some,
                        a.at(row, k),
                        a.stride,
                        panel,
                        b.k,
                        c,
                        ld,
                        cols.len(),
                        add,
                    );
                }
            }
        }
    }
}

/// Rows of a head as f32: where they lie, or a copy.
pub struct Rows {
    pub left: Left,
    _copy: Option<Scratch>,
}

impl Rows {
    /// `count` vectors of `d` elements from time `first` on.
    ///
    /// # Safety
    /// They are readable and written by no one.
    pub unsafe fn new(
        level: Level,
        from: &Heads,
        [batch, head, first]: [usize; 3],
        count: usize,
        d: usize,
    ) -> Rows {
        let src = from.at(batch, head, first);
        if let (true, Ok(stride)) = (
            from.elements().is_plain::<f32>(),
            usize::try_from(from.strides[2]),
        ) {
            let left = Left {
                ptr: src.cast(),
                stride,
                turned: false,
            };
            return Rows { left, _copy: None };
        }
        let copy = Scratch::take::<f32>(count * d);
        // SAFETY: the caller's contract; the copy has room for all.
        unsafe { load(level, from, src, count, d, copy.ptr()) };
        let left = Left {
            ptr: copy.ptr(),
            stride: d,
            turned: false,
        };
        Rows {
            left,
            _copy: Some(copy),
        }
    }
}

by_level!(
    /// Loads rows of `d` elements.
    fn load(from: &Heads, src: *const u8, rows: usize, d: usize, dst: *mut f32) = load_body
);

#[inline(always)]
unsafe fn load_body<I: Isa>(from: &Heads, src: *const u8, rows: usize, d: usize, dst: *mut f32) {
    let bytes = from.strides[2] * from.dtype.size() as isize;
    for row in 0..rows {
        // SAFETY: row `row` of both.
        unsafe {
            let src = src.wrapping_offset(row as isize * bytes);
            from.elements().load::<I, f32>(src, 1, d, dst.add(row * d));
        }
    }
}
