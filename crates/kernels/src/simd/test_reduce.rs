use super::super::SimdLevel;
use super::*;

fn values(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919 + 13) % 10_007) as f32 * 1e-3 - 4.0)
        .collect()
}

/// The documented order, written plainly.
fn sum_in_order(x: &[f32]) -> f32 {
    fn tree(parts: &[f32]) -> f32 {
        match parts {
            [] => 0.0,
            [one] => *one,
            _ => {
                let left = parts.len().next_power_of_two() / 2;
                tree(&parts[..left]) + tree(&parts[left..])
            }
        }
    }
    let blocks: Vec<f32> = x
        .chunks(1024)
        .map(|b| {
            let mut lanes = [0.0f32; 32];
            b.iter().enumerate().for_each(|(i, v)| lanes[i % 32] += v);
            let mut w = 16;
            while w > 0 {
                (0..w).for_each(|l| lanes[l] += lanes[l + w]);
                w /= 2;
            }
            lanes[0]
        })
        .collect();
    tree(&blocks)
}

#[test]
fn the_order_is_the_documented_one_on_every_instruction_set() {
    for n in [
        0,
        1,
        5,
        31,
        32,
        33,
        1023,
        1024,
        1025,
        3000,
        5 * 1024,
        70_001,
    ] {
        let x = values(n);
        for &level in SimdLevel::available() {
            let got = reduce_f32_at(level, ReduceOp::Sum)(&x);
            assert_eq!(got.to_bits(), sum_in_order(&x).to_bits(), "{level} {n}");
        }
        // Blocks reduced one by one and combined in a tree are the whole.
        let mut t = Tree::new(0.0, combine_f32(ReduceOp::Sum));
        x.chunks(BLOCK)
            .for_each(|b| t.push(reduce_f32(ReduceOp::Sum)(b)));
        assert_eq!(t.finish().to_bits(), sum_in_order(&x).to_bits());
    }
}

#[test]
fn errors_stay_small_in_long_sums() {
    let x = vec![0.1f32; 1 << 22];
    let exact = 0.1f32 as f64 * x.len() as f64;
    let got = reduce_f32(ReduceOp::Sum)(&x) as f64;
    assert!((got / exact - 1.0).abs() < 1e-6, "{got} {exact}");
    let squares = reduce_f32(ReduceOp::SumSquares)(&x) as f64;
    assert!((squares / (exact * 0.1f32 as f64) - 1.0).abs() < 1e-6);
}

#[test]
fn extremes_products_and_empty_slices() {
    for &level in SimdLevel::available() {
        let mut x = values(2500);
        let want = x.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(reduce_f32_at(level, ReduceOp::Max)(&x), want);
        let want = x.iter().copied().fold(f32::MAX, f32::min);
        assert_eq!(reduce_f32_at(level, ReduceOp::Min)(&x), want);
        for at in [0, 31, 32, 1024, 2499] {
            let old = x[at];
            x[at] = f32::NAN;
            assert!(
                reduce_f32_at(level, ReduceOp::Max)(&x).is_nan(),
                "{level} {at}"
            );
            assert!(
                reduce_f32_at(level, ReduceOp::Min)(&x).is_nan(),
                "{level} {at}"
            );
            assert_eq!((argmax_f32(&x), argmin_f32(&x)), (at, at));
            assert!(!all_finite_at(level)(&x));
            x[at] = f32::NEG_INFINITY;
            assert!(!all_finite_at(level)(&x));
            assert_eq!(argmin_f32(&x), at);
            x[at] = old;
        }
        assert!(all_finite_at(level)(&x) && all_finite_at(level)(&[f32::MAX, 1e-45]));
        let p: f32 = (1..=100).map(|i| 1.0 + 1.0 / i as f32).product();
        let y: Vec<f32> = (1..=100).map(|i| 1.0 + 1.0 / i as f32).collect();
        assert!((reduce_f32_at(level, ReduceOp::Prod)(&y) / p - 1.0).abs() < 1e-5);
        let empty = |op| reduce_f32_at(level, op)(&[]);
        assert_eq!(empty(ReduceOp::Sum), 0.0);
        assert_eq!(empty(ReduceOp::Prod), 1.0);
        assert_eq!(empty(ReduceOp::Max), f32::NEG_INFINITY);
        assert_eq!(empty(ReduceOp::Min), f32::INFINITY);
    }
    assert_eq!(argmax_f32(&[1.0, 3.0, 3.0]), 1);
    assert_eq!(argmax_i64(&[1, -3, 9, 9]), 2);
    assert_eq!(argmin_i32(&[1, -3, 9, -3]), 1);
}

#[test]
fn integers_and_booleans() {
    for &level in SimdLevel::available() {
        let x: Vec<i32> = (0..3000).map(|i| i - 100).collect();
        assert_eq!(
            reduce_i32_at(level, ReduceOp::Sum)(&x),
            (0..3000).sum::<i32>() - 300_000
        );
        assert_eq!(reduce_i32_at(level, ReduceOp::Min)(&x), -100);
        let y: Vec<i64> = x.iter().map(|&v| v as i64 + (1 << 40)).collect();
        assert_eq!(
            reduce_i64_at(level, ReduceOp::Sum)(&y),
            y.iter().sum::<i64>()
        );
        assert_eq!(reduce_i64_at(level, ReduceOp::Max)(&y), (1 << 40) + 2899);
        let z: Vec<f64> = y.iter().map(|&v| v as f64).collect();
        assert_eq!(
            reduce_f64_at(level, ReduceOp::Sum)(&z),
            y.iter().sum::<i64>() as f64
        );
    }
    assert_eq!(reduce_i32(ReduceOp::Sum)(&[i32::MAX, 1]), i32::MIN);
    let mut b = vec![1u8; 2000];
    assert!(all(&b) && any(&b) && all(&[]) && !any(&[]));
    b[1999] = 0;
    assert!(!all(&b) && any(&b));
    assert!(!any(&[0; 77]));
    assert!(all_finite_f64(&[1.0]) && !all_finite_f64(&[1.0, f64::NAN]));
}
