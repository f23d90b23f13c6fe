//! The counter-based generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
use cubecl::prelude::*;

/// The four words of a block.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Words {
    a: u32,
    b: u32,
    c: u32,
    d: u32,
}

/// The block of a counter, least word first.
#[cube]
pub(crate) fn block(key_low: u32, key_high: u32, c0: u32, c1: u32, c2: u32, c3: u32) -> Words {
    let mut a = c0;
    let mut b = c1;
    let mut c = c2;
    let mut d = c3;
    let mut k0 = key_low;
    let mut k1 = key_high;
    #[unroll]
    for _ in 0..10u32 {
        let low0 = a * 0xd251_1f53u32;
        let high0 = a.mul_hi(0xd251_1f53u32);
        let low1 = c * 0xcd9e_8d57u32;
        let high1 = c.mul_hi(0xcd9e_8d57u32);
        a = high1 ^ b ^ k0;
        b = low1;
        c = high0 ^ d ^ k1;
        d = low0;
        k0 += 0x9e37_79b9u32;
        k1 += 0xbb67_ae85u32;
    }
    Words { a, b, c, d }
}

/// Word number `i` of a block.
#[cube]
pub(crate) fn word(w: &Words, i: u32) -> u32 {
    let low = select(i == 0u32, w.a, w.b);
    let high = select(i == 2u32, w.c, w.d);
    select(i < 2u32, low, high)
}
