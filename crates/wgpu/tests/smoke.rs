//! One program on whatever adapter there is. The suites of operations, gradients and pitfalls run with `cargo xtask test --backend wgpu`.
use bimetal_tensor::Tensor;

#[test]
fn a_program_runs() {
    let Ok(device) = bimetal_wgpu::wgpu() else {
        println!("skipped: no adapter");
        return;
    };
    let x = Tensor::from_slice(&[1f32, 2.0, 3.0], &[3], &device);
    let y = (&x * &x + 1.0).exp();
    for (y, x) in y.to_vec::<f32>().unwrap().iter().zip([1f32, 2.0, 3.0]) {
        let want = (x * x + 1.0).exp();
        assert!(
            (y - want).abs() <= 1e-6 * want,
            "{y} where {want} was expected"
        );
    }
}
