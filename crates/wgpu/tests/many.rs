//! More matrices than a grid has places along an axis.
use bimetal_tensor::Tensor;
use bimetal_tensor::graph::Conv2d;

#[test]
fn a_depthwise_convolution_of_many_images() {
    let Ok(device) = bimetal_wgpu::wgpu() else {
        println!("skipped: no adapter");
        return;
    };
    let (n, c) = (300, 256);
    let conv = Conv2d {
        stride: [1, 1],
        padding: [0; 4],
        dilation: [1, 1],
        groups: c as u32,
    };
    let values: Vec<f32> = (0..n * c * 4).map(|i| (i % 7) as f32).collect();
    let x = Tensor::from_slice(&values, &[n, c, 2, 2], &device);
    let w = Tensor::from_slice(&vec![1f32; c * 4], &[c, 1, 2, 2], &device);
    let y = x.conv2d(&w, conv).to_vec::<f32>().unwrap();
    let want: Vec<f32> = values.chunks(4).map(|v| v.iter().sum()).collect();
    assert_eq!(y, want);
}
