//! Long reductions and sums of products, which are cut into parts, beside sums in f64.
use bimetal_tensor::graph::Conv2d;
use bimetal_tensor::{DType, Device, Tensor};

fn open() -> Option<Device> {
    let device = bimetal_wgpu::wgpu();
    if device.is_err() {
        println!("skipped: no adapter");
    }
    device.ok()
}

/// Whole numbers from -8 to 7, whose sums f32 holds.
fn numbers(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 28) as f32 - 8.0
    };
    (0..n).map(|_| next()).collect()
}

fn wide(v: &[f32]) -> Vec<f64> {
    v.iter().map(|v| f64::from(*v)).collect()
}

#[test]
fn one_long_row() {
    let Some(device) = open() else { return };
    // Not a multiple of anything.
    let n = (1 << 19) + 37;
    let values = numbers(1, n);
    let x = Tensor::from_slice(&values, &[n], &device);
    let sum: f64 = wide(&values).iter().sum();
    assert_eq!(x.sum_all().to_f64_vec().unwrap(), [sum]);
    let mean = x.square().mean(&[0], false) * 0.5 + 1.0;
    let want = wide(&values).iter().map(|v| v * v).sum::<f64>() / n as f64 * 0.5 + 1.0;
    let got = mean.to_f64_vec().unwrap()[0];
    assert!((got - want).abs() < 1e-6 * want, "{got} instead of {want}");
    // The largest is at the very end.
    let mut values = values;
    values[n - 1] = 99.0;
    let x = Tensor::from_slice(&values, &[n], &device);
    assert_eq!(x.max(&[0], false).to_f64_vec().unwrap(), [99.0]);
    let most = x.cast(DType::I32).max(&[0], false);
    assert_eq!(most.to_f64_vec().unwrap(), [99.0]);
}

#[test]
fn a_few_rows_along_and_across() {
    let Some(device) = open() else { return };
    let (m, n) = (4999, 70);
    let values = numbers(2, m * n);
    let x = Tensor::from_slice(&values, &[m, n], &device).cast(DType::F16);
    let mut want = vec![0.0; n];
    for (i, v) in values.iter().enumerate() {
        want[i % n] += f64::from(*v);
    }
    // The gradient of a bias: rows of the reduction lie across memory.
    let across = x.cast(DType::F32).sum(&[0], false);
    assert_eq!(across.to_f64_vec().unwrap(), want);
    let along = Tensor::from_slice(&values, &[n, m], &device).sum(&[1], false);
    let want: Vec<f64> = values.chunks(m).map(|c| wide(c).iter().sum()).collect();
    assert_eq!(along.to_f64_vec().unwrap(), want);
}

/// `a b` by loops in f64.
fn product(a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    for i in 0..m {
        for s in 0..k {
            for j in 0..n {
                out[i * n + j] += f64::from(a[i * k + s] * b[s * n + j]);
            }
        }
    }
    out
}

#[test]
fn products_with_long_sums() {
    let Some(device) = open() else { return };
    let [batch, m, n, k] = [2, 13, 22, 3001];
    let (a, b) = (numbers(3, batch * m * k), numbers(4, batch * k * n));
    let bias = numbers(5, n);
    let one = |z: usize| {
        product(
            &a[z * m * k..][..m * k],
            &b[z * k * n..][..k * n],
            [m, n, k],
        )
    };
    let sums: Vec<f64> = (0..batch).flat_map(one).collect();
    let x = Tensor::from_slice(&a, &[batch, m, k], &device);
    let y = Tensor::from_slice(&b, &[batch, k, n], &device);
    assert_eq!(x.matmul(&y).to_f64_vec().unwrap(), sums);
    let whole = x.cast(DType::I32).matmul(&y.cast(DType::I32));
    assert_eq!(whole.to_f64_vec().unwrap(), sums);
    // Halves, with an epilogue that rounds.
    let halves = x.cast(DType::F16).matmul(&y.cast(DType::F16));
    let all = (halves.cast(DType::F32) + Tensor::from_slice(&bias, &[n], &device)).relu();
    for (i, got) in all
        .cast(DType::F16)
        .to_f64_vec()
        .unwrap()
        .iter()
        .enumerate()
    {
        let want = (sums[i] + f64::from(bias[i % n])).max(0.0);
        assert!(
            (got - want).abs() <= 2e-3 * want + 1.0,
            "{got} instead of {want}"
        );
    }
}

#[test]
fn the_gradient_of_a_weight_over_many_places() {
    let Some(device) = open() else { return };
    let conv = Conv2d {
        stride: [1, 1],
        padding: [0; 4],
        dilation: [1, 1],
        groups: 1,
    };
    let (n, side) = (6, 30);
    let values = numbers(6, n * side * side);
    let x = Tensor::from_slice(&values, &[n, 1, side, side], &device);
    let w = Tensor::ones(&[2, 1, 3, 3], DType::F32, &device);
    let places = (side - 2) * (side - 2);
    let factors = numbers(7, n * 2 * places);
    let g = Tensor::from_slice(&factors, &[n, 2, side - 2, side - 2], &device);
    let loss = (x.conv2d(&w, conv) * g).sum_all();
    let grads = bimetal_autodiff::grad(&loss, &[&w]).unwrap();
    let mut want = vec![0.0; 18];
    for (i, factor) in factors.iter().enumerate() {
        let (px, py) = (i % (side - 2), i / (side - 2) % (side - 2));
        let (o, image) = (i / places % 2, i / (2 * places));
        for t in 0..9 {
            let at = (image * side + py + t / 3) * side + px + t % 3;
            want[o * 9 + t] += f64::from(values[at] * factor);
        }
    }
    assert_eq!(grads[0].to_f64_vec().unwrap(), want);
}
