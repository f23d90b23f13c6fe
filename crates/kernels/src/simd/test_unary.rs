use super::super::SimdLevel;
use super::super::test_ulp::{patterns, ulp_error};
use super::super::unary_other::unary_f64;
use super::*;

/// Allowed error in ulps; 0 for exact operations.
fn bound(level: SimdLevel, op: UnaryOp) -> f64 {
    match op {
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Relu => 0.0,
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => 0.0,
        UnaryOp::Square | UnaryOp::Sqrt | UnaryOp::Recip => 0.500001,
        // Three roundings and an exponential, in the worst binade.
        UnaryOp::Silu | UnaryOp::Gelu | UnaryOp::GeluTanh => {
            if level == SimdLevel::Portable {
                3.0
            } else {
                2.25
            }
        }
        _ => 2.0,
    }
}

fn run(level: SimdLevel, op: UnaryOp, src: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; src.len()];
    unary_f32_at(level, op)(&mut out, src);
    out
}

#[test]
fn within_two_ulp_of_f64_on_every_instruction_set() {
    let src = patterns(2503);
    let wide: Vec<f64> = src.iter().map(|&x| x as f64).collect();
    let mut want = vec![0.0; src.len()];
    let mut failed = false;
    for op in UnaryOp::ALL {
        unary_f64(op)(&mut want, &wide);
        let crosses_zero = matches!(
            op,
            UnaryOp::SiluGrad | UnaryOp::GeluGrad | UnaryOp::GeluTanhGrad
        );
        for &level in SimdLevel::available() {
            let got = run(level, op, &src);
            let (mut worst, mut at) = (0.0, 0.0);
            for ((&x, &w), &g) in src.iter().zip(&want).zip(&got) {
                let e = if crosses_zero && w.abs() < 0.125 {
                    (g as f64 - w).abs() / 2f64.powi(-26)
                } else {
                    ulp_error(g, w)
                };
                if e > worst {
                    (worst, at) = (e, x);
                }
            }
            println!("{level:8} {op:?}: {worst:.2} ulp at {at:e}");
            failed |= worst > if crosses_zero { 4.5 } else { bound(level, op) };
        }
    }
    assert!(!failed, "see the table above");
}

#[test]
fn an_element_does_not_depend_on_its_place_in_the_chunk() {
    let src: Vec<f32> = patterns(4_000_037)
        .into_iter()
        .filter(|x| !x.is_nan())
        .collect();
    for op in UnaryOp::ALL {
        for &level in SimdLevel::available() {
            let whole = run(level, op, &src);
            for len in [1, 3, 7, 8, 15, 16, 33, 67, 1023] {
                let pieces: Vec<f32> = src.chunks(len).flat_map(|c| run(level, op, c)).collect();
                let same = whole
                    .iter()
                    .zip(&pieces)
                    .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
                assert!(same, "{level} {op:?} in pieces of {len}");
            }
        }
    }
}
