use super::*;
use bimetal_dtype::DType;
use half::{bf16, f16};

/// Bytes of `v` in `dtype`.
pub fn bytes(dtype: DType, v: &[f32]) -> Vec<u8> {
    v.iter()
        .flat_map(|&x| match dtype {
            DType::F16 => f16::from_f32(x).to_ne_bytes().to_vec(),
            DType::BF16 => bf16::from_f32(x).to_ne_bytes().to_vec(),
            _ => x.to_ne_bytes().to_vec(),
        })
        .collect()
}

/// The values of bytes in `dtype`.
pub fn floats(dtype: DType, b: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F16 => b
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&c| f16::from_ne_bytes(c).to_f32())
            .collect(),
        DType::BF16 => b
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&c| bf16::from_ne_bytes(c).to_f32())
            .collect(),
        _ => b
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&c| f32::from_ne_bytes(c))
            .collect(),
    }
}

/// Reproducible values in `[-scale, scale]`, already rounded to `dtype`.
pub fn random(dtype: DType, n: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut u = vec![0.0; n];
    crate::simd::fill_uniform([seed, 1], [0, 0], 0, &mut u);
    let v: Vec<f32> = u.iter().map(|u| (u * 2.0 - 1.0) * scale).collect();
    floats(dtype, &bytes(dtype, &v))
}

/// The relative spacing of `dtype`.
pub fn eps(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-22),
    }
}

/// Compares with an f64 reference: `absolute` is the size of the terms the result is made of.
pub fn check(dtype: DType, got: &[f32], want: &[f64], absolute: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let tolerance = eps(dtype) * 1.01 * w.abs() + 2e-6 * absolute + 6.1e-8;
        assert!(
            (g as f64 - w).abs() <= tolerance,
            "{what} {dtype:?} [{i}]: {g} instead of {w}"
        );
    }
}

pub const SHAPES: [(usize, usize); 5] = [(1, 1), (5, 7), (40, 1000), (3, 5000), (70, 1024)];
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn forward(f: fn(Rows, RowsMut), dtype: DType, x: &[f32], cols: usize) -> Vec<f32> {
    let x = bytes(dtype, x);
    let mut y = vec![0; x.len()];
    f(
        Rows::new(dtype, &x, cols).unwrap(),
        RowsMut::new(dtype, &mut y, cols).unwrap(),
    );
    floats(dtype, &y)
}

fn backward(
    f: fn(Rows, Rows, RowsMut),
    dtype: DType,
    y: &[f32],
    dy: &[f32],
    cols: usize,
) -> Vec<f32> {
    let (y, dy) = (bytes(dtype, y), bytes(dtype, dy));
    let mut dx = vec![0; y.len()];
    f(
        Rows::new(dtype, &y, cols).unwrap(),
        Rows::new(dtype, &dy, cols).unwrap(),
        RowsMut::new(dtype, &mut dx, cols).unwrap(),
    );
    floats(dtype, &dx)
}

#[test]
fn softmax_and_its_gradient_follow_the_formulas() {
    for (rows, cols) in SHAPES {
        for dtype in DTYPES {
            let x = random(dtype, rows * cols, 1, 9.0);
            let dy = random(dtype, rows * cols, 2, 2.0);
            let y = forward(softmax, dtype, &x, cols);
            let l = forward(log_softmax, dtype, &x, cols);
            let dx = backward(softmax_grad, dtype, &y, &dy, cols);
            let dl = backward(log_softmax_grad, dtype, &l, &dy, cols);
            for r in 0..rows {
                let at = r * cols..(r + 1) * cols;
                let wide = |v: &[f32]| v[at.clone()].iter().map(|&v| v as f64).collect::<Vec<_>>();
                let (x, dy, y_, l_) = (wide(&x), wide(&dy), wide(&y), wide(&l));
                let m = x.iter().copied().fold(f64::MIN, f64::max);
                let s: f64 = x.iter().map(|v| (v - m).exp()).sum();
                let want: Vec<f64> = x.iter().map(|v| (v - m).exp() / s).collect();
                check(dtype, &y[at.clone()], &want, 0.1, "softmax");
                let want: Vec<f64> = x.iter().map(|v| v - m - s.ln()).collect();
                check(dtype, &l[at.clone()], &want, 10.0, "log_softmax");
                // Gradients of the rounded results, as the kernels see them.
                let dot: f64 = y_.iter().zip(&dy).map(|(a, b)| a * b).sum();
                let want: Vec<f64> = y_.iter().zip(&dy).map(|(y, d)| y * (d - dot)).collect();
                check(dtype, &dx[at.clone()], &want, 0.1, "softmax_grad");
                let sum: f64 = dy.iter().sum();
                let want: Vec<f64> = l_.iter().zip(&dy).map(|(l, d)| d - l.exp() * sum).collect();
                check(dtype, &dl[at], &want, 2.0 + sum.abs(), "log_softmax_grad");
            }
        }
    }
}

#[test]
fn softmax_at_the_edges() {
    let inf = f32::INFINITY;
    let y = forward(
        softmax,
        DType::F32,
        &[1e30, -inf, -1e30, 0.0, 3.0, -inf, 3.0, -inf],
        4,
    );
    assert_eq!(y, [1.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.5, 0.0]);
    assert!(
        forward(softmax, DType::F32, &[-inf; 3], 3)
            .iter()
            .all(|v| v.is_nan())
    );
    assert!(
        forward(softmax, DType::F32, &[f32::NAN, 1.0], 2)
            .iter()
            .all(|v| v.is_nan())
    );
    let l = forward(log_softmax, DType::F32, &[5e4, 5e4, -inf], 3);
    assert_eq!(l[2], -inf);
    assert!((l[0] + std::f32::consts::LN_2).abs() < 1e-6);
    assert!(Rows::new(DType::F64, &[0; 8], 1).is_none());
    assert!(Rows::new(DType::I32, &[0; 8], 1).is_none());
    assert!(Rows::new(DType::F32, &[0; 12], 2).is_none());
    assert!(Rows::new(DType::F32, &[], 0).is_none());
}

#[test]
fn bits_do_not_depend_on_threads() {
    let (rows, cols) = (90, 3000);
    let x = random(DType::F32, rows * cols, 3, 5.0);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| forward(softmax, DType::F32, &x, cols))
    };
    assert!(run(1) == run(3));
}
