//! Casts against NumPy and ml_dtypes: results of `tests/golden/make_casts.py` in `casts.txt`, whose
//! script describes the lines.

use bimetal_tensor::{CastMode, DType, Element, F8E4M3, F8E5M2, cast_slice};
use half::{bf16, f16};

const GOLDEN: &str = include_str!("../../../tests/golden/casts.txt");

fn lines(kind: &str) -> impl Iterator<Item = Vec<&'static str>> {
    GOLDEN
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(move |words| words[0] == kind)
}

fn dtype(name: &str) -> DType {
    name.parse().unwrap()
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

fn cast(src: &[u8], from: DType, to: DType, mode: CastMode) -> Vec<u8> {
    let mut dst = vec![0xaa; src.len() / from.size() * to.size()];
    cast_slice(src, from, &mut dst, to, mode).unwrap();
    dst
}

fn element(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |bits, &b| bits << 8 | b as u64)
}

/// Drops NaN payloads from little-endian floats.
fn quiet(bytes: &mut [u8], dtype: DType) {
    let (nan, infinity) = match dtype {
        DType::F8E4M3 => (0x7f, 0x7e),
        DType::F8E5M2 => (0x7e, 0x7c),
        DType::F16 => (0x7e00, 0x7c00),
        DType::BF16 => (0x7fc0, 0x7f80),
        DType::F32 => (0x7fc0_0000, 0x7f80_0000),
        DType::F64 => (0x7ff8_0000_0000_0000, 0x7ff0_0000_0000_0000),
        _ => return,
    };
    let size = dtype.size();
    let sign = 1u64 << (8 * size - 1);
    for bytes in bytes.chunks_exact_mut(size) {
        let bits = element(bytes);
        if bits & !sign > infinity {
            bytes.copy_from_slice(&(bits & sign | nan).to_le_bytes()[..size]);
        }
    }
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |state, &byte| {
        (state ^ byte as u64).wrapping_mul(0x100_0000_01b3)
    })
}

fn patterns(dtype: DType) -> Vec<u8> {
    match dtype.size() {
        1 => (0..=255).collect(),
        _ => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
    }
}

fn near(dtype: DType) -> Vec<f32> {
    let size = dtype.size();
    let positive = &patterns(dtype)[..size << (8 * size - 1)];
    let values = cast(positive, dtype, DType::F32, CastMode::default());
    let mut values: Vec<f32> = f32::vec_from_bytes(&values).unwrap();
    values.retain(|v| v.is_finite());
    let mut out = Vec::new();
    for (i, &value) in values.iter().enumerate() {
        let step = match values.get(i + 1) {
            Some(next) => next - value,
            None => value - values[i - 1],
        };
        for center in [value, value + step / 2.0] {
            for offset in [-1, 0, 1] {
                if let Some(bits) = center.to_bits().checked_add_signed(offset) {
                    out.extend([f32::from_bits(bits), -f32::from_bits(bits)]);
                }
            }
        }
    }
    out
}

fn splitmix(i: u64) -> u64 {
    let z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The bytes of an input set of the script.
fn set(name: &str, source: DType) -> Vec<u8> {
    if let Some(name) = name.strip_prefix("near_") {
        return f32::as_bytes(&near(dtype(name))).to_vec();
    }
    match name {
        "patterns" => patterns(source),
        "strided" => (0..=u32::MAX)
            .step_by(16411)
            .flat_map(u32::to_le_bytes)
            .collect(),
        "wide_ints" => (0..1 << 16)
            .flat_map(|i| ((splitmix(i) as i64) >> (i % 64)).to_le_bytes())
            .collect(),
        "wide_floats" => (0..1 << 16)
            .flat_map(|i| {
                let bits = splitmix(i);
                let exponent = (bits >> 52) % 64 + 1023 - 40;
                (bits & 0x800f_ffff_ffff_ffff | exponent << 52).to_le_bytes()
            })
            .collect(),
        _ => panic!("unknown set {name}"),
    }
}

#[test]
fn all_f8_values() {
    let mut formats = 0;
    for words in lines("values") {
        let from = dtype(words[1]);
        let out = cast(&patterns(from), from, DType::F32, CastMode::default());
        assert_eq!(words.len(), 258);
        for (bits, (word, out)) in words[2..].iter().zip(out.chunks_exact(4)).enumerate() {
            let value = f32::from_bits(hex(word) as u32);
            assert_eq!(element(out), value.to_bits() as u64, "{from} {bits:#x}");
            let scalar = match from {
                DType::F8E4M3 => F8E4M3::from_bits(bits as u8).to_f32(),
                _ => F8E5M2::from_bits(bits as u8).to_f32(),
            };
            assert_eq!(scalar.to_bits(), value.to_bits());
        }
        formats += 1;
    }
    assert_eq!(formats, 2);
}

#[test]
fn single_casts() {
    let mut count = 0;
    for words in lines("sample") {
        let to = dtype(words[1]);
        for pair in &words[2..] {
            let (input, expected) = pair.split_once(':').unwrap();
            let value = f32::from_bits(hex(input) as u32);
            let mut out = cast(&value.to_le_bytes(), DType::F32, to, CastMode::default());
            quiet(&mut out, to);
            assert_eq!(element(&out), hex(expected), "{value:e} ({input}) to {to}");
            count += 1;
        }
    }
    assert!(count > 4000, "{count}");
}

#[test]
fn whole_sets() {
    let mut count = 0;
    for words in lines("hash") {
        let mode = match words[1] {
            "plain" => CastMode::Nonsaturating,
            _ => CastMode::Saturating,
        };
        let (source, target) = (dtype(words[3]), dtype(words[4]));
        let input = set(words[2], source);
        let mut out = cast(&input, source, target, mode);
        quiet(&mut out, target);
        assert_eq!(format!("{:016x}", fnv(&out)), words[5], "{words:?}");
        count += 1;
    }
    assert!(count > 60, "{count}");
}

/// The scalar conversions of the two f8 types agree with the bulk ones.
#[test]
fn f8_scalar_conversions() {
    let mut inputs = near(DType::F8E4M3);
    inputs.extend(near(DType::F8E5M2));
    inputs.extend([f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    let bytes = f32::as_bytes(&inputs);
    for mode in [CastMode::Nonsaturating, CastMode::Saturating] {
        let e4m3 = cast(bytes, DType::F32, DType::F8E4M3, mode);
        let e5m2 = cast(bytes, DType::F32, DType::F8E5M2, mode);
        for (i, &value) in inputs.iter().enumerate() {
            let (a, b) = match mode {
                CastMode::Nonsaturating => (F8E4M3::from_f32(value), F8E5M2::from_f32(value)),
                CastMode::Saturating => (
                    F8E4M3::from_f32_saturating(value),
                    F8E5M2::from_f32_saturating(value),
                ),
            };
            assert_eq!((a.to_bits(), b.to_bits()), (e4m3[i], e5m2[i]), "{value:e}");
        }
    }
}

/// `half` reads the same values out of all 16-bit patterns.
#[test]
fn half_agrees_on_decoding() {
    for bits in 0..=u16::MAX {
        for (from, value) in [
            (DType::F16, f16::from_bits(bits).to_f32()),
            (DType::BF16, bf16::from_bits(bits).to_f32()),
        ] {
            let out = cast(&bits.to_le_bytes(), from, DType::F32, CastMode::default());
            let out = f32::from_bits(element(&out) as u32);
            assert!(out.to_bits() == value.to_bits() || out.is_nan() && value.is_nan());
        }
    }
}
