//! Scaled dot-product attention and its gradients, block by block: no `tq x tk` matrix is stored.

mod backward;
mod forward;
mod panels;
mod rows;
#[cfg(test)]
mod tests;

use crate::gemm::{Elements, Operand};
use crate::simd::simd_level;
use bimetal_dtype::DType;
use std::ops::Range;

/// Gives the factors of probabilities: 0 where one is dropped, otherwise `1 / (1 - rate)`.
///
/// Arguments: the row `(batch * heads + head) * tq + query`, the first key, and where to write the
/// factors of this key and those after it. It must answer the same whenever it is asked.
pub type Dropout<'a> = dyn Fn(usize, usize, &mut [f32]) + Sync + 'a;

/// Sizes and options of attention.
///
/// `y = dropout(softmax(scale * q k^T)) v` for every batch and head.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// Sequences.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Queries of a sequence.
    pub tq: usize,
    /// Keys of a sequence.
    pub tk: usize,
    /// Elements of a query, a key and a value.
    pub d: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Query i sees keys up to `i + tk - tq`.
    pub causal: bool,
    /// `[batch, tk]`, not zero: attend.
    pub key_mask: Option<&'a [u8]>,
    /// Factors of the probabilities.
    pub dropout: Option<&'a Dropout<'a>>,
}

/// Vectors of `d` consecutive elements for every batch, head and time, to be read.
#[derive(Clone, Copy)]
pub struct Heads {
    /// The first element.
    pub ptr: *const u8,
    /// The element type in memory.
    pub dtype: DType,
    /// Rounds every value to this type when it is loaded.
    pub round_to: Option<DType>,
    /// Elements from one batch, head and time to the next.
    pub strides: [isize; 3],
}

// SAFETY: the memory is only read, and the caller keeps it alive and unwritten.
unsafe impl Send for Heads {}
// SAFETY: as above.
unsafe impl Sync for Heads {}

impl Heads {
    fn at(&self, batch: usize, head: usize, time: usize) -> *const u8 {
        let index = [batch, head, time];
        let element: isize = index
            .iter()
            .zip(self.strides)
            .map(|(&i, s)| i as isize * s)
            .sum();
        self.ptr
            .wrapping_offset(element * self.dtype.size() as isize)
    }

    fn elements(&self) -> Elements {
        Elements {
            dtype: self.dtype,
            round_to: self.round_to,
        }
    }

    /// The matrix `[time, d]` from a time on.
    fn matrix(&self, batch: usize, head: usize, time: usize) -> Operand<'static> {
        Operand {
            ptr: self.at(batch, head, time),
            dtype: self.dtype,
            round_to: self.round_to,
            row_stride: self.strides[2],
            col_stride: 1,
            offsets: &[0],
        }
    }
}

/// Vectors of `d` consecutive elements for every batch, head and time, to be written.
#[derive(Clone, Copy)]
pub struct HeadsMut {
    /// The first element.
    pub ptr: *mut u8,
    /// The element type in memory; values are rounded once, to nearest even.
    pub dtype: DType,
    /// Elements from one batch, head and time to the next.
    pub strides: [usize; 3],
}

// SAFETY: tasks write disjoint vectors, and the caller keeps the memory alive.
unsafe impl Send for HeadsMut {}
// SAFETY: as above.
unsafe impl Sync for HeadsMut {}

impl HeadsMut {
    fn at(&self, batch: usize, head: usize, time: usize) -> *mut u8 {
        let [b, h, t] = self.strides;
        let element = batch * b + head * h + time * t;
        self.ptr.wrapping_add(element * self.dtype.size())
    }

    fn row_bytes(&self) -> usize {
        self.strides[2] * self.dtype.size()
    }
}

/// Queries and keys of a block. Factors are packed for a block.
const QUERIES: usize = if cfg!(test) { 24 } else { 128 };
const KEYS: usize = if cfg!(test) { 40 } else { 256 };
/// Queries whose scores are held at a time: they fit the L1 cache beside a panel of a factor.
const PART: usize = if cfg!(test) { 10 } else { 42 };

/// Queries of a part of a block of `queries`: equal parts.
fn part(queries: usize) -> usize {
    queries.div_ceil(queries.div_ceil(PART).max(1)).max(1)
}

/// Values from one row of scores to the next, for at most `keys` keys: whole vectors, and never a multiple of 1 KiB.
fn row_stride(keys: usize) -> usize {
    keys.min(KEYS).next_multiple_of(rows::LANES) + 16
}

/// Keys of a block that each query of a block sees; never fewer than the query before.
fn visible(spec: &Attention<'_>, queries: Range<usize>, keys: &Range<usize>) -> [usize; QUERIES] {
    let mut seen = [0; QUERIES];
    for (seen, query) in seen.iter_mut().zip(queries) {
        *seen = spec
            .visible(query)
            .saturating_sub(keys.start)
            .min(keys.len());
    }
    seen
}

impl Attention<'_> {
    /// Keys that a query sees.
    fn visible(&self, query: usize) -> usize {
        match self.causal {
            true => (query + 1 + self.tk).saturating_sub(self.tq).min(self.tk),
            false => self.tk,
        }
    }
}

/// Attention; also writes the log-sum-exp of the scores, `[batch, heads, tq]`.
///
/// Products are summed in f32 and softmax runs in f32 whatever the types, so masks cannot overflow.
/// A query that sees no key gives 0 and a log-sum-exp of minus infinity. f64 is computed in f32.
/// The bits do not depend on the number of threads. Keys are visited in blocks with a running
/// maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
///
/// # Safety
/// All inputs readable and aligned, `y` and `lse` writable, aligned and apart from everything else.
pub unsafe fn attention(
    spec: &Attention<'_>,
    q: Heads,
    k: Heads,
    v: Heads,
    y: HeadsMut,
    lse: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe { forward::run(simd_level(), spec, [q, k, v], y, lse) }
}

/// The gradients of [`attention`] with respect to q, k and v, from its results and dy.
///
/// Probabilities are computed again from `lse` block by block; `dy . y` replaces the sum over keys in
/// the derivative of softmax (Dao et al., "FlashAttention", 2022). Keys are summed over queries and
/// queries over keys in a fixed order.
///
/// # Safety
/// All inputs readable and aligned, the gradients writable, aligned and apart from everything else.
pub unsafe fn attention_grad(
    spec: &Attention<'_>,
    q: Heads,
    k: Heads,
    v: Heads,
    y: Heads,
    lse: *const f32,
    dy: Heads,
    dq: HeadsMut,
    dk: HeadsMut,
    dv: HeadsMut,
) {
    let inputs = backward::Inputs { q, k, v, y, dy };
    // SAFETY: the caller's contract.
    unsafe { backward::run(simd_level(), spec, &inputs, lse, [dq, dk, dv]) }
}

/// The key mask of some keys as what is added to their scores: 0 or minus infinity.
fn bias(spec: &Attention<'_>, batch: usize, keys: Range<usize>, out: &mut [f32]) -> bool {
    let Some(mask) = spec.key_mask else {
        return false;
    };
    for (out, key) in out.iter_mut().zip(keys) {
        let seen = mask.get(batch * spec.tk + key).is_some_and(|m| *m != 0);
        *out = if seen { 0.0 } else { f32::NEG_INFINITY };
    }
    true
}
