//! Batch normalisation (Ioffe and Szegedy 2015) of `[n, c, ..]`, channel by channel: what one channel
//! has is read from memory once and from the cache in the further passes.

use crate::gemm::isa::{Isa, by_level};
use crate::gemm::{Convert, Dst, Elements};
use crate::par;
use crate::simd::simd_level;
use bimetal_dtype::DType;

mod sums;
#[cfg(test)]
mod tests;

use sums::Sums;

/// Elements that are converted at a time.
const CHUNK: usize = 1024;

/// A dense array `[batch, channels, plane]` of floats up to f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planes {
    /// Images.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Elements of a channel in an image.
    pub plane: usize,
}

impl Planes {
    /// Elements of a channel.
    fn count(&self) -> usize {
        self.batch * self.plane
    }

    /// Calls `f` with the runs of a channel: first element and length.
    #[inline(always)]
    fn runs(&self, channel: usize, mut f: impl FnMut(usize, usize)) {
        for n in 0..self.batch {
            let first = (n * self.channels + channel) * self.plane;
            for at in (0..self.plane).step_by(CHUNK) {
                f(first + at, CHUNK.min(self.plane - at));
            }
        }
    }
}

/// An operand in memory.
#[derive(Clone, Copy)]
pub struct Source {
    /// The first element.
    pub ptr: *const u8,
    /// F32, F16, BF16 or an 8-bit float.
    pub dtype: DType,
}

/// A result in memory.
#[derive(Clone, Copy)]
pub struct Target {
    /// The first element, or null if nobody wants it.
    pub ptr: *mut u8,
    /// F32, F16, BF16 or an 8-bit float.
    pub dtype: DType,
}

// SAFETY: the memory is only read, and the caller keeps it alive and unwritten.
unsafe impl Sync for Source {}
// SAFETY: tasks write disjoint elements.
unsafe impl Sync for Target {}

impl Source {
    /// Elements as f32: where they lie, or in `buffer`.
    ///
    /// # Safety
    /// Readable, aligned; the result is gone before `buffer` is used again.
    #[inline(always)]
    unsafe fn load<'a, I: Isa>(
        &self,
        first: usize,
        n: usize,
        buffer: &'a mut [f32; CHUNK],
    ) -> &'a [f32] {
        let from = Elements {
            dtype: self.dtype,
            round_to: None,
        };
        let src = self.ptr.wrapping_add(first * self.dtype.size());
        // SAFETY: the caller's contract.
        unsafe {
            if self.dtype == DType::F32 {
                return std::slice::from_raw_parts(src.cast(), n);
            }
            f32::load::<I>(src, from, n, buffer.as_mut_ptr());
        }
        &buffer[..n]
    }
}

impl Target {
    /// Where to compute elements: in place, or in `buffer`.
    ///
    /// # Safety
    /// Writable, aligned.
    #[inline(always)]
    unsafe fn room<'a>(
        &self,
        first: usize,
        n: usize,
        buffer: &'a mut [f32; CHUNK],
    ) -> &'a mut [f32] {
        match self.dtype {
            // SAFETY: the caller's contract.
            DType::F32 => unsafe {
                std::slice::from_raw_parts_mut(self.ptr.cast::<f32>().add(first), n)
            },
            _ => &mut buffer[..n],
        }
    }

    /// Rounds what was computed in `buffer`, if it was.
    ///
    /// # Safety
    /// As [`Target::room`].
    #[inline(always)]
    unsafe fn store<I: Isa>(&self, first: usize, n: usize, buffer: &[f32; CHUNK]) {
        if self.dtype != DType::F32 {
            let dst = self.ptr.wrapping_add(first * self.dtype.size());
            // SAFETY: the caller's contract.
            unsafe { f32::store::<I>(buffer.as_ptr(), n, dst, self.dtype) }
        }
    }
}

/// Numbers of one channel.
#[derive(Clone, Copy)]
struct Channel {
    gamma: f32,
    mean: f32,
    rstd: f32,
}

/// `y = (x - mean) * rstd * gamma + beta` with the mean and the biased variance of each channel,
/// `rstd = 1 / sqrt(variance + eps)`; `stats` are mean, rstd and variance `[channels]`.
///
/// Two passes, as in the definition: equal values have variance 0. Sums are f64 over short f32 ones; y is
/// rounded once. The bits do not depend on the number of threads.
///
/// # Safety
/// x readable, y writable for all elements and apart from x; all else has an element per channel.
pub unsafe fn batch_norm(
    planes: &Planes,
    x: Source,
    gamma: &[f32],
    beta: &[f32],
    eps: f64,
    y: Target,
    stats: [&mut [f32]; 3],
) {
    let level = simd_level();
    let all = stats.map(|s| Dst(s.as_mut_ptr()));
    par::for_each(planes.channels, |c| {
        let (gamma, beta) = (gamma[c], beta[c]);
        let mut found = [0.0f32; 3];
        // SAFETY: the caller's contract; each task has its own channel.
        unsafe {
            normalise(level, planes, &x, c, gamma, beta, eps, y, &mut found);
            for (all, value) in all.iter().zip(found) {
                *all.at(c) = value;
            }
        }
    });
}

/// The gradients of [`batch_norm`]: dx, dgamma and dbeta `[channels]`.
///
/// With n = (x - mean) * rstd: `dbeta = sum(dy)`, `dgamma = sum(dy * n)`,
/// `dx = (dy - mean(dy) - n * mean(dy * n)) * rstd * gamma`.
///
/// # Safety
/// x and dy readable, dx writable for all elements and apart from both; all else has an element per
/// channel.
pub unsafe fn batch_norm_grad(
    planes: &Planes,
    x: Source,
    dy: Source,
    gamma: &[f32],
    [mean, rstd]: [&[f32]; 2],
    dx: Target,
    [dgamma, dbeta]: [&mut [f32]; 2],
) {
    let level = simd_level();
    let (dgamma, dbeta) = (Dst(dgamma.as_mut_ptr()), Dst(dbeta.as_mut_ptr()));
    par::for_each(planes.channels, |c| {
        let channel = Channel {
            gamma: gamma[c],
            mean: mean[c],
            rstd: rstd[c],
        };
        let mut found = [0.0f32; 2];
        // SAFETY: the caller's contract; each task has its own channel.
        unsafe {
            gradients(level, planes, &x, &dy, c, channel, dx, &mut found);
            *dgamma.at(c) = found[0];
            *dbeta.at(c) = found[1];
        }
    });
}

by_level!(
    /// One channel; mean, rstd and variance go to `found`.
    fn normalise(planes: &Planes, x: &Source, c: usize, gamma: f32, beta: f32, eps: f64, y: Target, found: &mut [f32; 3]) = normalise_body
);

#[inline(always)]
unsafe fn normalise_body<I: Isa>(
    planes: &Planes,
    x: &Source,
    c: usize,
    gamma: f32,
    beta: f32,
    eps: f64,
    y: Target,
    found: &mut [f32; 3],
) {
    let (mut buffer, mut out) = ([0.0; CHUNK], [0.0; CHUNK]);
    let count = planes.count() as f64;
    let mut sums = Sums::<1>::new();
    planes.runs(c, |at, n| {
        // SAFETY: the caller's contract.
        let x = unsafe { x.load::<I>(at, n, &mut buffer) };
        sums.add(x, x, |x, _| [x]);
    });
    let mean = (sums.totals()[0] / count) as f32;
    let mut sums = Sums::<1>::new();
    planes.runs(c, |at, n| {
        // SAFETY: the caller's contract.
        let x = unsafe { x.load::<I>(at, n, &mut buffer) };
        sums.add(x, x, |x, _| [(x - mean) * (x - mean)]);
    });
    let variance = (sums.totals()[0] / count) as f32;
    let rstd = (1.0 / (variance as f64 + eps).sqrt()) as f32;
    *found = [mean, rstd, variance];
    if y.ptr.is_null() {
        return;
    }
    let scale = rstd * gamma;
    planes.runs(c, |at, n| {
        // SAFETY: the caller's contract.
        unsafe {
            let x = x.load::<I>(at, n, &mut buffer);
            let y = y.room(at, n, &mut out);
            for (y, x) in y.iter_mut().zip(x) {
                *y = times_plus::<I>(x - mean, scale, beta);
            }
        }
        // SAFETY: as above.
        unsafe { y.store::<I>(at, n, &out) };
    });
}

by_level!(
    /// One channel; dgamma and dbeta go to `found`.
    fn gradients(planes: &Planes, x: &Source, dy: &Source, c: usize, channel: Channel, dx: Target, found: &mut [f32; 2]) = gradients_body
);

#[inline(always)]
unsafe fn gradients_body<I: Isa>(
    planes: &Planes,
    x: &Source,
    dy: &Source,
    c: usize,
    channel: Channel,
    dx: Target,
    found: &mut [f32; 2],
) {
    let (mut buffer, mut other, mut out) = ([0.0; CHUNK], [0.0; CHUNK], [0.0; CHUNK]);
    let Channel { gamma, mean, rstd } = channel;
    let mut sums = Sums::<2>::new();
    planes.runs(c, |at, n| {
        // SAFETY: the caller's contract.
        let (x, dy) = unsafe {
            let x = x.load::<I>(at, n, &mut buffer);
            (x, dy.load::<I>(at, n, &mut other))
        };
        sums.add(x, dy, |x, dy| [dy * (x - mean), dy]);
    });
    let [with_x, dbeta] = sums.totals();
    let dgamma = with_x * rstd as f64;
    *found = [dgamma as f32, dbeta as f32];
    if dx.ptr.is_null() {
        return;
    }
    // dx as a linear function of dy and of x - mean.
    let (count, scale) = (planes.count() as f64, gamma as f64 * rstd as f64);
    let by_dy = scale as f32;
    let by_x = (-scale * rstd as f64 * dgamma / count) as f32;
    let shift = (-scale * dbeta / count) as f32;
    planes.runs(c, |at, n| {
        // SAFETY: the caller's contract.
        unsafe {
            let x = x.load::<I>(at, n, &mut buffer);
            let dy = dy.load::<I>(at, n, &mut other);
            let dx = dx.room(at, n, &mut out);
            for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                let rest = times_plus::<I>(x - mean, by_x, shift);
                *dx = times_plus::<I>(*dy, by_dy, rest);
            }
        }
        // SAFETY: as above.
        unsafe { dx.store::<I>(at, n, &out) };
    });
}

/// `a * b + c`, in one rounding where that is one instruction.
#[inline(always)]
fn times_plus<I: Isa>(a: f32, b: f32, c: f32) -> f32 {
    if I::FUSED { a.mul_add(b, c) } else { a * b + c }
}
