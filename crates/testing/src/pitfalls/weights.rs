//! Weights, moments, averages.
use super::support::*;
use bimetal::layers::{Ctx, ParamStore};
use bimetal::optim::{Adam, AdamW, Cosine, Ema, Optimizer, Sgd};
use bimetal::precision::{LossScale, LossScaler, Policy};
use bimetal::tensor::eval;
use bimetal::tensor::graph::{Attr, Composite, OptimRule, decompose};
use bimetal::{DType, Device, Tensor};
use half::f16;

fn unscaled(device: &Device) -> LossScaler {
    LossScaler::new(LossScale::None, device).unwrap()
}

// optax#1754, chainer#6299, pytorch#8860
pub fn pitfall_16_a_zero_gradient_makes_no_update(device: &Device) {
    for policy in [
        Policy::float32(),
        Policy::mixed_float16(),
        Policy::float16(),
    ] {
        for eps in [1e-8, 0.0, 1e-50] {
            let store = store(device, policy, &[("w", &[1.0, -2.5, 0.0])]);
            let w = slot(&store, "w");
            let mut optimizer = Adam::new(0.1).eps(eps);
            let zero = Tensor::zeros(&[3], w.dtype(), device);
            for _ in 0..3 {
                let zero = std::slice::from_ref(&zero);
                let done = step(&mut optimizer, &store, &unscaled(device), zero);
                assert!(done.outcome().unwrap().is_applied());
            }
            assert_eq!(values(&w), [1.0, -2.5, 0.0]);
        }
    }
}

/// A gradient of 1e-8, which is eps: the first step moves by half the learning rate, not by all of it.
pub fn pitfall_16_the_default_eps_is_not_zero(device: &Device) {
    for policy in [Policy::float32(), Policy::float16()] {
        let store = store(device, policy, &[("w", &[0.0])]);
        let g = [vector(&[1e-8], device)];
        let done = step(&mut Adam::new(0.1), &store, &unscaled(device), &g);
        assert!(done.outcome().unwrap().is_applied());
        close(&values(&slot(&store, "w")), &[-0.05], 1e-4);
    }
}

// torchao#1124, torchtune#2254
pub fn pitfall_17_a_thousand_small_updates_arrive(device: &Device) {
    for policy in [Policy::mixed_bfloat16(), Policy::mixed_float16()] {
        let store = store(device, policy, &[("w", &[1.0, -1.0])]);
        let w = slot(&store, "w");
        let scaler = dynamic(device);
        // The gradient of sum(w sign) is the sign: each step takes 1e-4 off the absolute value.
        let sign = vector(&[1.0, -1.0], device).cast(policy.compute);
        let mut optimizer = Sgd::new(1e-4);
        for _ in 0..1000 {
            let loss = |_: &Ctx| (store.param("w").unwrap().compute() * &sign).sum_all();
            let _ = train(&mut optimizer, &store, &scaler, loss);
        }
        // In f32 near 1 each update is rounded to 1,678 steps of 2^-24 from 1,677.7.
        close(&values(&w), &[0.9, -0.9], 3e-5);
        assert_eq!(applied(&store), 1000);
    }
}

// sd_dreambooth#1415
pub fn pitfall_18_averages_of_half_weights_move(device: &Device) {
    let policies = [
        Policy::bfloat16(),
        Policy::float16(),
        Policy::mixed_bfloat16(),
        Policy::mixed_float16(),
    ];
    for policy in policies {
        let store = store(device, policy, &[("w", &[1.0])]);
        let w = slot(&store, "w");
        let mut optimizer = Sgd::new(1.0).ema(0.9999);
        // One step from 1 to 2, and 1,000 that stay there: a step of the average is 1e-4 and less.
        for t in 0..1002 {
            let g = vector(&[if t == 1 { -1.0 } else { 0.0 }], device).cast(w.dtype());
            let _ = step(&mut optimizer, &store, &unscaled(device), &[g]);
        }
        let average = optimizer.averages().unwrap().of(&w).unwrap();
        let want = 2.0 - 0.9999f64.powi(1001);
        close(&values(average), &[want], 1e-5);
    }
}

// transformers#11144, pytorch#55585
pub fn pitfall_19_schedule_averages_and_counter_move_on_applied_steps_only(device: &Device) {
    let run = |bad_steps: &[usize]| {
        let store = store(device, Policy::float32(), &[("w", &[1.0, -1.0])]);
        let scaler = dynamic(device);
        let schedule = Cosine {
            from: 0.1,
            to: 0.0,
            steps: 10,
        };
        let mut optimizer = Adam::new(schedule).ema(Ema::new(0.9).warmup());
        let (mut good, mut rates) = (0u32, Vec::new());
        for attempt in 0..6 + bad_steps.len() {
            let bad = bad_steps.contains(&attempt);
            good += u32::from(!bad);
            let g = if bad { f32::NAN } else { good as f32 - 3.0 };
            let done = step(
                &mut optimizer,
                &store,
                &scaler,
                &[vector(&[g, 1.0], device)],
            );
            if !bad {
                rates.push(done.lr().unwrap());
            }
        }
        assert_eq!(optimizer.attempted(), 6 + bad_steps.len() as u64);
        assert_eq!(applied(&store), 6);
        let mut state = store.state().unwrap();
        state.extend(optimizer.state());
        (bits(&state), rates)
    };
    let straight = run(&[]);
    assert!(straight.1.windows(2).all(|r| r[0] > r[1]));
    assert_eq!(run(&[0]), straight);
    assert_eq!(run(&[1, 2, 5]), straight);
}

// pytorch#95781
pub fn pitfall_20_the_fused_step_is_the_plain_one_and_respects_the_flag(device: &Device) {
    let n = 1000;
    let wave = |k: f32| -> Vec<f32> { (0..n).map(|i| (i as f32 * k).sin() * 3.0).collect() };
    let rules = [
        (OptimRule::Adam { decoupled: true }, 2),
        (OptimRule::Adam { decoupled: false }, 2),
        (
            OptimRule::Sgd {
                momentum: true,
                nesterov: true,
            },
            1,
        ),
    ];
    for (rule, moments) in rules {
        for apply in [true, false] {
            let composite = Composite::OptimUpdate {
                rule,
                beta1: Attr(0.9),
                beta2: Attr(if moments == 2 { 0.999 } else { 0.0 }),
                eps: Attr(1e-8),
                weight_decay: Attr(0.1),
            };
            let scalar = |v: f64| Tensor::full(&[], v, DType::F32, device);
            let mut inputs = vec![
                Tensor::from_slice(&[apply], &[], device),
                scalar(0.01),
                scalar(1.0 / 1024.0),
                scalar(3.0),
                vector(&wave(0.11), device),
                vector(&wave(0.37), device)
                    .cast(DType::F16)
                    .cast(DType::F32)
                    * 1024.0,
            ];
            for m in 0..moments {
                inputs.push(vector(&wave(0.2 + 0.3 * m as f32), device).square());
            }
            let all: Vec<&Tensor> = inputs.iter().collect();
            eval(&all).unwrap();
            let fused = Tensor::composite(composite, &all);
            device.set_fusion(false);
            let plain: Vec<_> = decompose(&composite, &inputs).iter().map(list).collect();
            device.set_fusion(true);
            assert_eq!(plain.len(), 1 + moments);
            for (i, plain) in plain.iter().enumerate() {
                same(&list(&fused.output(i)), plain, device);
            }
            assert_eq!(plain[0] == list(&inputs[4]), !apply);
        }
    }
    // A whole training: 3 * 2^15 overflows f16, so the first step changes nothing, whichever way.
    let run = |fusion: bool| {
        device.set_fusion(fusion);
        let store = store(device, Policy::mixed_float16(), &[("w", &wave(0.11))]);
        let scaler = dynamic(device);
        let mut optimizer = AdamW::new(0.01);
        for t in 1..=5 {
            let g = vector(&wave(0.37 + t as f32), device).cast(DType::F16);
            let loss = |_: &Ctx| (store.param("w").unwrap().compute() * &g).sum_all();
            let done = train(&mut optimizer, &store, &scaler, loss);
            assert_eq!(done.outcome().unwrap().is_applied(), t > 1);
        }
        let mut all = store.state().unwrap();
        all.extend(optimizer.state());
        all.iter().flat_map(values).collect::<Vec<f64>>()
    };
    same(&run(false), &run(true), device);
}

/// A weight whose gradient is 2 in half precision, evaluated before and after each step.
fn evaluate_and_train(device: &Device, steps: usize, mut after: impl FnMut(usize)) {
    let store = ParamStore::new(device, Policy::mixed_float16());
    let _ = store.root().param_from("w", &vector(&[4.0], device));
    let w = store.param("w").unwrap();
    let scaler = dynamic(device);
    let mut optimizer = Sgd::new(0.125);
    let half = |v: f64| f16::from_f64(v).to_f64();
    for t in 0..steps {
        let before = values(w.slot().unwrap())[0];
        let seen = list(&(w.compute() * 2.0))[0];
        assert_eq!(seen, half(half(before) * 2.0));
        let loss = |_: &Ctx| w.compute().square().sum_all();
        let done = train(&mut optimizer, &store, &scaler, loss);
        if done.outcome().unwrap().is_applied() {
            let now = values(w.slot().unwrap())[0];
            close(&[now], &[before - 0.25 * half(before)], 1e-3);
            let seen = list(&w.compute())[0];
            assert_eq!(seen, half(now));
        }
        drop(done);
        after(t);
    }
    assert!(applied(&store) as usize > steps / 2);
}

// pytorch#112583, #48049, #86136
pub fn pitfall_21_evaluation_leaves_no_stale_weights(device: &Device) {
    evaluate_and_train(device, 20, |_| ());
}

pub fn pitfall_21_memory_stays_flat(device: &Device) {
    let mut live = 0;
    evaluate_and_train(device, 1000, |t| match t {
        100 => live = device.memory().live,
        999 => assert_eq!(device.memory().live, live),
        _ => {}
    });
}
