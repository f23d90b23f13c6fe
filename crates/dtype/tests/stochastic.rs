//! Stochastic rounding against the two neighbours and the probability that their distances give.
use bimetal_dtype::{DType, round_f32, round_stochastic_slice};

const NARROW: [DType; 4] = [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];

fn rounded(v: f32, noise: f32, to: DType) -> f32 {
    let mut x = [v];
    round_stochastic_slice(&mut x, &[noise], to);
    x[0]
}

/// All finite magnitudes of a format, ascending.
fn magnitudes(to: DType) -> Vec<f64> {
    let mut values = Vec::new();
    let (mut v, mut unit, mut binade) = (0.0, to.smallest_subnormal(), to.smallest_normal());
    while v <= to.max_finite() {
        values.push(v);
        v += unit;
        if v == 2.0 * binade {
            (unit, binade) = (2.0 * unit, v);
        }
    }
    values
}

/// Multiples of 2^-24, as uniform noise is.
const NOISE: [f32; 6] = [0.0, 5.960_464_5e-8, 0.25, 0.499_999_94, 0.5, 0.999_999_94];

#[test]
fn the_neighbour_is_chosen_by_the_distance() {
    for to in NARROW {
        let values = magnitudes(to);
        assert_eq!(*values.last().unwrap(), to.max_finite(), "{to}");
        for pair in values.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            for part in [0.0, 1e-6, 0.125, 0.3, 0.5, 0.75, 0.999] {
                for sign in [1.0, -1.0] {
                    let v = (sign * (low + (high - low) * part)) as f32;
                    let at = (f64::from(v).abs() - low) / (high - low);
                    for noise in NOISE {
                        let want = sign * if f64::from(noise) < at { high } else { low };
                        let got = f64::from(rounded(v, noise, to));
                        assert_eq!(got, want, "{v:e} at {noise} in {to}");
                        assert_eq!(got.is_sign_negative(), sign < 0.0);
                    }
                }
            }
        }
    }
}

#[test]
fn what_the_format_holds_stays_and_what_is_beyond_does_not_become_infinite() {
    for to in NARROW {
        for noise in NOISE {
            for v in magnitudes(to) {
                let v = v as f32;
                assert_eq!(rounded(v, noise, to).to_bits(), v.to_bits());
                assert_eq!(rounded(-v, noise, to).to_bits(), (-v).to_bits());
            }
            let largest = to.max_finite() as f32;
            for v in [largest * 1.0001, f32::MAX] {
                assert_eq!(rounded(v, noise, to), largest, "{to}");
                assert_eq!(rounded(-v, noise, to), -largest, "{to}");
            }
            for v in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let want = round_f32(v, to);
                assert_eq!(rounded(v, noise, to).to_bits(), want.to_bits(), "{to}");
            }
        }
    }
}

#[test]
fn other_dtypes_round_as_always() {
    for to in [DType::F32, DType::F64, DType::I32, DType::U8] {
        assert_eq!(rounded(3.7, 0.0, to), round_f32(3.7, to));
    }
}
