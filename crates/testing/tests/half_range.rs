//! Half precision at the edges of its range: what accumulates in f32 inside must not show that its ends are f16.
use bimetal_autodiff::grad;
use bimetal_cpu::cpu;
use bimetal_tensor::{DType, Device, Tensor};
use half::f16;

fn halves(v: &[f32], shape: &[usize], d: &Device) -> Tensor {
    Tensor::from_slice(v, shape, d).cast(DType::F16)
}

fn list(t: &Tensor) -> Vec<f64> {
    t.to_f64_vec().unwrap()
}

#[test]
fn means_and_variances_do_not_overflow() {
    let d = cpu();
    let ones = Tensor::ones(&[65_520], DType::F16, &d);
    assert_eq!(ones.mean_all().item().unwrap(), 1.0);
    let top = Tensor::full(&[3, 40_000], 65504.0, DType::F16, &d);
    assert_eq!(list(&top.mean(&[1], false)), [65504.0; 3]);
    for v in [0.1, 3.3, 65504.0] {
        let x = Tensor::full(&[40_000], v, DType::F16, &d);
        assert_eq!(x.var(&[0], 1, false).item().unwrap(), 0.0, "{v}");
    }
    // The gradient of a mean over many elements is subnormal, not 0.
    let g = grad(&ones.mean_all().cast(DType::F32), &[&ones]).unwrap();
    let share = f16::from_f32(1.0 / 65_520.0).to_f64();
    assert!(share > 0.0 && list(&g[0]).iter().all(|&v| v == share));
}

#[test]
fn masked_softmax_and_its_gradient_are_finite() {
    let d = cpu();
    let inf = f32::NEG_INFINITY;
    let x = halves(
        &[1.0, inf, 3.0, inf, inf, 2.0, 65504.0, -65504.0, 0.0],
        &[3, 3],
        &d,
    );
    let p = x.softmax(-1);
    let v = list(&p);
    assert_eq!((v[1], v[3], v[4], v[5]), (0.0, 0.0, 0.0, 1.0));
    assert_eq!(&v[6..], [1.0, 0.0, 0.0]);
    assert!((v[0] - 0.1192).abs() < 1e-3 && (v[2] - 0.8808).abs() < 1e-3);
    let g = grad(&p.cast(DType::F32).square().sum_all(), &[&x]).unwrap();
    assert!(
        list(&g[0]).iter().all(|v| v.is_finite()),
        "{:?}",
        list(&g[0])
    );
}

#[test]
fn cross_entropy_of_huge_logits_is_exact() {
    let d = cpu();
    let x = halves(&[1e4, -1e4, 0.0, -1e4, 1e4, 1e4], &[2, 3], &d);
    let t = Tensor::from_slice(&[1i32, 2], &[2], &d);
    let rows = x.cross_entropy_rows(&t, -100, 0.0);
    let v = list(&rows);
    assert_eq!(rows.dtype(), DType::F32);
    assert_eq!(v[0], 20_000.0);
    assert!((v[1] - 2f64.ln()).abs() < 1e-6, "{v:?}");
    let g = grad(&rows.sum_all(), &[&x]).unwrap();
    assert_eq!(list(&g[0]), [1.0, -1.0, 0.0, 0.0, 0.5, -0.5]);
}

#[test]
fn layer_norm_of_constant_and_of_huge_rows() {
    let d = cpu();
    let n = 64;
    let mut v = vec![0.1f32; n];
    v.extend(vec![65504.0; n]);
    v.extend((0..n).map(|i| if i % 2 == 0 { 65504.0 } else { -65504.0 }));
    v.extend((0..n).map(|i| if i % 2 == 0 { 65504.0 } else { 65472.0 }));
    let x = halves(&v, &[4, n], &d);
    let (w, b) = (
        Tensor::ones(&[n], DType::F32, &d),
        Tensor::full(&[n], 0.25, DType::F32, &d),
    );
    let y = x.layer_norm(&w, &b, 1e-5);
    let got = list(&y);
    assert!(
        got[..2 * n].iter().all(|&v| v == 0.25),
        "{:?}",
        &got[..2 * n]
    );
    for (i, v) in got.iter().enumerate().skip(2 * n) {
        let want = if i % 2 == 0 { 1.25 } else { -0.75 };
        assert!((v - want).abs() < 2e-3, "{i}: {v}");
    }
    let c = halves(
        &(0..4 * n).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>(),
        &[4, n],
        &d,
    );
    let loss = (y * c).cast(DType::F32).sum_all();
    let g = grad(&loss, &[&x, &w, &b]).unwrap();
    for g in &g[1..] {
        assert_eq!(g.dtype(), DType::F32);
        assert!(list(g).iter().all(|v| v.is_finite()));
    }
    assert!(list(&g[0]).iter().all(|v| v.is_finite()));
}

#[test]
fn repeated_rows_of_an_embedding_gradient_add_up_in_f32() {
    let d = cpu();
    let table = Tensor::from_slice(&[0.5f32; 12], &[4, 3], &d);
    let ix = Tensor::from_slice(&[2i32; 10_000], &[10_000], &d);
    // An f16 table made from an f32 master.
    let y = table.cast(DType::F16).take(&ix, 0);
    let g = grad(
        &(y * 1.0).sum(&[0], false).cast(DType::F32).sum_all(),
        &[&table],
    )
    .unwrap();
    assert_eq!(g[0].dtype(), DType::F32);
    let v = list(&g[0]);
    assert_eq!(&v[6..9], [10_000.0; 3]);
    assert_eq!(v.iter().sum::<f64>(), 30_000.0);
    // More than f16 holds: a layer looks rows up in the master and rounds them afterwards.
    let ix = Tensor::from_slice(&vec![1i32; 70_000], &[70_000], &d);
    let y = table.take(&ix, 0).cast(DType::F16).cast(DType::F32);
    let g = grad(&y.sum_all(), &[&table]).unwrap();
    assert_eq!(&list(&g[0])[3..6], [70_000.0; 3]);
}

#[test]
fn a_product_rounds_its_operands_and_its_result_once() {
    let d = cpu();
    let (m, k, n) = (5, 300, 7);
    let a: Vec<f32> = (0..m * k)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 33.0)
        .collect();
    let b: Vec<f32> = (0..k * n)
        .map(|i| ((i * 53 % 97) as f32 - 48.0) / 29.0)
        .collect();
    let (x, w) = (
        Tensor::from_slice(&a, &[m, k], &d),
        Tensor::from_slice(&b, &[k, n], &d),
    );
    for dtype in [DType::F16, DType::BF16] {
        let y = list(&x.cast(dtype).matmul(&w.cast(dtype)));
        let r = |v: f32| bimetal_tensor::round_f64(v as f64, dtype);
        for i in 0..m {
            for j in 0..n {
                let exact: f64 = (0..k).map(|p| r(a[i * k + p]) * r(b[p * n + j])).sum();
                // Half a unit of the result for its one rounding, and what f32 loses over k terms.
                let size: f64 = (0..k)
                    .map(|p| (r(a[i * k + p]) * r(b[p * n + j])).abs())
                    .sum();
                let bound = exact.abs() * dtype.epsilon() * 0.5 + size * 3e-6;
                assert!((y[i * n + j] - exact).abs() <= bound, "{dtype} {i} {j}");
            }
        }
        let g = grad(
            &x.cast(dtype)
                .matmul(&w.cast(dtype))
                .cast(DType::F32)
                .sum_all(),
            &[&x, &w],
        )
        .unwrap();
        assert!(g.iter().all(|g| g.dtype() == DType::F32));
    }
}
