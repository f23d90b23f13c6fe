//! Gradients over several micro-batches.
mod common;
use bimetal_layers::{Ctx, ParamStore};
use bimetal_optim::{Accumulator, Adam, Optimizer, Sgd, StepHandle};
use bimetal_precision::{LossScale, LossScaler, StepOutcome};
use bimetal_tensor::{DType, Device, Result, Slot, Tensor};
use common::*;

/// The mean over a batch of (w x - y)^2, for a store with `w`.
fn loss(store: &ParamStore, x: &[f32], y: &[f32]) -> Tensor {
    let device = store.device();
    let e = slot(store, "w").read() * vector(x, device) - vector(y, device);
    e.square().mean_all()
}

fn window(
    store: &ParamStore,
    scaler: &LossScaler,
    optimizer: &mut dyn Optimizer,
    micro: &[(&[f32], &[f32])],
    clip: f64,
) -> StepHandle {
    let mut window = Accumulator::new();
    for (x, y) in micro {
        let cx = window.context(store.train());
        let slots = store.trainable_slots().unwrap();
        let grads = scaler.scale(&loss(store, x, y)).grad(&slots).unwrap();
        window.add(cx, grads).unwrap();
    }
    assert_eq!(window.len() as usize, micro.len());
    let (cx, grads) = window.finish(store.train()).unwrap();
    assert!(window.is_empty());
    optimizer
        .step(cx, grads.unscale().clip_global_norm(clip))
        .unwrap()
}

const X: [f32; 6] = [1.0, -2.0, 0.5, 3.0, 1.5, -1.0];
const Y: [f32; 6] = [0.5, 1.0, -2.0, 4.0, 0.0, 2.0];

/// By hand: gradient of the mean over all of (w x - y)^2 at w.
fn gradient(w: f64) -> f64 {
    let each = X
        .iter()
        .zip(Y)
        .map(|(&x, y)| 2.0 * (w * x as f64 - y as f64) * x as f64);
    each.sum::<f64>() / 6.0
}

// accelerate#641: clipping and accumulation do not compose.
#[test]
fn pitfall_10_a_window_equals_one_large_batch_clipped_or_not() {
    let device = bimetal_cpu::cpu();
    for clip in [1e3, 0.5] {
        for parts in [1, 2, 3, 6] {
            let store = store(&device, &[("w", &[2.0])]);
            let scaler = scaler(LossScale::dynamic(), &device);
            let mut optimizer = Sgd::new(0.1);
            let n = 6 / parts;
            let micro: Vec<_> = X.chunks(n).zip(Y.chunks(n)).collect();
            let done = window(&store, &scaler, &mut optimizer, &micro, clip);
            let g = gradient(2.0);
            assert!(g.abs() > 0.5);
            close(&[done.norm().unwrap() as f64], &[g.abs()], 1e-6);
            let want = 2.0 - 0.1 * g.signum() * g.abs().min(clip);
            close(&values(&slot(&store, "w")), &[want], 1e-6);
            let mean = X
                .iter()
                .zip(Y)
                .map(|(x, y)| (2.0 * x - y).powi(2))
                .sum::<f32>()
                / 6.0;
            close(&[done.loss().unwrap() as f64], &[mean as f64], 1e-6);
            assert_eq!((optimizer.attempted(), applied(&store)), (1, 1));
        }
    }
}

#[test]
fn pitfall_10_one_bad_micro_batch_drops_the_window_and_the_scale_moves_once() {
    let device = bimetal_cpu::cpu();
    for bad in 0..3 {
        let store = store(&device, &[("w", &[2.0])]);
        let scaler = scaler(LossScale::dynamic(), &device);
        let mut optimizer = Adam::new(0.1);
        let mut x: Vec<[f32; 2]> = X.chunks(2).map(|c| [c[0], c[1]]).collect();
        x[bad][1] = f32::INFINITY;
        let micro: Vec<(&[f32], &[f32])> = x
            .iter()
            .zip(Y.chunks(2))
            .map(|(x, y)| (&x[..], y))
            .collect();
        let done = window(&store, &scaler, &mut optimizer, &micro, 1.0);
        let outcome = done.outcome().unwrap();
        assert!(matches!(outcome, StepOutcome::Skipped { culprit: Some(c) } if c.parameter == "w"));
        assert_eq!(values(&slot(&store, "w")), [2.0]);
        assert_eq!(scaler.current().unwrap(), 16384.0);
        let moments: Vec<f64> = optimizer.state()[1..].iter().flat_map(values).collect();
        assert_eq!(moments, [0.0, 0.0]);
        assert_eq!(applied(&store), 0);
    }
}

/// Adds micro-batches whose statistics go on from each other: mean = mean / 2 + x.
fn statistics(
    store: &ParamStore,
    running: &Slot,
    scaler: &LossScaler,
    xs: &[f32],
) -> Result<StepOutcome> {
    let mut window = Accumulator::new();
    for x in xs {
        let cx: Ctx = window.context(store.train());
        let x = vector(&[*x], store.device());
        cx.update(running, cx.state(running) * 0.5 + &x);
        let loss = (slot(store, "w").read() * x).sum_all();
        window.add(cx, scaler.scale(&loss).grad(&[slot(store, "w")])?)?;
    }
    let (cx, grads) = window.finish(store.train())?;
    Sgd::new(0.1).step(cx, grads.unscale())?.outcome()
}

#[test]
fn statistics_go_through_the_window_and_are_kept_or_dropped_with_it() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[1.0])]);
    let running = store.root().buffer("mean", &[1], 8.0);
    let running = running.slot().unwrap().clone();
    let scaler = scaler(LossScale::dynamic(), &device);
    let nan = f32::NAN;
    assert!(
        !statistics(&store, &running, &scaler, &[1.0, nan, 3.0])
            .unwrap()
            .is_applied()
    );
    assert_eq!(values(&running), [8.0]);
    assert!(
        statistics(&store, &running, &scaler, &[1.0, 2.0, 3.0])
            .unwrap()
            .is_applied()
    );
    // ((8 / 2 + 1) / 2 + 2) / 2 + 3.
    assert_eq!(values(&running), [5.25]);
}

/// The sum over gradients as a balanced tree in f32, and one after the other.
fn sums(g: &[f32]) -> (f32, f32) {
    fn tree(g: &[f32]) -> f32 {
        match g.len() {
            1 => g[0],
            n => tree(&g[..n / 2]) + tree(&g[n / 2..]),
        }
    }
    (tree(g), g.iter().fold(0.0, |a, b| a + b))
}

#[test]
fn sums_are_a_balanced_tree() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[0.0])]);
    let scaler = scaler(LossScale::None, &device);
    // 1 followed by numbers so small that one after the other they vanish.
    let g: Vec<f32> = (0..16).map(|i| if i == 0 { 1.0 } else { 5e-8 }).collect();
    let (tree, chain) = sums(&g);
    assert_ne!(tree, chain);
    let mut window = Accumulator::new();
    for g in &g {
        let cx = window.context(store.train());
        let zero = Tensor::zeros(&[], DType::F32, &device);
        let pairs = vec![(slot(&store, "w"), Some(vector(&[*g], &device)))];
        window
            .add(cx, scaler.scale(&zero).with_gradients(pairs).unwrap())
            .unwrap();
    }
    let (_, grads) = window.finish(store.train()).unwrap();
    assert_eq!(values_of(&grads.raw()[0].1), [tree]);
}

fn values_of(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().unwrap()
}

fn live(device: &Device) -> usize {
    device.sync().unwrap();
    device.memory().live
}

#[test]
fn a_window_keeps_a_logarithm_of_its_sums_and_compiles_few_plans() {
    let device = bimetal_cpu::cpu();
    let n = 100_000;
    let store = ParamStore::new(&device, bimetal_precision::Policy::float32());
    let ones = Tensor::ones(&[n], DType::F32, &device);
    let _ = store.root().param_from("w", &ones);
    drop(ones);
    let scaler = scaler(LossScale::dynamic(), &device);
    let start = live(&device);
    let mut most = 0;
    let mut plans = 0;
    for round in 0..2 {
        let mut window = Accumulator::new();
        for i in 0..16 {
            let cx = window.context(store.train());
            let x = Tensor::from_slice(&[i as f32 + 3.0], &[1], &device);
            let loss = (slot(&store, "w").read() * x).sum_all();
            let slots = store.trainable_slots().unwrap();
            window
                .add(cx, scaler.scale(&loss).grad(&slots).unwrap())
                .unwrap();
            most = most.max(live(&device) - start);
        }
        if round == 0 {
            plans = device.plans_compiled();
        }
    }
    assert_eq!(device.plans_compiled(), plans);
    // Five levels at most, each of n f32, and little else.
    assert!(most < 5 * 4 * n + 4 * n / 2, "{most}");
    assert!(live(&device) <= start + 4096);
}

#[test]
fn mistakes_are_told_and_leave_the_window_as_it_was() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[2.0]), ("v", &[1.0])]);
    let (w, v) = (slot(&store, "w"), slot(&store, "v"));
    let scaler = scaler(LossScale::dynamic(), &device);
    let mut window = Accumulator::new();
    let e = window.finish(store.train()).err().unwrap().to_string();
    assert!(e.contains("empty"), "{e}");
    let grads = |s: &LossScaler, of: &Slot| {
        let loss = (w.read() * v.read()).sum_all();
        s.scale(&loss).grad(&[of]).unwrap()
    };
    window
        .add(window.context(store.train()), grads(&scaler, &w))
        .unwrap();
    let e = window.add(store.train(), grads(&scaler, &w)).unwrap_err();
    assert!(e.to_string().contains("micro-batch 0"), "{e}");
    let e = window.add(window.context(store.train()), grads(&scaler, &v));
    assert!(e.unwrap_err().to_string().contains("same parameters"));
    let other = common::scaler(LossScale::dynamic(), &device);
    let e = window.add(window.context(store.train()), grads(&other, &w));
    assert!(e.unwrap_err().to_string().contains("same scaler"));
    window
        .add(window.context(store.train()), grads(&scaler, &w))
        .unwrap();
    let (_, grads) = window.finish(store.train()).unwrap();
    assert_eq!(grads.unscale().get(&w).unwrap().item().unwrap(), 1.0);
}
