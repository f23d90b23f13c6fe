use super::super::SimdLevel;
use super::*;
use half::{bf16, f16};

/// All f32 patterns with a stride, and the edges of every narrower format.
fn patterns() -> Vec<f32> {
    let mut v: Vec<f32> = (0..=u32::MAX).step_by(4093).map(f32::from_bits).collect();
    for code in 0..=u16::MAX {
        // Each f16 value, the midpoint to the next one and its neighbours.
        let a = f16::from_bits(code).to_f32();
        let b = f16::from_bits(code.wrapping_add(1)).to_f32();
        let mid = ((a as f64 + b as f64) / 2.0) as f32;
        v.extend([
            a,
            mid,
            mid.next_up(),
            mid.next_down(),
            bf16::from_bits(code).to_f32(),
        ]);
        v.push(f32::from_bits(((code as u32) << 16) + 0x8000));
    }
    v.extend([
        65519.0,
        65520.0,
        464.0,
        464.1,
        463.9,
        61439.0,
        61440.0,
        f32::MAX,
        f32::MIN,
    ]);
    v
}

fn to_bytes<T: Pod>(v: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(v).to_vec()
}

fn stored(level: SimdLevel, dtype: DType, src: &[f32]) -> Vec<u8> {
    let mut out = vec![0; src.len() * dtype.size()];
    store_f32_at(level, dtype).unwrap()(&mut out, src);
    out
}

fn loaded(level: SimdLevel, dtype: DType, src: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; src.len() / dtype.size()];
    load_f32_at(level, dtype).unwrap()(&mut out, src);
    out
}

#[test]
fn f16_and_bf16_agree_with_half() {
    let src = patterns();
    let want16 = to_bytes(
        &src.iter()
            .map(|&x| f16::from_f32(x).to_bits())
            .collect::<Vec<_>>(),
    );
    let want_b = to_bytes(
        &src.iter()
            .map(|&x| bf16::from_f32(x).to_bits())
            .collect::<Vec<_>>(),
    );
    for &level in SimdLevel::available() {
        assert!(stored(level, DType::F16, &src) == want16, "{level}");
        assert!(stored(level, DType::BF16, &src) == want_b, "{level}");
        let codes: Vec<u16> = (0..=u16::MAX).collect();
        let f16s = loaded(level, DType::F16, &to_bytes(&codes));
        let bf16s = loaded(level, DType::BF16, &to_bytes(&codes));
        for &c in &codes {
            assert_eq!(
                f16s[c as usize].to_bits(),
                f16::from_bits(c).to_f32().to_bits(),
                "{level} {c:x}"
            );
            // `half` quiets NaN, loading keeps the payload.
            let want = bf16::from_bits(c).to_f32();
            let got = bf16s[c as usize];
            assert!(
                got == want || got.is_nan() && want.is_nan(),
                "{level} {c:x}"
            );
        }
    }
}

/// The value of an 8-bit code by the definition of the format.
fn f8_value(code: u8, mantissa: i32, bias: i32) -> f64 {
    let m = (code & ((1 << mantissa) - 1)) as f64 / (1 << mantissa) as f64;
    let e = ((code & 0x7f) >> mantissa) as i32;
    let v = if e == 0 {
        m * 2f64.powi(1 - bias)
    } else {
        (1.0 + m) * 2f64.powi(e - bias)
    };
    if code & 0x80 == 0 { v } else { -v }
}

/// Nearest even among the finite codes and the first code after them, which stands for overflow.
fn f8_nearest(x: f64, mantissa: i32, bias: i32, overflow: u8) -> u8 {
    if x.abs() >= f8_value(overflow, mantissa, bias) {
        return overflow;
    }
    let mut best = 0;
    for code in 0..=overflow {
        let (d, d_best) = (
            (f8_value(code, mantissa, bias) - x.abs()).abs(),
            (f8_value(best, mantissa, bias) - x.abs()).abs(),
        );
        if d < d_best || d == d_best && code & 1 == 0 {
            best = code;
        }
    }
    best
}

#[test]
fn f8_agrees_with_the_definition() {
    let mut src: Vec<f32> = patterns().into_iter().step_by(61).collect();
    src.extend([
        464.0,
        464.1,
        463.9,
        448.0,
        61439.0,
        61440.0,
        57344.0,
        0.0,
        -0.0,
        2f32.powi(-10),
        2f32.powi(-17),
    ]);
    src.extend([1e9, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    for (dtype, m, bias, top) in [(DType::F8E4M3, 3, 7, 0x7f), (DType::F8E5M2, 2, 15, 0x7c)] {
        for &level in SimdLevel::available() {
            for (&x, got) in src.iter().zip(stored(level, dtype, &src)) {
                let want = if x.is_nan() {
                    if dtype == DType::F8E4M3 { 0x7f } else { 0x7e }
                } else {
                    f8_nearest(x as f64, m, bias, top)
                };
                let sign = if x.is_sign_negative() { 0x80 } else { 0 };
                assert_eq!(got, want | sign, "{level} {dtype:?} {x:e}");
            }
            let codes: Vec<u8> = (0..=255).collect();
            for (&c, got) in codes.iter().zip(loaded(level, dtype, &codes)) {
                match c & 0x7f {
                    0x7f if dtype == DType::F8E4M3 => assert!(got.is_nan()),
                    0x7d..=0x7f if dtype == DType::F8E5M2 => assert!(got.is_nan()),
                    0x7c if dtype == DType::F8E5M2 => assert!(got.is_infinite()),
                    _ => assert_eq!(got as f64, f8_value(c, m, bias), "{c:x}"),
                }
                assert_eq!(got.is_sign_negative(), c & 0x80 != 0);
            }
        }
    }
}

#[test]
fn rounding_is_a_store_and_a_load() {
    // An odd length exercises the padded tail.
    let src = &patterns()[..100_001];
    for dtype in [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
        for &level in SimdLevel::available() {
            let want = loaded(level, dtype, &stored(level, dtype, src));
            let mut got = src.to_vec();
            round_to_at(level, dtype).unwrap()(&mut got);
            assert!(to_bytes(&got) == to_bytes(&want), "{level} {dtype:?}");
        }
    }
    assert!(round_to(DType::F32).is_none());
    assert!(load_f32(DType::I32).is_none() && store_f32(DType::Bool).is_none());
}

#[test]
fn wide_and_integer_dtypes() {
    let x = [1.5f32, -0.0, f32::MAX, 1e-40];
    for &level in SimdLevel::available() {
        for dtype in [DType::F32, DType::F64] {
            assert_eq!(loaded(level, dtype, &stored(level, dtype, &x)), x);
        }
    }
    let mut r = [0u32; 3];
    load_u8(&mut r, &[0, 7, 255]);
    assert_eq!(r, [0, 7, 255]);
    let mut b = [0u8; 3];
    store_u8(&mut b, &[1, 256, 511]);
    assert_eq!(b, [1, 0, 255]);
}
