//! `dw[o, t] = sum over positions q of dy[o, q] * window[t, q]`, computed as its transpose: so the many
//! windows are copied along q, and only the smaller dy is transposed while packing.

use super::columns::{Columns, Transposed};
use super::forward::{staging, window};
use super::stage::{Layout, stage};
use super::{Conv2d, View4};
use crate::gemm::{Dense, Isa, Level, Product, Real, Scratch, Sink, Tile, by_level};

/// Results so small that their tiles would not keep several threads busy.
const SMALL: usize = 1 << 14;
/// Parts that the images are then split into at most, each with sums of its own.
const PARTS: usize = 8;

/// # Safety
/// As [`conv2d_weight_grad`](super::conv2d_weight_grad).
pub unsafe fn run<T: Real>(
    level: Level,
    conv: &Conv2d,
    x: &View4,
    dy: &View4,
    inner: &dyn Sink<T>,
) {
    let grid = conv.output();
    let (channels, filters, taps) = conv.group();
    let (m, n) = (channels * taps, filters);
    let len = conv.groups * m * n;
    if len == 0 {
        return;
    }
    let layout = staging(conv);
    let gradients = Layout {
        channels: conv.filters,
        size: grid,
        padding: [[0; 2]; 2],
        phases: 1,
    };
    let per_chunk = layout.images(conv.batch).min(gradients.images(conv.batch));
    let sums = Scratch::take::<T>(len);
    // SAFETY: that many values.
    let sums = unsafe {
        std::slice::from_raw_parts_mut(sums.ptr::<T>(), len).fill(T::default());
        std::slice::from_raw_parts_mut(sums.ptr::<T>(), len)
    };
    for first in (0..conv.batch).step_by(per_chunk) {
        let images = first..(first + per_chunk).min(conv.batch);
        let parts = match m * n <= SMALL {
            true => (0..)
                .map(|i| PARTS >> i)
                .find(|p| images.len().is_multiple_of(*p))
                .unwrap_or(1),
            false => 1,
        };
        // SAFETY: the caller's contract.
        let (x, dy) = unsafe {
            let x = stage::<T>(level, x, images.clone(), &layout);
            (x, stage::<T>(level, dy, images.clone(), &gradients))
        };
        let columns = Columns {
            row_step: conv.stride[0] * x.strides[2],
            grid,
            taps: window(conv, &layout, x.strides),
            group_channels: channels,
            images: images.len() / parts,
            parts,
            staged: &x,
        };
        let right = Transposed(Columns {
            row_step: dy.strides[2],
            grid,
            taps: (0..filters).map(|o| o * dy.strides[1]).collect(),
            group_channels: filters,
            images: images.len() / parts,
            parts,
            staged: &dy,
        });
        let part_sums = Scratch::take::<T>(parts * len);
        let out = Dense::new(part_sums.ptr(), T::DTYPE, m, n);
        let (batch, k) = (conv.groups * parts, columns.positions());
        Product {
            level,
            batch,
            m,
            n,
            k,
            a: &columns,
            b: &right,
            out: &out,
            add: false,
        }
        .run();
        // SAFETY: the product wrote all of it.
        let part_sums =
            unsafe { std::slice::from_raw_parts_mut(part_sums.ptr::<T>(), parts * len) };
        for (sums, parts) in sums
            .chunks_mut(m * n)
            .zip(part_sums.chunks_mut(parts * m * n))
        {
            add_parts(parts, m * n);
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = sum.plus(*part);
            }
        }
    }
    let turned = Scratch::take::<T>(m * n);
    for (g, sums) in sums.chunks(m * n).enumerate() {
        // SAFETY: m x n values on both sides.
        let data = unsafe {
            turn(level, sums.as_ptr(), m, n, turned.ptr());
            std::slice::from_raw_parts_mut(turned.ptr::<T>(), m * n)
        };
        let tile = Tile {
            batch: 0,
            row: g * filters,
            rows: n,
            col: 0,
            cols: m,
            data,
            ld: m,
        };
        inner.store(level, tile);
    }
}

/// Adds up parts of `len` values into the first one, as a balanced tree.
fn add_parts<T: Real>(parts: &mut [T], len: usize) {
    let mut count = parts.len() / len;
    while count > 1 {
        let half = count / 2;
        let (low, high) = parts.split_at_mut(half * len);
        for (a, b) in low.iter_mut().zip(high) {
            *a = a.plus(*b);
        }
        count = half;
    }
}

by_level!(
    /// `dst[j * m + i] = src[i * n + j]`.
    fn turn<T: Real>(src: *const T, m: usize, n: usize, dst: *mut T) = turn_body
);

#[inline(always)]
unsafe fn turn_body<I: Isa, T: Real>(src: *const T, m: usize, n: usize, dst: *mut T) {
    // SAFETY: m x n values on both sides.
    unsafe { T::transpose::<I>(src, n, m, n, dst, m) }
}
