//! Between the bytes of a dtype and a register chunk, and rounding to a dtype in place.
//!
//! Bytes need no alignment and are in the order of the machine. All float conversions round to
//! nearest even, keep subnormals and turn NaN into a quiet NaN of the same sign. The 8-bit floats
//! follow `ml_dtypes` and do not saturate: beyond the largest finite value `float8_e4m3fn` gives
//! NaN and `float8_e5m2` infinity.
use super::isa::{Isa, map, pick};
use super::level::SimdLevel;
use bimetal_dtype::DType;
use bytemuck::Pod;

/// From the bytes of a dtype to a register; the byte slice has `dst.len() * dtype.size()` bytes.
pub type Load<T> = fn(&mut [T], &[u8]);
/// From a register to the bytes of a dtype.
pub type Store<T> = fn(&mut [u8], &[T]);
/// Rounds every value to the nearest one of a dtype.
pub type Round = fn(&mut [f32]);

/// Encodes the magnitude of `x` in a format of `M` mantissa bits and the given exponent bias;
/// codes above `top` become `top`.
#[inline(always)]
fn encode<const M: u32, const BIAS: u32>(x: f32, top: u32) -> u32 {
    let abs = x.to_bits() & 0x7fff_ffff;
    let shift = 23 - M;
    let odd = (abs >> shift) & 1;
    let normal =
        (abs.wrapping_add((1 << (shift - 1)) - 1 + odd) >> shift).wrapping_sub((127 - BIAS) << M);
    // Adding a power of two whose ulp is the subnormal spacing makes the hardware round.
    let magic = (127 + 1 - BIAS + shift) << 23;
    let sub = (f32::from_bits(abs) + f32::from_bits(magic))
        .to_bits()
        .wrapping_sub(magic);
    let code = if abs < ((128 - BIAS) << 23) {
        sub
    } else {
        normal
    };
    code.min(top)
}

/// Decodes a magnitude: moved to the top of an f32, it lacks only a factor of a power of two, which is
/// exact for normal and subnormal codes alike.
#[inline(always)]
fn decode<const M: u32, const BIAS: u32>(code: u32) -> f32 {
    f32::from_bits(code << (23 - M)) * f32::from_bits((254 - BIAS) << 23)
}

#[inline(always)]
pub fn f16_encode(x: f32) -> u16 {
    let bits = x.to_bits();
    let nan = 0x7e00 | ((bits >> 13) & 0x3ff);
    let code = if x.is_nan() {
        nan
    } else {
        encode::<10, 15>(x, 0x7c00)
    };
    (code | ((bits >> 16) & 0x8000)) as u16
}

#[inline(always)]
pub fn f16_decode(h: u16) -> f32 {
    let h = h as u32;
    let abs = h & 0x7fff;
    let special = 0x7f80_0000 | (abs << 13) | if abs > 0x7c00 { 0x40_0000 } else { 0 };
    let bits = if abs >= 0x7c00 {
        special
    } else {
        decode::<10, 15>(abs).to_bits()
    };
    f32::from_bits(bits | ((h & 0x8000) << 16))
}

#[inline(always)]
fn bf16_encode(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if x.is_nan() {
        (bits >> 16) | 0x40
    } else {
        rounded
    }) as u16
}

#[inline(always)]
fn bf16_decode(h: u16) -> f32 {
    f32::from_bits((h as u32) << 16)
}

#[inline(always)]
fn e4m3_encode(x: f32) -> u8 {
    // 0x7f, the code after the largest finite one, is NaN.
    let code = if x.is_nan() {
        0x7f
    } else {
        encode::<3, 7>(x, 0x7f)
    };
    (code | ((x.to_bits() >> 24) & 0x80)) as u8
}

#[inline(always)]
fn e4m3_decode(b: u8) -> f32 {
    let b = b as u32;
    let abs = b & 0x7f;
    let bits = if abs == 0x7f {
        0x7fc0_0000
    } else {
        decode::<3, 7>(abs).to_bits()
    };
    f32::from_bits(bits | ((b & 0x80) << 24))
}

#[inline(always)]
fn e5m2_encode(x: f32) -> u8 {
    let code = if x.is_nan() {
        0x7e
    } else {
        encode::<2, 15>(x, 0x7c)
    };
    (code | ((x.to_bits() >> 24) & 0x80)) as u8
}

#[inline(always)]
fn e5m2_decode(b: u8) -> f32 {
    f16_decode((b as u16) << 8)
}

/// Runs `f` over groups of eight; the last group is padded, so that it takes the same instructions.
#[inline(always)]
fn by_eight<A: Copy + Default, D: Copy + Default>(
    dst: &mut [D],
    src: &[A],
    f: impl Fn([A; 8]) -> [D; 8],
) {
    debug_assert_eq!(dst.len(), src.len());
    let (d8, d_rest) = dst.as_chunks_mut::<8>();
    let (s8, s_rest) = src.as_chunks::<8>();
    for (d, s) in d8.iter_mut().zip(s8) {
        *d = f(*s);
    }
    if !s_rest.is_empty() {
        let mut pad = [A::default(); 8];
        pad[..s_rest.len()].copy_from_slice(s_rest);
        d_rest.copy_from_slice(&f(pad)[..s_rest.len()]);
    }
}

#[inline(always)]
fn load_16(dst: &mut [f32], src: &[u8], f: impl Fn(u16) -> f32) {
    map(dst, src.as_chunks::<2>().0, |b: [u8; 2]| {
        f(u16::from_ne_bytes(b))
    });
}

/// The loader of a float dtype into an f32 register (f64 rounds); `None` for the others.
pub fn load_f32(dtype: DType) -> Option<Load<f32>> {
    load_f32_at(super::simd_level(), dtype)
}

pub fn load_f32_at(level: SimdLevel, dtype: DType) -> Option<Load<f32>> {
    Some(match dtype {
        DType::F32 => load_copy::<f32>,
        DType::F64 => pick!(level, fn(dst: &mut [f32], src: &[u8]) {
            map(dst, src.as_chunks::<8>().0, |b: [u8; 8]| f64::from_ne_bytes(b) as f32)
        }),
        DType::F16 => pick!(level, fn(dst: &mut [f32], src: &[u8]) {
            by_eight(dst, src.as_chunks::<2>().0, |b: [[u8; 2]; 8]| {
                <I as Isa>::f16_to_f32(b.map(u16::from_ne_bytes))
            })
        }),
        DType::BF16 => {
            pick!(level, fn(dst: &mut [f32], src: &[u8]) { load_16(dst, src, bf16_decode) })
        }
        DType::F8E4M3 => {
            pick!(level, fn(dst: &mut [f32], src: &[u8]) { map(dst, src, e4m3_decode) })
        }
        DType::F8E5M2 => {
            pick!(level, fn(dst: &mut [f32], src: &[u8]) { map(dst, src, e5m2_decode) })
        }
        _ => return None,
    })
}

/// The store of an f32 register in a float dtype; `None` for the others.
pub fn store_f32(dtype: DType) -> Option<Store<f32>> {
    store_f32_at(super::simd_level(), dtype)
}

pub fn store_f32_at(level: SimdLevel, dtype: DType) -> Option<Store<f32>> {
    Some(match dtype {
        DType::F32 => store_copy::<f32>,
        DType::F64 => pick!(level, fn(dst: &mut [u8], src: &[f32]) {
            map(dst.as_chunks_mut::<8>().0, src, |x: f32| (x as f64).to_ne_bytes())
        }),
        DType::F16 => pick!(level, fn(dst: &mut [u8], src: &[f32]) {
            by_eight(dst.as_chunks_mut::<2>().0, src, |x: [f32; 8]| {
                <I as Isa>::f32_to_f16(x).map(u16::to_ne_bytes)
            })
        }),
        DType::BF16 => pick!(level, fn(dst: &mut [u8], src: &[f32]) {
            map(dst.as_chunks_mut::<2>().0, src, |x: f32| bf16_encode(x).to_ne_bytes())
        }),
        DType::F8E4M3 => {
            pick!(level, fn(dst: &mut [u8], src: &[f32]) { map(dst, src, e4m3_encode) })
        }
        DType::F8E5M2 => {
            pick!(level, fn(dst: &mut [u8], src: &[f32]) { map(dst, src, e5m2_encode) })
        }
        _ => return None,
    })
}

/// Rounds f32 values to those of a narrower float dtype in place; `None` where there is nothing to
/// round (f32, f64) or the dtype is no float.
pub fn round_to(dtype: DType) -> Option<Round> {
    round_to_at(super::simd_level(), dtype)
}

pub fn round_to_at(level: SimdLevel, dtype: DType) -> Option<Round> {
    #[inline(always)]
    fn each(x: &mut [f32], f: impl Fn(f32) -> f32) {
        for v in x {
            *v = f(*v);
        }
    }
    Some(match dtype {
        DType::F16 => pick!(level, fn(x: &mut [f32]) {
            let (x8, rest) = x.as_chunks_mut::<8>();
            for v in x8 {
                *v = <I as Isa>::f16_to_f32(<I as Isa>::f32_to_f16(*v));
            }
            let mut pad = [0.0; 8];
            pad[..rest.len()].copy_from_slice(rest);
            let pad = <I as Isa>::f16_to_f32(<I as Isa>::f32_to_f16(pad));
            rest.copy_from_slice(&pad[..rest.len()]);
        }),
        DType::BF16 => pick!(level, fn(x: &mut [f32]) { each(x, |v| bf16_decode(bf16_encode(v))) }),
        DType::F8E4M3 => {
            pick!(level, fn(x: &mut [f32]) { each(x, |v| e4m3_decode(e4m3_encode(v))) })
        }
        DType::F8E5M2 => {
            pick!(level, fn(x: &mut [f32]) { each(x, |v| e5m2_decode(e5m2_encode(v))) })
        }
        _ => return None,
    })
}

/// The loader of a dtype whose register has the same bytes: f32, f64, i32, i64, u32.
pub fn load_copy<T: Pod>(dst: &mut [T], src: &[u8]) {
    bytemuck::cast_slice_mut::<T, u8>(dst).copy_from_slice(src);
}

/// The store of a register whose dtype has the same bytes.
pub fn store_copy<T: Pod>(dst: &mut [u8], src: &[T]) {
    dst.copy_from_slice(bytemuck::cast_slice(src));
}

/// `DType::U8` lives in a u32 register.
pub fn load_u8(dst: &mut [u32], src: &[u8]) {
    map(dst, src, |b| b as u32);
}

/// Keeps the low eight bits.
pub fn store_u8(dst: &mut [u8], src: &[u32]) {
    map(dst, src, |v| v as u8);
}

#[cfg(test)]
#[path = "test_convert.rs"]
mod tests;
