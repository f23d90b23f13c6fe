//! The step as a transaction, and what may be asked of an optimizer.
mod common;
use bimetal_layers::ParamStore;
use bimetal_optim::{Adam, AdamW, Cosine, Optimizer, ParamGroup, Sgd, StepDecay, warmup_cosine};
use bimetal_precision::{Culprit, DynamicLossScale, LossScale, Policy, StepOutcome};
use bimetal_tensor::{Slot, Tensor};
use common::*;
use half::f16;

const NAN: f32 = f32::NAN;

/// All bits of all state.
fn bits(slots: &[Slot]) -> Vec<(String, Vec<u8>)> {
    slots
        .iter()
        .map(|s| (s.name().to_string(), s.to_bytes().unwrap()))
        .collect()
}

#[test]
fn a_step_reports_what_it_did() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[3.0, 4.0])]);
    let scaler = scaler(LossScale::dynamic(), &device);
    let mut optimizer = Sgd::new(0.25);
    let w = slot(&store, "w");
    let loss = w.read().square().sum_all();
    let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
    let handle = optimizer
        .step(store.train(), grads.clip_global_norm(5.0))
        .unwrap();
    assert_eq!(handle.outcome().unwrap(), StepOutcome::Applied);
    assert_eq!(handle.loss().unwrap(), 25.0);
    assert_eq!(handle.scale().unwrap(), 32768.0);
    assert_eq!(handle.norm().unwrap(), 10.0);
    assert_eq!(handle.lr().unwrap(), 0.25);
    assert_eq!(handle.attempted(), 1);
    assert_eq!((optimizer.attempted(), applied(&store)), (1, 1));
    // The gradient (6, 8) is clipped to (3, 4).
    close(&values(&w), &[2.25, 3.0], 1e-6);
}

#[test]
fn a_skipped_step_changes_nothing_but_the_scale() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("a", &[1.0, 2.0]), ("b", &[3.0])]);
    let scaler = scaler(LossScale::dynamic(), &device);
    let schedule = warmup_cosine(1e-2, 1e-3, 5, 50);
    let mut optimizer = AdamW::new(schedule);
    let fine = [vector(&[0.5, -1.0], &device), vector(&[2.0], &device)];
    for _ in 0..3 {
        let done = step(&mut optimizer, &store, &scaler, &fine);
        assert!(done.outcome().unwrap().is_applied());
    }
    let all = || {
        let mut all = store.state().unwrap();
        all.extend(optimizer.state());
        all
    };
    assert_eq!(all().len(), 2 + 1 + 4);
    let before = bits(&all());
    let lr = step_lr(&mut AdamW::new(schedule), 4);
    for bad in [NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let grads = [vector(&[0.5, -1.0], &device), vector(&[bad], &device)];
        let grads = given(&store, &scaler, &grads).clip_global_norm(1.0);
        let handle = optimizer.step(store.train(), grads).unwrap();
        let culprit = Some(Culprit::parameter("b"));
        assert_eq!(handle.outcome().unwrap(), StepOutcome::Skipped { culprit });
        let mut all = store.state().unwrap();
        all.extend(optimizer.state());
        assert_eq!(bits(&all), before);
    }
    assert_eq!(scaler.current().unwrap(), 32768.0 / 8.0);
    assert_eq!((optimizer.attempted(), applied(&store)), (6, 3));
    // transformers#11144, pytorch#55585: the schedule goes on where it stood.
    let next = step(&mut optimizer, &store, &scaler, &fine);
    assert_eq!(next.lr().unwrap(), lr);
}

/// The learning rate of step number `n` (from 1) of a training without skipped steps.
fn step_lr(optimizer: &mut dyn Optimizer, n: usize) -> f32 {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[1.0])]);
    let scaler = scaler(LossScale::None, &device);
    let g = [vector(&[1.0], &device)];
    for _ in 1..n {
        let _ = step(optimizer, &store, &scaler, &g);
    }
    step(optimizer, &store, &scaler, &g).lr().unwrap()
}

// transformers#11144, pytorch#55585.
#[test]
fn pitfall_19_schedule_bias_correction_and_counter_move_on_applied_steps_only() {
    let device = bimetal_cpu::cpu();
    let run = |bad_steps: &[usize]| {
        let store = store(&device, &[("w", &[1.0, -1.0])]);
        let scaler = scaler(LossScale::dynamic(), &device);
        let schedule = Cosine {
            from: 0.1,
            to: 0.0,
            steps: 10,
        };
        let mut optimizer = Adam::new(schedule);
        let mut good = 0u32;
        for attempt in 0..6 + bad_steps.len() {
            let g = if bad_steps.contains(&attempt) {
                vector(&[NAN, 1.0], &device)
            } else {
                good += 1;
                vector(&[good as f32 - 3.0, 1.0], &device)
            };
            let _ = step(&mut optimizer, &store, &scaler, &[g]);
        }
        assert_eq!(optimizer.attempted(), 6 + bad_steps.len() as u64);
        let mut state = store.state().unwrap();
        state.extend(optimizer.state());
        bits(&state)
    };
    let straight = run(&[]);
    assert_eq!(run(&[0]), straight);
    assert_eq!(run(&[1, 2, 5]), straight);
}

// pytorch#90342, #88474: BatchNorm statistics are poisoned by a step that is later skipped.
#[test]
fn pitfall_26_statistics_are_committed_only_with_an_applied_step() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[1.0])]);
    let running = store.root().at("norm").buffer("mean", &[1], 0.5);
    let running = running.slot().unwrap().clone();
    let scaler = scaler(LossScale::dynamic(), &device);
    let mut optimizer = Sgd::new(0.1);
    let mut run = |batch: f32| {
        let cx = store.train();
        let x = vector(&[batch], &device);
        let w = slot(&store, "w");
        cx.update(&running, cx.state(&running) * 0.9 + &x * 0.1);
        let loss = (w.read() * x).sum_all();
        let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
        optimizer.step(cx, grads).unwrap().outcome().unwrap()
    };
    assert!(!run(f32::INFINITY).is_applied());
    assert!(!run(NAN).is_applied());
    assert_eq!(values(&running), [0.5]);
    assert!(run(2.0).is_applied());
    close(&values(&running), &[0.5 * 0.9 + 2.0 * 0.1], 1e-6);
}

// pytorch#111739, #70346: the first steps overflow by design and users think it broke.
#[test]
fn pitfall_04_the_first_steps_find_the_scale_and_say_so() {
    let device = bimetal_cpu::cpu();
    let store = ParamStore::new(&device, Policy::mixed_float16());
    let _ = store.root().param_from("w", &vector(&[1.0], &device));
    let scaler = scaler(LossScale::dynamic(), &device);
    let mut optimizer = Sgd::new(1e-4);
    // The gradient in f16 is 20 times the scale: finite from 2^11 on, after four halvings.
    let outcomes: Vec<bool> = (0..8)
        .map(|_| {
            let w = store.param("w").unwrap();
            let x = Tensor::from_slice(&[f16::from_f32(20.0)], &[1], &device);
            let loss = (w.compute() * x).sum_all();
            let slots = store.trainable_slots().unwrap();
            let grads = scaler.scale(&loss).grad(&slots).unwrap().unscale();
            let done = optimizer.step(store.train(), grads).unwrap();
            done.outcome().unwrap().is_applied()
        })
        .collect();
    assert_eq!(
        outcomes,
        [false, false, false, false, true, true, true, true]
    );
    assert_eq!(scaler.current().unwrap(), 2048.0);
    assert_eq!((optimizer.attempted(), applied(&store)), (8, 4));
}

#[test]
fn the_step_is_compiled_once() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("a", &[1.0, 2.0]), ("b", &[3.0])]);
    let d = DynamicLossScale {
        growth_interval: 3,
        ..Default::default()
    };
    let scaler = scaler(LossScale::Dynamic(d), &device);
    let mut by_hand = AdamW::new(1e-3).group(ParamGroup::new("b").lr_factor(0.3));
    let mut scheduled = Sgd::new(StepDecay {
        initial: 0.1,
        factor: 0.7,
        every: 2,
    })
    .momentum(0.9);
    let once = |i: usize, optimizer: &mut dyn Optimizer| {
        let x = Tensor::from_slice(&[i as f32, 1.0], &[2], &device);
        let (a, b) = (slot(&store, "a"), slot(&store, "b"));
        let loss = (a.read() * x).square().sum_all() + b.read().square().sum_all();
        let loss = if i % 7 == 3 { loss / 0.0 } else { loss / 2.0 };
        let slots = store.trainable_slots().unwrap();
        let grads = scaler.scale(&loss).grad(&slots).unwrap().unscale();
        let grads = grads.clip_global_norm(1.0);
        let done = optimizer.step(store.train(), grads).unwrap();
        done.outcome().unwrap().is_applied()
    };
    // One warm-up step each, of both kinds: 0 and 2 are part of the key, other numbers are not.
    let mut plans = 0;
    let mut skipped = 0;
    for i in 0..50 {
        by_hand.set_lr(1e-3 / (i + 1) as f64).unwrap();
        skipped += !once(i, &mut by_hand) as u32;
        skipped += !once(i, &mut scheduled) as u32;
        if i == 3 {
            plans = device.plans_compiled();
        }
    }
    assert_eq!(device.plans_compiled(), plans);
    assert_eq!(skipped, 14);
}

/// A schedule of a user's crate with a mistake in it.
#[test]
fn other_tensors_come_out_of_the_same_plan() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[3.0])]);
    let scaler = scaler(LossScale::None, &device);
    let w = slot(&store, "w");
    let double = w.read() * 2.0;
    let loss = double.square().sum_all();
    let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
    let mut optimizer = Sgd::new(0.1);
    let done = optimizer
        .step_with(store.train(), grads, &[&double])
        .unwrap();
    assert_eq!(double.to_f64_vec().unwrap(), [6.0]);
    assert_eq!(done.loss().unwrap(), 36.0);
}

#[test]
fn a_mistake_in_the_graph_or_the_context_changes_nothing() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[3.0, 1.0])]);
    let scaler = scaler(LossScale::dynamic(), &device);
    let w = slot(&store, "w");
    let mut optimizer = Adam::new(0.1);
    let loss = (w.read().reshape(&[3]) * 2.0).sum_all();
    let e = scaler.scale(&loss).grad(&[&w]).unwrap_err().to_string();
    assert!(e.contains("reshape"), "{e}");
    let loss = w.read().square().sum_all();
    let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
    let e = optimizer.step(store.eval(), grads.clone()).unwrap_err();
    assert!(e.to_string().contains("evaluation"), "{e}");
    let e = optimizer.step(store.train(), grads.clone().clip_global_norm(-1.0));
    assert!(e.unwrap_err().to_string().contains("max_norm"));
    assert_eq!(values(&w), [3.0, 1.0]);
    assert_eq!((optimizer.attempted(), applied(&store)), (0, 0));
    let done = optimizer.step(store.train(), grads).unwrap();
    assert!(done.outcome().unwrap().is_applied());
}

#[test]
fn a_handle_does_not_keep_the_batch() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[3.0])]);
    let scaler = scaler(LossScale::dynamic(), &device);
    let w = slot(&store, "w");
    let mut optimizer = Sgd::new(0.1);
    let mut once = || {
        let batch = Tensor::from_slice(&vec![0.5f32; 100_000], &[100_000], &device);
        let loss = (w.read() * batch).mean_all();
        let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
        optimizer.step(store.train(), grads).unwrap()
    };
    drop(once());
    let before = device.memory().live;
    let handles: Vec<_> = (0..10).map(|_| once()).collect();
    assert!(device.memory().live < before + 10 * 1024);
    for h in &handles {
        assert!(h.outcome().unwrap().is_applied());
    }
}

#[test]
fn a_second_step_under_a_scale_that_has_moved_is_an_error() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("a", &[1.0]), ("b", &[1.0])]);
    let scaler = scaler(LossScale::dynamic(), &device);
    let (a, b) = (slot(&store, "a"), slot(&store, "b"));
    let (mut first, mut second) = (Sgd::new(0.1), Sgd::new(0.1));
    let grads = |s: &Slot| {
        let loss = s.read().square().sum_all();
        scaler.scale(&loss).grad(&[s]).unwrap().unscale()
    };
    let (ga, gb) = (grads(&a), grads(&b));
    let done = first.step(store.train(), ga).unwrap();
    assert!(done.outcome().unwrap().is_applied());
    let e = second.step(store.train(), gb).unwrap_err().to_string();
    assert!(e.contains("loss_scale/scale"), "{e}");
    assert_eq!(values(&b), [1.0]);
}
