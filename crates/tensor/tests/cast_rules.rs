//! The rules of casts that are not about rounding: integers, `Bool`, saturation, lengths, alignment.

use bimetal_tensor::{CastMode, DType, DTypeError, Element, cast_slice, round_f32, round_f64};
use half::{bf16, f16};

const PLAIN: CastMode = CastMode::Nonsaturating;
const NARROW: [DType; 4] = [DType::F8E4M3, DType::F8E5M2, DType::F16, DType::BF16];

fn cast<S: Element, T: Element>(values: &[S], mode: CastMode) -> Vec<T> {
    T::vec_from_bytes(&bytes(S::as_bytes(values), S::DTYPE, T::DTYPE, mode)).unwrap()
}

fn bytes(src: &[u8], from: DType, to: DType, mode: CastMode) -> Vec<u8> {
    let mut dst = vec![0xaa; src.len() / from.size() * to.size()];
    cast_slice(src, from, &mut dst, to, mode).unwrap();
    dst
}

#[test]
fn floats_to_integers_truncate_and_saturate() {
    const INF: f64 = f64::INFINITY;
    #[rustfmt::skip]
    let table: [(f64, u8, u32, i32, i64); 15] = [
        (0.0, 0, 0, 0, 0),
        (-0.0, 0, 0, 0, 0),
        (0.9, 0, 0, 0, 0),
        (-0.9, 0, 0, 0, 0),
        (1.5, 1, 1, 1, 1),
        (-1.5, 0, 0, -1, -1),
        (254.999, 254, 254, 254, 254),
        (256.0, 255, 256, 256, 256),
        (3e9, 255, 3_000_000_000, i32::MAX, 3_000_000_000),
        (-3e9, 0, 0, i32::MIN, -3_000_000_000),
        (1e20, 255, u32::MAX, i32::MAX, i64::MAX),
        (-1e20, 0, 0, i32::MIN, i64::MIN),
        (INF, 255, u32::MAX, i32::MAX, i64::MAX),
        (-INF, 0, 0, i32::MIN, i64::MIN),
        (f64::NAN, 0, 0, 0, 0),
    ];
    for (value, a, b, c, d) in table {
        for mode in [PLAIN, CastMode::Saturating] {
            assert_eq!(cast::<f64, u8>(&[value], mode), [a], "{value}");
            assert_eq!(cast::<f64, u32>(&[value], mode), [b], "{value}");
            assert_eq!(cast::<f64, i32>(&[value], mode), [c], "{value}");
            assert_eq!(cast::<f64, i64>(&[value], mode), [d], "{value}");
            let single = [value as f32];
            assert_eq!(cast::<f32, u8>(&single, mode), [a], "{value}");
            assert_eq!(cast::<f32, u32>(&single, mode), [b], "{value}");
            assert_eq!(cast::<f32, i32>(&single, mode), [c], "{value}");
            assert_eq!(cast::<f32, i64>(&single, mode), [d], "{value}");
            let truth = value != 0.0; // NaN too
            assert_eq!(cast::<f64, bool>(&[value], mode), [truth], "{value}");
            assert_eq!(cast::<f32, bool>(&single, mode), [truth], "{value}");
        }
        assert_eq!(round_f64(value, DType::I32), c as f64);
        assert_eq!(round_f32(value as f32, DType::U8), a as f32);
        assert_eq!(round_f64(value, DType::Bool), (value != 0.0) as u8 as f64);
        assert_eq!(<i32 as Element>::from_f64(value), c);
    }
    let halves = [f16::from_f32(-2.5), f16::INFINITY, f16::NAN];
    assert_eq!(cast::<f16, i32>(&halves, PLAIN), [-2, i32::MAX, 0]);
    assert_eq!(cast::<f16, bool>(&halves, PLAIN), [true; 3]);
}

#[test]
fn integers_wrap() {
    let values = [-1, 256, 257, i64::MAX, i64::MIN, 1 << 31, 1 << 32, 200];
    let mode = CastMode::Saturating; // speaks of floats only
    let out: Vec<u8> = cast(&values, mode);
    assert_eq!(out, [255, 0, 1, 255, 0, 0, 0, 200]);
    let out: Vec<i32> = cast(&values, mode);
    assert_eq!(out, [-1, 256, 257, -1, 0, i32::MIN, 0, 200]);
    let out: Vec<u32> = cast(&values, mode);
    assert_eq!(out, [u32::MAX, 256, 257, u32::MAX, 0, 1 << 31, 0, 200]);
    assert_eq!(cast::<i64, bool>(&values, mode), [true; 8]);
    assert_eq!(cast::<u32, i32>(&[u32::MAX, 5], mode), [-1, 5]);
    assert_eq!(cast::<i32, u32>(&[-1, 5], mode), [u32::MAX, 5]);
    assert_eq!(cast::<i32, u8>(&[-1, 300], mode), [255, 44]);
    assert_eq!(cast::<i32, i64>(&[-1, 5], mode), [-1, 5]);
    assert_eq!(cast::<u32, i64>(&[u32::MAX], mode), [u32::MAX as i64]);
    assert_eq!(cast::<u8, i32>(&[255], mode), [255]);
}

#[test]
fn bools_are_zero_or_one() {
    assert_eq!(
        bytes(&[0, 1, 7], DType::Bool, DType::Bool, PLAIN),
        [0, 1, 1]
    );
    assert_eq!(bytes(&[0, 1, 7], DType::Bool, DType::U8, PLAIN), [0, 1, 1]);
    assert_eq!(bytes(&[0, 1, 7], DType::U8, DType::Bool, PLAIN), [0, 1, 1]);
    let read = bool::vec_from_bytes(&[0, 1, 255]).unwrap();
    assert_eq!(read, [false, true, true]);
    assert_eq!(bool::as_bytes(&[true, false]), [1, 0]);
    for to in DType::ALL {
        let there = bytes(bool::as_bytes(&[false, true]), DType::Bool, to, PLAIN);
        let wide = bytes(&there, to, DType::F64, PLAIN);
        assert_eq!(f64::vec_from_bytes(&wide).unwrap(), [0.0, 1.0], "{to}");
        assert_eq!(bytes(&there, to, DType::Bool, PLAIN), [0, 1], "{to}");
    }
}

/// An infinity is a value of its own type, so an equal type keeps it; any other narrow one clamps it.
#[test]
fn saturation() {
    let mode = CastMode::Saturating;
    let infinite = [f16::INFINITY, f16::NEG_INFINITY];
    assert_eq!(cast::<f16, f16>(&infinite, mode), infinite);
    assert_eq!(cast::<f16, bf16>(&infinite, mode), [bf16::MAX, bf16::MIN]);
    assert_eq!(cast::<f64, f32>(&[1e300], mode), [f32::INFINITY]);
    let large = [65520.0, f32::NEG_INFINITY];
    assert_eq!(cast::<f32, f16>(&large, mode), [f16::MAX, f16::MIN]);
    assert!(cast::<f32, f16>(&[f32::NAN], mode)[0].is_nan());
    assert_eq!(cast::<i64, f16>(&[i64::MIN], mode), [f16::MIN]);
}

/// Every pair of types carries the small integers that all of them hold.
#[test]
fn every_pair() {
    let values = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 64, 112, 128, 192];
    for from in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        let src = bytes(&values, DType::U8, from, PLAIN);
        for to in DType::ALL {
            for mode in [PLAIN, CastMode::Saturating] {
                let back = bytes(&bytes(&src, from, to, mode), to, DType::U8, PLAIN);
                if to == DType::Bool {
                    assert_eq!(back, values.map(|v| (v != 0) as u8), "{from} to {to}");
                } else {
                    assert_eq!(back, values, "{from} to {to}");
                }
            }
        }
    }
}

/// Every pattern survives the way to a wider float and back; NaNs stay NaNs.
#[test]
fn widening_is_lossless() {
    let patterns: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for dtype in NARROW {
        for wide in [DType::F32, DType::F64] {
            let up = bytes(&patterns, dtype, wide, PLAIN);
            let back = bytes(&up, wide, dtype, PLAIN);
            let single = bytes(&up, wide, DType::F32, PLAIN);
            let again = bytes(&back, dtype, DType::F32, PLAIN);
            let single = f32::vec_from_bytes(&single).unwrap();
            let again = f32::vec_from_bytes(&again).unwrap();
            for (i, (a, b)) in single.iter().zip(&again).enumerate() {
                let at = i * dtype.size()..(i + 1) * dtype.size();
                if a.is_nan() {
                    assert!(b.is_nan(), "{dtype} {i} through {wide}");
                } else {
                    assert_eq!(patterns[at.clone()], back[at], "{dtype} through {wide}");
                }
            }
        }
    }
}

/// `len` bytes at `offset` from an aligned address.
fn at(buffer: &mut [u64], offset: usize, len: usize) -> &mut [u8] {
    &mut bytemuck::cast_slice_mut(buffer)[offset..][..len]
}

/// Buffers at odd addresses take the portable loop instead of the processor's instructions; the
/// bits must be equal, those of NaNs included.
#[test]
fn alignment_never_shows() {
    let mut state = 1u32;
    let mut src: Vec<u8> = Vec::new();
    for _ in 0..100_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        src.extend((state ^ state >> 15).to_ne_bytes());
    }
    src.extend((0..=u16::MAX).flat_map(u16::to_ne_bytes));
    let single = (0..=u16::MAX).flat_map(|b| f16::from_bits(b).to_f32().to_ne_bytes());
    src.extend(single);
    let (mut aligned, mut shifted) = (vec![0u64; src.len()], vec![0u64; src.len()]);
    let (mut one, mut two) = (vec![0u64; src.len()], vec![0u64; src.len()]);
    for (from, to) in [
        (DType::F32, DType::F16),
        (DType::F16, DType::F32),
        (DType::F32, DType::BF16),
        (DType::F64, DType::I32),
    ] {
        let len = src.len() / from.size() * to.size();
        at(&mut aligned, 0, src.len()).copy_from_slice(&src);
        at(&mut shifted, 1, src.len()).copy_from_slice(&src);
        let (a, b) = (at(&mut one, 0, len), at(&mut two, 1, len));
        cast_slice(at(&mut aligned, 0, src.len()), from, a, to, PLAIN).unwrap();
        cast_slice(at(&mut shifted, 1, src.len()), from, b, to, PLAIN).unwrap();
        assert!(a == b, "{from} to {to}");
    }
}

#[test]
fn lengths_are_checked() {
    let (f32, f16) = (DType::F32, DType::F16);
    let error = cast_slice(&[0; 7], f32, &mut [0; 2], f16, PLAIN).unwrap_err();
    assert!(matches!(error, DTypeError::Length { found: 7, .. }));
    assert!(error.to_string().contains("multiple of 4"), "{error}");
    let error = cast_slice(&[0; 8], f32, &mut [0; 6], f16, PLAIN).unwrap_err();
    assert!(matches!(
        error,
        DTypeError::Length {
            found: 6,
            expected: Some(4),
            ..
        }
    ));
    assert!(error.to_string().contains("2 elements"), "{error}");
    assert!(f64::vec_from_bytes(&[0; 12]).is_err());
    assert!(cast_slice(&[], f32, &mut [], f16, PLAIN).is_ok());
}
