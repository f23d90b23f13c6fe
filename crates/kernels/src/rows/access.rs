//! Rows of any float dtype, seen as f32, and how they are shared between threads.
use crate::simd::{Load, Store, fence, load_f32, prefetch, store_f32, stream};
use bimetal_dtype::DType;
use rayon::prelude::*;
use std::ops::Range;

/// A matrix `[rows, cols]` to read.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    dtype: DType,
    bytes: &'a [u8],
    cols: usize,
    load: Load<f32>,
}

/// A matrix `[rows, cols]` to write.
pub struct RowsMut<'a> {
    dtype: DType,
    bytes: &'a mut [u8],
    cols: usize,
    store: Store<f32>,
    /// Whether it is so large that it is written around the caches.
    streams: bool,
    /// Whether the kernel itself does so.
    direct: bool,
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// From this size on a result has left the caches before anyone reads it.
const STREAM: usize = 8 << 20;
/// Bytes of a row that are asked for ahead of time.
const AHEAD: usize = 8 << 10;
/// Elements of a narrower type that are on their way at a time.
const PART: usize = 1024;

/// Whether the kernels take `dtype` and `bytes` is a whole number of rows.
fn fits(dtype: DType, bytes: usize, cols: usize) -> bool {
    dtype.is_float() && dtype != DType::F64 && cols > 0 && bytes.is_multiple_of(cols * dtype.size())
}

impl<'a> Rows<'a> {
    /// `None` if the dtype is no float up to f32, `cols` is 0 or `bytes` are not whole rows.
    pub fn new(dtype: DType, bytes: &'a [u8], cols: usize) -> Option<Self> {
        let load = load_f32(dtype)?;
        fits(dtype, bytes.len(), cols).then_some(Rows {
            dtype,
            bytes,
            cols,
            load,
        })
    }

    /// The length of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        self.bytes.len() / (self.cols * self.dtype.size())
    }

    /// Columns `part` of row `row`, or of rows from it on: in place for aligned f32, else through `scratch`, which is as long.
    #[inline]
    pub fn part<'s>(&self, row: usize, part: Range<usize>, scratch: &'s mut [f32]) -> &'s [f32]
    where
        'a: 's,
    {
        let size = self.dtype.size();
        let at = row * self.cols;
        let len = part.len();
        let bytes = &self.bytes[(at + part.start) * size..(at + part.end) * size];
        if self.dtype == DType::F32
            && let Ok(values) = bytemuck::try_cast_slice::<u8, f32>(bytes)
        {
            return values;
        }
        (self.load)(&mut scratch[..len], bytes);
        &scratch[..len]
    }

    /// Whether [`Rows::part`] needs no scratch.
    pub fn in_place(&self) -> bool {
        self.dtype == DType::F32 && self.bytes.as_ptr().cast::<f32>().is_aligned()
    }

    /// Asks for row `row`, if there is one, to be brought closer.
    #[inline]
    pub fn ahead(&self, row: usize) {
        let bytes = self.cols * self.dtype.size();
        if let Some(next) = self.bytes.get(row * bytes..) {
            prefetch(&next[..bytes.min(AHEAD).min(next.len())]);
        }
    }

    /// The whole row.
    #[inline]
    pub fn row<'s>(&self, row: usize, scratch: &'s mut [f32]) -> &'s [f32]
    where
        'a: 's,
    {
        self.part(row, 0..self.cols, scratch)
    }
}

impl<'a> RowsMut<'a> {
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// `None` as for [`Rows::new`].
    pub fn new(dtype: DType, bytes: &'a mut [u8], cols: usize) -> Option<Self> {
        let store = store_f32(dtype)?;
        let streams = bytes.len() >= STREAM;
        fits(dtype, bytes.len(), cols).then_some(RowsMut {
            dtype,
            bytes,
            cols,
            store,
            streams,
            direct: false,
        })
    }

    /// Whether the result is f32 in whole, aligned lines and is to be written around the caches. The kernel does so itself from now on:
    /// [`RowsMut::write`] gives it the memory.
    pub fn take_lines(&mut self) -> bool {
        const { assert!(LINE.is_multiple_of(size_of::<f32>())) };
        self.direct = self.streams
            && self.dtype == DType::F32
            && self.bytes.as_ptr().addr().is_multiple_of(LINE)
            && (self.cols * size_of::<f32>()).is_multiple_of(LINE);
        self.direct
    }

    /// Whether [`RowsMut::write`] needs no scratch.
    pub fn in_place(&self) -> bool {
        self.dtype == DType::F32
            && (!self.streams || self.direct)
            && self.bytes.as_ptr().cast::<f32>().is_aligned()
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        self.bytes.len() / (self.cols * self.dtype.size())
    }

    /// Consecutive blocks of `rows` rows, for threads.
    pub fn blocks(&mut self, rows: usize) -> impl IndexedParallelIterator<Item = RowsMut<'_>> {
        let (dtype, cols, store) = (self.dtype, self.cols, self.store);
        let (streams, direct) = (self.streams, self.direct);
        self.bytes
            .par_chunks_mut((rows * cols * dtype.size()).max(1))
            .map(move |bytes| RowsMut {
                dtype,
                bytes,
                cols,
                store,
                streams,
                direct,
            })
    }

    /// Lets `f` write columns `part` of row `row`, or of rows from it on: in place for aligned f32 that fits the caches, else through `scratch`.
    #[inline]
    pub fn write(
        &mut self,
        row: usize,
        part: Range<usize>,
        scratch: &mut [f32],
        f: impl FnOnce(&mut [f32]),
    ) {
        let size = self.dtype.size();
        let at = row * self.cols;
        let len = part.len();
        let bytes = &mut self.bytes[(at + part.start) * size..(at + part.end) * size];
        if self.dtype == DType::F32
            && (!self.streams || self.direct)
            && let Ok(values) = bytemuck::try_cast_slice_mut::<u8, f32>(bytes)
        {
            return f(values);
        }
        let scratch = &mut scratch[..len];
        f(scratch);
        match (self.streams, self.dtype) {
            (false, _) => (self.store)(bytes, scratch),
            (true, DType::F32) => stream(bytes, bytemuck::cast_slice(scratch)),
            (true, _) => {
                let mut narrow = [0u32; PART];
                let narrow: &mut [u8] = bytemuck::cast_slice_mut(&mut narrow);
                for (bytes, values) in bytes.chunks_mut(PART * size).zip(scratch.chunks(PART)) {
                    let narrow = &mut narrow[..bytes.len()];
                    (self.store)(narrow, values);
                    stream(bytes, narrow);
                }
            }
        }
    }
}

impl Drop for RowsMut<'_> {
    fn drop(&mut self) {
        if self.streams {
            fence();
        }
    }
}

/// Rows per block for kernels whose rows do not meet: enough work to be worth a thread's while.
pub fn block_rows(cols: usize) -> usize {
    (32_768 / cols.max(1)).max(1)
}

/// Runs `f` on every block with its number, on the threads of the current pool if there are several.
pub fn for_blocks<I: IndexedParallelIterator>(blocks: I, f: impl Fn(usize, I::Item) + Sync + Send) {
    crate::par::items(blocks, f);
}
