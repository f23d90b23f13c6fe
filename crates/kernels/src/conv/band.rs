//! Some rows of one image, staged by the task that reads them, so that they stay in its cache.

use super::View4;
use super::stage::Layout;
use crate::gemm::{Isa, Level, Scratch, by_level};
use std::cell::Cell;
use std::ops::Range;

/// Values that are staged by a task if it can be: they share a 512 KiB L2 with the weights.
/// Few in tests, so that small cases have several bands.
pub const BAND_VALUES: usize = if cfg!(test) { 1 << 11 } else { 1 << 16 };
/// Zeros behind the staged values, for vectors that begin inside of them.
const SLACK: usize = 64;

/// Rows of positions to a band, out of `rows` that stand for `values` staged ones each.
pub fn band_rows(rows: usize, values: usize) -> usize {
    let most = (BAND_VALUES / values.max(1)).max(1);
    rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
}

/// Memory for `rows` padded rows of every channel.
pub struct Band {
    own: Scratch,
    channels: usize,
    row: usize,
    rows: usize,
    /// The padded rows that lie here: the zeros around the next image's are in place.
    last: Cell<(usize, usize)>,
}

impl Band {
    pub fn new(layout: &Layout, rows: usize) -> Band {
        let (channels, row) = (layout.channels, layout.row());
        let len = channels * rows * row;
        let own = Scratch::take::<f32>(len + SLACK);
        // SAFETY: the scratch has room for both.
        unsafe { std::slice::from_raw_parts_mut(own.ptr::<f32>().add(len), SLACK).fill(0.0) };
        Band {
            own,
            channels,
            row,
            rows,
            last: Cell::new((0, 0)),
        }
    }

    /// The first value.
    pub fn ptr(&self) -> *const f32 {
        self.own.ptr()
    }

    /// Values between channels.
    pub fn plane(&self) -> usize {
        self.rows * self.row
    }

    /// Stages padded rows, not more than there is room for.
    ///
    /// # Safety
    /// The image is readable with the sizes of `layout`, which are those of `new`.
    pub unsafe fn fill(
        &self,
        level: Level,
        x: &View4,
        image: usize,
        layout: &Layout,
        rows: Range<usize>,
    ) {
        debug_assert!(rows.len() <= self.rows);
        let rows = (rows.start, rows.end);
        let clean = self.last.replace(rows) == rows;
        for channel in 0..self.channels {
            let src = x.at([image, channel, 0, 0]);
            // SAFETY: the caller's contract; the plane has that many rows.
            unsafe {
                let dst = self.own.ptr::<f32>().add(channel * self.plane());
                plane(level, x, src, layout, rows, clean, dst);
            }
        }
    }
}

by_level!(
    /// Padded rows of a plane; where `clean`, the padding is zero already.
    fn plane(x: &View4, src: *const u8, layout: &Layout, rows: (usize, usize), clean: bool, dst: *mut f32) = plane_body
);

#[inline(always)]
unsafe fn plane_body<I: Isa>(
    x: &View4,
    src: *const u8,
    layout: &Layout,
    (first, end): (usize, usize),
    clean: bool,
    dst: *mut f32,
) {
    let (row, [height, width]) = (layout.row(), layout.size);
    let [[top, _], [left, _]] = layout.padding;
    let step = x.strides[2] * x.dtype.size() as isize;
    let (from, to) = (first.max(top), end.min(top + height));
    // SAFETY: rows of the source, and rows of the destination, of these sizes.
    unsafe {
        if !clean {
            zeros(dst, (end - first) * row);
        }
        if from >= to {
            return;
        }
        let dst = dst.add((from - first) * row);
        let src = src.wrapping_offset((from - top) as isize * step);
        if row == width && layout.phases == 1 && x.strides[3] == 1 && x.strides[2] == width as isize
        {
            // The rows lie together in both.
            return x
                .elements()
                .load::<I, f32>(src, 1, (to - from) * width, dst);
        }
        if layout.phases == 1 && x.strides[3] == 1 && x.elements().is_plain::<f32>() {
            for y in 0..to - from {
                let src = src.wrapping_offset(y as isize * step);
                I::copy_run(src.cast(), width, dst.add(y * row + left));
            }
            return;
        }
        let spread = (layout.phases > 1).then(|| Scratch::take::<f32>(width));
        for y in 0..to - from {
            let src = src.wrapping_offset(y as isize * step);
            let dst = dst.add(y * row);
            match &spread {
                None => {
                    x.elements()
                        .load::<I, f32>(src, x.strides[3], width, dst.add(left));
                }
                Some(values) => {
                    let values = values.ptr::<f32>();
                    x.elements()
                        .load::<I, f32>(src, x.strides[3], width, values);
                    for phase in 0..layout.phases {
                        // The first column of the image in this phase.
                        let skip = (phase + layout.phases - left % layout.phases) % layout.phases;
                        let dst = dst.add(layout.at(0, left + skip));
                        for (j, i) in (skip..width).step_by(layout.phases).enumerate() {
                            *dst.add(j) = *values.add(i);
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// `dst` writable for `n` values.
#[inline(always)]
unsafe fn zeros(dst: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(dst, n) }.fill(0.0);
}
