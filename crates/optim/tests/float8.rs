//! Training with 8-bit products: what the histories hold, when they move, and that they are part of the step and of what is saved.
mod common;
use bimetal_autodiff::checkpoint;
use bimetal_layers::{
    Ctx, Embedding, Layer, LayerNorm, Linear, MultiHeadAttention, ParamStore, mse,
};
use bimetal_optim::{Accumulator, AdamW, Optimizer, Sgd};
use bimetal_precision::{
    AmaxOf, F8Recipe, F8Scaling, Grads, LossScale, LossScaler, find_non_finite,
};
use bimetal_tensor::{DType, Device, Slot, Tensor};
use common::*;

const HISTORY: usize = 4;

fn delayed() -> F8Recipe {
    F8Recipe {
        scaling: F8Scaling::Delayed {
            history: HISTORY,
            amax: AmaxOf::History,
        },
        margin: 0,
    }
}

fn history(store: &ParamStore, path: &str) -> Vec<f64> {
    values(&slot(store, &format!("f8/{path}")))
}

fn filled(shape: &[usize], from: f32, device: &Device) -> Tensor {
    let count: usize = shape.iter().product();
    let data: Vec<f32> = (0..count)
        .map(|i| ((i as f32 * 0.7 + from) * 1.3).sin())
        .collect();
    Tensor::from_slice(&data, shape, device)
}

/// One layer, whose input and gradient the test chooses.
struct One {
    store: ParamStore,
    layer: Linear,
    scaler: LossScaler,
    optimizer: Sgd,
}

impl One {
    fn new() -> One {
        One::on(&bimetal_cpu::cpu())
    }

    fn on(device: &Device) -> One {
        let store = ParamStore::new(device, "mixed_float8").f8_recipe(delayed());
        let layer = Linear::new(&store.root().at("layer"), 3, 2);
        store.check().unwrap();
        One {
            scaler: scaler(LossScale::None, device),
            store,
            layer,
            optimizer: Sgd::new(0.0),
        }
    }

    /// A loss whose gradient for the layer's result is `g` everywhere.
    fn loss(&self, x: f32, g: f32, cx: &Ctx) -> Tensor {
        let x = Tensor::full(&[2, 3], f64::from(x), DType::F32, self.store.device());
        let g = Tensor::full(&[2, 2], f64::from(g), DType::BF16, self.store.device());
        (self.layer.forward(&x, cx) * g).cast(DType::F32).sum_all()
    }

    fn step(&mut self, loss: impl FnOnce(&One, &Ctx) -> Tensor) {
        let cx = self.store.train();
        let loss = loss(self, &cx);
        let slots = self.store.trainable_slots().unwrap();
        let grads = self.scaler.scale(&loss).grad(&slots).unwrap();
        let _ = self.optimizer.step(cx, grads.unscale()).unwrap();
    }
}

#[test]
fn histories_hold_the_largest_magnitudes_newest_first() {
    let mut one = One::new();
    let w = values(one.layer.weight().slot().unwrap());
    let w = w.iter().fold(0f64, |m, x| m.max(x.abs()));
    for t in 1..=5 {
        let t = t as f32;
        one.step(|one, cx| one.loss(-t, t * 8.0, cx));
    }
    assert_eq!(history(&one.store, "layer.x"), [5.0, 4.0, 3.0, 2.0]);
    assert_eq!(history(&one.store, "layer.weight"), [w; 4]);
    assert_eq!(history(&one.store, "layer.grad"), [40.0, 32.0, 24.0, 16.0]);
    // Evaluation looks and leaves no trace.
    let y = one.loss(1e3, 1.0, &one.store.eval());
    assert!(y.item().unwrap().is_finite());
    assert_eq!(history(&one.store, "layer.x"), [5.0, 4.0, 3.0, 2.0]);
}

#[test]
fn a_layer_used_twice_counts_once_with_its_largest() {
    let mut one = One::new();
    one.step(|one, cx| one.loss(1.0, 2.0, cx) + one.loss(7.0, 1.0, cx));
    one.step(|one, cx| one.loss(3.0, 1.0, cx) + one.loss(2.0, 4.0, cx));
    assert_eq!(history(&one.store, "layer.x"), [3.0, 7.0, 0.0, 0.0]);
    assert_eq!(history(&one.store, "layer.grad"), [4.0, 2.0, 0.0, 0.0]);
}

#[test]
fn a_skipped_step_leaves_no_trace() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut one = One::new();
        one.step(|one, cx| one.loss(1.0, 2.0, cx));
        let before = (
            history(&one.store, "layer.x"),
            history(&one.store, "layer.grad"),
        );
        one.step(|one, cx| one.loss(5.0, bad, cx));
        one.step(|one, cx| one.loss(bad, 9.0, cx));
        let after = (
            history(&one.store, "layer.x"),
            history(&one.store, "layer.grad"),
        );
        assert_eq!(before, after);
        assert_eq!(applied(&one.store), 1);
        one.step(|one, cx| one.loss(3.0, 4.0, cx));
        assert_eq!(history(&one.store, "layer.x"), [3.0, 1.0, 0.0, 0.0]);
        assert_eq!(history(&one.store, "layer.grad"), [4.0, 2.0, 0.0, 0.0]);
    }
}

#[test]
fn a_window_counts_once_with_the_largest_of_its_batches() {
    let mut one = One::new();
    one.step(|one, cx| one.loss(2.0, 2.0, cx));
    for window in [[3.0f32, 9.0, 5.0], [4.0, 1.0, 2.0]] {
        let mut sum = Accumulator::new();
        for x in window {
            let cx = sum.context(one.store.train());
            let loss = one.loss(x, 10.0 - x, &cx);
            let slots = one.store.trainable_slots().unwrap();
            let grads = one.scaler.scale(&loss).grad(&slots).unwrap();
            sum.add(cx, grads).unwrap();
        }
        let (cx, grads) = sum.finish(one.store.train()).unwrap();
        let _ = one.optimizer.step(cx, grads.unscale()).unwrap();
    }
    assert_eq!(history(&one.store, "layer.x"), [4.0, 9.0, 2.0, 0.0]);
    assert_eq!(history(&one.store, "layer.grad"), [9.0, 7.0, 2.0, 0.0]);
}

/// A small transformer block.
struct Block {
    store: ParamStore,
    norm: LayerNorm,
    attention: MultiHeadAttention,
    up: Linear,
    down: Linear,
    scaler: LossScaler,
    optimizer: AdamW,
}

impl Block {
    fn new(policy: &str, recipe: F8Recipe) -> Block {
        let device = bimetal_cpu::cpu();
        let store = ParamStore::new(&device, policy).seed(3).f8_recipe(recipe);
        let root = store.root();
        let mut block = Block {
            norm: LayerNorm::new(&root.at("norm"), 8),
            attention: MultiHeadAttention::new(&root.at("attention"), 8, 2),
            up: Linear::new(&root.at("up"), 8, 16),
            down: Linear::new(&root.at("down"), 16, 8),
            scaler: scaler(LossScale::None, &device),
            optimizer: AdamW::new(3e-3),
            store,
        };
        let slots = block.store.trainable_slots().unwrap();
        block.optimizer.init(&slots).unwrap();
        block
    }

    fn forward(&self, x: &Tensor, cx: &Ctx, again: bool) -> Tensor {
        let body = |x: &Tensor| {
            let x = x + self.attention.forward(&self.norm.forward(x, cx), cx);
            &x + self.down.forward(&self.up.forward(&x, cx).gelu(), cx)
        };
        match again {
            true => checkpoint(|t| body(&t[0]), &[x]),
            false => body(x),
        }
    }

    fn train(&mut self, steps: std::ops::Range<usize>, again: bool) -> Vec<f32> {
        let device = self.store.device().clone();
        let run = |t: usize| {
            let x = filled(&[2, 5, 8], t as f32 * 0.3, &device);
            let target = filled(&[2, 5, 8], 1.0 + t as f32 * 0.3, &device);
            let cx = self.store.train();
            let y = self.forward(&x, &cx, again);
            let loss = mse(&y.cast(DType::F32), &target);
            let slots = self.store.trainable_slots().unwrap();
            let grads = self.scaler.scale(&loss).grad(&slots).unwrap();
            let step = self.optimizer.step(cx, grads.unscale()).unwrap();
            step.loss().unwrap()
        };
        steps.map(run).collect()
    }

    fn state(&self) -> Vec<Slot> {
        let mut all = self.store.state().unwrap();
        all.extend(self.optimizer.state());
        all
    }

    fn bits(&self) -> Vec<(String, Vec<u8>)> {
        let pair = |s: &Slot| (s.name().to_string(), s.to_bytes().unwrap());
        self.state().iter().map(pair).collect()
    }
}

#[test]
fn the_histories_are_those_of_the_products() {
    let block = Block::new("mixed_float8", delayed());
    let mut names: Vec<String> = block.bits().into_iter().map(|(name, _)| name).collect();
    names.retain(|n| n.starts_with("f8/"));
    names.sort();
    let layers = ["attention.in_proj", "attention.out_proj", "down", "up"];
    let all: Vec<String> = layers
        .iter()
        .flat_map(|l| ["grad", "weight", "x"].map(|of| format!("f8/{l}.{of}")))
        .collect();
    assert_eq!(names, all);
    // They are no part of the model: a model without them takes its weights.
    assert!(block.store.buffers().is_empty());
    let plain = Block::new("mixed_bfloat16", delayed());
    assert_eq!(plain.store.params().len(), block.store.params().len());
    assert!(
        Block::new("mixed_float8", F8Recipe::current())
            .bits()
            .iter()
            .all(|(name, _)| !name.starts_with("f8/"))
    );
}

#[test]
fn recomputation_changes_no_bit_and_moves_histories_once() {
    for recipe in [delayed(), F8Recipe::current()] {
        let mut kept = Block::new("mixed_float8", recipe);
        let mut again = Block::new("mixed_float8", recipe);
        assert_eq!(kept.train(0..3, false), again.train(0..3, true));
        assert_eq!(kept.bits(), again.bits());
        if recipe == delayed() {
            let h = history(&again.store, "up.grad");
            assert!(h[2] > 0.0 && h[3] == 0.0, "{h:?}");
        }
    }
}

#[test]
fn a_resumed_training_goes_on_with_the_same_bits() {
    let mut straight = Block::new("mixed_float8", delayed());
    let all = straight.train(0..8, false);
    let mut first = Block::new("mixed_float8", delayed());
    first.train(0..3, false);
    let mut second = Block::new("mixed_float8", delayed());
    for (slot, (name, bytes)) in second.state().iter().zip(first.bits()) {
        assert_eq!(slot.name(), name);
        let t = Tensor::from_bytes(&bytes, &slot.shape(), slot.dtype(), second.store.device());
        slot.set(&t).unwrap();
    }
    assert_eq!(second.train(3..8, false), all[3..]);
    assert_eq!(second.bits(), straight.bits());
}

#[test]
fn it_learns_what_float32_learns() {
    let end = |policy: &str, recipe| {
        let losses = Block::new(policy, recipe).train(0..60, false);
        let mean = |l: &[f32]| l.iter().sum::<f32>() / l.len() as f32;
        (mean(&losses[..5]), mean(&losses[50..]))
    };
    let (start, wide) = end("float32", delayed());
    assert!(wide < 0.5 * start, "{start} to {wide}");
    for recipe in [F8Recipe::default(), delayed(), F8Recipe::current()] {
        let (_, narrow) = end("mixed_float8", recipe);
        assert!(narrow < 1.1 * wide + 0.01, "{narrow} instead of {wide}");
    }
}

#[test]
fn other_layers_compute_in_the_output_dtype() {
    let device = bimetal_cpu::cpu();
    for (policy, dtype) in [
        ("mixed_float8", DType::BF16),
        ("p=f32,c=f8e4m3,o=f16", DType::F16),
    ] {
        let store = ParamStore::new(&device, policy);
        let root = store.root();
        let tokens = Embedding::new(&root.at("tokens"), 4, 8);
        let head = tokens.projection(&root.at("head"));
        let norm = LayerNorm::new(&root.at("norm"), 8);
        assert_eq!(store.computes_in_f16(), dtype == DType::F16);
        let x = tokens.forward(
            &Tensor::from_slice(&[1i32, 2], &[2], &device),
            &store.eval(),
        );
        assert_eq!(x.dtype(), dtype);
        let y = head.forward(&norm.forward(&x, &store.eval()), &store.eval());
        assert_eq!(y.dtype(), dtype);
        // No layer of these multiplies in 8 bits.
        assert!(
            store
                .state()
                .unwrap()
                .iter()
                .all(|s| !s.name().starts_with("f8/"))
        );
    }
}

#[test]
fn a_late_or_impossible_recipe_is_a_mistake() {
    let device = bimetal_cpu::cpu();
    let store = ParamStore::new(&device, "mixed_float8");
    let _ = Linear::new(&store.root().at("a"), 2, 2);
    let message = store.f8_recipe(delayed()).check().unwrap_err().to_string();
    assert!(
        message.contains("right after `ParamStore::new`"),
        "{message}"
    );
    let wrong = F8Recipe {
        margin: 99,
        ..delayed()
    };
    let store = ParamStore::new(&device, "mixed_float8").f8_recipe(wrong);
    assert!(store.check().unwrap_err().to_string().contains("margin"));
}

#[test]
fn an_overflow_is_blamed_on_the_product_it_came_from() {
    let device = bimetal_cpu::cpu();
    let store = ParamStore::new(&device, "p=f32,c=f8e4m3,o=f16");
    let layer = Linear::new(&store.root().at("layer"), 3, 2);
    let large = Tensor::full(&[2, 3], 6e4, DType::F32, &device);
    layer.weight().set(&large).unwrap();
    // With a scale of 1 in the first step, 448 is the most that either operand holds.
    let x = Tensor::full(&[2, 3], 400.0, DType::F32, &device);
    let y = layer.forward(&x, &store.train());
    let found = find_non_finite(&[&y]).unwrap().unwrap();
    assert_eq!((found.op, found.path()), ("f8_linear", "layer"));
    assert_eq!(found.plus_inf, 4);
}

#[test]
fn replicas_find_the_scale_of_the_largest_gradient_of_all() {
    let device = bimetal_cpu::cpu();
    let mut replicas = [One::on(&device), One::on(&device)];
    let mut grads = Vec::new();
    let mut contexts = Vec::new();
    for (one, g) in replicas.iter().zip([3.0, 8.0]) {
        let cx = one.store.train();
        let loss = one.loss(1.0, g, &cx);
        let slots = one.store.trainable_slots().unwrap();
        grads.push(one.scaler.scale(&loss).grad(&slots).unwrap());
        contexts.push(cx);
    }
    let reduced = Grads::all_reduce(&grads).unwrap();
    for ((one, cx), grads) in replicas.iter_mut().zip(contexts).zip(reduced) {
        let _ = one.optimizer.step(cx, grads.unscale()).unwrap();
        assert_eq!(history(&one.store, "layer.grad"), [8.0, 0.0, 0.0, 0.0]);
    }
}
