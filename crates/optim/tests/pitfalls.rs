//! What went wrong elsewhere, at the level of optimizers.
mod common;
use bimetal_layers::ParamStore;
use bimetal_optim::{Adam, AdamW, Optimizer, Sgd};
use bimetal_precision::{DynamicLossScale, LossScale, Policy, SkipLimit};
use bimetal_tensor::{DType, Tensor};
use common::*;
use half::f16;

// pytorch#40497, #99640, #96755: the scale collapses to 0 and training freezes in silence.
#[test]
fn pitfall_01_a_model_that_gives_nan_ends_with_an_error_and_a_scale_of_one() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("fine", &[1.0]), ("broken", &[-1.0])]);
    let scaler = scaler(LossScale::dynamic(), &device);
    let mut optimizer = Sgd::new(0.1);
    let mut limit = SkipLimit::new(30);
    let e = (0..31).find_map(|_| {
        let (fine, broken) = (slot(&store, "fine").read(), slot(&store, "broken").read());
        let loss = fine.sum_all() + broken.log().sum_all() * f64::INFINITY;
        let slots = store.trainable_slots().unwrap();
        let grads = scaler.scale(&loss).grad(&slots).unwrap().unscale();
        let done = optimizer.step(store.train(), grads).unwrap();
        limit.observe(&done.outcome().unwrap()).err()
    });
    let text = e.unwrap().to_string();
    assert!(
        text.contains("30 steps in a row") && text.contains("`broken`"),
        "{text}"
    );
    assert_eq!(scaler.current().unwrap(), 1.0);
    assert_eq!(values(&slot(&store, "fine")), [1.0]);
}

// pytorch#157436: the scale moves several times in one step; with several groups, it is several kernels that ask.
#[test]
fn pitfall_03_one_update_of_the_scale_per_step_with_many_groups() {
    let device = bimetal_cpu::cpu();
    let one: &[f32] = &[1.0];
    let store = store(&device, &[("a", one), ("b", one), ("c", one)]);
    let d = DynamicLossScale {
        growth_interval: 2,
        ..Default::default()
    };
    let scaler = scaler(LossScale::Dynamic(d), &device);
    let group = |p: &str, f: f64| bimetal_optim::ParamGroup::new(p).lr_factor(f);
    let mut optimizer = Sgd::new(0.1).group(group("a", 0.5)).group(group("b", 0.25));
    let mut scales = Vec::new();
    for bad in [0, 1, 0, 0, 0, 1] {
        let g = |v: f32| vector(&[v], &device);
        let x = if bad == 1 { f32::INFINITY } else { 1.0 };
        let done = step(&mut optimizer, &store, &scaler, &[g(x), g(1.0), g(x)]);
        scales.push(done.scale().unwrap() / 32768.0);
    }
    scales.push(scaler.current().unwrap() / 32768.0);
    assert_eq!(scales, [1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 0.5]);
}

// optax#1754, chainer#6299, pytorch#8860: eps 1e-8 is 0 in f16, and 0/0 is NaN.
#[test]
fn pitfall_16_a_zero_gradient_makes_no_update() {
    let device = bimetal_cpu::cpu();
    for policy in [
        Policy::float32(),
        Policy::mixed_float16(),
        Policy::float16(),
    ] {
        for eps in [1e-8, 0.0, 1e-50] {
            let store = ParamStore::new(&device, policy);
            let start = [1.0f32, -2.5, 0.0];
            let _ = store.root().param_from("w", &vector(&start, &device));
            let w = slot(&store, "w");
            let scaler = scaler(LossScale::None, &device);
            let mut optimizer = Adam::new(0.1).eps(eps);
            let zero = Tensor::zeros(&[3], w.dtype(), &device);
            for _ in 0..3 {
                let done = step(&mut optimizer, &store, &scaler, std::slice::from_ref(&zero));
                assert!(done.outcome().unwrap().is_applied());
            }
            assert_eq!(values(&w), [1.0, -2.5, 0.0]);
        }
    }
}

// The default eps acts in f32: a gradient of 1e-8 moves by lr / 2 at the first step, not by lr.
#[test]
fn pitfall_16_the_default_eps_is_not_zero() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[0.0])]);
    let scaler = scaler(LossScale::dynamic(), &device);
    let g = [vector(&[1e-8], &device)];
    let _ = step(&mut Adam::new(0.1), &store, &scaler, &g);
    close(&values(&slot(&store, "w")), &[-0.05], 1e-5);
}

// torchao#1124, torchtune#2254: bf16 weights lose updates below 2^-9 of the weight.
#[test]
fn pitfall_17_a_thousand_small_updates_arrive() {
    let device = bimetal_cpu::cpu();
    for policy in [Policy::mixed_bfloat16(), Policy::mixed_float16()] {
        let store = ParamStore::new(&device, policy);
        let _ = store.root().param_from("w", &vector(&[1.0, -1.0], &device));
        let w = slot(&store, "w");
        let scaler = scaler(LossScale::dynamic(), &device);
        // The gradient of sum(w sign) is the sign: each step takes 1e-4 off the absolute value.
        let sign = vector(&[1.0, -1.0], &device).cast(policy.compute);
        let mut optimizer = Sgd::new(1e-4);
        for _ in 0..1000 {
            let loss = (store.param("w").unwrap().compute() * &sign).sum_all();
            let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
            let _ = optimizer.step(store.train(), grads).unwrap();
        }
        // In f32 near 1 each update is rounded to 1,678 steps of 2^-24 from 1,677.7.
        close(&values(&w), &[0.9, -0.9], 3e-5);
        assert_eq!(applied(&store), 1000);
    }
}

/// Adam's formulas one operation at a time, in f32.
fn plain_adam(w: &Tensor, g: &Tensor, m: &Tensor, v: &Tensor, t: i32) -> [Tensor; 3] {
    let (b1, b2, lr, eps) = (0.9, 0.999, 0.01, 1e-8);
    let m = m + (g - m) * (1.0 - b1);
    let v = v * b2 + g.square() * (1.0 - b2);
    let c1 = 1.0 - f64::powi(b1, t);
    let c2 = 1.0 - f64::powi(b2, t);
    let w = w - &m / c1 / ((&v / c2).sqrt() + eps) * lr;
    [w, m, v]
}

// pytorch#95781: fused and plain optimizer disagree in f16.
#[test]
fn pitfall_20_fused_and_unfused_steps_have_the_same_bits_and_the_plain_formula_agrees() {
    let n = 1000;
    let half = |i: usize, t: i32| f16::from_f32((i as f32 * 0.37 + t as f32).sin() * 3.0);
    let run = |fusion: bool| {
        let device = bimetal_cpu::cpu();
        device.set_fusion(fusion);
        let store = ParamStore::new(&device, Policy::mixed_float16());
        let start: Vec<f32> = (0..n).map(|i| (i as f32 * 0.11).cos()).collect();
        let _ = store.root().param_from("w", &vector(&start, &device));
        let w = slot(&store, "w");
        let scaler = scaler(LossScale::dynamic(), &device);
        let mut optimizer = AdamW::new(0.01).weight_decay(0.0);
        let zeros = || Tensor::zeros(&[n], DType::F32, &device);
        let mut plain = [vector(&start, &device), zeros(), zeros()];
        for t in 1..=5 {
            let g: Vec<f16> = (0..n).map(|i| half(i, t)).collect();
            let g = Tensor::from_slice(&g, &[n], &device);
            let loss = (store.param("w").unwrap().compute() * &g).sum_all();
            let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
            let done = optimizer.step(store.train(), grads).unwrap();
            // 3 * 2^15 overflows f16: the first step changes nothing, whichever way.
            if done.outcome().unwrap().is_applied() {
                let k = applied(&store) as i32;
                plain = plain_adam(&plain[0], &g.cast(DType::F32), &plain[1], &plain[2], k);
            }
        }
        assert_eq!(applied(&store), 4);
        let plain: Vec<f64> = plain[0].to_f64_vec().unwrap();
        close_to_ones(&values(&w), &plain, 1e-6);
        let mut all = store.state().unwrap();
        all.extend(optimizer.state());
        all.iter()
            .map(|s| s.to_bytes().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(run(true), run(false));
}

// pytorch#112583, #48049, #86136: cached half-precision copies of weights are stale or leak.
#[test]
fn pitfall_21_training_after_evaluation_sees_the_new_weights_and_memory_stays_flat() {
    let device = bimetal_cpu::cpu();
    let store = ParamStore::new(&device, Policy::mixed_float16());
    let _ = store.root().param_from("w", &vector(&[4.0], &device));
    let w = store.param("w").unwrap();
    let scaler = scaler(LossScale::dynamic(), &device);
    let mut optimizer = Sgd::new(0.125);
    let mut live = 0;
    for t in 0..1000 {
        let before = values(w.slot().unwrap())[0];
        let seen = (w.compute() * 2.0).to_f64_vec().unwrap()[0];
        assert_eq!(
            seen,
            f16::from_f64(f16::from_f64(before).to_f64() * 2.0).to_f64()
        );
        let loss = w.compute().square().sum_all();
        let slots = store.trainable_slots().unwrap();
        let grads = scaler.scale(&loss).grad(&slots).unwrap().unscale();
        let done = optimizer.step(store.train(), grads).unwrap();
        if done.outcome().unwrap().is_applied() {
            let half = f16::from_f64(before).to_f64();
            close(
                &values(w.slot().unwrap()),
                &[before - 0.125 * 2.0 * half],
                1e-3,
            );
        }
        drop(done);
        match t {
            100 => live = device.memory().live,
            999 => assert_eq!(device.memory().live, live),
            _ => {}
        }
    }
}
