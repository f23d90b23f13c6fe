//! Gradients: clipping, accumulation, derivatives.
use super::support::*;
use crate::gradcheck;
use bimetal::autodiff::grad;
use bimetal::layers::ParamStore;
use bimetal::optim::{Accumulator, Adam, Optimizer, Sgd, StepHandle};
use bimetal::precision::{LossScale, LossScaler, Policy, StepOutcome};
use bimetal::tensor::graph::CustomOp;
use bimetal::tensor::plan::Meta;
use bimetal::tensor::{ErrorKind, Slot};
use bimetal::{DType, Device, Tensor};
use std::sync::Arc;

// Lightning#9599, pytorch/examples#1196
pub fn pitfall_09_clipped_gradients_are_those_of_the_unscaled_run(device: &Device) {
    // The gradient is (6, 8), its norm 10.
    for (max, want) in [(1.0, [0.6, 0.8]), (5.0, [3.0, 4.0]), (100.0, [6.0, 8.0])] {
        for dtype in [DType::F32, DType::F16] {
            for scale in [
                LossScale::None,
                LossScale::Static(3000.0),
                LossScale::Static(4096.0),
            ] {
                let store = store(device, Policy::float32(), &[("w", &[3.0, 4.0])]);
                let scaler = LossScaler::new(scale, device).unwrap();
                let w = slot(&store, "w");
                let loss = w.read().cast(dtype).square().sum_all();
                let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
                let grads = grads.clip_global_norm(max);
                let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-3 };
                close(&list(&grads.get(&w).unwrap()), &want, tolerance);
                let norms = [grads.norm_before_clipping(), grads.norm()];
                let norms = norms.map(|n| n.item().unwrap());
                close(&norms, &[10.0, max.min(10.0)], tolerance);
                let done = Sgd::new(1.0).step(store.train(), grads).unwrap();
                close(&[done.norm().unwrap() as f64], &[10.0], tolerance);
                close(&values(&w), &[3.0 - want[0], 4.0 - want[1]], tolerance);
            }
        }
    }
}

const X: [f32; 6] = [1.0, -2.0, 0.5, 3.0, 1.5, -1.0];
const Y: [f32; 6] = [0.5, 1.0, -2.0, 4.0, 0.0, 2.0];

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
        let w = slot(store, "w");
        let e = w.read() * vector(x, store.device()) - vector(y, store.device());
        let grads = scaler.scale(&e.square().mean_all()).grad(&[w]).unwrap();
        window.add(cx, grads).unwrap();
    }
    let (cx, grads) = window.finish(store.train()).unwrap();
    let grads = grads.unscale().clip_global_norm(clip);
    optimizer.step(cx, grads).unwrap()
}

// accelerate#641
pub fn pitfall_10_clipping_and_accumulation_compose(device: &Device) {
    let pairs = || X.iter().zip(Y).map(|(&x, y)| (x as f64, y as f64));
    let g = pairs().map(|(x, y)| 2.0 * (2.0 * x - y) * x).sum::<f64>() / 6.0;
    let mean = pairs().map(|(x, y)| (2.0 * x - y).powi(2)).sum::<f64>() / 6.0;
    for clip in [1e3, 0.5] {
        for parts in [1, 2, 3, 6] {
            let store = store(device, Policy::float32(), &[("w", &[2.0])]);
            let mut optimizer = Sgd::new(0.1);
            let n = 6 / parts;
            let micro: Vec<_> = X.chunks(n).zip(Y.chunks(n)).collect();
            let done = window(&store, &dynamic(device), &mut optimizer, &micro, clip);
            assert!(g.abs() > 0.5);
            let seen = [done.norm().unwrap(), done.loss().unwrap()].map(f64::from);
            close(&seen, &[g.abs(), mean], 1e-6);
            let want = 2.0 - 0.1 * g.signum() * g.abs().min(clip);
            close(&values(&slot(&store, "w")), &[want], 1e-6);
            assert_eq!((optimizer.attempted(), applied(&store)), (1, 1));
        }
    }
}

pub fn pitfall_10_one_bad_micro_batch_drops_the_window(device: &Device) {
    for bad in 0..3 {
        let store = store(device, Policy::float32(), &[("w", &[2.0])]);
        let scaler = dynamic(device);
        let mut optimizer = Adam::new(0.1);
        let mut x: Vec<[f32; 2]> = X.chunks(2).map(|c| [c[0], c[1]]).collect();
        x[bad][1] = f32::INFINITY;
        let micro: Vec<_> = x.iter().map(|x| &x[..]).zip(Y.chunks(2)).collect();
        let done = window(&store, &scaler, &mut optimizer, &micro, 1.0);
        let outcome = done.outcome().unwrap();
        assert!(matches!(outcome, StepOutcome::Skipped { culprit: Some(c) } if c.parameter == "w"));
        assert_eq!(values(&slot(&store, "w")), [2.0]);
        // Halved once, by the window.
        assert_eq!(scaler.current().unwrap(), 16384.0);
        let moments: Vec<f64> = optimizer.state()[1..].iter().flat_map(values).collect();
        assert_eq!(moments, [0.0, 0.0]);
        assert_eq!(applied(&store), 0);
    }
}

// apex#215, #654, #873
pub fn pitfall_11_a_gradient_penalty_does_not_see_the_scale(device: &Device) {
    // D(x) = sum(w x^2): dD/dx = 2 w x; the penalty sum((2 w x)^2) has the gradient 8 w x^2 for w.
    let store = store(device, Policy::float32(), &[("w", &[0.5, -1.5])]);
    let w = slot(&store, "w");
    for dtype in [DType::F32, DType::F16] {
        let scaler = LossScaler::new(LossScale::Static(256.0), device).unwrap();
        let input = vector(&[0.25, 2.0], device);
        let d = (w.read().cast(dtype) * input.cast(dtype).square()).sum_all();
        let inner = scaler.inner_grad(&d, &[&input]).unwrap();
        assert_eq!(inner[0].dtype(), DType::F32);
        assert_eq!(list(&inner[0]), [0.25, -6.0]);
        let penalty = inner[0].square().sum_all();
        let grads = scaler.scale(&penalty).grad(&[&w]).unwrap().unscale();
        assert_eq!(grads.finite().item().unwrap(), 1.0);
        let want = [8.0 * 0.5 * 0.0625, 8.0 * -1.5 * 4.0];
        assert_eq!(list(&grads.get(&w).unwrap()), want);
    }
}

// bitsandbytes#945
pub fn pitfall_13_a_half_parameter_without_a_master_is_named(device: &Device) {
    let fine = Slot::new("fine", &vector(&[1.0], device), device).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let one = vector(&[1.0], device).cast(dtype);
        let half = Slot::new("decoder.7.mlp.weight", &one, device).unwrap();
        let loss = || (fine.read() * half.read().cast(DType::F32)).sum_all();
        for scale in [LossScale::dynamic(), LossScale::Static(2.0)] {
            let scaled = LossScaler::new(scale, device).unwrap().scale(&loss());
            let e = scaled.grad(&[&fine, &half]).unwrap_err().to_string();
            assert!(
                e.contains("`decoder.7.mlp.weight`") && e.contains("master"),
                "{e}"
            );
        }
        let plain = LossScaler::new(LossScale::None, device).unwrap();
        assert!(plain.scale(&loss()).grad(&[&fine, &half]).is_ok());
    }
}

/// A fused operation of which nobody knows the derivative.
struct Opaque;

impl CustomOp for Opaque {
    fn name(&self) -> &'static str {
        "opaque"
    }
    fn infer(&self, inputs: &[Meta]) -> bimetal::tensor::Result<Vec<Meta>> {
        Ok(vec![inputs[0]])
    }
    fn decompose(&self, _: &[Tensor]) -> Option<Vec<Tensor>> {
        None
    }
}

/// One that is known by its decomposition alone.
struct Cube;

impl CustomOp for Cube {
    fn name(&self) -> &'static str {
        "cube"
    }
    fn infer(&self, inputs: &[Meta]) -> bimetal::tensor::Result<Vec<Meta>> {
        Ok(vec![inputs[0]])
    }
    fn decompose(&self, x: &[Tensor]) -> Option<Vec<Tensor>> {
        Some(vec![&x[0] * &x[0] * &x[0]])
    }
}

// candle#3752
pub fn pitfall_15_no_derivative_is_an_error(device: &Device) {
    let x = vector(&[1.0, 2.0], device);
    let through = |y: Tensor| grad(&(y + &x).sum_all(), &[&x]);
    let e = through(Tensor::custom(Arc::new(Opaque), &[&x])).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::NoGradient { .. }), "{e}");
    assert!(e.to_string().contains("`opaque`"), "{e}");
    let e = grad(&x.cast(DType::I32).cast(DType::F32).sum_all(), &[&x]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::NoGradient { .. }), "{e}");
    let g = through(Tensor::custom(Arc::new(Cube), &[&x])).unwrap();
    assert_eq!(list(&g[0]), [4.0, 13.0]);
}

pub fn pitfall_15_every_operation_has_its_derivative(device: &Device) {
    gradcheck::run(device, 1, 1, false).assert_clean();
}
