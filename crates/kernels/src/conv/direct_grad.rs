//! The weight's gradient without a gathered copy of the windows: the values of some rows of windows
//! meet a vector of filters, position by position.

use super::band::{Band, band_rows};
use super::micro::{self, Family, MOST_ROWS};
use super::stage::Layout;
use super::{Conv2d, View4};
use crate::gemm::{Dst, Isa, Level, Real, Scratch, Sink, Tile, by_level};
use crate::par;
use std::ops::Range;

/// Values of the result up to which every part of the images has sums of its own.
const MOST_SUMS: usize = 1 << 17;
/// Filters of a group below which vectors would be mostly empty.
const LEAST_FILTERS: usize = 8;
/// Positions of a chain of sums, about.
const CHAIN: usize = <f32 as Real>::KC;
/// Positions of a row at most.
const MOST_COLS: usize = 2 * CHAIN;

/// Whether [`run`] is faster than a product with gathered windows.
pub fn pays(level: Level, conv: &Conv2d) -> bool {
    let ([rows, cols], (channels, filters, taps)) = (conv.output(), conv.group());
    let len = conv.filters * channels * taps;
    let Some(family) = micro::family(level) else {
        return false;
    };
    (1..=MOST_SUMS).contains(&len)
        && filters >= LEAST_FILTERS
        && (1..=MOST_COLS).contains(&cols)
        && rows > 0
        && conv.batch > 0
        && (conv.dilation[1] == 1 || conv.kernel[1] == 1)
        && (family.grad_rows)(conv.kernel[1], filters > family.lanes) > 0
}

/// One group of a convolution, cut.
struct Plan<'a> {
    level: Level,
    family: Family,
    conv: &'a Conv2d,
    layout: Layout,
    /// Filters that meet at a time, in one vector or two.
    width: usize,
    blocks: usize,
    /// Rows of positions in a chain and in a band.
    chain: usize,
    band: usize,
    /// Values of one part's sums for a group: `[block, channel, kh, kw, width]`.
    sums: usize,
}

/// # Safety
/// As [`conv2d_weight_grad`](super::conv2d_weight_grad), where [`pays`].
pub unsafe fn run(level: Level, conv: &Conv2d, x: &View4, dy: &View4, inner: &dyn Sink<f32>) {
    let Some(family) = micro::family(level) else {
        return;
    };
    let ([rows, cols], (channels, filters, taps)) = (conv.output(), conv.group());
    let layout = Layout {
        channels: conv.channels,
        size: conv.input,
        padding: conv.padding,
        phases: 1,
    };
    let width = match filters > family.lanes {
        true => 2 * family.lanes,
        false => family.lanes,
    };
    let chain = (CHAIN / cols).clamp(1, rows);
    let values = layout.row() * conv.channels * conv.stride[0];
    let band = (band_rows(rows, values).div_ceil(chain) * chain).min(rows);
    let blocks = filters.div_ceil(width);
    let plan = Plan {
        sums: blocks * channels * taps * width,
        level,
        family,
        conv,
        layout,
        width,
        blocks,
        chain,
        band,
    };
    let bands = rows.div_ceil(band);
    let units = conv.batch * bands;
    let len = conv.groups * plan.sums;
    let together = units.div_ceil(if len <= MOST_SUMS / 8 { 8 } else { 4 });
    let parts = units.div_ceil(together);
    let all = Scratch::take::<f32>(parts * len);
    let dst = Dst(all.ptr::<f32>());
    par::for_each(parts, |part| {
        // SAFETY: each task has its own sums; the caller's contract for the images.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(dst.at(part * len), len);
            sums.fill(0.0);
            plan.part(x, dy, par::piece(units, together, part), bands, sums);
        }
    });
    // SAFETY: the tasks wrote all of it.
    let all = unsafe { std::slice::from_raw_parts_mut(all.ptr::<f32>(), parts * len) };
    add_parts(all, len);
    let k = channels * taps;
    let turned = Scratch::take::<f32>(filters * k);
    for g in 0..conv.groups {
        for b in 0..plan.blocks {
            let lanes = plan.width.min(filters - b * plan.width);
            let src = all[g * plan.sums + b * k * plan.width..].as_ptr();
            // SAFETY: a block of sums, and as many filters.
            unsafe {
                let dst = turned.ptr::<f32>().add(b * plan.width * k);
                turn(level, src, plan.width, k, lanes, dst, k);
            }
        }
        // SAFETY: all filters were written.
        let data = unsafe { std::slice::from_raw_parts_mut(turned.ptr::<f32>(), filters * k) };
        let tile = Tile {
            batch: 0,
            row: g * filters,
            rows: filters,
            col: 0,
            cols: k,
            data,
            ld: k,
        };
        inner.store(level, tile);
    }
}

/// Adds up parts of `len` values into the first one, as a balanced tree.
fn add_parts(parts: &mut [f32], len: usize) {
    let mut count = parts.len() / len;
    while count > 1 {
        let half = count.div_ceil(2);
        let (low, high) = parts[..count * len].split_at_mut(half * len);
        for (a, b) in low.iter_mut().zip(high) {
            *a += *b;
        }
        count = half;
    }
}

impl Plan<'_> {
    /// Adds some bands of images to `sums`.
    ///
    /// # Safety
    /// The images are readable.
    unsafe fn part(
        &self,
        x: &View4,
        dy: &View4,
        units: Range<usize>,
        bands: usize,
        sums: &mut [f32],
    ) {
        let conv = self.conv;
        let [rows, cols] = conv.output();
        let reach = (conv.kernel[0] - 1) * conv.dilation[0] + 1;
        let staged = Band::new(&self.layout, (self.band - 1) * conv.stride[0] + reach);
        let positions = self.chain * cols;
        let block = positions * self.width;
        let g = Scratch::take::<f32>(self.blocks * block);
        // Rows that do not meet in a few sets of the L1 cache.
        let ld = positions.next_multiple_of(16) + 16;
        let turned = Scratch::take::<f32>(self.width * ld);
        for unit in units {
            let (image, band) = (unit / bands, unit % bands);
            let first = band * self.band;
            let end = (first + self.band).min(rows);
            let padded = first * conv.stride[0]..(end - 1) * conv.stride[0] + reach;
            // SAFETY: the caller's contract; all offsets lie in the band.
            unsafe { staged.fill(self.level, x, image, &self.layout, padded) };
            for i in (first..end).step_by(self.chain) {
                let grid = [self.chain.min(end - i), cols];
                for group in 0..conv.groups {
                    let sums = &mut sums[group * self.sums..][..self.sums];
                    // SAFETY: as above.
                    unsafe {
                        self.gradients(dy, image, group, i, grid, g.ptr(), turned.ptr(), ld);
                        let row = (i - first) * conv.stride[0];
                        self.add(&staged, group, row, grid, g.ptr(), sums.as_mut_ptr());
                    }
                }
            }
        }
    }

    /// `[block, position, filter]` of some rows of dy.
    ///
    /// # Safety
    /// The rows readable, `dst` and `rows` large enough.
    unsafe fn gradients(
        &self,
        dy: &View4,
        image: usize,
        group: usize,
        first: usize,
        grid: [usize; 2],
        dst: *mut f32,
        rows: *mut f32,
        ld: usize,
    ) {
        let (_, filters, _) = self.conv.group();
        let len = grid[0] * grid[1];
        let plain = dy.elements().is_plain::<f32>()
            && dy.strides[3] == 1
            && dy.strides[2] == grid[1] as isize
            && dy.strides[1] > 0;
        for b in 0..self.blocks {
            let lanes = self.width.min(filters - b * self.width);
            let at = |f: usize| dy.at([image, group * filters + b * self.width + f, first, 0]);
            // SAFETY: the caller's contract.
            unsafe {
                let dst = dst.add(b * self.chain * grid[1] * self.width);
                if plain {
                    let stride = dy.strides[1] as usize;
                    spread(
                        self.level,
                        at(0).cast(),
                        stride,
                        lanes,
                        len,
                        dst,
                        self.width,
                    );
                } else {
                    for f in 0..lanes {
                        load(self.level, dy, at(f), grid, rows.add(f * ld));
                    }
                    spread(self.level, rows, ld, lanes, len, dst, self.width);
                }
            }
        }
    }

    /// Adds some rows of positions; `row` is the first row of the band that they reach.
    ///
    /// # Safety
    /// Everything lies in the band and in the sums.
    unsafe fn add(
        &self,
        staged: &Band,
        group: usize,
        row: usize,
        grid: [usize; 2],
        g: *const f32,
        sums: *mut f32,
    ) {
        let conv = self.conv;
        let ((channels, ..), [kh, kw]) = (conv.group(), conv.kernel);
        let (line, two) = (self.layout.row(), self.width > self.family.lanes);
        let lines = channels * kh;
        let most = (self.family.grad_rows)(kw, two);
        // Equal blocks instead of full ones and a rest, which would run at a lower rate.
        let most = lines.div_ceil(lines.div_ceil(most));
        let steps = [conv.stride[0] * line, conv.stride[1]];
        for b in 0..self.blocks {
            for l in (0..lines).step_by(most) {
                let count = most.min(lines - l);
                let Some(kernel) = (self.family.pick_grad)(kw, count, two) else {
                    return;
                };
                let x: [*const f32; MOST_ROWS] = std::array::from_fn(|i| {
                    let l = l + i.min(count - 1);
                    let (c, u) = (group * channels + l / kh, l % kh);
                    let at = c * staged.plane() + (row + u * conv.dilation[0]) * line;
                    staged.ptr().wrapping_add(at)
                });
                let g = g.wrapping_add(b * self.chain * grid[1] * self.width);
                let sums = sums.wrapping_add((b * lines + l) * kw * self.width);
                // SAFETY: the caller's contract.
                unsafe { kernel(grid, &x, steps, g, sums) };
            }
        }
    }
}

by_level!(
    /// Rows of a plane, together.
    fn load(dy: &View4, src: *const u8, grid: [usize; 2], dst: *mut f32) = load_body
);

#[inline(always)]
unsafe fn load_body<I: Isa>(dy: &View4, src: *const u8, grid: [usize; 2], dst: *mut f32) {
    let [rows, cols] = grid;
    let step = dy.strides[2] * dy.dtype.size() as isize;
    // SAFETY: rows of the plane, and as much room.
    unsafe {
        if dy.strides[3] == 1 && dy.strides[2] == cols as isize {
            return dy.elements().load::<I, f32>(src, 1, rows * cols, dst);
        }
        for y in 0..rows {
            let src = src.wrapping_offset(y as isize * step);
            dy.elements()
                .load::<I, f32>(src, dy.strides[3], cols, dst.add(y * cols));
        }
    }
}

by_level!(
    /// `dst[k * width + lane] = src[lane * stride + k]`, zero for further lanes.
    fn spread(src: *const f32, stride: usize, lanes: usize, ks: usize, dst: *mut f32, width: usize) = spread_body
);

#[inline(always)]
unsafe fn spread_body<I: Isa>(
    src: *const f32,
    stride: usize,
    lanes: usize,
    ks: usize,
    dst: *mut f32,
    width: usize,
) {
    // SAFETY: lanes x ks of the source, ks x width of the destination.
    unsafe {
        I::transpose(src, stride, lanes, ks, dst, width);
        if lanes < width {
            for k in 0..ks {
                for lane in lanes..width {
                    *dst.add(k * width + lane) = 0.0;
                }
            }
        }
    }
}

by_level!(
    /// `dst[k * ld + lane] = src[lane * stride + k]`.
    fn turn(src: *const f32, stride: usize, lanes: usize, ks: usize, dst: *mut f32, ld: usize) = turn_body
);

#[inline(always)]
unsafe fn turn_body<I: Isa>(
    src: *const f32,
    stride: usize,
    lanes: usize,
    ks: usize,
    dst: *mut f32,
    ld: usize,
) {
    // SAFETY: lanes x ks of the source, ks x lanes of the destination.
    unsafe { I::transpose(src, stride, lanes, ks, dst, ld) }
}
