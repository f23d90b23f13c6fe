//! Two-dimensional convolution and its two gradients, as matrix products whose packing gathers
//! from the images.

mod band;
mod columns;
mod direct;
mod direct_grad;
mod forward;
mod input_grad;
mod micro;
mod stage;
#[cfg(test)]
mod tests;
mod weight_grad;
mod weights;

use crate::gemm::{AnySink, Elements, Level, Output};
use crate::simd::simd_level;
use bimetal_dtype::DType;

/// Sizes of a two-dimensional convolution; `[height, width]` where there are two.
///
/// The definition is that of PyTorch's `conv2d` (cross-correlation): with zeros around x,
/// `y[n, o, i, j] = sum over c, u, v of x[n, c, i*s + u*d - p, j*s + v*d - p] * w[o, c, u, v]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conv2d {
    /// Images.
    pub batch: usize,
    /// Channels of x, a multiple of `groups`.
    pub channels: usize,
    /// Height and width of x.
    pub input: [usize; 2],
    /// Channels of y, a multiple of `groups`.
    pub filters: usize,
    /// Height and width of the window, at least 1.
    pub kernel: [usize; 2],
    /// Elements of x from one window to the next, at least 1.
    pub stride: [usize; 2],
    /// Zeros before and after the rows, before and after the columns.
    pub padding: [[usize; 2]; 2],
    /// Elements of x from one element of a window to the next, at least 1.
    pub dilation: [usize; 2],
    /// Parts of the channels that are convolved independently, at least 1.
    pub groups: usize,
}

impl Conv2d {
    /// Height and width of y.
    pub fn output(&self) -> [usize; 2] {
        std::array::from_fn(|a| {
            let padded = self.input[a] + self.padding[a][0] + self.padding[a][1];
            let window = self.dilation[a] * (self.kernel[a] - 1) + 1;
            match padded.checked_sub(window) {
                Some(room) => room / self.stride[a] + 1,
                None => 0,
            }
        })
    }

    /// Channels of x and of y in a group, and elements of a window.
    fn group(&self) -> (usize, usize, usize) {
        let taps = self.kernel[0] * self.kernel[1];
        (
            self.channels / self.groups,
            self.filters / self.groups,
            taps,
        )
    }
}

/// A strided 4-dimensional tensor in memory: images `[n, c, h, w]` or weights `[o, c, kh, kw]`.
#[derive(Clone, Copy)]
pub struct View4 {
    /// The first element.
    pub ptr: *const u8,
    /// The element type in memory.
    pub dtype: DType,
    /// Rounds every value to this type when it is loaded.
    pub round_to: Option<DType>,
    /// Elements from one index to the next; may be zero or negative.
    pub strides: [isize; 4],
}

// SAFETY: the memory is only read, and the caller keeps it alive and unwritten.
unsafe impl Send for View4 {}
// SAFETY: as above.
unsafe impl Sync for View4 {}

impl View4 {
    fn elements(&self) -> Elements {
        Elements {
            dtype: self.dtype,
            round_to: self.round_to,
        }
    }

    fn at(&self, index: [usize; 4]) -> *const u8 {
        let element: isize = index
            .iter()
            .zip(self.strides)
            .map(|(&i, s)| i as isize * s)
            .sum();
        self.ptr
            .wrapping_offset(element * self.dtype.size() as isize)
    }

    fn is_f64(&self) -> bool {
        self.round_to.unwrap_or(self.dtype) == DType::F64
    }
}

/// `y = conv(x, w)`, y as one matrix `[filters, h * w]` per image.
///
/// Sums are f32 (f64 if f64 values take part) in a fixed order and are rounded once. Runs in the
/// current pool; the bits do not depend on the number of threads.
///
/// # Safety
/// As [`gemm`](crate::gemm::gemm): `x` and `w` readable with the shapes of `conv`, a dense `out`
/// writable and apart from both.
pub unsafe fn conv2d(conv: &Conv2d, x: View4, w: View4, out: Output<'_>) {
    // SAFETY: the caller's contract.
    unsafe { conv2d_at(simd_level(), conv, x, w, out) }
}

unsafe fn conv2d_at(level: Level, conv: &Conv2d, x: View4, w: View4, out: Output<'_>) {
    let wide = x.is_f64() || w.is_f64();
    // SAFETY: the caller's contract.
    unsafe {
        match out.sink(wide) {
            AnySink::F32(out) => {
                if !forward::direct(level, conv, &x, &w, &*out) {
                    forward::run::<f32>(level, conv, &x, &w, &*out);
                }
            }
            AnySink::F64(out) => forward::run::<f64>(level, conv, &x, &w, &*out),
        }
    }
}

/// The gradient of [`conv2d`] with respect to x, as one matrix `[channels, h * w]` per image.
///
/// # Safety
/// As [`conv2d`], with `dy` of the shape of y.
pub unsafe fn conv2d_input_grad(conv: &Conv2d, dy: View4, w: View4, out: Output<'_>) {
    // SAFETY: the caller's contract.
    unsafe { conv2d_input_grad_at(simd_level(), conv, dy, w, out) }
}

unsafe fn conv2d_input_grad_at(level: Level, conv: &Conv2d, dy: View4, w: View4, out: Output<'_>) {
    let wide = dy.is_f64() || w.is_f64();
    // SAFETY: the caller's contract.
    unsafe {
        match out.sink(wide) {
            AnySink::F32(out) => {
                if !input_grad::direct(level, conv, &dy, &w, &*out) {
                    input_grad::run::<f32>(level, conv, &dy, &w, &*out);
                }
            }
            AnySink::F64(out) => input_grad::run::<f64>(level, conv, &dy, &w, &*out),
        }
    }
}

/// The gradient of [`conv2d`] with respect to w, as one matrix `[filters, channels / groups * kh * kw]`.
///
/// Images are summed in an order fixed by the shape.
///
/// # Safety
/// As [`conv2d`], with `dy` of the shape of y.
pub unsafe fn conv2d_weight_grad(conv: &Conv2d, x: View4, dy: View4, out: Output<'_>) {
    // SAFETY: the caller's contract.
    unsafe { conv2d_weight_grad_at(simd_level(), conv, x, dy, out) }
}

unsafe fn conv2d_weight_grad_at(level: Level, conv: &Conv2d, x: View4, dy: View4, out: Output<'_>) {
    let wide = x.is_f64() || dy.is_f64();
    // SAFETY: the caller's contract.
    unsafe {
        match out.sink(wide) {
            AnySink::F32(out) if direct_grad::pays(level, conv) => {
                direct_grad::run(level, conv, &x, &dy, &*out);
            }
            AnySink::F32(out) => weight_grad::run::<f32>(level, conv, &x, &dy, &*out),
            AnySink::F64(out) => weight_grad::run::<f64>(level, conv, &x, &dy, &*out),
        }
    }
}
