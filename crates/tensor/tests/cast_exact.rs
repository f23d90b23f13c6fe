//! Rounding against an exact reference that shares nothing with the implementation: the sorted list
//! of all values of a format and exact comparison with the half-way points between them.

use bimetal_tensor::{
    CastMode, DType, Element, F8E4M3, F8E5M2, cast_slice, round_f32, round_f32_slice, round_f64,
};
use half::{bf16, f16};
use std::cmp::Ordering;

const NARROW: [DType; 4] = [DType::F8E4M3, DType::F8E5M2, DType::F16, DType::BF16];
const MODES: [CastMode; 2] = [CastMode::Nonsaturating, CastMode::Saturating];

fn cast<S: Element, T: Element>(values: &[S], mode: CastMode) -> Vec<T> {
    let mut dst = vec![0xaa; values.len() * T::DTYPE.size()];
    cast_slice(S::as_bytes(values), S::DTYPE, &mut dst, T::DTYPE, mode).unwrap();
    T::vec_from_bytes(&dst).unwrap()
}

/// Casts to a narrow float and reads the results as f64.
fn cast_narrow<S: Element>(values: &[S], to: DType, mode: CastMode) -> Vec<f64> {
    fn read<S: Element, T: Element>(values: &[S], mode: CastMode) -> Vec<f64> {
        cast::<S, T>(values, mode)
            .into_iter()
            .map(T::to_f64)
            .collect()
    }
    match to {
        DType::F8E4M3 => read::<S, F8E4M3>(values, mode),
        DType::F8E5M2 => read::<S, F8E5M2>(values, mode),
        DType::F16 => read::<S, f16>(values, mode),
        DType::BF16 => read::<S, bf16>(values, mode),
        _ => panic!("{to} is not narrow"),
    }
}

/// A float format: all finite magnitudes, ascending, so that the parity of the index is that of the
/// mantissa; then the magnitude that would follow them.
struct Reference {
    values: Vec<f64>,
    beyond: f64,
    overflow: f64,
}

impl Reference {
    fn new(dtype: DType) -> Reference {
        let (exponents, mantissa, bias) = match dtype {
            DType::F8E4M3 => (0..16, 3, 7),
            DType::F8E5M2 => (0..31, 2, 15),
            DType::F16 => (0..31, 10, 15),
            _ => (0..255, 7, 127),
        };
        let mut values: Vec<f64> = Vec::new();
        for exponent in exponents {
            for m in 0..1u32 << mantissa {
                let hidden = if exponent == 0 { 0 } else { 1 << mantissa };
                let scale = 2f64.powi(exponent.max(1) - bias - mantissa);
                values.push((m + hidden) as f64 * scale);
            }
        }
        let (beyond, overflow) = if dtype == DType::F8E4M3 {
            (values.pop().unwrap(), f64::NAN) // 480, whose pattern is NaN
        } else {
            (2.0 * values[values.len() - (1 << mantissa)], f64::INFINITY)
        };
        Reference {
            values,
            beyond,
            overflow,
        }
    }

    /// The point half-way to the next value: one bit more than the format has, so exact in f64.
    fn middle(&self, i: usize) -> f64 {
        (self.values[i] + self.values.get(i + 1).unwrap_or(&self.beyond)) / 2.0
    }

    /// Rounds the magnitude that `compare` compares exactly with an f64.
    fn round(&self, compare: impl Fn(f64) -> Ordering, mode: CastMode) -> f64 {
        let above = |&v: &f64| compare(v) != Ordering::Less;
        let floor = self.values.partition_point(above) - 1;
        let up = match compare(self.middle(floor)) {
            Ordering::Less => false,
            Ordering::Equal => floor % 2 == 1,
            Ordering::Greater => true,
        };
        match (self.values.get(floor + up as usize), mode) {
            (Some(&value), _) => value,
            (None, CastMode::Nonsaturating) => self.overflow,
            (None, CastMode::Saturating) => self.values[floor],
        }
    }

    fn round_f64(&self, value: f64, mode: CastMode) -> f64 {
        if value.is_nan() {
            return value;
        }
        let magnitude = value.abs();
        self.round(|v| magnitude.partial_cmp(&v).unwrap(), mode)
            .copysign(value)
    }

    fn round_i64(&self, value: i64, mode: CastMode) -> f64 {
        let magnitude = value.unsigned_abs() as u128;
        let compare = |v: f64| {
            let fraction = match v.fract() > 0.0 {
                true => Ordering::Less,
                false => Ordering::Equal,
            };
            magnitude.cmp(&(v.min(1e30) as u128)).then(fraction)
        };
        let rounded = self.round(compare, mode);
        if value < 0 { -rounded } else { rounded }
    }
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Both signs of every value and half-way point of the format, their f64 and f32 neighbours, the
/// limits of f64 and random patterns.
fn f64_inputs(reference: &Reference) -> Vec<f64> {
    let mut inputs = vec![f64::NAN, f64::INFINITY, f64::MAX, 1e39, 5e-324, 1e-310];
    for i in 0..reference.values.len() {
        for v in [reference.values[i], reference.middle(i)] {
            let single = v as f32;
            inputs.extend([v, v.next_up(), v.next_down()]);
            inputs.extend([v * (1.0 + 1e-9), v * (1.0 - 1e-9)]);
            inputs.extend([single.next_up() as f64, single.next_down() as f64]);
        }
    }
    let mut state = 1;
    inputs.extend((0..20_000).map(|_| f64::from_bits(random(&mut state))));
    inputs.iter().flat_map(|&v| [v, -v]).collect()
}

/// The same for i64: every value and half-way point within its range, and the integers beside them.
fn i64_inputs(reference: &Reference) -> Vec<i64> {
    let mut inputs = vec![0, i64::MAX, i64::MIN, i64::MIN + 1];
    for i in 0..reference.values.len() {
        for v in [reference.values[i], reference.middle(i)] {
            if v < 9e18 {
                inputs.extend((-1..=1).map(|offset| v as i64 + offset));
            }
        }
    }
    let mut state = 2;
    inputs.extend((0..50_000).map(|i| random(&mut state) as i64 >> (i % 64)));
    inputs.iter().flat_map(|&v| [v, v.wrapping_neg()]).collect()
}

#[test]
fn f64_rounds_once() {
    for to in NARROW {
        let reference = Reference::new(to);
        assert_eq!(*reference.values.last().unwrap(), to.max_finite());
        let inputs = f64_inputs(&reference);
        for mode in MODES {
            for (&input, out) in inputs.iter().zip(cast_narrow(&inputs, to, mode)) {
                let expected = reference.round_f64(input, mode);
                assert!(same(out, expected), "{input:e} to {to} gave {out:e}");
            }
        }
        for &input in &inputs {
            let expected = reference.round_f64(input, CastMode::Nonsaturating);
            assert!(same(round_f64(input, to), expected), "{input:e} to {to}");
        }
    }
}

#[test]
fn f32_rounds_once() {
    for to in NARROW {
        let reference = Reference::new(to);
        let inputs: Vec<f32> = f64_inputs(&reference).iter().map(|&v| v as f32).collect();
        for mode in MODES {
            for (&input, out) in inputs.iter().zip(cast_narrow(&inputs, to, mode)) {
                let expected = reference.round_f64(input as f64, mode);
                assert!(same(out, expected), "{input:e} to {to} gave {out:e}");
            }
        }
        for mode in MODES {
            let mut slice = inputs.clone();
            round_f32_slice(&mut slice, to, mode);
            for (&input, out) in inputs.iter().zip(slice) {
                let expected = reference.round_f64(input as f64, mode);
                assert!(same(out as f64, expected), "{input:e} to {to}");
                if mode == CastMode::Nonsaturating {
                    assert_eq!(round_f32(input, to).to_bits(), out.to_bits());
                }
            }
        }
    }
}

#[test]
fn integers_round_once() {
    fn check<S: Element>(wide: &[i64], to: DType, narrow: impl Fn(i64) -> (S, i64)) {
        let reference = Reference::new(to);
        let (inputs, exact): (Vec<S>, Vec<i64>) = wide.iter().map(|&v| narrow(v)).unzip();
        for mode in MODES {
            for (&input, out) in exact.iter().zip(cast_narrow(&inputs, to, mode)) {
                let expected = reference.round_i64(input, mode);
                let from = S::DTYPE;
                assert!(same(out, expected), "{from} {input} to {to} gave {out:e}");
            }
        }
    }
    for to in NARROW {
        let inputs = i64_inputs(&Reference::new(to));
        check::<i64>(&inputs, to, |v| (v, v));
        check::<i32>(&inputs, to, |v| (v as i32, v as i32 as i64));
        check::<u32>(&inputs, to, |v| (v as u32, v as u32 as i64));
        check::<u8>(&inputs, to, |v| (v as u8, v as u8 as i64));
    }
}

/// i64 to f32 around ties, where a detour through f64 rounds twice.
#[test]
fn i64_to_f32_rounds_once() {
    let tie = (1i64 << 62) + (1 << 38);
    let (low, step) = (2f32.powi(62), 2f32.powi(39));
    for (value, expected) in [
        (tie - 1, low),
        (tie, low),
        (tie + 1, low + step),
        (-tie - 1, -low - step),
        (tie + (1 << 39) - 1, low + step),
        (tie + (1 << 39), low + 2.0 * step),
    ] {
        assert_eq!(cast::<i64, f32>(&[value], MODES[0]), [expected], "{value}");
    }
    let out: Vec<f32> = cast(&[u32::MAX, 16_777_217, 16_777_219], MODES[0]);
    assert_eq!(out, [4294967296.0, 16777216.0, 16777220.0]);
}

/// Close beside f16 ties, where a detour through f32 rounds twice: on processors with f16
/// instructions `half`'s own conversion from f64 takes that detour, so casts must not use it.
#[test]
fn f64_beside_f16_ties() {
    let tie = 1.0 + 2f64.powi(-11);
    for (value, expected) in [
        (tie, 1.0),
        (tie.next_up(), 1.0 + 2f64.powi(-10)),
        (tie + 2f64.powi(-30), 1.0 + 2f64.powi(-10)),
        (tie.next_down(), 1.0),
        (65520f64.next_down(), 65504.0),
        (65520.0, f64::INFINITY),
        (2f64.powi(-25), 0.0),
        (2f64.powi(-25).next_up(), 2f64.powi(-24)),
    ] {
        assert_eq!(cast::<f64, f16>(&[value], MODES[0])[0].to_f64(), expected);
        assert_eq!(<f16 as Element>::from_f64(value).to_f64(), expected);
        assert_eq!(round_f64(value, DType::F16), expected, "{value:e}");
    }
}
