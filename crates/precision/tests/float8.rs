//! 8-bit products against the same arithmetic in f64, and the rules of scales.
use bimetal_autodiff::{grad, vjp};
use bimetal_precision::{AmaxOf, F8Histories, F8Recipe, F8Scaling, amax, f8_linear, roll_amax};
use bimetal_tensor::{DType, Device, F8E4M3, F8E5M2, Slot, Tensor};

fn numbers(count: usize, seed: u32, size: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (next() + next()) * size).collect()
}

fn matrix(data: &[f32], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(data, shape, device)
}

fn largest(v: &[f32]) -> f32 {
    v.iter().fold(0.0, |m, x| m.max(x.abs()))
}

/// What the 8-bit format keeps of `v` under `scale`, as the numbers that are multiplied.
fn kept(v: &[f32], scale: f32, e5m2: bool) -> Vec<f64> {
    let round = |x: f32| match e5m2 {
        true => F8E5M2::from_f32_saturating(x).to_f32(),
        false => F8E4M3::from_f32_saturating(x).to_f32(),
    };
    v.iter().map(|x| f64::from(round(x * scale))).collect()
}

/// `[m, k] x [k, n]` with strides, divided by both scales.
fn product(
    [m, k, n]: [usize; 3],
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
    scales: [f32; 2],
) -> Vec<f64> {
    let by = f64::from(scales[0]) * f64::from(scales[1]);
    let mut out = Vec::new();
    for i in 0..m {
        for j in 0..n {
            out.push((0..k).map(|p| a(i, p) * b(p, j)).sum::<f64>() / by);
        }
    }
    out
}

fn close(found: &Tensor, expected: &[f64], relative: f64) {
    let found = found.to_f64_vec().unwrap();
    let size = expected.iter().fold(0f64, |m, x| m.max(x.abs()));
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= relative * size, "{f} instead of {e}");
    }
}

const M: usize = 6;
const K: usize = 33;
const N: usize = 5;

#[test]
fn current_scaling_is_the_product_of_what_the_formats_keep() {
    let device = bimetal_cpu::cpu();
    let (x, w, dy) = (
        numbers(M * K, 1, 3e-4),
        numbers(N * K, 2, 700.0),
        numbers(M * N, 3, 1e-6),
    );
    let (tx, tw) = (
        matrix(&x, &[2, 3, K], &device),
        matrix(&w, &[N, K], &device),
    );
    let y = f8_linear(&tx, &tw, F8Recipe::current(), None, DType::F32);
    assert_eq!(y.shape().unwrap()[..], [2, 3, N]);
    let cotangent = matrix(&dy, &[2, 3, N], &device);
    let grads = vjp(&[&y], &[&cotangent], &[&tx, &tw]).unwrap();

    let (sx, sw, sg) = (
        448.0 / largest(&x),
        448.0 / largest(&w),
        57344.0 / largest(&dy),
    );
    let (qx, qw, qg) = (
        kept(&x, sx, false),
        kept(&w, sw, false),
        kept(&dy, sg, true),
    );
    let forward = product(
        [M, K, N],
        |i, p| qx[i * K + p],
        |p, j| qw[j * K + p],
        [sx, sw],
    );
    close(&y, &forward, 1e-6);
    let dx = product(
        [M, N, K],
        |i, p| qg[i * N + p],
        |p, j| qw[p * K + j],
        [sg, sw],
    );
    close(grads[0].as_ref().unwrap(), &dx, 1e-6);
    let dw = product(
        [N, M, K],
        |i, p| qg[p * N + i],
        |p, j| qx[p * K + j],
        [sg, sx],
    );
    close(grads[1].as_ref().unwrap(), &dw, 1e-6);

    // What is lost against exact arithmetic is what 3 bits lose, not more.
    let v = |d: &[f32]| d.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let (vx, vw) = (v(&x), v(&w));
    let exact = product(
        [M, K, N],
        |i, p| vx[i * K + p],
        |p, j| vw[j * K + p],
        [1.0; 2],
    );
    close(&y, &exact, 0.1);
}

#[test]
fn half_precision_operands_are_scaled_in_f32() {
    let device = bimetal_cpu::cpu();
    // Times its scale of 448 / 6e-5 the largest would be infinite in f16, were it multiplied there first by 448.
    let x = matrix(&numbers(M * K, 1, 1e-4), &[M, K], &device).cast(DType::F16);
    let w = matrix(&numbers(N * K, 2, 1.0), &[N, K], &device);
    let half = f8_linear(&x, &w, F8Recipe::current(), None, DType::F16);
    assert_eq!(half.dtype(), DType::F16);
    let wide = f8_linear(
        &x.cast(DType::F32),
        &w,
        F8Recipe::current(),
        None,
        DType::F32,
    );
    close(&half, &wide.to_f64_vec().unwrap(), 1e-3);
    let grads = grad(&half.cast(DType::F32).sum_all(), &[&x, &w]).unwrap();
    assert_eq!(
        (grads[0].dtype(), grads[1].dtype()),
        (DType::F16, DType::F32)
    );
}

#[test]
fn scales_are_finite_and_positive_whatever_was_seen() {
    let device = bimetal_cpu::cpu();
    let scale = |recipe: F8Recipe, seen: f32, format| {
        let seen = matrix(&[seen], &[], &device);
        recipe.scale(&seen, format).item().unwrap()
    };
    let plain = F8Recipe::current();
    for seen in [0.0, -0.0, f32::NAN, f32::INFINITY] {
        assert_eq!(scale(plain, seen, DType::F8E4M3), 1.0, "{seen}");
    }
    for seen in [1e-45, 1e-38, f32::MAX] {
        for format in [DType::F8E4M3, DType::F8E5M2] {
            let s = scale(plain, seen, format) as f32;
            assert!(
                s > 0.0 && s.is_finite() && s.recip().is_normal(),
                "{seen}: {s}"
            );
        }
    }
    assert_eq!(scale(plain, 7.0, DType::F8E4M3), 64.0);
    assert_eq!(scale(plain, 7.0, DType::F8E5M2), 8192.0);
    let margin = F8Recipe { margin: 3, ..plain };
    assert_eq!(scale(margin, 7.0, DType::F8E4M3), 8.0);
}

#[test]
fn a_history_moves_once_and_never_takes_what_is_not_finite() {
    let device = bimetal_cpu::cpu();
    let history = matrix(&[3.0, 2.0, 1.0], &[3], &device);
    let seen = |v: f32| matrix(&[v], &[], &device);
    let once = roll_amax(&history, None, &seen(5.0));
    assert_eq!(once.to_vec::<f32>().unwrap(), [5.0, 3.0, 2.0]);
    let twice = roll_amax(&history, Some(&once), &seen(4.0));
    assert_eq!(twice.to_vec::<f32>().unwrap(), [5.0, 3.0, 2.0]);
    for bad in [f32::NAN, f32::INFINITY] {
        let v = roll_amax(&history, None, &seen(bad))
            .to_vec::<f32>()
            .unwrap();
        assert_eq!(v, [0.0, 3.0, 2.0]);
        let v = roll_amax(&history, Some(&once), &seen(bad));
        assert_eq!(v.to_vec::<f32>().unwrap(), [5.0, 3.0, 2.0]);
    }
    let one = matrix(&[3.0], &[1], &device);
    let one = roll_amax(&one, None, &seen(9.0)).to_vec::<f32>().unwrap();
    assert_eq!(one, [9.0]);
}

fn delayed(history: usize, amax: AmaxOf) -> F8Recipe {
    let scaling = F8Scaling::Delayed { history, amax };
    F8Recipe { scaling, margin: 0 }
}

#[test]
fn delayed_scaling_takes_the_history_and_saturates_beyond_it() {
    let device = bimetal_cpu::cpu();
    let slot = Slot::new("h", &matrix(&[2.0, 8.0], &[2], &device), &device).unwrap();
    let histories = || F8Histories {
        x: slot.read(),
        weight: slot.read(),
        grad: slot.read(),
    };
    let x = matrix(&[1.0, 100.0], &[2, 1], &device);
    let w = matrix(&[1.0], &[1, 1], &device);
    let y = |amax| {
        let h = histories();
        f8_linear(&x, &w, delayed(2, amax), Some(&h), DType::F32)
            .to_vec::<f32>()
            .unwrap()
    };
    let near = |y: Vec<f32>, want: [f32; 2]| {
        let close = y.iter().zip(want).all(|(y, w)| (y - w).abs() < 1e-5);
        assert!(close, "{y:?} instead of {want:?}");
    };
    near(y(AmaxOf::History), [1.0, 8.0]);
    near(y(AmaxOf::MostRecent), [1.0, 2.0]);
    let missing = f8_linear(&x, &w, F8Recipe::default(), None, DType::F32);
    let message = missing.to_vec::<f32>().unwrap_err().to_string();
    assert!(message.contains("needs the histories"), "{message}");
}

#[test]
fn nothing_hides_an_infinity() {
    let device = bimetal_cpu::cpu();
    let w = matrix(&[1.0, 1.0], &[1, 2], &device);
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let x = matrix(&[1.0, bad, 2.0, 3.0], &[2, 2], &device);
        let y = f8_linear(&x, &w, F8Recipe::current(), None, DType::F32);
        let v = y.to_vec::<f32>().unwrap();
        assert!(v[0].is_nan() && v[1] == 5.0, "{v:?}");
        let clean = matrix(&[1.0; 4], &[2, 2], &device);
        let y = f8_linear(&clean, &w, F8Recipe::current(), None, DType::F32);
        let dy = matrix(&[1.0, bad], &[2, 1], &device);
        let dw = vjp(&[&y], &[&dy], &[&w]).unwrap().remove(0).unwrap();
        assert!(dw.to_vec::<f32>().unwrap().iter().all(|v| v.is_nan()));
    }
    assert!(
        amax(&matrix(&[1.0, f32::NAN], &[2], &device))
            .item()
            .unwrap()
            .is_nan()
    );
}

/// The product is bilinear, so the second derivative of `sum(y^2) / 2` with respect to x is `w^T w`; rounding counts as the identity.
#[test]
fn second_derivatives_pass_through() {
    let device = bimetal_cpu::cpu();
    let x = matrix(&[0.5, -2.0], &[1, 2], &device);
    let w = matrix(&[1.0, 2.0, -4.0, 0.25], &[2, 2], &device);
    let y = f8_linear(&x, &w, F8Recipe::current(), None, DType::F32);
    let first = grad(&(y.square().sum_all() * 0.5), &[&x])
        .unwrap()
        .remove(0);
    let along = matrix(&[1.0, 3.0], &[1, 2], &device);
    let second = grad(&(first * along).sum_all(), &[&x, &w]).unwrap();
    // w^T w = [[17, 1], [1, 4.0625]]
    close(&second[0], &[20.0, 13.1875], 0.1);
    // d/dw of (w v) . (w x): v (w x)^T + x (w v)^T, transposed.
    let (wx, wv) = ([-3.5, -2.5], [7.0, -3.25]);
    let mut expected = Vec::new();
    for i in 0..2 {
        for (x, v) in [(0.5, 1.0), (-2.0, 3.0)] {
            expected.push(wx[i] * v + wv[i] * x);
        }
    }
    close(&second[1], &expected, 0.1);
}

#[test]
fn wrong_recipes_and_shapes_are_errors() {
    assert!(delayed(0, AmaxOf::History).check().is_err());
    assert!(
        F8Recipe {
            margin: 40,
            ..F8Recipe::current()
        }
        .check()
        .is_err()
    );
    let device = bimetal_cpu::cpu();
    let (x, w) = (
        matrix(&[0.0; 6], &[2, 3], &device),
        matrix(&[0.0; 8], &[2, 4], &device),
    );
    let y = f8_linear(&x, &w, F8Recipe::current(), None, DType::F32);
    let message = y.to_vec::<f32>().unwrap_err().to_string();
    assert!(message.contains("[outputs, inputs]"), "{message}");
    let y = f8_linear(
        &x.cast(DType::I32),
        &w,
        F8Recipe::current(),
        None,
        DType::F32,
    );
    assert!(
        y.to_vec::<f32>()
            .unwrap_err()
            .to_string()
            .contains("floats")
    );
}
