//! The counter-based generator Philox4x32-10.
//!
//! Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. Element i of
//! a stream is word `i % 4` of the block whose 128-bit counter, least word first, is
//! `[lo(i / 4), hi(i / 4), ctr_hi[0], ctr_hi[1]]`: it depends on nothing but the key, `ctr_hi` and i.
use super::isa::{Isa, pick};

const M0: u32 = 0xd251_1f53;
const M1: u32 = 0xcd9e_8d57;
/// The golden ratio and sqrt 3 - 1, which bump the key from round to round.
const W0: u32 = 0x9e37_79b9;
const W1: u32 = 0xbb67_ae85;

/// Blocks computed side by side.
const LANES: usize = 16;

/// The words of [`LANES`] blocks.
pub type Blocks = [[u32; 4]; LANES];

/// `LANES` consecutive blocks from block number `first`.
///
/// Words live in 64-bit lanes, where a widening multiplication is one instruction; their upper halves hold
/// rubbish that no multiplication reads and the last line drops.
// Lanes of several arrays at once: indices say it best.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub fn blocks(key: [u32; 2], ctr_hi: [u32; 2], first: u64) -> Blocks {
    const LOW: u64 = 0xffff_ffff;
    let mut c = [[0u64; LANES]; 4];
    for i in 0..LANES {
        let n = first.wrapping_add(i as u64);
        c[0][i] = n;
        c[1][i] = n >> 32;
        c[2][i] = ctr_hi[0] as u64;
        c[3][i] = ctr_hi[1] as u64;
    }
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        for i in 0..LANES {
            let p0 = M0 as u64 * (c[0][i] & LOW);
            let p1 = M1 as u64 * (c[2][i] & LOW);
            c[0][i] = (p1 >> 32) ^ c[1][i] ^ k0 as u64;
            c[1][i] = p1;
            c[2][i] = (p0 >> 32) ^ c[3][i] ^ k1 as u64;
            c[3][i] = p0;
        }
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    std::array::from_fn(|i| {
        [
            c[0][i] as u32,
            c[1][i] as u32,
            c[2][i] as u32,
            c[3][i] as u32,
        ]
    })
}

/// [`blocks`] with one three-way exclusive or for each word and round, and a transposition in registers at the end.
///
/// # Safety
/// AVX-512F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn blocks_avx512(key: [u32; 2], ctr_hi: [u32; 2], first: u64, out: &mut Blocks) {
    use std::arch::x86_64::*;
    const HALVES: usize = 2;
    // SAFETY: the caller's contract; `out` is 256 bytes, of which each half takes 128.
    unsafe {
        let word = |w: u32| _mm512_set1_epi64(w as i64);
        let upper = |p| _mm512_shuffle_epi32::<0b11_11_01_01>(p);
        let (m0, m1) = (word(M0), word(M1));
        let mut c = [[_mm512_setzero_si512(); 4]; HALVES];
        for (h, c) in c.iter_mut().enumerate() {
            let count = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
            let start = first.wrapping_add(8 * h as u64);
            c[0] = _mm512_add_epi64(count, _mm512_set1_epi64(start as i64));
            c[1] = _mm512_srli_epi64::<32>(c[0]);
            c[2] = word(ctr_hi[0]);
            c[3] = word(ctr_hi[1]);
        }
        let [mut k0, mut k1] = key;
        for _ in 0..10 {
            let (w0, w1) = (word(k0), word(k1));
            for c in &mut c {
                // Multiplications read the lower halves of the lanes only. The upper word of a product comes down by a shuffle: the port that multiplies also shifts.
                let p0 = _mm512_mul_epu32(m0, c[0]);
                let p1 = _mm512_mul_epu32(m1, c[2]);
                const XOR: i32 = 0x96;
                c[0] = _mm512_ternarylogic_epi64::<XOR>(upper(p1), c[1], w0);
                c[2] = _mm512_ternarylogic_epi64::<XOR>(upper(p0), c[3], w1);
                c[1] = p1;
                c[3] = p0;
            }
            k0 = k0.wrapping_add(W0);
            k1 = k1.wrapping_add(W1);
        }
        let left = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
        let right = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
        for (c, out) in c.iter().zip(out.chunks_exact_mut(LANES / HALVES)) {
            let pair =
                |even, odd| _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64::<32>(odd));
            let (a, b) = (pair(c[0], c[1]), pair(c[2], c[3]));
            let out = out.as_mut_ptr().cast::<__m512i>();
            _mm512_storeu_si512(out, _mm512_permutex2var_epi64(a, left, b));
            _mm512_storeu_si512(out.add(1), _mm512_permutex2var_epi64(a, right, b));
        }
    }
}

/// Elements of one group of blocks.
pub const GROUP: usize = 4 * LANES;

#[inline(always)]
fn fill<I: Isa>(key: [u32; 2], ctr_hi: [u32; 2], first_element: u64, out: &mut [u32]) {
    let mut block = first_element / 4;
    let skip = (first_element % 4) as usize;
    let mut draw = |words: &mut Blocks| {
        I::philox(key, ctr_hi, block, words);
        block = block.wrapping_add(LANES as u64);
    };
    let mut words = [[0; 4]; LANES];
    // The first group may begin, the last one end within a block; those between are written in place.
    let head = if skip == 0 {
        0
    } else {
        out.len().min(GROUP - skip)
    };
    let (head, rest) = out.split_at_mut(head);
    if !head.is_empty() {
        draw(&mut words);
        head.copy_from_slice(&words.as_flattened()[skip..skip + head.len()]);
    }
    for group in rest.as_chunks_mut::<4>().0.as_chunks_mut::<LANES>().0 {
        draw(group);
    }
    let whole = rest.len() / GROUP * GROUP;
    let tail = &mut rest[whole..];
    if !tail.is_empty() {
        draw(&mut words);
        tail.copy_from_slice(&words.as_flattened()[..tail.len()]);
    }
}

/// Elements `first_element..first_element + out.len()` of the stream of `key` and `ctr_hi`.
pub fn philox_fill_u32(key: [u32; 2], ctr_hi: [u32; 2], first_element: u64, out: &mut [u32]) {
    philox_at(super::simd_level())(key, ctr_hi, first_element, out)
}

type Fill = fn([u32; 2], [u32; 2], u64, &mut [u32]);

pub fn philox_at(level: super::SimdLevel) -> Fill {
    pick!(level, fn(key: [u32; 2], ctr_hi: [u32; 2], first_element: u64, out: &mut [u32]) {
        fill::<I>(key, ctr_hi, first_element, out)
    })
}

#[cfg(test)]
mod tests {
    use super::super::SimdLevel;
    use super::*;

    /// The known-answer vectors of Random123 for philox4x32-10: counter, key, result.
    const KNOWN: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
        (
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            [!0; 4],
            [!0; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];

    #[test]
    fn known_answers() {
        for &level in SimdLevel::available() {
            for (ctr, key, want) in KNOWN {
                let block = ctr[0] as u64 | (ctr[1] as u64) << 32;
                // Block numbers above 2^62 lie beyond the elements a stream can address.
                assert_eq!(blocks(key, [ctr[2], ctr[3]], block)[0], want);
                if block < 1 << 62 {
                    let mut out = [0; 4];
                    philox_at(level)(key, [ctr[2], ctr[3]], block * 4, &mut out);
                    assert_eq!(out, want, "{level}");
                }
            }
        }
    }

    #[test]
    fn an_element_does_not_depend_on_the_range_it_is_drawn_in() {
        let (key, hi) = ([1, 2], [3, 4]);
        let start = (1u64 << 34) - 70;
        let mut all = vec![0; 500];
        philox_at(SimdLevel::Portable)(key, hi, start, &mut all);
        for &level in SimdLevel::available() {
            for (from, len) in [
                (0, 500),
                (1, 3),
                (2, 1),
                (3, 130),
                (65, 64),
                (70, 0),
                (71, 429),
            ] {
                let mut part = vec![0; len];
                philox_at(level)(key, hi, start + from as u64, &mut part);
                assert_eq!(part, all[from..from + len], "{level} {from} {len}");
            }
        }
    }
}
