//! Averages of the weights.
mod common;
use bimetal_layers::ParamStore;
use bimetal_optim::{AdamW, Ema, Optimizer, Sgd};
use bimetal_precision::{LossScale, Policy};
use bimetal_tensor::{DType, Device, Tensor};
use common::*;

/// Weights after each step of the gradients 1, 2, 3, .. on `w`, those that are not finite skipped, and the averages.
fn run(ema: Ema, grads: &[f32], device: &Device) -> Vec<[f64; 2]> {
    let store = store(device, &[("w", &[1.0])]);
    let w = slot(&store, "w");
    let scaler = scaler(LossScale::dynamic(), device);
    let mut optimizer = Sgd::new(0.5).ema(ema);
    let mut seen = Vec::new();
    for g in grads {
        let _ = step(&mut optimizer, &store, &scaler, &[vector(&[*g], device)]);
        let average = optimizer.averages().unwrap().of(&w).unwrap();
        seen.push([values(&w)[0], values(average)[0]]);
    }
    seen
}

#[test]
fn averages_follow_the_formula_and_stand_still_at_skipped_steps() {
    let device = bimetal_cpu::cpu();
    let inf = f32::INFINITY;
    let grads = [1.0, inf, -2.0, 3.0, inf, inf, 0.5, -4.0];
    for warmup in [false, true] {
        let ema = Ema::new(0.75);
        let ema = if warmup { ema.warmup() } else { ema };
        let (mut w, mut average, mut t) = (1.0, 1.0, 0.0);
        for (g, seen) in grads.iter().zip(run(ema, &grads, &device)) {
            if g.is_finite() {
                w -= 0.5 * f64::from(*g);
                t += 1.0;
                let decay = match (warmup, t == 1.0) {
                    (true, _) => f64::min(0.75, (1.0 + t) / (10.0 + t)),
                    (false, true) => 0.0,
                    (false, false) => 0.75,
                };
                average = decay * average + (1.0 - decay) * w;
            }
            close(&seen, &[w, average], 1e-6);
        }
    }
}

#[test]
fn the_first_average_is_the_weight_to_the_last_bit_and_equal_weights_stay() {
    let device = bimetal_cpu::cpu();
    let mut grads = vec![1e8, -1e8 + 16.0];
    grads.extend([0.0; 50]);
    let seen = run(Ema::new(0.9), &grads[..1], &device);
    assert_eq!(seen[0][0], seen[0][1]);
    let still = run(Ema::new(0.999), &[0.1, 0.0, 0.0, 0.0], &device);
    assert!(still.iter().all(|[w, average]| w == average), "{still:?}");
}

#[test]
fn frozen_and_half_weights_have_averages_too() {
    let device = bimetal_cpu::cpu();
    let store = ParamStore::new(&device, Policy::bfloat16());
    for name in ["a", "b"] {
        let _ = store.root().param_from(name, &vector(&[1.0], &device));
    }
    let (a, b) = (slot(&store, "a"), slot(&store, "b"));
    let scaler = scaler(LossScale::None, &device);
    let mut optimizer = Sgd::new(0.5).ema(0.5);
    let g = |v: f32| vector(&[v], &device).cast(DType::BF16);
    let _ = step(&mut optimizer, &store, &scaler, &[g(2.0), g(4.0)]);
    assert_eq!(store.set_trainable("b", false), 1);
    for _ in 0..2 {
        let _ = step(&mut optimizer, &store, &scaler, &[g(2.0)]);
    }
    let averages = optimizer.averages().unwrap();
    let of = |s| averages.of(s).unwrap();
    assert_eq!(of(&a).dtype(), DType::F32);
    // Weights of a: 0, -1, -2; b stays at -1.
    assert_eq!((values(of(&a)), values(of(&b))), (vec![-1.25], vec![-1.0]));
}

#[test]
fn averages_take_the_place_of_weights_and_give_it_back() {
    let device = bimetal_cpu::cpu();
    for policy in [Policy::mixed_float16(), Policy::bfloat16()] {
        let store = ParamStore::new(&device, policy);
        let _ = store.root().param_from("w", &vector(&[1.0, 0.3], &device));
        let w = slot(&store, "w");
        let scaler = scaler(LossScale::None, &device);
        let mut optimizer = AdamW::new(0.1).ema(0.9);
        let one = |optimizer: &mut AdamW| {
            let g = Tensor::ones(&[2], w.dtype(), &device);
            let grads = given(&store, &scaler, &[g]);
            optimizer.step(store.train(), grads)
        };
        for _ in 0..5 {
            let _ = one(&mut optimizer).unwrap();
        }
        let (weights, state) = (w.to_bytes().unwrap(), optimizer.state());
        let average = optimizer.averages().unwrap().of(&w).unwrap().clone();
        let kept = average.to_bytes().unwrap();
        let averages = optimizer.averages().unwrap();
        let seen = averages.with(|| values(&w)).unwrap();
        let rounded = average.read().cast(w.dtype()).to_f64_vec().unwrap();
        assert_eq!(seen, rounded);
        assert_ne!(seen, values(&w));
        let e = averages.with(|| averages.swap_in().unwrap_err()).unwrap();
        assert!(e.to_string().contains("call `swap_out` first"), "{e}");
        let panics = std::panic::AssertUnwindSafe(|| averages.with(|| panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(w.to_bytes().unwrap(), weights);
        assert_eq!(average.to_bytes().unwrap(), kept);
        averages.swap_in().unwrap();
        let e = one(&mut optimizer).unwrap_err().to_string();
        assert!(e.contains("call `swap_out` before the next step"), "{e}");
        optimizer.averages().unwrap().swap_out().unwrap();
        assert_eq!(w.to_bytes().unwrap(), weights);
        let _ = one(&mut optimizer).unwrap();
        assert_eq!(optimizer.state().len(), state.len());
    }
}

#[test]
fn averages_do_not_change_the_training_and_fusion_does_not_change_them() {
    let train = |fusion: bool, ema: bool| {
        let device = bimetal_cpu::cpu();
        device.set_fusion(fusion);
        let store = store(&device, &[("w", &[0.3, -0.7, 1.9])]);
        let scaler = scaler(LossScale::dynamic(), &device);
        let mut optimizer = AdamW::new(0.01);
        if ema {
            optimizer = optimizer.ema(Ema::new(0.99).warmup());
        }
        for t in 0..20 {
            let g: Vec<f32> = (0..3).map(|i| ((t * 3 + i) as f32).sin()).collect();
            let _ = step(&mut optimizer, &store, &scaler, &[vector(&g, &device)]);
        }
        let all = optimizer.state();
        let average = ema.then(|| all.last().unwrap().to_bytes().unwrap());
        (slot(&store, "w").to_bytes().unwrap(), average)
    };
    assert_eq!(train(true, true), train(false, true));
    assert_eq!(train(true, true).0, train(true, false).0);
}

#[test]
fn wrong_use_is_an_error() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[1.0])]);
    let slots = store.trainable_slots().unwrap();
    for decay in [1.0, -0.1, f64::NAN, f64::INFINITY] {
        let e = Sgd::new(0.1).ema(decay).init(&slots).unwrap_err();
        assert!(
            e.to_string().contains(&format!("the decay is {decay}")),
            "{e}"
        );
    }
    let mut plain = Sgd::new(0.1);
    let e = plain.averages().unwrap_err().to_string();
    assert!(e.contains("`.ema(0.999)`"), "{e}");
    plain.init(&slots).unwrap();
    let e = plain.set_ema(Ema::new(0.9)).unwrap_err().to_string();
    assert!(e.contains("used already"), "{e}");
    let e = Sgd::new(0.1).ema(0.5).averages().unwrap_err().to_string();
    assert!(e.contains("before training has begun"), "{e}");
}
