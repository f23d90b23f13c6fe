//! Prints times; asserts nothing. Run with `--ignored --nocapture`.
use bimetal_tensor::{DType, Device, Tensor};
use std::time::Instant;

fn time(name: &str, device: &Device, f: impl Fn() -> Vec<Tensor>) {
    let mut best = f64::MAX;
    for _ in 0..4 {
        let outs = f();
        let refs: Vec<&Tensor> = outs.iter().collect();
        device.sync().unwrap();
        let t = Instant::now();
        bimetal_tensor::eval(&refs).unwrap();
        device.sync().unwrap();
        best = best.min(t.elapsed().as_secs_f64());
    }
    println!("{name}: {:.1} ms", best * 1e3);
}

#[test]
#[ignore = "a measurement"]
fn kernels() {
    let Ok(d) = bimetal_wgpu::wgpu() else { return };
    for dtype in [DType::F32, DType::F16] {
        let leaf = |shape: &[usize]| {
            let n: usize = shape.iter().product();
            let v: Vec<f32> = (0..n).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
            let t = Tensor::from_slice(&v, shape, &d).cast(dtype);
            bimetal_tensor::eval(&[&t]).unwrap();
            t
        };
        let (a, b) = (leaf(&[512, 512]), leaf(&[512, 512]));
        time(&format!("{dtype} matmul 512^3"), &d, || vec![a.matmul(&b)]);
        time(&format!("{dtype} matmul 512^3 NT"), &d, || {
            vec![a.matmul(&b.t())]
        });
        let (x, w) = (leaf(&[64, 32, 26, 26]), leaf(&[64, 32, 3, 3]));
        let conv = bimetal_tensor::graph::Conv2d {
            stride: [1, 1],
            padding: [0; 4],
            dilation: [1, 1],
            groups: 1,
        };
        time(&format!("{dtype} conv 64x32x26x26 -> 64"), &d, || {
            vec![x.conv2d(&w, conv)]
        });
        let y = x.conv2d(&w, conv);
        bimetal_tensor::eval(&[&y]).unwrap();
        time(&format!("{dtype} conv both gradients"), &d, || {
            bimetal_autodiff::grad(&(&y * &y).sum_all(), &[&x, &w]).unwrap()
        });
        let big = leaf(&[8192, 256]);
        time(&format!("{dtype} gelu 2M"), &d, || vec![big.gelu()]);
        time(&format!("{dtype} softmax 8192x256"), &d, || {
            vec![big.softmax(-1)]
        });
        time(&format!("{dtype} column sum 8192x256"), &d, || {
            vec![big.sum(&[0], false)]
        });
    }
}
