//! What layers do in training and evaluation, and at the edges of a dtype's range.
use bimetal_autodiff::grad;
use bimetal_layers::*;
use bimetal_precision::Policy;
use bimetal_tensor::{DType, Device, Tensor, commit};
use half::f16;

fn store(device: &Device, policy: Policy) -> ParamStore {
    ParamStore::new(device, policy).seed(11)
}

fn apply(cx: Ctx) {
    let updates = cx.into_updates();
    let writes: Vec<_> = updates.iter().map(|(s, t)| (s, t)).collect();
    commit(&[], &writes).unwrap();
}

#[test]
fn dropout_keeps_the_mean_and_follows_its_stream() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::mixed_float16());
    let (a, b) = (
        Dropout::new(&s.root().at("a"), 0.25),
        Dropout::new(&s.root().at("b"), 0.25),
    );
    let x = Tensor::full(&[20_000], 3.0, DType::F16, &device);
    let run = |layer: &Dropout, cx: &Ctx| layer.forward(&x, cx).to_vec::<f16>().unwrap();
    let first = run(&a, &s.train());
    let kept = first.iter().filter(|v| **v == f16::from_f32(4.0)).count();
    assert_eq!(
        kept + first.iter().filter(|v| **v == f16::ZERO).count(),
        20_000
    );
    // Five standard deviations of a binomial distribution.
    assert!(
        (kept as f64 - 15_000.0).abs() < 5.0 * (20_000f64 * 0.25 * 0.75).sqrt(),
        "{kept}"
    );

    assert_eq!(first, run(&a, &s.train()), "the same step draws the same");
    assert_ne!(first, run(&b, &s.train()), "another layer draws otherwise");
    assert_ne!(
        first,
        run(&a, &s.train().with_micro(1)),
        "another micro-batch draws otherwise"
    );
    let cx = s.train();
    assert_eq!(first, run(&a, &cx));
    assert_ne!(first, run(&a, &cx), "a second call draws otherwise");
    assert!(run(&a, &s.eval()).iter().all(|v| *v == f16::from_f32(3.0)));

    s.applied()
        .unwrap()
        .set(&Tensor::from_slice(&[1u32], &[], &device))
        .unwrap();
    assert_ne!(first, run(&a, &s.train()), "another step draws otherwise");
    let reseeded = ParamStore::new(&device, Policy::float32()).seed(12);
    let other = Dropout::new(&reseeded.root().at("a"), 0.25);
    assert_ne!(first, run(&other, &reseeded.train()));
}

#[test]
fn a_step_of_dropout_compiles_once() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::float32());
    let layer = Dropout::new(&s.root().at("a"), 0.5);
    let x = Tensor::ones(&[64], DType::F32, &device);
    let mut seen = Vec::new();
    let mut compiled = 0;
    for step in 0..5u32 {
        s.applied()
            .unwrap()
            .set(&Tensor::from_slice(&[step], &[], &device))
            .unwrap();
        seen.push(
            layer
                .forward(&x, &s.train().with_micro(step))
                .to_vec::<f32>()
                .unwrap(),
        );
        if step == 0 {
            compiled = device.plans_compiled();
        }
    }
    assert_eq!(device.plans_compiled(), compiled);
    seen.dedup();
    assert_eq!(seen.len(), 5);
}

#[test]
fn dropped_elements_that_are_not_finite_have_no_gradient() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::float32());
    let layer = Dropout::new(&s.root().at("a"), 0.9);
    let x = Tensor::full(&[50], f64::INFINITY, DType::F32, &device);
    let y = layer.forward(&x, &s.train());
    let g = grad(&y.sum_all(), &[&x]).unwrap().remove(0);
    for (y, g) in y
        .to_vec::<f32>()
        .unwrap()
        .iter()
        .zip(g.to_vec::<f32>().unwrap())
    {
        assert!(
            (*y == 0.0 && g == 0.0) || (y.is_infinite() && (g - 10.0).abs() < 1e-5),
            "{y} {g}"
        );
    }
}

#[test]
fn batch_norm_updates_are_pending_until_applied() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::mixed_float16());
    let norm = BatchNorm2d::new(&s.root().at("norm"), 1);
    let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], &[2, 1, 2, 1], &device);
    let mean = || norm.running_mean().slot().unwrap().to_vec::<f32>().unwrap()[0];

    let cx = s.train();
    let y = norm.forward(&x, &cx);
    assert_eq!(y.dtype(), DType::F16);
    y.eval().unwrap();
    drop(cx);
    assert_eq!(mean(), 0.0, "a dropped context changes nothing");

    // A shared layer that runs twice moves twice: 0.9 * (0.1 * 2.5) + 0.1 * 5.
    let cx = s.train();
    let _ = norm.forward(&x, &cx);
    let _ = norm.forward(&(&x * 2.0), &cx);
    // So do micro-batches of one step: once more with the first.
    let cx = s.train().with_micro(1).with_updates(cx.into_updates());
    let _ = norm.forward(&x, &cx);
    apply(cx);
    let expected = 0.9 * (0.9 * 0.25 + 0.5) + 0.25;
    assert!((mean() - expected).abs() < 1e-6, "{}", mean());

    let cx = s.eval();
    let y = norm.forward(&x, &cx).to_f64_vec().unwrap();
    let var = norm.running_var().read().to_f64_vec().unwrap()[0];
    for (x, y) in [1.0, 2.0, 3.0, 4.0].iter().zip(y) {
        let wanted = (x - expected as f64) / (var + 1e-5).sqrt();
        assert!(
            (y - wanted).abs() < 2e-3 * wanted.abs().max(1.0),
            "{y} {wanted}"
        );
    }
    assert!(cx.into_updates().is_empty());
    let one = Tensor::ones(&[1, 1, 1, 1], DType::F32, &device);
    assert!(
        norm.forward(&one, &s.train())
            .error()
            .unwrap()
            .to_string()
            .contains("at least 2")
    );
    assert!(norm.forward(&one, &s.eval()).eval().is_ok());
}

/// Statistics of activations beyond what f16 can square: 300^2 > 65504.
#[test]
fn norms_of_large_f16_values_are_finite() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::mixed_float16());
    let v: Vec<f16> = (0..64)
        .map(|i| f16::from_f32(60_000.0 + 8.0 * (i % 8) as f32 * (i / 8) as f32))
        .collect();
    let x = Tensor::from_slice(&v, &[8, 8], &device);
    let layer = LayerNorm::new(&s.root().at("l"), 8);
    let batch = BatchNorm2d::new(&s.root().at("b"), 8);
    let cx = s.train();
    for y in [layer.forward(&x, &cx), batch.forward(&x, &cx)] {
        assert!(
            y.to_f64_vec()
                .unwrap()
                .iter()
                .all(|v| v.is_finite() && v.abs() < 3.0)
        );
    }
    apply(cx);
    let var = batch.running_var().read().to_f64_vec().unwrap();
    assert!(var.iter().all(|v| v.is_finite()));
    // 40,000 equal values have no variance, and rows of them no gradient that explodes.
    let flat = Tensor::full(&[40_000, 1], 3.0, DType::F16, &device);
    let one = BatchNorm2d::new(&s.root().at("one"), 1);
    let cx = s.train();
    let y = one.forward(&flat, &cx);
    assert!(y.to_f64_vec().unwrap().iter().all(|v| *v == 0.0));
    assert!(
        (cx.state(one.running_var().slot().unwrap())
            .to_f64_vec()
            .unwrap()[0]
            - 0.9)
            .abs()
            < 1e-6
    );
    let pooled = GlobalAvgPool2d.forward(
        &Tensor::ones(&[1, 1, 280, 280], DType::F16, &device),
        &s.eval(),
    );
    assert_eq!(
        pooled.to_f64_vec().unwrap(),
        [1.0],
        "the mean of more than 65,504 ones is 1"
    );
}

/// f16 masks of -1e9 overflow, and a softmax without any key divides by 0.
#[test]
fn attention_masks_are_safe_in_f16() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::mixed_float16());
    let options = MultiHeadAttentionOptions {
        dropout: 0.1,
        ..Default::default()
    };
    let layer = MultiHeadAttention::with(&s.root().at("m"), 8, 2, options);
    let v: Vec<f32> = (0..48)
        .map(|i| ((i * 37 % 23) as f32 - 11.0) / 4.0)
        .collect();
    let x = Tensor::from_slice(&v, &[2, 3, 8], &device);
    let mask = Tensor::from_slice(&[true, true, false, false, false, false], &[2, 3], &device);
    let run = |x: &Tensor, cx: &Ctx| layer.attend(x, None, Some(&mask), cx);
    let cx = s.train();
    let y = run(&x, &cx);
    let slots: Vec<Tensor> = s.params().iter().map(Param::read).collect();
    let wrt: Vec<&Tensor> = slots.iter().chain([&x]).collect();
    let loss = y.cast(DType::F32).square().mean_all();
    for g in grad(&loss, &wrt).unwrap() {
        assert!(g.to_f64_vec().unwrap().iter().all(|v| v.is_finite()));
    }
    // What is masked has no influence; a sequence with nothing to see gives the output bias, 0.
    let mut other = v.clone();
    other[16..24].fill(100.0);
    other[24..].fill(-100.0);
    let other = Tensor::from_slice(&other, &[2, 3, 8], &device);
    let cx = s.eval();
    let (a, b) = (
        run(&x, &cx).to_f64_vec().unwrap(),
        run(&other, &cx).to_f64_vec().unwrap(),
    );
    assert_eq!(a[..16], b[..16]);
    assert!(a[24..].iter().all(|v| *v == 0.0));
    // Dropout is active in training and not in evaluation.
    assert_ne!(run(&x, &s.train()).to_f64_vec().unwrap()[..16], a[..16]);
}

#[test]
fn integers_are_never_cast() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::mixed_float16());
    let site = s.root().at("own").site();
    for dtype in [DType::Bool, DType::U8, DType::I32, DType::I64, DType::U32] {
        assert_eq!(
            site.input(&Tensor::ones(&[2], dtype, &device)).dtype(),
            dtype
        );
        assert_eq!(
            site.output(&Tensor::ones(&[2], dtype, &device)).dtype(),
            dtype
        );
    }
    let tokens = Tensor::from_slice(&[4000i64, 2049], &[2], &device);
    let layer = Embedding::new(&s.root().at("e"), 4001, 2);
    let y = layer.forward(&tokens, &s.eval()).to_f64_vec().unwrap();
    let table = layer.weight().read().to_f64_vec().unwrap();
    // 2049 is no f16: a cast would have read a neighbour.
    for (found, row) in y.iter().zip([8000, 8001, 4098, 4099]) {
        assert_eq!(*found, f16::from_f64(table[row]).to_f64());
    }
    let e = layer.forward(&Tensor::ones(&[2], DType::F32, &device), &s.eval());
    assert!(e.error().unwrap().to_string().contains("I32 or I64"));
}

#[test]
fn embedding_gradients_of_one_row_add_in_f32() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::mixed_float16());
    let layer = Embedding::new(&s.root().at("e"), 3, 1);
    let tokens = Tensor::from_slice(&[1i32; 5000], &[5000], &device);
    let y = layer.forward(&tokens, &s.train());
    let loss = (y * 16.0).cast(DType::F32).sum_all();
    let g = grad(&loss, &[&layer.weight().read()]).unwrap().remove(0);
    assert_eq!(g.dtype(), DType::F32);
    assert_eq!(g.to_vec::<f32>().unwrap(), [0.0, 80_000.0, 0.0]);
}

#[test]
fn the_padding_row_is_zero_and_stays() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::float32());
    let options = EmbeddingOptions {
        padding_idx: Some(1),
        ..Default::default()
    };
    let layer = Embedding::with(&s.root().at("e"), 3, 2, options);
    let table = layer.weight().read().to_f64_vec().unwrap();
    assert_eq!(table[2..4], [0.0, 0.0]);
    assert!(table[..2].iter().chain(&table[4..]).all(|v| *v != 0.0));
    let y = layer.forward(
        &Tensor::from_slice(&[1i32, 2, 1], &[3], &device),
        &s.train(),
    );
    let g = grad(&y.sum_all(), &[&layer.weight().read()])
        .unwrap()
        .remove(0);
    assert_eq!(g.to_vec::<f32>().unwrap(), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn same_padding_keeps_the_size_over_the_stride() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::float32());
    for (i, (kernel, stride, dilation)) in [(3, 1, 1), (2, 1, 1), (3, 2, 1), (5, 3, 2), (1, 2, 1)]
        .into_iter()
        .enumerate()
    {
        let options = Conv2dOptions {
            stride: stride.into(),
            padding: Padding::Same,
            dilation: dilation.into(),
            ..Default::default()
        };
        let conv = Conv2d::with(&s.root().at(i), 1, 1, kernel, options);
        for size in [7usize, 8] {
            let x = Tensor::ones(&[1, 1, size, size], DType::F32, &device);
            let y = conv.forward(&x, &s.eval());
            assert_eq!(
                y.dims().unwrap(),
                [1, 1, size.div_ceil(stride), size.div_ceil(stride)]
            );
        }
    }
}

#[test]
fn vectors_sequences_and_closures() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::float32());
    let linear = Linear::new(&s.root().at("a"), 3, 2);
    let bias = linear.bias().unwrap().read().to_vec::<f32>().unwrap();
    let y = linear.forward(&Tensor::zeros(&[3], DType::F32, &device), &s.eval());
    assert_eq!(y.to_vec::<f32>().unwrap(), bias);
    let net = Sequential::new()
        .then(Flatten)
        .then(|x: &Tensor, _: &Ctx| x * 0.0)
        .then(linear)
        .then(Activation::Relu);
    assert_eq!(net.len(), 4);
    let y = net.forward(&Tensor::ones(&[4, 3, 1], DType::F32, &device), &s.eval());
    assert_eq!(y.dims().unwrap(), [4, 2]);
    let y = y.to_vec::<f32>().unwrap();
    assert_eq!(y[..2], [bias[0].max(0.0), bias[1].max(0.0)]);
}

#[test]
fn an_lstm_continues_where_it_stopped() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::mixed_bfloat16());
    let options = LstmOptions {
        layers: 2,
        ..Default::default()
    };
    let lstm = Lstm::with(&s.root().at("l"), 2, 3, options);
    let v: Vec<f32> = (0..24).map(|i| (i % 7) as f32 / 4.0 - 0.5).collect();
    let x = Tensor::from_slice(&v, &[2, 6, 2], &device);
    let cx = s.eval();
    let (all, end) = lstm.run(&x, None, &cx);
    let (first, middle) = lstm.run(&x.narrow(1, 0, 4), None, &cx);
    let (second, stop) = lstm.run(&x.narrow(1, 4, 2), Some(&middle), &cx);
    assert_eq!((all.dtype(), end.c.dtype()), (DType::BF16, DType::F32));
    let joined = Tensor::concat(&[&first, &second], 1);
    assert_eq!(all.to_f64_vec().unwrap(), joined.to_f64_vec().unwrap());
    assert_eq!(end.c.to_f64_vec().unwrap(), stop.c.to_f64_vec().unwrap());
    let wrong = lstm.run(
        &x,
        Some(&LstmState {
            h: end.c.clone(),
            c: x.clone(),
        }),
        &cx,
    );
    assert!(wrong.0.error().unwrap().to_string().contains("[2, 2, 3]"));
}

#[test]
fn masked_items_do_not_count_in_losses() {
    let device = bimetal_cpu::cpu();
    let nan = f32::NAN;
    let x = Tensor::from_slice(&[1f32, 2.0, nan, nan, 5.0, 6.0], &[3, 2], &device);
    let t = Tensor::zeros(&[3, 2], DType::F32, &device);
    let real = Tensor::from_slice(&[true, false, true], &[3], &device);
    let with = |weights: &Tensor, reduction| LossOptions {
        reduction,
        weights: Some(weights.clone()),
    };
    let loss = mse_with(&x, &t, with(&real, Reduction::Mean));
    assert_eq!(loss.item().unwrap(), (1.0 + 4.0 + 25.0 + 36.0) / 4.0);
    let g = grad(&loss, &[&x])
        .unwrap()
        .remove(0)
        .to_vec::<f32>()
        .unwrap();
    assert_eq!(g, [0.5, 1.0, 0.0, 0.0, 2.5, 3.0]);
    let weighted = Tensor::from_slice(&[0.5f32, 0.0, 2.0], &[3], &device);
    let loss = mse_with(&x, &t, with(&weighted, Reduction::Mean));
    assert!((loss.item().unwrap() - (0.5 * 5.0 + 2.0 * 61.0) / 5.0).abs() < 1e-5);
    let loss = mse_with(&x, &t, with(&weighted, Reduction::Sum));
    assert_eq!(loss.item().unwrap(), 0.5 * 5.0 + 2.0 * 61.0);

    // Cross-entropy of sequences [batch, time]: a padded row may hold any target, even one that is no class.
    let mut v: Vec<f32> = (0..18).map(|i| (i * 5 % 7) as f32 / 2.0).collect();
    v[6..12].fill(nan);
    let logits = Tensor::from_slice(&v, &[3, 2, 3], &device);
    let targets = Tensor::from_slice(&[0i32, 2, 77, 77, 1, -100], &[3, 2], &device);
    let loss = cross_entropy_with(
        &logits,
        &targets,
        CrossEntropyOptions {
            weights: Some(real),
            ..Default::default()
        },
    );
    let single = |row: usize, class: usize| {
        let r = &v[3 * row..3 * row + 3];
        r.iter().map(|x| (*x as f64).exp()).sum::<f64>().ln() - r[class] as f64
    };
    let expected = (single(0, 0) + single(1, 2) + single(4, 1)) / 3.0;
    assert!((loss.item().unwrap() - expected).abs() < 1e-6);
    let g = grad(&loss, &[&logits])
        .unwrap()
        .remove(0)
        .to_vec::<f32>()
        .unwrap();
    assert!(g[6..12].iter().chain(&g[15..]).all(|v| *v == 0.0) && g[0] != 0.0);
    assert!(
        cross_entropy(&logits, &targets).item().is_err(),
        "77 is no class"
    );

    // Nothing counts: 0, not 0/0.
    let none = Tensor::from_slice(&[-100i32; 6], &[3, 2], &device);
    let loss = cross_entropy(&logits, &none);
    assert_eq!(loss.item().unwrap(), 0.0);
    assert!(
        grad(&loss, &[&logits])
            .unwrap()
            .remove(0)
            .to_vec::<f32>()
            .unwrap()
            .iter()
            .all(|v| *v == 0.0)
    );
    let e = mse(&x, &t.narrow(1, 0, 1)).error().unwrap().to_string();
    assert!(e.contains("[3, 2]") && e.contains("[3, 1]"), "{e}");
}

#[test]
fn absolute_and_huber_losses() {
    let device = bimetal_cpu::cpu();
    let x = Tensor::from_slice(&[0.5f64, -3.0, 1.0, 4.0], &[4], &device);
    let t = Tensor::from_slice(&[0.0f64, 0.0, 1.0, 2.0], &[4], &device);
    assert_eq!(l1(&x, &t).item().unwrap(), 5.5 / 4.0);
    let loss = huber(&x, &t, 1.5);
    let expected = [0.125, 1.5 * (3.0 - 0.75), 0.0, 1.5 * (2.0 - 0.75)];
    assert_eq!(loss.item().unwrap(), expected.iter().sum::<f64>() / 4.0);
    let g = grad(&loss, &[&x])
        .unwrap()
        .remove(0)
        .to_vec::<f64>()
        .unwrap();
    assert_eq!(g, [0.125, -0.375, 0.0, 0.375]);
}

/// Half-precision copies of weights must not go stale: evaluation sees the weights of the last step, and training goes on after it.
#[test]
fn evaluation_sees_new_weights_and_training_goes_on() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, Policy::mixed_float16());
    let layer = Linear::new(&s.root().at("a"), 1, 1);
    let x = Tensor::ones(&[1, 1], DType::F32, &device);
    let slots = s.trainable_slots().unwrap();
    let mut live = 0;
    for step in 0..100 {
        if step == 5 {
            live = device.memory().live;
        }
        let value = Tensor::full(&[1, 1], step as f64 + 0.5, DType::F32, &device);
        layer.weight().set(&value).unwrap();
        layer
            .bias()
            .unwrap()
            .set(&Tensor::zeros(&[1], DType::F32, &device))
            .unwrap();
        for cx in [s.train(), s.eval(), s.train()] {
            let y = layer.forward(&x, &cx);
            assert_eq!(y.to_f64_vec().unwrap(), [step as f64 + 0.5]);
            let reads: Vec<Tensor> = slots.iter().map(|s| s.read()).collect();
            let loss = y.cast(DType::F32).square().sum_all();
            let g = grad(&loss, &reads.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(g[0].to_f64_vec().unwrap(), [2.0 * step as f64 + 1.0]);
        }
    }
    assert_eq!(device.memory().live, live, "nothing is left behind");
}

/// Operands with more than 10 bits show whether they were rounded, forward and backward.
#[test]
fn products_of_f32_are_as_exact_as_asked() {
    use bimetal_tensor::graph::MatmulPrecision::{Bf16x3, Exact, Tf32};
    let device = bimetal_cpu::cpu();
    let x = Tensor::full(&[2, 3, 4], 1.0 + 1.0 / 4096.0, DType::F32, &device);
    let run = |s: &ParamStore, scope: Scope| {
        let linear = Linear::new(&scope.at("linear"), 4, 4);
        let attention = MultiHeadAttention::new(&scope.at("attention"), 4, 2);
        let lstm = Lstm::new(&scope.at("lstm"), 4, 4);
        s.check().unwrap();
        let cx = s.eval();
        let y = [
            linear.forward(&x, &cx),
            attention.forward(&x, &cx),
            lstm.forward(&x, &cx),
        ];
        let grads = y
            .iter()
            .map(|y| grad(&y.sum_all(), &[&x]).unwrap().remove(0));
        let all: Vec<Tensor> = y.iter().cloned().chain(grads).collect();
        all.iter()
            .map(|t| t.to_f64_vec().unwrap())
            .collect::<Vec<_>>()
    };
    let new = || store(&device, Policy::float32());
    let of_store = |p| {
        let s = new().matmul_precision(p);
        run(&s, s.root())
    };
    let of_scope = |p| {
        let s = new();
        run(&s, s.root().matmul_precision(p))
    };
    let plain = of_store(Exact);
    for (i, want) in plain.iter().enumerate() {
        for (precision, bound) in [(Tf32, 2e-3), (Bf16x3, 4e-5)] {
            let got = &of_store(precision)[i];
            assert_eq!(got, &of_scope(precision)[i], "{i}");
            assert_ne!(got, want, "{precision:?} {i}");
            let off = got.iter().zip(want).map(|(a, b)| (a - b).abs());
            assert!(off.fold(0.0, f64::max) < bound, "{precision:?} {i}");
        }
    }
    let late = new();
    let _ = Linear::new(&late.root().at("a"), 2, 2);
    assert!(late.matmul_precision(Tf32).check().is_err());
}
