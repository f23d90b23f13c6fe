//! Elements of every dtype in memory that is addressed in words of 32 bits.
//!
//! WGSL has no 8-bit types, no bf16, and f16 only where the adapter has it. So kernels see every buffer as words and convert with integer operations: the
//! same bits on every device, and no type that a driver could misunderstand. A register is a word too: an f32, an i32, a u32 or a bool (0 or 1).
use crate::math::{INF, bits, float};
use bimetal_tensor::DType;
use cubecl::prelude::*;

/// The buffers of a kernel, each bound once however often it is read and written.
pub(crate) type Buffers = Sequence<Box<[u32]>>;

/// Buffers of which several threads write parts of one word.
pub(crate) type Atomics = Sequence<Box<[Atomic<u32>]>>;

/// A float format of at most 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mini {
    mantissa: u32,
    bias: u32,
    /// The pattern of infinity, and the bits of the least f32 that becomes it whatever its mantissa.
    inf: u32,
    limit: u32,
    nan: u32,
}

fn mini(dtype: DType) -> Mini {
    match dtype {
        DType::F16 => Mini {
            mantissa: 10,
            bias: 15,
            inf: 0x7c00,
            limit: 0x4780_0000,
            nan: 0x7e00,
        },
        DType::F8E5M2 => Mini {
            mantissa: 2,
            bias: 15,
            inf: 0x7c,
            limit: 0x4780_0000,
            nan: 0x7e,
        },
        // Without infinities: beyond 448 comes NaN.
        _ => Mini {
            mantissa: 3,
            bias: 7,
            inf: 0x7f,
            limit: 0x4400_0000,
            nan: 0x7f,
        },
    }
}

/// The f32 of a pattern of a float format of at most 16 bits, exactly.
#[cube]
pub(crate) fn widen(pattern: u32, #[comptime] dtype: DType) -> u32 {
    if comptime!(dtype == DType::BF16) {
        pattern << 16u32
    } else {
        let m = comptime!(mini(dtype));
        let size = comptime!(dtype.size() as u32 * 8);
        let magnitude = pattern & comptime!((1u32 << (size - 1)) - 1);
        let sign = (pattern >> comptime!(size - 1)) << 31u32;
        let shift = comptime!(23 - m.mantissa);
        let normal = (magnitude << shift) + comptime!((127u32 - m.bias) << 23);
        let step = comptime!(f32::from_bits((127 + 1 - m.bias - m.mantissa) << 23));
        let small = bits(f32::cast_from(magnitude) * step);
        let value = select(magnitude < comptime!(1u32 << m.mantissa), small, normal);
        let value = select(
            magnitude >= comptime!(m.inf),
            widen_special(magnitude, m),
            value,
        );
        value | sign
    }
}

#[cube]
fn widen_special(magnitude: u32, #[comptime] m: Mini) -> u32 {
    if comptime!(m.inf == 0x7f) {
        0x7fc0_0000u32.runtime()
    } else {
        ((magnitude - comptime!(m.inf)) << comptime!(23 - m.mantissa)) | INF
    }
}

/// The f32 nearest to `value` (ties to even) that a float format of at most 16 bits has; `saturating` gives the largest finite value instead of what overflow gives.
#[cube]
pub(crate) fn round(value: u32, #[comptime] dtype: DType, #[comptime] saturating: bool) -> u32 {
    let magnitude = value & 0x7fff_ffffu32;
    let sign = value & 0x8000_0000u32;
    let drop = comptime!(if dtype == DType::BF16 {
        16
    } else {
        23 - mini(dtype).mantissa
    });
    let odd = (magnitude >> drop) & 1u32;
    let near = magnitude + (comptime!((1u32 << (drop - 1)) - 1) + odd);
    let mut near = near & comptime!(!((1u32 << drop) - 1));
    if comptime!(dtype != DType::BF16) {
        // Adding a number whose last place is the format's least step rounds to that step.
        let m = comptime!(mini(dtype));
        let magic = comptime!((127 + 24 - m.mantissa - m.bias) << 23);
        let steps = bits(float(magnitude) + comptime!(f32::from_bits(magic))) - magic;
        let step = comptime!(f32::from_bits((127 + 1 - m.bias - m.mantissa) << 23));
        let small = bits(f32::cast_from(steps) * step);
        near = select(magnitude < comptime!((128 - m.bias) << 23), small, near);
    }
    let top = comptime!((dtype.max_finite() as f32).to_bits());
    let over = comptime!(if saturating {
        top
    } else if dtype == DType::F8E4M3 {
        0x7fc0_0000
    } else {
        INF
    });
    near = select(near > top, over, near);
    select(magnitude > INF, magnitude | 0x40_0000u32, near) | sign
}

/// The pattern of the nearest value (ties to even) that a float format of at most 16 bits has.
#[cube]
pub(crate) fn narrow(value: u32, #[comptime] dtype: DType) -> u32 {
    let magnitude = value & 0x7fff_ffffu32;
    let sign = value >> 31u32;
    if comptime!(dtype == DType::BF16) {
        let odd = (magnitude >> 16u32) & 1u32;
        let near = (magnitude + (0x7fffu32 + odd)) >> 16u32;
        let near = select(magnitude > INF, (magnitude >> 16u32) | 0x40u32, near);
        near | (sign << 15u32)
    } else {
        let m = comptime!(mini(dtype));
        let shift = comptime!(23 - m.mantissa);
        let odd = (magnitude >> shift) & 1u32;
        // Wraps for what is too small, which is not used.
        let rebased = magnitude - comptime!((127u32 - m.bias) << 23);
        let normal = (rebased + (comptime!((1u32 << (22 - m.mantissa)) - 1) + odd)) >> shift;
        let magic = comptime!((127 + 24 - m.mantissa - m.bias) << 23);
        let small = bits(float(magnitude) + comptime!(f32::from_bits(magic))) - magic;
        let near = select(magnitude < comptime!((128 - m.bias) << 23), small, normal);
        let over = (magnitude >= comptime!(m.limit)) | (near >= comptime!(m.inf));
        let near = select(over, comptime!(m.inf), near);
        let near = select(magnitude > INF, comptime!(m.nan), near);
        near | (sign << comptime!(dtype.size() as u32 * 8 - 1))
    }
}

/// Element `part` of a word as a register.
#[cube]
pub(crate) fn element(word: u32, #[comptime] part: u32, #[comptime] dtype: DType) -> u32 {
    let size = comptime!(dtype.size() as u32 * 8);
    if comptime!(size == 32) {
        word
    } else {
        let bits = (word >> comptime!(part * size)) & comptime!((1u32 << size) - 1);
        if comptime!(dtype.is_float()) {
            widen(bits, dtype)
        } else {
            bits
        }
    }
}

/// The element of a word buffer as a register.
#[cube]
pub(crate) fn load(
    buffers: &Buffers,
    #[comptime] buffer: usize,
    at: u32,
    #[comptime] dtype: DType,
) -> u32 {
    let words = buffers.index(buffer);
    match comptime!(dtype.size()) {
        1usize => {
            let byte = (words[(at >> 2u32) as usize] >> ((at & 3u32) * 8u32)) & 0xffu32;
            if comptime!(dtype.is_float()) {
                widen(byte, dtype)
            } else {
                byte
            }
        }
        2usize => {
            let half = (words[(at >> 1u32) as usize] >> ((at & 1u32) * 16u32)) & 0xffffu32;
            widen(half, dtype)
        }
        _ => words[at as usize],
    }
}

/// A register as the bits of an element, which fill the lower end of a word.
#[cube]
pub(crate) fn pack(register: u32, #[comptime] dtype: DType) -> u32 {
    match comptime!(dtype.size()) {
        1usize => {
            if comptime!(dtype.is_float()) {
                narrow(register, dtype)
            } else {
                register & 0xffu32
            }
        }
        2usize => narrow(register, dtype),
        _ => register,
    }
}

/// Stores an element of less than a word beside its neighbours, which other threads may write.
#[cube]
pub(crate) fn store_part(
    atomics: &Atomics,
    #[comptime] buffer: usize,
    at: u32,
    register: u32,
    #[comptime] dtype: DType,
) {
    let words = atomics.index(buffer);
    let value = pack(register, dtype);
    if comptime!(dtype.size() == 4) {
        words[at as usize].store(value);
    } else {
        let per = comptime!(4 / dtype.size() as u32);
        let size = comptime!(dtype.size() as u32 * 8);
        let shift = (at % per) * size;
        let mask = comptime!((1u32 << size) - 1) << shift;
        let word = (at / per) as usize;
        words[word].fetch_and(!mask);
        words[word].fetch_or(value << shift);
    }
}
