//! Whole training runs against PyTorch: model, loss, clipping, schedule, optimizer, state and evaluation together.
mod common;
use bimetal_layers::*;
use bimetal_optim::{Accumulator, AdamW, Cosine, Optimizer, Sgd};
use bimetal_precision::{LossScale, LossScaler, Policy};
use bimetal_tensor::{DType, Device, Tensor};
use common::{array, case};
use serde_json::Value;

const STEPS: usize = 30;

/// Forward pass from a batch to logits.
type Model = Box<dyn Fn(&Batch, &Ctx) -> Tensor>;
type Batch = Vec<Tensor>;

fn floats(v: &Value, policy: Policy, device: &Device) -> Tensor {
    let (shape, data) = array(v);
    Tensor::from_slice(&data, &shape, device).cast(policy.compute)
}

fn indices(v: &Value, device: &Device) -> Tensor {
    let (shape, data) = array(v);
    let data: Vec<i32> = data.iter().map(|&x| x as i32).collect();
    Tensor::from_slice(&data, &shape, device)
}

fn mlp(scope: &Scope) -> Model {
    let fc1 = Linear::new(&scope.at("fc1"), 5, 8);
    let norm = LayerNorm::new(&scope.at("norm"), 8);
    let fc2 = Linear::new(&scope.at("fc2"), 8, 4);
    Box::new(move |b, cx| {
        let h = norm.forward(&fc1.forward(&b[0], cx), cx);
        fc2.forward(&h.gelu(), cx)
    })
}

fn conv(scope: &Scope) -> Model {
    let options = Conv2dOptions {
        padding: Padding::Same,
        ..Default::default()
    };
    let conv = Conv2d::with(&scope.at("conv"), 2, 4, 3, options);
    let norm = BatchNorm2d::new(&scope.at("norm"), 4);
    let head = Linear::new(&scope.at("head"), 16, 3);
    Box::new(move |b, cx| {
        let h = norm.forward(&conv.forward(&b[0], cx), cx).relu();
        let h = MaxPool2d::new(2).forward(&h, cx);
        head.forward(&h.flatten(1..), cx)
    })
}

fn text(scope: &Scope) -> Model {
    let embed = Embedding::new(&scope.at("embed"), 7, 6);
    let norm = LayerNorm::new(&scope.at("norm"), 6);
    let options = MultiHeadAttentionOptions {
        causal: true,
        ..Default::default()
    };
    let attention = MultiHeadAttention::with(&scope.at("attention"), 6, 2, options);
    let lstm = Lstm::new(&scope.at("lstm"), 6, 6);
    let head = embed.projection(&scope.at("head"));
    Box::new(move |b, cx| {
        let x = embed.forward(&b[0], cx);
        let h = norm.forward(&x, cx);
        let x = x + attention.attend(&h, None, Some(&b[1].ne(0.0)), cx);
        head.forward(&lstm.run(&x, None, cx).0, cx)
    })
}

struct Run {
    store: ParamStore,
    model: Model,
    batches: Vec<Batch>,
    targets: Vec<Tensor>,
    smoothing: f64,
}

impl Run {
    fn new(case: &Value, policy: Policy, device: &Device) -> Run {
        let name = case["case"].as_str().unwrap();
        let store = ParamStore::new(device, policy);
        let scope = store.root();
        let (model, keys): (Model, &[&str]) = match &name[..3] {
            "mlp" => (mlp(&scope), &["x"]),
            "con" => (conv(&scope), &["x"]),
            _ => (text(&scope), &["tokens", "keep"]),
        };
        for (key, value) in case["inputs"].as_object().unwrap() {
            if let Some(path) = key.strip_prefix("param.") {
                let value = floats(value, Policy::float64(), device);
                store.param(path).unwrap().set(&value).unwrap();
            }
        }
        let read = |k: &str, i: usize| {
            let v = &case["inputs"][k];
            match k {
                "x" => floats(v, policy, device),
                _ => indices(v, device),
            }
            .index(0, i)
        };
        let batch = |i| keys.iter().map(|k| read(k, i)).collect();
        Run {
            model,
            store,
            batches: (0..4).map(batch).collect(),
            targets: (0..4).map(|i| read("target", i)).collect(),
            smoothing: if name.starts_with("text") { 0.1 } else { 0.0 },
        }
    }

    fn loss(&self, batch: &Batch, target: &Tensor, cx: &Ctx) -> Tensor {
        let options = CrossEntropyOptions {
            label_smoothing: self.smoothing,
            ..Default::default()
        };
        cross_entropy_with(&(self.model)(batch, cx), target, options)
    }
}

fn near(what: &str, found: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(found.len(), want.len(), "{what}");
    let top = want.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
    for (i, (x, y)) in found.iter().zip(want).enumerate() {
        assert!(
            (x - y).abs() <= tolerance * top,
            "{what} {i}: {x} is not {y}"
        );
    }
}

fn optimizer(name: &str) -> Box<dyn Optimizer> {
    let cosine = Cosine {
        from: 2e-2,
        to: 2e-3,
        steps: STEPS as u32,
    };
    match &name[..3] {
        "mlp" => Box::new(AdamW::new(cosine).betas(0.9, 0.99).weight_decay(0.1)),
        "con" => Box::new(Sgd::new(0.05).momentum(0.9).weight_decay(1e-3)),
        _ => Box::new(AdamW::new(2e-2).betas(0.9, 0.99).weight_decay(0.1)),
    }
}

fn follow(name: &str, policy: Policy, scale: LossScale, tolerance: f64) {
    let device = bimetal_cpu::cpu();
    let case = case("torch_train.json", name);
    let run = Run::new(&case, policy, &device);
    let scaler = LossScaler::new(scale, &device).unwrap();
    let mut optimizer = optimizer(name);
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    if name.starts_with("text") {
        assert_eq!(run.store.set_trainable("norm.weight", false), 1);
        assert_eq!(run.store.set_trainable("lstm.bias_hh_l0", false), 1);
    }
    let slots = run.store.trainable_slots().unwrap();
    for step in 0..STEPS {
        let cx = run.store.train();
        let loss = run.loss(&run.batches[step % 4], &run.targets[step % 4], &cx);
        let mut grads = scaler.scale(&loss).grad(&slots).unwrap().unscale();
        if name.starts_with("mlp") {
            grads = grads.clip_global_norm(0.5);
        }
        // The handle's loss is f32; here f64 is read as it is.
        losses.push(loss.to_f64_vec().unwrap()[0]);
        let done = optimizer.step(cx, grads).unwrap();
        assert!(done.outcome().unwrap().is_applied());
        norms.push(done.norm().unwrap() as f64);
    }
    let cx = run.store.eval();
    let y = (run.model)(&run.batches[0], &cx).to_f64_vec().unwrap();
    let want = |k: &str| array(&case["outputs"][k]).1;
    near(
        &format!("{name} {policy}: loss"),
        &losses,
        &want("losses"),
        tolerance,
    );
    near(
        &format!("{name} {policy}: eval"),
        &y,
        &want("eval"),
        20.0 * tolerance,
    );
    if name.starts_with("mlp") {
        near(
            &format!("{name} {policy}: norm"),
            &norms,
            &want("norms"),
            100.0 * tolerance.max(1e-8),
        );
    }
}

const NAMES: [&str; 3] = [
    "mlp_adamw_cosine_clip",
    "conv_sgd_momentum",
    "text_tied_frozen_smoothed",
];

#[test]
fn thirty_steps_in_f64() {
    for name in NAMES {
        // Learning rate, clipping and Adam's coefficients are device scalars in f32.
        follow(name, Policy::float64(), LossScale::None, 5e-8);
    }
}

#[test]
fn thirty_steps_in_f32() {
    for name in NAMES {
        follow(name, Policy::float32(), LossScale::None, 1e-5);
        follow(name, Policy::float32(), LossScale::dynamic(), 1e-5);
    }
}

#[test]
fn thirty_steps_in_half_precision_stay_close() {
    for name in NAMES {
        follow(name, Policy::mixed_float16(), LossScale::dynamic(), 1e-2);
        follow(name, Policy::mixed_bfloat16(), LossScale::None, 6e-2);
    }
}

#[test]
fn two_micro_batches_train_like_one_batch() {
    let device = bimetal_cpu::cpu();
    let case = case("torch_train.json", NAMES[0]);
    let run = Run::new(&case, Policy::float32(), &device);
    let scaler = LossScaler::new(LossScale::dynamic(), &device).unwrap();
    let mut optimizer = optimizer(NAMES[0]);
    let slots = run.store.trainable_slots().unwrap();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (x, y) = (&run.batches[step % 4][0], &run.targets[step % 4]);
        let mut window = Accumulator::new();
        for part in 0..2 {
            let cx = window.context(run.store.train());
            let batch = vec![x.narrow(0, part * 3, 3)];
            let loss = run.loss(&batch, &y.narrow(0, part * 3, 3), &cx);
            let grads = scaler.scale(&loss).grad(&slots).unwrap();
            window.add(cx, grads).unwrap();
        }
        let (cx, grads) = window.finish(run.store.train()).unwrap();
        let grads = grads.unscale().clip_global_norm(0.5);
        let done = optimizer.step(cx, grads).unwrap();
        losses.push(done.loss().unwrap() as f64);
    }
    near(
        "accumulated loss",
        &losses,
        &array(&case["outputs"]["losses"]).1,
        1e-5,
    );
}

#[test]
fn a_skipped_step_of_a_whole_model_leaves_every_bit() {
    let device = bimetal_cpu::cpu();
    let case = case("torch_train.json", NAMES[1]);
    for kind in ["sgd", "adamw"] {
        let run = Run::new(&case, Policy::mixed_float16(), &device);
        let scaler = LossScaler::new(LossScale::dynamic(), &device).unwrap();
        let mut optimizer: Box<dyn Optimizer> = match kind {
            "sgd" => Box::new(Sgd::new(0.05).momentum(0.9)),
            _ => Box::new(AdamW::new(1e-2).weight_decay(0.1)),
        };
        let slots = run.store.trainable_slots().unwrap();
        assert!(slots.iter().all(|s| s.dtype() == DType::F32));
        let mut step = |factor: f64| {
            let cx = run.store.train();
            let loss = run.loss(&vec![&run.batches[0][0] * factor], &run.targets[0], &cx);
            assert_eq!(loss.dtype(), DType::F32);
            let grads = scaler.scale(&loss).grad(&slots).unwrap();
            assert!(grads.raw().iter().all(|(_, g)| g.dtype() == DType::F32));
            let done = optimizer.step(cx, grads.unscale()).unwrap();
            let bits = |s: Vec<_>| -> Vec<(String, Vec<u8>)> {
                let s: Vec<bimetal_tensor::Slot> = s;
                s.iter()
                    .map(|s| (s.name().to_string(), s.to_bytes().unwrap()))
                    .collect()
            };
            let mut all = bits(run.store.state().unwrap());
            all.extend(bits(optimizer.state()));
            (
                done.outcome().unwrap().is_applied(),
                all,
                scaler.current().unwrap(),
            )
        };
        let (applied, first, scale) = step(1.0);
        assert!(applied && scale == 32768.0);
        for (bad, want) in [(f64::INFINITY, 16384.0), (f64::NAN, 8192.0)] {
            let (applied, after, scale) = step(bad);
            assert!(!applied);
            assert_eq!(scale, want);
            for (a, b) in first.iter().zip(&after) {
                assert_eq!(a, b, "{kind}");
            }
        }
        let (applied, after, scale) = step(1.0);
        assert!(applied && scale == 8192.0);
        let moved = first.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert!(moved > slots.len(), "{moved}");
    }
}
