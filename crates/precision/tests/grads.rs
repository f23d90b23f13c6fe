//! Gradients with a scale: what clipping, norms and gradient penalties see.
use bimetal_autodiff::grad;
use bimetal_precision::{Grads, LossScale, LossScaler, Unscaled};
use bimetal_tensor::{DType, Device, Slot, Tensor};
use half::f16;

const NORM_TOLERANCE: f64 = 1e-6;

fn slot(name: &str, data: &[f32], device: &Device) -> Slot {
    let t = Tensor::from_slice(data, &[data.len()], device);
    Slot::new(name, &t, device).unwrap()
}

fn close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        let bound = tolerance * y.abs().max(1e-30);
        assert!((x - y).abs() <= bound, "{a:?} is not {b:?}");
    }
}

/// Gradients that were computed elsewhere, scaled by the scaler's scale.
fn given(scaler: &LossScaler, grads: &[(&Slot, Tensor)]) -> Grads<Unscaled> {
    let loss = Tensor::zeros(&[], DType::F32, scaler.device());
    let pairs = grads
        .iter()
        .map(|(s, g)| ((*s).clone(), Some(g.clone())))
        .collect();
    scaler.scale(&loss).with_gradients(pairs).unwrap().unscale()
}

#[test]
fn gradients_are_those_of_the_loss_whatever_the_scale() {
    let device = bimetal_cpu::cpu();
    let w = slot("w", &[1.0, -2.0, 0.5], &device);
    // d/dw sum(w^3) = 3 w^2.
    for scale in [
        LossScale::None,
        LossScale::Static(1024.0),
        LossScale::dynamic(),
    ] {
        let scaler = LossScaler::new(scale, &device).unwrap();
        let loss = w.read().powi(3).sum_all();
        let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
        let g = grads.get(&w).unwrap().to_f64_vec().unwrap();
        assert_eq!(g, [3.0, 12.0, 0.75]);
        assert_eq!(grads.loss().item().unwrap(), 1.0 - 8.0 + 0.125);
        let norm = grads.norm().item().unwrap();
        close(&[norm], &[(9.0f64 + 144.0 + 0.5625).sqrt()], NORM_TOLERANCE);
    }
}

#[test]
fn f16_gradients_survive_by_their_scale() {
    let device = bimetal_cpu::cpu();
    // The gradient 2^-26 is 0 in f16; times 2^15 it is not.
    let w = slot("w", &[1.0], &device);
    let run = |scale: LossScale| {
        let scaler = LossScaler::new(scale, &device).unwrap();
        let x = Tensor::from_slice(&[f16::from_f32(0.5f32.powi(13))], &[1], &device);
        let half = w.read().cast(DType::F16) * &x * &x;
        let loss = half.cast(DType::F32).sum_all();
        let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
        grads.get(&w).unwrap().item().unwrap()
    };
    assert_eq!(run(LossScale::None), 0.0);
    assert_eq!(run(LossScale::dynamic()), 0.5f64.powi(26));
}

#[test]
fn tied_parameters_count_once_and_unused_ones_are_listed() {
    let device = bimetal_cpu::cpu();
    let (w, idle) = (slot("w", &[3.0], &device), slot("idle", &[1.0], &device));
    let scaler = LossScaler::new(LossScale::dynamic(), &device).unwrap();
    let loss = (w.read() * w.read()).sum_all();
    let grads = scaler.scale(&loss).grad(&[&w, &idle, &w]).unwrap();
    assert_eq!(grads.slots().map(Slot::name).collect::<Vec<_>>(), ["w"]);
    assert_eq!(grads.missing().len(), 1);
    assert_eq!(grads.missing()[0].name(), "idle");
    let g = grads.unscale();
    assert_eq!(g.get(&w).unwrap().item().unwrap(), 6.0);
    assert!(g.get(&idle).is_none());
}

#[test]
fn no_parameters_or_no_dependence_is_an_error() {
    let device = bimetal_cpu::cpu();
    let w = slot("w", &[3.0], &device);
    let scaler = LossScaler::new(LossScale::None, &device).unwrap();
    let loss = Tensor::from_slice(&[1.0f32], &[], &device);
    let e = scaler.scale(&loss).grad::<Slot>(&[]).unwrap_err();
    assert!(e.to_string().contains("frozen"), "{e}");
    let e = scaler.scale(&loss).grad(&[&w]).unwrap_err();
    assert!(e.to_string().contains("none of the parameters"), "{e}");
}

#[test]
fn the_first_gradient_that_is_not_finite_is_named() {
    let device = bimetal_cpu::cpu();
    let a = slot("a", &[1.0, 2.0], &device);
    let b = slot("b", &[0.0, 2.0], &device);
    let c = slot("c", &[0.0], &device);
    let scaler = LossScaler::new(LossScale::dynamic(), &device).unwrap();
    let loss = a.read().sum_all() + b.read().log().sum_all() + c.read().sqrt().sum_all();
    let grads = scaler.scale(&loss).grad(&[&a, &b, &c]).unwrap();
    assert_eq!(grads.finite().item().unwrap(), 0.0);
    assert_eq!(grads.first_bad().item().unwrap(), 1.0);
    // What is done with the gradients later does not change the verdict.
    let mapped = grads.unscale().map(|_, g| g.clamp(-1.0, 1.0));
    assert_eq!(mapped.finite().item().unwrap(), 0.0);
    assert_eq!(mapped.first_bad().item().unwrap(), 1.0);
}

// Lightning#9599, pytorch/examples#1196: clipping before unscaling clips by a norm that is off by the scale.
#[test]
fn pitfall_09_clipped_gradients_equal_those_of_the_f32_run() {
    let device = bimetal_cpu::cpu();
    let w = slot("w", &[3.0, 4.0], &device);
    // The gradient is (3, 4) * 2, its norm 10.
    for (max, want) in [(1.0, [0.6, 0.8]), (5.0, [3.0, 4.0]), (100.0, [6.0, 8.0])] {
        for scale in [
            LossScale::None,
            LossScale::dynamic(),
            LossScale::Static(3000.0),
        ] {
            let scaler = LossScaler::new(scale, &device).unwrap();
            let loss = w.read().square().sum_all();
            let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
            let grads = grads.clip_global_norm(max);
            let g = grads.get(&w).unwrap().to_f64_vec().unwrap();
            close(&g, &want, 1e-6);
            close(
                &[grads.norm_before_clipping().item().unwrap()],
                &[10.0],
                1e-6,
            );
            close(&[grads.norm().item().unwrap()], &[max.min(10.0)], 1e-6);
        }
    }
}

#[test]
fn clipping_by_value_and_custom_changes_see_unscaled_gradients() {
    let device = bimetal_cpu::cpu();
    let w = slot("w", &[3.0, -4.0, 0.25], &device);
    let scaler = LossScaler::new(LossScale::dynamic(), &device).unwrap();
    let loss = w.read().square().sum_all();
    let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
    let clipped = grads.clone().clip_value(1.0);
    assert_eq!(
        clipped.get(&w).unwrap().to_f64_vec().unwrap(),
        [1.0, -1.0, 0.5]
    );
    close(&[clipped.norm().item().unwrap()], &[1.5], NORM_TOLERANCE);
    let halved = grads.map(|s, g| {
        assert_eq!(s.name(), "w");
        g * 0.5
    });
    assert_eq!(
        halved.get(&w).unwrap().to_f64_vec().unwrap(),
        [3.0, -4.0, 0.25]
    );
}

#[test]
fn clip_limits_that_cannot_work_are_errors() {
    let device = bimetal_cpu::cpu();
    let w = slot("w", &[3.0], &device);
    let scaler = LossScaler::new(LossScale::dynamic(), &device).unwrap();
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let loss = w.read().square().sum_all();
        let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
        let e = grads.clone().clip_global_norm(bad).finite().item();
        assert!(e.unwrap_err().to_string().contains("max_norm"));
        let e = grads.clip_value(bad).finite().item();
        assert!(e.unwrap_err().to_string().contains("the limit is"));
    }
}

// apex#215, #654, #873: a gradient penalty under scaling.
#[test]
fn pitfall_11_a_gradient_penalty_is_that_of_the_unscaled_loss() {
    let device = bimetal_cpu::cpu();
    // D(x) = sum(w x^2): dD/dx = 2 w x; the penalty sum((2 w x)^2) has the gradient 8 w x^2 for w.
    let w = slot("w", &[0.5, -1.5], &device);
    let x = [0.25f32, 2.0];
    for dtype in [DType::F32, DType::F16] {
        let scaler = LossScaler::new(LossScale::Static(256.0), &device).unwrap();
        let input = Tensor::from_slice(&x, &[2], &device);
        let half = input.cast(dtype);
        let d = (w.read().cast(dtype) * half.square()).sum_all();
        let inner = scaler.inner_grad(&d, &[&input]).unwrap();
        assert_eq!(inner[0].dtype(), DType::F32);
        assert_eq!(inner[0].to_f64_vec().unwrap(), [0.25, -6.0]);
        let penalty = inner[0].square().sum_all();
        let grads = scaler.scale(&penalty).grad(&[&w]).unwrap().unscale();
        let g = grads.get(&w).unwrap().to_f64_vec().unwrap();
        assert_eq!(g, [8.0 * 0.5 * 0.0625, 8.0 * -1.5 * 4.0]);
        assert_eq!(grads.finite().item().unwrap(), 1.0);
        // A penalty on gradients that still carry the scale would be 256^2 times as large, and scaled once more.
        let scaled = grad(scaler.scale(&d).scaled(), &[&input]).unwrap();
        let naive = scaler.scale(&scaled[0].square().sum_all());
        let finite = naive.grad(&[&w]).unwrap().finite().item().unwrap();
        assert_eq!(finite == 0.0, dtype == DType::F16);
    }
}

// NeMo-Automodel#825, mxnet#11403: the norm of f16 gradients overflows.
#[test]
fn pitfall_12_norms_of_half_gradients_are_f32() {
    let device = bimetal_cpu::cpu();
    let n = 4096;
    let w = Slot::new("w", &Tensor::zeros(&[n], DType::F16, &device), &device).unwrap();
    // 300^2 is beyond f16; 4096 of them sum to 300^2 * 4096.
    let scaler = LossScaler::new(LossScale::None, &device).unwrap();
    for d in [DType::F16, DType::BF16] {
        let g = Tensor::full(&[n], 300.0, d, &device);
        let grads = given(&scaler, &[(&w, g)]);
        assert_eq!(grads.norm().dtype(), DType::F32);
        assert_eq!(grads.norm().item().unwrap(), 300.0 * 64.0);
        assert_eq!(grads.finite().item().unwrap(), 1.0);
        assert_eq!(grads.get(&w).unwrap().dtype(), DType::F32);
    }
}

// bitsandbytes#945: "Attempting to unscale FP16 gradients".
#[test]
fn pitfall_13_a_half_parameter_without_a_master_is_named() {
    let device = bimetal_cpu::cpu();
    let w = slot("fine", &[1.0], &device);
    let data = Tensor::from_slice(&[f16::from_f32(1.0)], &[1], &device);
    let h = Slot::new("decoder.7.mlp.weight", &data, &device).unwrap();
    let loss = || (w.read() * h.read().cast(DType::F32)).sum_all();
    let scaler = LossScaler::new(LossScale::dynamic(), &device).unwrap();
    let e = scaler
        .scale(&loss())
        .grad(&[&w, &h])
        .unwrap_err()
        .to_string();
    assert!(e.contains("`decoder.7.mlp.weight` is"), "{e}");
    assert!(e.contains("master"), "{e}");
    // Without a scale there is nothing to unscale.
    let scaler = LossScaler::new(LossScale::None, &device).unwrap();
    assert!(scaler.scale(&loss()).grad(&[&w, &h]).is_ok());
}

#[test]
fn a_norm_beyond_f32_counts_as_not_finite_when_clipping() {
    let device = bimetal_cpu::cpu();
    let w = slot("w", &[0.0, 0.0], &device);
    let scaler = LossScaler::new(LossScale::None, &device).unwrap();
    let g = Tensor::from_slice(&[1e30f32, 1e30], &[2], &device);
    let grads = given(&scaler, &[(&w, g)]);
    assert_eq!(grads.finite().item().unwrap(), 1.0);
    let clipped = grads.clip_global_norm(1.0);
    assert_eq!(clipped.finite().item().unwrap(), 0.0);
}
