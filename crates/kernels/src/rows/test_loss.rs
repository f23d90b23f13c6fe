use super::super::test_softmax::{DTYPES, SHAPES, bytes, check, floats, random};
use super::*;
use bimetal_dtype::DType;

struct Out {
    loss: Vec<f32>,
    lse: Vec<f32>,
    dx: Vec<f32>,
    bad: Option<BadTarget>,
}

fn run(
    dtype: DType,
    x: &[f32],
    targets: Targets,
    ignore: Option<i64>,
    smoothing: f32,
    dloss: &[f32],
    cols: usize,
) -> Out {
    let x = bytes(dtype, x);
    let rows = dloss.len();
    let ce = CrossEntropy {
        logits: Rows::new(dtype, &x, cols).unwrap(),
        targets,
        ignore_index: ignore,
        label_smoothing: smoothing,
    };
    let (mut loss, mut lse, mut dx) = (vec![9.0; rows], vec![9.0; rows], vec![9; x.len()]);
    let bad = cross_entropy(ce, &mut loss, &mut lse);
    cross_entropy_grad(ce, &lse, dloss, RowsMut::new(dtype, &mut dx, cols).unwrap());
    Out {
        loss,
        lse,
        dx: floats(dtype, &dx),
        bad,
    }
}

#[test]
fn loss_and_gradient_follow_the_formula() {
    for (rows, cols) in SHAPES {
        for (dtype, smoothing) in DTYPES.into_iter().flat_map(|d| [0.0, 0.1].map(|s| (d, s))) {
            let x = random(dtype, rows * cols, 1, 12.0);
            let dloss = random(DType::F32, rows, 2, 1.0);
            let targets: Vec<i32> = (0..rows).map(|r| ((r * 7919 + 5) % cols) as i32).collect();
            let wide: Vec<i64> = targets.iter().map(|&t| t as i64).collect();
            let o = run(
                dtype,
                &x,
                Targets::I32(&targets),
                Some(-100),
                smoothing,
                &dloss,
                cols,
            );
            let o64 = run(
                dtype,
                &x,
                Targets::I64(&wide),
                None,
                smoothing,
                &dloss,
                cols,
            );
            assert!(o.loss == o64.loss && o.dx == o64.dx && o.bad.is_none());
            for r in 0..rows {
                let at = r * cols..(r + 1) * cols;
                let xr: Vec<f64> = x[at.clone()].iter().map(|&v| v as f64).collect();
                let m = xr.iter().copied().fold(f64::MIN, f64::max);
                let lse = m + xr.iter().map(|v| (v - m).exp()).sum::<f64>().ln();
                let (s, t) = (smoothing as f64, targets[r] as usize);
                let q: Vec<f64> = (0..cols)
                    .map(|c| s / cols as f64 + if c == t { 1.0 - s } else { 0.0 })
                    .collect();
                let loss: f64 = (0..cols).map(|c| q[c] * (lse - xr[c])).sum();
                check(DType::F32, &o.lse[r..=r], &[lse], 1.0, "lse");
                check(DType::F32, &o.loss[r..=r], &[loss], 12.0, "loss");
                let g = dloss[r] as f64;
                let want: Vec<f64> = (0..cols)
                    .map(|c| g * ((xr[c] - lse).exp() - q[c]))
                    .collect();
                check(dtype, &o.dx[at], &want, 1.0, "dlogits");
            }
        }
    }
}

#[test]
fn ignored_and_bad_rows() {
    let x = random(DType::F32, 4 * 3, 1, 1.0);
    let o = run(
        DType::F32,
        &x,
        Targets::I32(&[2, -100, 3, -1]),
        Some(-100),
        0.0,
        &[1.0; 4],
        3,
    );
    assert_eq!(o.bad, Some(BadTarget { row: 2, value: 3 }));
    assert_eq!(o.loss[1], 0.0);
    assert!(o.loss[0] > 0.0 && o.loss[2].is_nan() && o.loss[3].is_nan());
    assert!(o.dx[..3].iter().all(|&d| d != 0.0) && o.dx[3..].iter().all(|&d| d == 0.0));
    // Without an ignored index -100 is a mistake like any other.
    let o = run(
        DType::F32,
        &x,
        Targets::I64(&[2, -100, 1, 0]),
        None,
        0.0,
        &[1.0; 4],
        3,
    );
    assert_eq!(
        o.bad,
        Some(BadTarget {
            row: 1,
            value: -100
        })
    );
}

#[test]
fn large_and_masked_logits() {
    let inf = f32::INFINITY;
    let x = [1e30, 0.0, -inf, 3.0, 3.0, -inf];
    let o = run(
        DType::F32,
        &x,
        Targets::I32(&[0, 1]),
        None,
        0.0,
        &[1.0, 2.0],
        3,
    );
    assert_eq!(o.loss[0], 0.0);
    assert!((o.loss[1] - std::f32::consts::LN_2).abs() < 1e-6);
    let want = [0.0, 0.0, 0.0, 1.0, -1.0, 0.0];
    assert!(
        o.dx.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6),
        "{:?}",
        o.dx
    );
}
