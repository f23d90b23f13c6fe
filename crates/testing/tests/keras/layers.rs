//! Layers and losses: Keras' numbers, and where f32 is used inside.
use crate::golden::{case, dtype, list as items, numbers, tensor};
use crate::support::*;
use bimetal::layers::{
    Activation, AvgPool2d, BatchNorm2d, Conv2d, Dropout, Embedding, GlobalAvgPool2d, Layer,
    LayerNorm, Linear, Lstm, MaxPool2d, MultiHeadAttention, MultiHeadAttentionOptions, ParamStore,
    Scope, cross_entropy, mse,
};
use bimetal::optim::Sgd;
use bimetal::precision::Policy;
use bimetal::train::{Output, TensorBatch, Trainer};
use bimetal::{DType, Device, Tensor};
use half::f16;

/// One unit in the last place of f16 near 1 is 1e-3; Keras rounds more often.
const HALF: f64 = 2e-3;

/// A layer under `mixed_float16` with Keras' parameters, and what it makes of Keras' input, which must be near what Keras makes of it.
fn agrees<L: Layer>(
    device: &Device,
    name: &str,
    tolerance: f64,
    make: impl FnOnce(&Scope) -> L,
    input: impl FnOnce(Tensor) -> Tensor,
) -> (ParamStore, L) {
    let golden = case(name);
    let store = ParamStore::new(device, Policy::mixed_float16());
    let layer = make(&store.root().at("layer"));
    for (path, value) in golden["params"].as_object().unwrap() {
        let param = store.param(&format!("layer.{path}")).unwrap();
        assert_eq!(param.dtype(), DType::F32);
        param.set(&tensor(value, device)).unwrap();
    }
    let x = input(tensor(&golden["x"], device));
    let y = layer.forward(&x, &store.train());
    assert_eq!(y.dtype(), dtype(&golden["dtype"]), "{name}");
    close(&list(&y), &numbers(&golden["y"]["data"]), tolerance);
    (store, layer)
}

/// A function under a layer's casts.
struct Plain<F>(bimetal::layers::Site, F);

impl<F: Fn(&Tensor) -> Tensor> Layer for Plain<F> {
    fn forward(&self, x: &Tensor, cx: &bimetal::layers::Ctx) -> Tensor {
        let run = || Ok(self.0.output(&(self.1)(&self.0.input(x))));
        self.0.run(cx, run)
    }
}

pub fn keras_dense_conv_pooling_relu_dropout_add(device: &Device) {
    let same = |x| x;
    agrees(device, "dense", HALF, |s| Linear::new(s, 6, 5), same);
    agrees(device, "conv", HALF, |s| Conv2d::new(s, 2, 4, 3), same);
    let plain = |f: fn(&Tensor) -> Tensor| move |s: &Scope| Plain(s.site(), f);
    agrees(device, "max_pool", HALF, plain(|x| pool(x, true)), same);
    agrees(
        device,
        "average_pool",
        HALF,
        plain(|x| pool(x, false)),
        same,
    );
    agrees(device, "relu", 0.0, plain(Tensor::relu), same);
    // f16 with f32 accumulation: added one by one in f16 it would be 2,048.
    let store = ParamStore::new(device, Policy::mixed_float16());
    let dense = Linear::new(&store.root().at("dense"), 5000, 1);
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, device);
    store
        .param("dense.weight")
        .unwrap()
        .set(&ones(&[1, 5000]))
        .unwrap();
    store
        .param("dense.bias")
        .unwrap()
        .set(&Tensor::zeros(&[1], DType::F32, device))
        .unwrap();
    let y = dense.forward(&ones(&[1, 5000]), &store.train());
    assert_eq!((y.dtype(), list(&y)), (DType::F16, vec![5000.0]));
    let half = ones(&[4, 1000]).cast(DType::F16);
    let dropout = Dropout::new(&store.root().at("dropout"), 0.5);
    let dropped = dropout.forward(&half, &store.train());
    assert_eq!(dropped.dtype(), DType::F16);
    assert!(list(&dropped).iter().all(|v| *v == 0.0 || *v == 2.0));
    assert_eq!(list(&dropout.forward(&half, &store.eval())), list(&half));
    let sum = &half + &half;
    assert_eq!(
        (
            sum.dtype(),
            Activation::Relu.forward(&sum, &store.eval()).dtype()
        ),
        (DType::F16, DType::F16)
    );
}

fn pool(x: &Tensor, max: bool) -> Tensor {
    let store = ParamStore::new(x.device().unwrap(), Policy::float32());
    match max {
        true => MaxPool2d::new(2).forward(x, &store.eval()),
        false => AvgPool2d::new(2).forward(x, &store.eval()),
    }
}

pub fn keras_softmax(device: &Device) {
    let plain = |s: &Scope| Plain(s.site(), |x: &Tensor| x.softmax(-1));
    agrees(device, "softmax", HALF, plain, |x| x);
    // Better: f32 inside, and rounded once. In f16 throughout a third of these would be off by a unit.
    let data: Vec<f32> = (0..2000).map(|i| (i as f32 * 0.7).sin() * 4.0).collect();
    let x = Tensor::from_slice(&data, &[4, 500], device).cast(DType::F16);
    let p = x.softmax(-1);
    assert_eq!(p.dtype(), DType::F16);
    let exact = list(&x.cast(DType::F64).softmax(-1));
    let off = |(p, exact): (f64, f64)| p != f16::from_f64(exact).to_f64();
    let off = list(&p).into_iter().zip(exact).map(off).filter(|off| *off);
    assert!(off.count() < 20);
}

pub fn keras_lstm(device: &Device) {
    let golden = case("lstm");
    let make = |s: &Scope| {
        let lstm = Lstm::new(s, 3, 4);
        // Keras has one bias where PyTorch has two.
        let zero = Tensor::zeros(&[16], DType::F32, device);
        s.store()
            .param("layer.bias_hh_l0")
            .unwrap()
            .set(&zero)
            .unwrap();
        lstm
    };
    let (store, lstm) = agrees(device, "lstm", 4.0 * HALF, make, |x| x);
    // Better: cell state and gates are f32.
    let (y, state) = lstm.run(&tensor(&golden["x"], device), None, &store.train());
    assert_eq!(
        (y.dtype(), state.h.dtype(), state.c.dtype()),
        (DType::F16, DType::F16, DType::F32)
    );
}

pub fn keras_batch_norm_layer_norm(device: &Device) {
    agrees(device, "layer_norm", HALF, |s| LayerNorm::new(s, 6), |x| x);
    let golden = case("batch_norm");
    let make = |s: &Scope| BatchNorm2d::new(s, 6);
    let (store, norm) = agrees(device, "batch_norm", HALF, make, |x| x);
    let statistics = [norm.running_mean(), norm.running_var()];
    assert!(statistics.iter().all(|p| p.dtype() == DType::F32));
    // Keras moves towards the biased variance, PyTorch and this to the unbiased one of the 5 rows.
    let x = tensor(&golden["x"], device);
    let scaler = dynamic(device);
    let done = train(&mut Sgd::new(0.0), &store, &scaler, |cx| {
        norm.forward(&x, cx).sum_all()
    });
    assert!(done.outcome().unwrap().is_applied());
    let mean = numbers(&golden["state"]["running_mean"]["data"]);
    close(&list(&statistics[0].read()), &mean, 1e-5);
    let var = numbers(&golden["state"]["running_var"]["data"]);
    let var: Vec<f64> = var.iter().map(|v| 0.9 + (v - 0.9) * 5.0 / 4.0).collect();
    close(&list(&statistics[1].read()), &var, 1e-5);
    // f32 inside: squares of 300 are beyond f16.
    let big = Tensor::from_slice(&[300.0f32, -300.0], &[2, 1], device).cast(DType::F16);
    let scope = store.root();
    let one = BatchNorm2d::new(&scope.at("one"), 1);
    close(
        &list(&one.forward(&big, &store.train())),
        &[1.0, -1.0],
        HALF,
    );
    let row = LayerNorm::new(&scope.at("row"), 2);
    close(
        &list(&row.forward(&big.t(), &store.train())),
        &[1.0, -1.0],
        HALF,
    );
}

pub fn keras_global_mean(device: &Device) {
    let make = |s: &Scope| Plain(s.site(), |x: &Tensor| x.mean(&[2, 3], false));
    agrees(device, "global_mean", HALF, make, |x| x);
    let x = Tensor::full(&[1, 1, 256, 256], 1000.0, DType::F16, device);
    let store = ParamStore::new(device, Policy::mixed_float16());
    let y = GlobalAvgPool2d.forward(&x, &store.eval());
    assert_eq!((y.dtype(), list(&y)), (DType::F16, vec![1000.0]));
}

pub fn keras_multi_head_attention(device: &Device) {
    let make = |s: &Scope| MultiHeadAttention::new(s, 8, 2);
    agrees(device, "attention", 4.0 * HALF, make, |x| x);
    // Better: f32 with dropout, too. Scores beyond 2,048, where f16 has even numbers only.
    let run = |policy: Policy| {
        let store = ParamStore::new(device, policy).seed(2);
        let options = MultiHeadAttentionOptions {
            dropout: 0.25,
            bias: false,
            ..Default::default()
        };
        let layer = MultiHeadAttention::with(&store.root().at("a"), 2, 1, options);
        let eye = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[2, 2], device);
        let packed = Tensor::concat(&[&eye, &eye, &eye], 0);
        store
            .param("a.in_proj_weight")
            .unwrap()
            .set(&packed)
            .unwrap();
        store.param("a.out_proj.weight").unwrap().set(&eye).unwrap();
        let pair = |i: usize| [56.0 + (i % 4) as f32 / 32.0, [1.0, -1.0, 0.5][i % 3]];
        let data: Vec<f32> = (0..16).flat_map(pair).collect();
        let x = Tensor::from_slice(&data, &[1, 16, 2], device);
        list(&layer.forward(&x, &store.train()))
    };
    close(&run(Policy::mixed_float16()), &run(Policy::float64()), HALF);
}

pub fn keras_embedding(device: &Device) {
    let index = |x: Tensor| x.cast(DType::I32);
    agrees(device, "embedding", 0.0, |s| Embedding::new(s, 7, 3), index);
}

pub fn keras_losses_metrics(device: &Device) {
    let golden = case("losses");
    let half = |v| tensor(v, device).cast(DType::F16);
    let (logits, target) = (half(&golden["logits"]), half(&golden["target"]));
    let classes: Vec<i32> = numbers(&golden["classes"])
        .iter()
        .map(|&c| c as i32)
        .collect();
    let classes = Tensor::from_slice(&classes, &[classes.len()], device);
    let found = [mse(&logits, &target), cross_entropy(&logits, &classes)];
    let want = items(&golden["dtypes"]).iter().map(dtype);
    assert!(found.iter().map(Tensor::dtype).eq(want));
    let found = found.map(|t| t.item().unwrap());
    let want = ["mse", "cross_entropy"].map(|k| golden[k].as_f64().unwrap());
    close(&found, &want, 1e-6);
    // A metric in f16 whose sum over the rows is beyond f16.
    let store = seeded(device, "mixed_float16");
    let net = Net::new(&store);
    let task = |batch: &TensorBatch, cx: &_| {
        let rows = net.0.forward(&batch[0].unsqueeze(1), cx).sum(&[1], false);
        let metric = (rows * 0.0 + 1000.5).cast(DType::F16);
        Output::new(metric.clone()).metric("metric", metric)
    };
    let trainer = Trainer::new(&store, Sgd::new(0.0)).progress(false);
    let logs = trainer.evaluate(&task, loader(160)).unwrap();
    assert_eq!(
        (logs.get("metric"), logs.get("loss")),
        (Some(1000.5), Some(1000.5))
    );
}
