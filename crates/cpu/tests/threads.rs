//! The number of threads, and how a result is cut into tasks, never shows in its bits.
use bimetal_cpu::CpuBackend;
use bimetal_tensor::graph::{
    AttentionSpec, Attr, Composite, Conv2d, Distribution, DropoutSpec, OptimRule, Pool2d, RandomKey,
};
use bimetal_tensor::{DType, Device, Tensor, eval};

fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// Kernels of every kind, big enough for several tasks.
fn everything(d: &Device) -> Vec<Tensor> {
    let t =
        |shape: &[usize], seed| Tensor::from_slice(&values(shape.iter().product(), seed), shape, d);
    let x = t(&[300, 517], 1);
    let w = t(&[517, 211], 2);
    let bias = t(&[211], 3);
    let index: Vec<i32> = (0..4000).map(|i| i * i % 97).collect();
    let index = Tensor::from_slice(&index, &[4000], d);
    let target: Vec<i32> = (0..300).map(|i| i % 211).collect();
    let target = Tensor::from_slice(&target, &[300], d);
    let y = (x.matmul(&w) + &bias).gelu();
    let half = x.cast(DType::BF16).matmul(&w.cast(DType::BF16));
    let image = t(&[3, 8, 20, 21], 4);
    let kernel = t(&[16, 8, 3, 3], 5);
    let conv = image.conv2d(&kernel, Conv2d::new(2, 1));
    let stream = RandomKey::Value {
        stream: 0x1234_5678_9abc,
        micro: 3,
    };
    let scalar = |v: f64, dt| Tensor::full(&[], v, dt, d);
    let update = Tensor::composite(
        Composite::OptimUpdate {
            rule: OptimRule::Adam { decoupled: true },
            beta1: Attr(0.9),
            beta2: Attr(0.999),
            eps: Attr(1e-8),
            weight_decay: Attr(0.01),
        },
        &[
            &scalar(1.0, DType::Bool),
            &scalar(1e-3, DType::F32),
            &scalar(0.5, DType::F32),
            &scalar(3.0, DType::F32),
            &x,
            &(&x * 0.3),
            &(&x * 0.1),
            &x.square(),
        ],
    );
    let stats = Tensor::grad_stats(&[&x, &w, &half]);
    let (top, at) = x.topk(5);
    let heads = |seed| t(&[2, 150, 3, 16], seed);
    let spec = AttentionSpec {
        scale: Attr(0.25),
        causal: true,
        key_mask: false,
        dropout: Some(DropoutSpec {
            rate: Attr(0.2),
            key: stream,
        }),
    };
    let step = Tensor::full(&[], 5.0, DType::U32, d);
    let (q, k, v, dy) = (heads(11), heads(12), heads(13), heads(14));
    let a = Tensor::composite(Composite::Attention(spec), &[&q, &k, &v, &step]);
    let da = Tensor::composite(
        Composite::AttentionGrad(spec),
        &[&q, &k, &v, &a.output(0), &a.output(1), &dy, &step],
    );
    vec![
        y.clone(),
        half,
        y.softmax(-1),
        y.layer_norm(&bias, &bias, 1e-5),
        y.cross_entropy_rows(&target, -100, 0.1),
        y.sum(&[0], false),
        y.sum(&[1], false),
        y.mean(&[0, 1], false),
        x.max(&[0], true),
        x.prod(&[1], true),
        x.sum_all(),
        t(&[7, 40_000], 8).sum(&[1], false),
        t(&[40_000, 7], 9).mean(&[0], false),
        t(&[30, 70, 50], 10).sum(&[1], false),
        t(&[97, 33], 6).take(&index, 0),
        t(&[4000, 33], 7).take_grad(&index, 0, 97),
        conv.clone(),
        conv.max_pool2d(Pool2d::new(2)).0,
        x.cumsum(0, false),
        x.cumsum(1, true),
        top,
        at,
        x.argmax(0, false),
        x.t().flatten(0..=1),
        Tensor::concat(&[&x, &(&x + 1.0), &x.flip(1)], 1),
        Tensor::random(Distribution::Normal, &x.shape().unwrap(), stream, None, d),
        Tensor::random(Distribution::Uniform, &x.shape().unwrap(), stream, None, d),
        update.output(0),
        update.output(1),
        update.output(2),
        a.output(0),
        a.output(1),
        da.output(0),
        da.output(1),
        da.output(2),
        Tensor::conv2d_grad_input(&kernel, &conv, Conv2d::new(2, 1), &[3, 8, 20, 21]),
        Tensor::conv2d_grad_weight(&image, &conv, Conv2d::new(2, 1), &[16, 8, 3, 3]),
        stats.0,
        stats.1,
        stats.2,
    ]
}

fn bytes(threads: usize) -> Vec<Vec<u8>> {
    let d = Device::new(CpuBackend::new(Some(threads)));
    let all = everything(&d);
    eval(&all.iter().collect::<Vec<_>>()).unwrap();
    all.iter().map(|t| t.to_bytes().unwrap()).collect()
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let one = bytes(1);
    for threads in [2, 3] {
        for (i, (a, b)) in one.iter().zip(bytes(threads)).enumerate() {
            assert!(
                *a == b,
                "result {i} differs between 1 and {threads} threads"
            );
        }
    }
}

#[test]
fn a_slice_of_a_random_tensor_is_that_part_of_the_stream() {
    let d = Device::new(CpuBackend::new(Some(2)));
    let key = RandomKey::Value {
        stream: 77,
        micro: 0,
    };
    let shape = |n: &[usize]| bimetal_tensor::Shape::new(n).unwrap();
    let all = Tensor::random(Distribution::Normal, &shape(&[5000]), key, None, &d);
    let few = Tensor::random(Distribution::Normal, &shape(&[1001]), key, None, &d);
    let all = all.to_vec::<f32>().unwrap();
    assert_eq!(all[..1001], few.to_vec::<f32>().unwrap());
    let mean = all.iter().sum::<f32>() / 5000.0;
    assert!(mean.abs() < 0.06, "four standard errors: {mean}");
}
