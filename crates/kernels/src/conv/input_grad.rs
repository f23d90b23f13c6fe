//! `dx[n, c, y, x] = sum over o, u, v of dy[n, o, i, j] * w[o, c, u, v]`, where `i*s + u*d - p = y` and
//! `j*s + v*d - p = x`.
//!
//! With a stride, only every s-th u can meet a given y. So positions are split by the remainder of
//! `y + p` (and of `x + p`): for one remainder the same u and v serve all positions, and i moves by one
//! from one position to the next. Each part is then a convolution of dy with stride 1.

use super::band::{Band, band_rows};
use super::columns::{ByImage, Columns};
use super::direct::{Direct, together};
use super::stage::{Layout, Staged, stage};
use super::weights::Weights;
use super::{Conv2d, View4};
use crate::gemm::{Dst, Level, Operand, Product, Real, Scratch, Sink, Tile};
use crate::par;
use std::ops::Range;

/// Along one axis: the positions with one remainder and the window elements that meet them.
struct Axis {
    /// First position of x, and how many, `stride` apart.
    first: usize,
    len: usize,
    /// Element u of the window, and the padded index of dy that it meets at the first position.
    taps: Vec<(usize, usize)>,
}

impl Axis {
    fn new(conv: &Conv2d, axis: usize, remainder: usize, before: usize) -> Axis {
        let (stride, dilation) = (conv.stride[axis], conv.dilation[axis]);
        let padding = conv.padding[axis][0];
        // The smallest t with t * stride + remainder - padding >= 0.
        let t = padding.saturating_sub(remainder).div_ceil(stride);
        let first = t * stride + remainder - padding;
        let len = conv.input[axis].saturating_sub(first).div_ceil(stride);
        let taps = (0..conv.kernel[axis])
            .filter(|u| (u * dilation) % stride == remainder)
            .map(|u| (u, t + before - u * dilation / stride))
            .collect();
        Axis { first, len, taps }
    }
}

/// How dy is staged: with the zeros around it that the windows reach.
fn staging(conv: &Conv2d) -> Layout {
    let output = conv.output();
    let padding = std::array::from_fn(|a| {
        let reach = (conv.kernel[a] - 1) * conv.dilation[a];
        let before = reach / conv.stride[a];
        let most = (conv.input[a] + conv.padding[a][0]).saturating_sub(1) / conv.stride[a];
        [before, (most + 1).saturating_sub(output[a])]
    });
    Layout {
        channels: conv.filters,
        size: output,
        padding,
        phases: 1,
    }
}

/// # Safety
/// As [`conv2d_input_grad`](super::conv2d_input_grad).
pub unsafe fn run<T: Real>(
    level: Level,
    conv: &Conv2d,
    dy: &View4,
    w: &View4,
    inner: &dyn Sink<T>,
) {
    let (channels, filters, _) = conv.group();
    let layout = staging(conv);
    let plane = conv.input[0] * conv.input[1];
    let weights = Weights::copy::<T>(level, conv, w);
    let per_chunk = layout.images(conv.batch);
    let whole = conv.stride == [1, 1];
    let dx = (!whole).then(|| Scratch::take::<T>(per_chunk * conv.channels * plane));
    for first in (0..conv.batch).step_by(per_chunk) {
        let images = first..(first + per_chunk).min(conv.batch);
        // SAFETY: the caller's contract.
        let staged = unsafe { stage::<T>(level, dy, images.clone(), &layout) };
        for rh in 0..conv.stride[0] {
            for rw in 0..conv.stride[1] {
                let y = Axis::new(conv, 0, rh, layout.padding[0][0]);
                let x = Axis::new(conv, 1, rw, layout.padding[1][0]);
                let copy = reordered::<T>(conv, weights.ptr(), &y, &x);
                let k = filters * y.taps.len() * x.taps.len();
                let offsets: Vec<isize> = (0..conv.groups)
                    .map(|g| (g * channels * k) as isize)
                    .collect();
                let a = Operand {
                    ptr: copy.ptr::<u8>().cast_const(),
                    dtype: T::DTYPE,
                    round_to: None,
                    row_stride: k as isize,
                    col_stride: 1,
                    offsets: &offsets,
                };
                let columns = columns(conv, &staged, &y, &x, images.len());
                let by_image = ByImage {
                    inner,
                    positions: plane,
                    filters: channels,
                    image: first,
                };
                let every = dx.as_ref().map(|dx| EveryNth {
                    dx: Dst(dx.ptr()),
                    first: [y.first, x.first],
                    len: [y.len, x.len],
                    stride: conv.stride,
                    size: conv.input,
                    channels: conv.channels,
                    group_channels: channels,
                });
                let out: &dyn Sink<T> = match &every {
                    Some(every) => every,
                    None => &by_image,
                };
                let (batch, n) = (conv.groups, columns.positions());
                Product {
                    level,
                    batch,
                    m: channels,
                    n,
                    k,
                    a: &a,
                    b: &columns,
                    out,
                    add: false,
                }
                .run();
            }
        }
        if let Some(dx) = &dx {
            hand_over(level, conv, dx.ptr(), images, inner);
        }
    }
}

/// One remainder, ready.
struct Part {
    direct: Direct,
    first: [usize; 2],
    len: [usize; 2],
}

/// The same with windows that are read where they lie; whether that pays and was done.
///
/// # Safety
/// As [`conv2d_input_grad`](super::conv2d_input_grad).
pub unsafe fn direct(
    level: Level,
    conv: &Conv2d,
    dy: &View4,
    w: &View4,
    inner: &dyn Sink<f32>,
) -> bool {
    let (channels, filters, _) = conv.group();
    let (layout, [height, width]) = (staging(conv), conv.input);
    let plane = height * width;
    let whole = conv.stride == [1, 1];
    if plane == 0 || conv.output().contains(&0) {
        return false;
    }
    let padded = layout.plane() / layout.row();
    if !whole && conv.filters * layout.plane() > MOST_STAGED {
        return false;
    }
    let mut axes = Vec::new();
    for rh in 0..conv.stride[0] {
        for rw in 0..conv.stride[1] {
            let y = Axis::new(conv, 0, rh, layout.padding[0][0]);
            let x = Axis::new(conv, 1, rw, layout.padding[1][0]);
            axes.push((y, x));
        }
    }
    // Positions without a tap stay zero.
    axes.retain(|(y, x)| y.len * x.len * y.taps.len() * x.taps.len() > 0);
    let pays = |(y, x): &(Axis, Axis)| {
        let k = filters * y.taps.len() * x.taps.len();
        Direct::pays(level, channels, k, x.len, layout.row())
    };
    if axes.is_empty() || !axes.iter().all(pays) {
        return false;
    }
    // Rows of dy that those of a band reach, of which it has one remainder if it is not whole.
    let span = |(y, _): &(Axis, Axis)| {
        let all = y.taps.iter().map(|(_, i)| *i);
        (all.clone().min().unwrap_or(0), all.max().unwrap_or(0))
    };
    let (low, high) = match whole {
        true => span(&axes[0]),
        false => (0, 0),
    };
    let band = match whole {
        true => band_rows(height, conv.filters * layout.row()),
        false => height,
    };
    let staged_rows = match whole {
        true => band + high - low,
        false => padded,
    };
    let weights = Weights::copy::<f32>(level, conv, w);
    let mut parts = Vec::new();
    for (y, x) in &axes {
        let copy = reordered::<f32>(conv, weights.ptr(), y, x);
        let strides = [staged_rows * layout.row(), layout.row()];
        let offsets = taps(filters, strides, low, y, x);
        // SAFETY: the copy holds all weights.
        let direct = unsafe {
            Direct::new(
                level,
                conv.groups,
                channels,
                copy.ptr(),
                offsets,
                filters * strides[0],
                x.len,
                layout.row(),
            )
        };
        let Some(direct) = direct else {
            return false;
        };
        parts.push(Part {
            direct,
            first: [y.first, x.first],
            len: [y.len, x.len],
        });
    }
    let bands = height.div_ceil(band);
    let units = conv.batch * bands;
    let (_, _, window) = conv.group();
    let work = conv.channels * filters * window * band * width;
    let together = together(work / (conv.stride[0] * conv.stride[1]));
    par::for_each(par::pieces(units, together), |t| {
        let staged = Band::new(&layout, staged_rows);
        for unit in par::piece(units, together, t) {
            let (image, first) = (unit / bands, unit % bands * band);
            let end = (first + band).min(height);
            // SAFETY: the caller's contract; the windows of these rows lie in the band.
            unsafe {
                if whole {
                    let rows = first + low..end + high;
                    staged.fill(level, dy, image, &layout, rows);
                    let out = &parts[0].direct;
                    out.run(staged.ptr(), end - first, inner, image, first * width);
                } else {
                    staged.fill(level, dy, image, &layout, 0..padded);
                    strided(level, conv, &parts, staged.ptr(), image, inner);
                }
            }
        }
    });
    true
}

/// Values of an image of dy that are staged for all remainders.
const MOST_STAGED: usize = 1 << 18;

/// All remainders of an image.
///
/// # Safety
/// The windows of the parts are readable.
unsafe fn strided(
    level: Level,
    conv: &Conv2d,
    parts: &[Part],
    staged: *const f32,
    image: usize,
    inner: &dyn Sink<f32>,
) {
    let plane = conv.input[0] * conv.input[1];
    let len = conv.channels * plane;
    let direct = inner.direct(image, 0, 0).filter(|(_, ld)| *ld == plane);
    let own = direct.is_none().then(|| Scratch::take::<f32>(len));
    let dx = match (direct, &own) {
        (Some((dx, _)), _) => dx,
        (None, Some(own)) => own.ptr(),
        (None, None) => return,
    };
    // SAFETY: the image has that many values, which no other task writes.
    let data = unsafe { std::slice::from_raw_parts_mut(dx, len) };
    if parts.len() < conv.stride[0] * conv.stride[1] {
        data.fill(0.0);
    }
    for part in parts {
        let every = EveryNth {
            dx: Dst(dx),
            first: part.first,
            len: part.len,
            stride: conv.stride,
            size: conv.input,
            channels: conv.channels,
            group_channels: 0,
        };
        // SAFETY: the caller's contract.
        unsafe { part.direct.run(staged, part.len[0], &every, 0, 0) };
    }
    if direct.is_none() {
        let tile = Tile {
            batch: image,
            row: 0,
            rows: conv.channels,
            col: 0,
            cols: plane,
            data,
            ld: plane,
        };
        inner.store(level, tile);
    }
}

/// Offsets of the values of a window of dy, from row `low` on; `strides` of channels and rows.
fn taps(filters: usize, strides: [usize; 2], low: usize, y: &Axis, x: &Axis) -> Vec<usize> {
    let mut taps = Vec::new();
    for o in 0..filters {
        for (_, i) in &y.taps {
            let row = o * strides[0] + (i - low) * strides[1];
            taps.extend(x.taps.iter().map(|(_, j)| row + j));
        }
    }
    taps
}

/// The windows of dy at the positions of one remainder.
fn columns<'a, T>(
    conv: &Conv2d,
    staged: &'a Staged<T>,
    y: &Axis,
    x: &Axis,
    images: usize,
) -> Columns<'a, T> {
    let (_, filters, _) = conv.group();
    let [_, plane, row] = staged.strides;
    Columns {
        staged,
        row_step: row,
        grid: [y.len, x.len],
        taps: taps(filters, [plane, row], 0, y, x),
        group_channels: filters,
        images,
        parts: 1,
    }
}

/// Weights as `[group, channel, filter, taps of one remainder]`.
fn reordered<T: Real>(conv: &Conv2d, w: *const T, y: &Axis, x: &Axis) -> Scratch {
    let (channels, filters, taps) = conv.group();
    let k = filters * y.taps.len() * x.taps.len();
    let copy = Scratch::take::<T>(conv.channels * k);
    let (w, dst) = (Dst(w.cast_mut()), Dst(copy.ptr::<T>()));
    let together = (1 << 12) / k.max(1) + 1;
    par::for_each(par::pieces(conv.channels, together), |t| {
        for gc in par::piece(conv.channels, together, t) {
            let (g, c) = (gc / channels, gc % channels);
            let mut at = gc * k;
            for o in g * filters..(g + 1) * filters {
                let row = (o * channels + c) * taps;
                for (u, _) in &y.taps {
                    for (v, _) in &x.taps {
                        // SAFETY: an element of the weights; each task writes its own channels.
                        unsafe { *dst.at(at) = *w.at(row + u * conv.kernel[1] + v) };
                        at += 1;
                    }
                }
            }
        }
    });
    copy
}

/// Writes positions of one remainder between those of the others, `[image, channel, h, w]`.
struct EveryNth<T> {
    dx: Dst<T>,
    first: [usize; 2],
    len: [usize; 2],
    stride: [usize; 2],
    size: [usize; 2],
    channels: usize,
    group_channels: usize,
}

impl<T: Real> Sink<T> for EveryNth<T> {
    fn store(&self, _level: Level, tile: Tile<'_, T>) {
        let [rows, cols] = self.len;
        for i in 0..tile.rows {
            let channel = tile.batch * self.group_channels + tile.row + i;
            let (mut j, row_of) = (0, &tile.data[i * tile.ld..]);
            while j < tile.cols {
                let at = tile.col + j;
                let (line, col) = (at / cols, at % cols);
                let (image, row) = (line / rows, line % rows);
                let len = (cols - col).min(tile.cols - j);
                let y = self.first[0] + row * self.stride[0];
                let x = self.first[1] + col * self.stride[1];
                let plane = image * self.channels + channel;
                let offset = (plane * self.size[0] + y) * self.size[1] + x;
                for (i, value) in row_of[j..j + len].iter().enumerate() {
                    // SAFETY: y and x lie in the plane; tiles and remainders share no element.
                    unsafe { *self.dx.at(offset + i * self.stride[1]) = *value }
                }
                j += len;
            }
        }
    }
}

/// Gives finished images to the destination.
fn hand_over<T: Real>(
    level: Level,
    conv: &Conv2d,
    dx: *mut T,
    images: Range<usize>,
    inner: &dyn Sink<T>,
) {
    let plane = conv.input[0] * conv.input[1];
    let (dx, len) = (Dst(dx), conv.channels * plane);
    if len == 0 {
        return;
    }
    par::for_each(images.len(), |i| {
        // SAFETY: the scratch holds that many values of this image.
        let data = unsafe { std::slice::from_raw_parts_mut(dx.at(i * len), len) };
        let tile = Tile {
            batch: images.start + i,
            row: 0,
            rows: conv.channels,
            col: 0,
            cols: plane,
            data,
            ld: plane,
        };
        inner.store(level, tile);
    });
}
