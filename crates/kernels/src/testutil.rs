//! What the tests of the kernels share.

use bimetal_dtype::{CastMode, DType, cast_slice};

/// A small generator (splitmix64) with a fixed seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, or 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }

    /// In `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About standard normal: the sum of twelve uniform numbers.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// A buffer of elements of one type, aligned to 8 bytes.
pub struct Data {
    words: Vec<u64>,
    len: usize,
    pub dtype: DType,
}

impl Data {
    /// The values, each rounded to `dtype`.
    pub fn new(dtype: DType, values: &[f64]) -> Data {
        let len = values.len();
        let mut words = vec![0; (len * dtype.size()).div_ceil(8)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..len * dtype.size()];
        let source = bytemuck::cast_slice(values);
        cast_slice(source, DType::F64, bytes, dtype, CastMode::Nonsaturating).unwrap();
        Data { words, len, dtype }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len * self.dtype.size()]
    }

    pub fn ptr(&self) -> *const u8 {
        self.words.as_ptr().cast()
    }

    /// For kernels to write through, while nothing reads.
    pub fn ptr_mut(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    pub fn get(&self, i: usize) -> f64 {
        let size = self.dtype.size();
        let mut out = [0u8; 8];
        let bytes = &self.bytes()[i * size..(i + 1) * size];
        cast_slice(
            bytes,
            self.dtype,
            &mut out,
            DType::F64,
            CastMode::Nonsaturating,
        )
        .unwrap();
        f64::from_ne_bytes(out)
    }

    pub fn values(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.len];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        cast_slice(
            self.bytes(),
            self.dtype,
            bytes,
            DType::F64,
            CastMode::Nonsaturating,
        )
        .unwrap();
        out
    }
}

/// Runs `f` in a pool of its own.
pub fn on_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    pool.install(f)
}
