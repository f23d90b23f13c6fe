//! The wgpu backend through the conformance suite, on whatever adapter there is.
use bimetal_testing::conformance;

#[test]
fn every_operation_agrees_with_the_f64_reference() {
    let Ok(device) = bimetal_wgpu::wgpu() else {
        println!("skipped: no adapter");
        return;
    };
    println!("{}", device.info().name);
    conformance::run(&device, 1, 2).assert_clean();
}

#[test]
fn smoke() {
    use bimetal_tensor::Tensor;
    let Ok(device) = bimetal_wgpu::wgpu() else {
        println!("skipped: no adapter");
        return;
    };
    let x = Tensor::from_slice(&[1f32, 2.0, 3.0], &[3], &device);
    let y = (&x * &x + 1.0).exp();
    println!("{:?}", y.to_vec::<f32>().unwrap());
    assert!((y.to_vec::<f32>().unwrap()[0] - 2f32.exp()).abs() < 1e-5);
}
