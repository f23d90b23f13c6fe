//! `y = conv(x, w)`: filters times windows, `[filters, taps] * [taps, positions]`, positions through
//! all images so that small planes do not leave panels half empty.

use super::band::{Band, band_rows};
use super::columns::{ByImage, Columns};
use super::direct::{Direct, together};
use super::stage::{Layout, stage};
use super::weights::Weights;
use super::{Conv2d, View4};
use crate::gemm::{Level, Product, Real, Sink};
use crate::par;

/// # Safety
/// As [`conv2d`](super::conv2d).
pub unsafe fn run<T: Real>(level: Level, conv: &Conv2d, x: &View4, w: &View4, inner: &dyn Sink<T>) {
    let grid = conv.output();
    let (channels, filters, taps) = conv.group();
    let layout = staging(conv);
    let offsets: Vec<isize> = (0..conv.groups)
        .map(|g| (g * filters * channels * taps) as isize)
        .collect();
    let weights = Weights::new::<T>(level, conv, w);
    let a = weights.operand(&offsets);
    let per_chunk = layout.images(conv.batch);
    for first in (0..conv.batch).step_by(per_chunk) {
        let images = first..(first + per_chunk).min(conv.batch);
        // SAFETY: the caller's contract.
        let staged = unsafe { stage::<T>(level, x, images.clone(), &layout) };
        let columns = Columns {
            row_step: conv.stride[0] * staged.strides[2],
            grid,
            taps: window(conv, &layout, staged.strides),
            group_channels: channels,
            images: images.len(),
            parts: 1,
            staged: &staged,
        };
        let out = ByImage {
            inner,
            positions: grid[0] * grid[1],
            filters,
            image: first,
        };
        Product {
            level,
            batch: conv.groups,
            m: filters,
            n: columns.positions(),
            k: channels * taps,
            a: &a,
            b: &columns,
            out: &out,
            add: false,
        }
        .run();
    }
}

/// The same with windows that are read where they lie; whether that pays and was done.
///
/// # Safety
/// As [`conv2d`](super::conv2d).
pub unsafe fn direct(
    level: Level,
    conv: &Conv2d,
    x: &View4,
    w: &View4,
    inner: &dyn Sink<f32>,
) -> bool {
    let [rows, cols] = conv.output();
    let (channels, filters, taps) = conv.group();
    let layout = staging(conv);
    let row_step = conv.stride[0] * layout.row();
    let k = channels * taps;
    if rows == 0 || !Direct::pays(level, filters, k, cols, row_step) {
        return false;
    }
    let reach = (conv.kernel[0] - 1) * conv.dilation[0] + 1;
    let band = band_rows(rows, conv.channels * row_step);
    let staged_rows = (band - 1) * conv.stride[0] + reach;
    let weights = Weights::copy::<f32>(level, conv, w);
    let plane = staged_rows * layout.row();
    let offsets = window(conv, &layout, [0, plane, layout.row()]);
    let group_step = channels * plane;
    // SAFETY: the copy holds all weights.
    let direct = unsafe {
        let weights = weights.ptr();
        Direct::new(
            level,
            conv.groups,
            filters,
            weights,
            offsets,
            group_step,
            cols,
            row_step,
        )
    };
    let Some(direct) = direct else {
        return false;
    };
    let bands = rows.div_ceil(band);
    let units = conv.batch * bands;
    let together = together(conv.filters * k * band * cols);
    par::for_each(par::pieces(units, together), |t| {
        let staged = Band::new(&layout, staged_rows);
        for unit in par::piece(units, together, t) {
            let (image, first) = (unit / bands, unit % bands * band);
            let end = (first + band).min(rows);
            let padded = first * conv.stride[0]..(end - 1) * conv.stride[0] + reach;
            // SAFETY: the caller's contract; the windows of these rows lie in the band.
            unsafe {
                staged.fill(level, x, image, &layout, padded);
                direct.run(staged.ptr(), end - first, inner, image, first * cols);
            }
        }
    });
    true
}

/// How x is staged.
pub fn staging(conv: &Conv2d) -> Layout {
    Layout {
        channels: conv.channels,
        size: conv.input,
        padding: conv.padding,
        phases: conv.stride[1],
    }
}

/// Offsets of the values of a window: channel, row, column.
pub fn window(conv: &Conv2d, layout: &Layout, strides: [usize; 3]) -> Vec<usize> {
    let (channels, _, taps) = conv.group();
    (0..channels * taps)
        .map(|t| {
            let (c, u, v) = (t / taps, t % taps / conv.kernel[1], t % conv.kernel[1]);
            let x = layout.at(0, v * conv.dilation[1]);
            c * strides[1] + u * conv.dilation[0] * strides[2] + x
        })
        .collect()
}
