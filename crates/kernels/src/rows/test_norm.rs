use super::test_softmax::{DTYPES, SHAPES, bytes, check, floats, random};
use super::*;
use bimetal_dtype::DType;

const EPS: f32 = 1e-5;

struct Out {
    y: Vec<f32>,
    mean: Vec<f32>,
    rstd: Vec<f32>,
    dx: Vec<f32>,
    dgamma: Vec<f32>,
    dbeta: Vec<f32>,
}

/// Forward and backward; without `center` RMS normalisation, where mean and dbeta stay 0.
fn run(
    center: bool,
    dtype: DType,
    x: &[f32],
    dy: &[f32],
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
    cols: usize,
) -> Out {
    let (x, dy) = (bytes(dtype, x), bytes(dtype, dy));
    let (mut y, mut dx) = (vec![0; x.len()], vec![0; x.len()]);
    let rows = x.len() / dtype.size() / cols;
    let (mut mean, mut rstd) = (vec![0.0; rows], vec![0.0; rows]);
    let (mut dgamma, mut dbeta) = (vec![0.0; cols], vec![0.0; cols]);
    let xr = Rows::new(dtype, &x, cols).unwrap();
    let yr = RowsMut::new(dtype, &mut y, cols).unwrap();
    if center {
        layer_norm(xr, gamma, beta, EPS, yr, &mut mean, &mut rstd);
    } else {
        rms_norm(xr, gamma, EPS, yr, &mut rstd);
    }
    let args = NormGrad {
        x: xr,
        dy: Rows::new(dtype, &dy, cols).unwrap(),
        gamma,
        rstd: &rstd,
    };
    let dxr = RowsMut::new(dtype, &mut dx, cols).unwrap();
    if center {
        layer_norm_grad(args, &mean, dxr, Some(&mut dgamma), Some(&mut dbeta));
    } else {
        rms_norm_grad(args, dxr, Some(&mut dgamma));
    }
    Out {
        y: floats(dtype, &y),
        mean,
        rstd,
        dx: floats(dtype, &dx),
        dgamma,
        dbeta,
    }
}

#[test]
fn norms_and_their_gradients_follow_the_formulas() {
    for (rows, cols) in SHAPES {
        for (center, dtype) in [true, false]
            .into_iter()
            .flat_map(|c| DTYPES.map(|d| (c, d)))
        {
            let x: Vec<f32> = random(dtype, rows * cols, 1, 2.0);
            let dy = random(dtype, rows * cols, 2, 1.0);
            let gamma = random(DType::F32, cols, 3, 1.5);
            let beta = random(DType::F32, cols, 4, 1.0);
            let beta = center.then_some(&beta[..]);
            let o = run(center, dtype, &x, &dy, Some(&gamma), beta, cols);
            let (mut dgamma, mut dbeta) = (vec![0.0; cols], vec![0.0; cols]);
            for r in 0..rows {
                let at = r * cols..(r + 1) * cols;
                let wide = |v: &[f32]| v.iter().map(|&v| v as f64).collect::<Vec<_>>();
                let (xr, dyr, gamma) = (wide(&x[at.clone()]), wide(&dy[at.clone()]), wide(&gamma));
                let n = cols as f64;
                let mean = if center {
                    xr.iter().sum::<f64>() / n
                } else {
                    0.0
                };
                let var = xr.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                let rstd = 1.0 / (var + EPS as f64).sqrt();
                let xhat: Vec<f64> = xr.iter().map(|v| (v - mean) * rstd).collect();
                assert!((o.mean[r] as f64 - mean).abs() < 1e-6);
                assert!((o.rstd[r] as f64 / rstd - 1.0).abs() < 2e-6);
                let want: Vec<f64> = (0..cols)
                    .map(|c| xhat[c] * gamma[c] + beta.map_or(0.0, |b| b[c] as f64))
                    .collect();
                check(dtype, &o.y[at.clone()], &want, 3.0, "y");
                let g: Vec<f64> = dyr.iter().zip(&gamma).map(|(d, g)| d * g).collect();
                let m1 = if center {
                    g.iter().sum::<f64>() / n
                } else {
                    0.0
                };
                let m2 = g.iter().zip(&xhat).map(|(g, h)| g * h).sum::<f64>() / n;
                let want: Vec<f64> = (0..cols)
                    .map(|c| rstd * (g[c] - m1 - xhat[c] * m2))
                    .collect();
                check(dtype, &o.dx[at], &want, 3.0 * rstd, "dx");
                for c in 0..cols {
                    dgamma[c] += dyr[c] * xhat[c];
                    // RMS normalisation has no beta.
                    dbeta[c] += if center { dyr[c] } else { 0.0 };
                }
            }
            check(DType::F32, &o.dgamma, &dgamma, 3.0 * rows as f64, "dgamma");
            check(DType::F32, &o.dbeta, &dbeta, rows as f64, "dbeta");
        }
    }
}

#[test]
fn equal_values_have_no_variance() {
    for value in [0.1, 65_504.0, 3.3e7, -1e-20] {
        let x = vec![value; 40_000];
        let o = run(true, DType::F32, &x, &x, None, None, 40_000);
        assert_eq!(o.mean[0], value);
        assert_eq!(o.rstd[0], 1.0 / EPS.sqrt());
        assert!(o.y.iter().all(|&y| y == 0.0), "{value}");
    }
    // A mean far above the deviations does not swallow them.
    let x: Vec<f32> = (0..4000).map(|i| 1e6 + (i % 2) as f32).collect();
    let o = run(true, DType::F32, &x, &x, None, None, 4000);
    assert!((o.rstd[0] - 2.0).abs() < 1e-3 && (o.mean[0] - 1e6).abs() <= 0.5);
}

#[test]
fn bits_do_not_depend_on_threads_and_empty_input_is_fine() {
    let (rows, cols) = (1000, 257);
    let x = random(DType::F32, rows * cols, 1, 2.0);
    let dy = random(DType::F32, rows * cols, 2, 1.0);
    let gamma = random(DType::F32, cols, 3, 1.5);
    let bits = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        let o = pool.install(|| run(true, DType::F32, &x, &dy, Some(&gamma), None, cols));
        (o.y, o.dx, o.dgamma, o.dbeta)
    };
    assert!(bits(1) == bits(3));
    let o = run(true, DType::F32, &[], &[], Some(&gamma), None, cols);
    assert_eq!(o.dgamma, vec![0.0; cols]);
}
