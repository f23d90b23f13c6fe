use super::super::SimdLevel;
use super::super::test_ulp::{patterns, ulp_error};
use super::*;

/// Pairs of ordinary and special values, a length that leaves a tail.
fn pairs() -> (Vec<f32>, Vec<f32>) {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
        2.5,
        -7.5,
        1e-40,
        1e30,
        -1e30,
        16_777_217.0,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        88.0,
        -126.0,
        0.999_999_9,
        1.000_000_1,
    ];
    let (mut a, mut b) = (vec![], vec![]);
    for x in special {
        for y in special {
            a.push(x);
            b.push(y);
        }
    }
    let p = patterns(500_009);
    for (i, &x) in p.iter().enumerate() {
        a.push(x);
        b.push(p[(i * 7919 + 13) % p.len()]);
        // Moderate powers, products and quotients.
        a.push(1e-3 + (i % 1000) as f32 * 0.013);
        b.push((i % 777) as f32 * 0.1 - 38.0);
    }
    (a, b)
}

fn run<T: Copy + Default>(f: Binary<T>, a: &[T], b: &[T]) -> Vec<T> {
    let mut out = vec![T::default(); a.len()];
    f(&mut out, a, b);
    out
}

#[test]
fn floats_agree_with_the_reference() {
    let (a, b) = pairs();
    for op in BinaryOp::ALL {
        for &level in SimdLevel::available() {
            let got = run(binary_f32_at(level, op), &a, &b);
            for ((&x, &y), &g) in a.iter().zip(&b).zip(&got) {
                let (p, q) = (x as f64, y as f64);
                let exact = match op {
                    BinaryOp::Add => (x + y) as f64,
                    BinaryOp::Sub => (x - y) as f64,
                    BinaryOp::Mul => (x * y) as f64,
                    BinaryOp::Div => (x / y) as f64,
                    BinaryOp::Max if x.is_nan() || y.is_nan() => f64::NAN,
                    BinaryOp::Max => p.max(q),
                    BinaryOp::Min if x.is_nan() || y.is_nan() => f64::NAN,
                    BinaryOp::Min => p.min(q),
                    BinaryOp::Pow => p.powf(q),
                    BinaryOp::Rem => {
                        let r = p % q;
                        // The sum rounds in f32 as it does in `torch.remainder`.
                        if r != 0.0 && (r < 0.0) != (q < 0.0) {
                            (r as f32 + y) as f64
                        } else {
                            r
                        }
                    }
                };
                let bound = if op == BinaryOp::Pow { 0.51 } else { 0.0 };
                let e = ulp_error(g, exact);
                assert!(
                    e <= bound,
                    "{level} {op:?}({x:e}, {y:e}) = {g:e}, not {exact:e}: {e} ulp"
                );
            }
        }
    }
}

#[test]
fn remainder_has_the_sign_of_the_divisor() {
    for &level in SimdLevel::available() {
        let got = run(
            binary_f32_at(level, BinaryOp::Rem),
            &[5.0, -5.0, 5.0, -5.0, -6.0],
            &[3.0, 3.0, -3.0, -3.0, 3.0],
        );
        assert_eq!(got, [2.0, 1.0, -1.0, -2.0, 0.0]);
        let got = run(
            binary_i32_at(level, BinaryOp::Rem),
            &[5, -5, 5, -5, 7, i32::MIN],
            &[3, 3, -3, -3, 0, -1],
        );
        assert_eq!(got, [2, 1, -1, -2, 0, 0]);
        let got = run(
            binary_u32_at(level, BinaryOp::Rem),
            &[5, 0xffff_fffe],
            &[3, 0xffff_ffff],
        );
        assert_eq!(got, [2, 0xffff_fffe]);
        let got = run(binary_f64_at(level, BinaryOp::Rem), &[-5.5], &[2.0]);
        assert_eq!(got, [0.5]);
    }
}

#[test]
fn integers_wrap_and_never_trap() {
    for &level in SimdLevel::available() {
        let i = |op, a: i32, b: i32| run(binary_i32_at(level, op), &[a], &[b])[0];
        assert_eq!(i(BinaryOp::Add, i32::MAX, 1), i32::MIN);
        assert_eq!(i(BinaryOp::Mul, 65_536, 65_537), 65_536);
        assert_eq!(i(BinaryOp::Div, -7, 2), -3);
        assert_eq!(i(BinaryOp::Div, 7, 0), 0);
        assert_eq!(i(BinaryOp::Div, i32::MIN, -1), i32::MIN);
        assert_eq!(i(BinaryOp::Pow, 3, 4), 81);
        assert_eq!(i(BinaryOp::Pow, -1, -3), -1);
        assert_eq!(i(BinaryOp::Pow, 2, -1), 0);
        let l = |op, a: i64, b: i64| run(binary_i64_at(level, op), &[a], &[b])[0];
        assert_eq!(l(BinaryOp::Mul, 1 << 40, 3), 3 << 40);
        assert_eq!(l(BinaryOp::Pow, -1, (1 << 40) + 1), -1);
        assert_eq!(l(BinaryOp::Pow, 7, 5), 16_807);
        assert_eq!(l(BinaryOp::Max, -5, 3), 3);
        let u = |op, a: u32, b: u32| run(binary_u32_at(level, op), &[a], &[b])[0];
        assert_eq!(u(BinaryOp::Sub, 0, 1), u32::MAX);
        assert_eq!(u(BinaryOp::Min, u32::MAX, 1), 1);
    }
}

#[test]
fn fused_multiply_add_rounds_once() {
    // The product needs 48 bits: two roundings give 0.
    let x = 1.0 + f32::EPSILON;
    let a = [x; 19];
    let c = [-(x * x); 19];
    for &level in SimdLevel::available() {
        let mut out = [0.0; 19];
        mul_add_f32_at(level)(&mut out, &a, &a, &c);
        assert!(
            out.iter().all(|&v| v == f32::EPSILON * f32::EPSILON),
            "{level}"
        );
    }
}
