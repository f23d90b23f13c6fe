//! `y = conv(x, w)`: filters times windows, `[filters, taps] * [taps, positions]`, positions through
//! all images so that small planes do not leave panels half empty.

use super::columns::{ByImage, Columns};
use super::stage::{Layout, stage};
use super::weights::Weights;
use super::{Conv2d, View4};
use crate::gemm::{Level, Product, Real, Sink};

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
