//! Settings of optimizers: what they do, and which are refused.
mod common;
use bimetal_layers::ParamStore;
use bimetal_optim::{
    Adam, AdamW, Cosine, Notice, Optimizer, ParamGroup, Schedule, Sgd, StepDecay, warmup_cosine,
};
use bimetal_precision::{LossScale, Policy};
use bimetal_tensor::{DType, Tensor};
use common::*;
use half::bf16;

const NAN: f32 = f32::NAN;

#[test]
fn learning_rates_that_cannot_work_are_refused_before_anything_changes() {
    let device = bimetal_cpu::cpu();
    let g = [vector(&[1.0], &device)];
    for bad in [NAN as f64, f64::INFINITY, f64::NEG_INFINITY, -1e-3, 1e39] {
        let store = store(&device, &[("w", &[1.0])]);
        let scaler = scaler(LossScale::dynamic(), &device);
        let cosine = Cosine {
            from: bad,
            to: 0.0,
            steps: 10,
        };
        let all: [Box<dyn Optimizer>; 4] = [
            Box::new(Sgd::new(bad)),
            Box::new(Adam::new(bad)),
            Box::new(AdamW::new(cosine)),
            Box::new(AdamW::new(warmup_cosine(1e-3, bad, 1, 10))),
        ];
        for mut optimizer in all {
            let grads = given(&store, &scaler, &g);
            let e = optimizer.step(store.train(), grads).unwrap_err();
            let text = e.to_string();
            assert!(text.contains("rate") && text.contains("finite"), "{text}");
            assert!(optimizer.state().is_empty());
            assert_eq!(optimizer.attempted(), 0);
        }
        let mut optimizer = Adam::new(0.5);
        optimizer.init(&store.trainable_slots().unwrap()).unwrap();
        optimizer.set_lr(bad).unwrap_err();
        assert_eq!(values(&optimizer.state()[0]), [0.5]);
        assert_eq!(values(&slot(&store, "w")), [1.0]);
        assert_eq!(applied(&store), 0);
    }
}

struct Broken(f64);

impl Schedule for Broken {
    fn lr(&self, applied: &Tensor) -> Tensor {
        applied.lt(2.0).select(0.5, self.0)
    }
}

#[test]
fn a_schedule_that_turns_bad_changes_nothing_and_is_an_error() {
    let device = bimetal_cpu::cpu();
    let g = [vector(&[1.0], &device)];
    for bad in [NAN as f64, f64::INFINITY, -1.0] {
        let store = store(&device, &[("w", &[4.0])]);
        let scaler = scaler(LossScale::None, &device);
        let mut optimizer = Sgd::new(Broken(bad));
        for _ in 0..2 {
            let done = step(&mut optimizer, &store, &scaler, &g);
            assert!(done.outcome().unwrap().is_applied());
        }
        let e = step(&mut optimizer, &store, &scaler, &g).outcome();
        let text = e.unwrap_err().to_string();
        assert!(text.contains("the schedule's learning rate"), "{text}");
        assert_eq!(values(&slot(&store, "w")), [3.0]);
        assert_eq!(applied(&store), 2);
    }
}

#[test]
fn other_settings_that_cannot_work_are_refused() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[1.0])]);
    let slots = store.trainable_slots().unwrap();
    let group = |g: ParamGroup| AdamW::new(0.1).group(g);
    let all: [(Box<dyn Optimizer>, &str); 11] = [
        (Box::new(Adam::new(0.1).betas(1.0, 0.9)), "beta1 is 1"),
        (Box::new(Adam::new(0.1).betas(0.9, -0.1)), "beta2 is -0.1"),
        (Box::new(Adam::new(0.1).eps(-1.0)), "eps is -1"),
        (
            Box::new(AdamW::new(0.1).weight_decay(f64::NAN)),
            "decay is NaN",
        ),
        (Box::new(Sgd::new(0.1).momentum(1.5)), "momentum is 1.5"),
        (
            Box::new(Sgd::new(0.1).momentum(0.9).dampening(2.0)),
            "dampening is 2",
        ),
        (Box::new(Sgd::new(0.1).nesterov()), "Nesterov"),
        (
            Box::new(group(ParamGroup::new("w").lr_factor(-1.0))),
            "factor of `w` is -1",
        ),
        (
            Box::new(group(ParamGroup::new("w").weight_decay(-1.0))),
            "decay of `w` is -1",
        ),
        (
            Box::new(Adam::new(warmup_cosine(0.1, 0.0, 10, 10))),
            "cosine is 0 steps",
        ),
        (
            Box::new(Adam::new(StepDecay {
                initial: 0.1,
                factor: 0.0,
                every: 1,
            })),
            "factor is 0",
        ),
    ];
    for (mut optimizer, want) in all {
        let e = optimizer.init(&slots).unwrap_err().to_string();
        assert!(e.contains(want), "{want} is not in {e}");
    }
    let e = Adam::new(0.1).init(&[]).unwrap_err().to_string();
    assert!(e.contains("frozen"), "{e}");
}

#[test]
fn set_lr_acts_at_the_next_step_and_not_against_a_schedule() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[10.0])]);
    let scaler = scaler(LossScale::None, &device);
    let g = [vector(&[1.0], &device)];
    let mut optimizer = Sgd::new(1.0);
    optimizer.set_lr(2.0).unwrap();
    assert_eq!(step(&mut optimizer, &store, &scaler, &g).lr().unwrap(), 2.0);
    optimizer.set_lr(3.0).unwrap();
    assert_eq!(step(&mut optimizer, &store, &scaler, &g).lr().unwrap(), 3.0);
    assert_eq!(values(&slot(&store, "w")), [5.0]);
    let e = Sgd::new(warmup_cosine(0.1, 0.0, 1, 10)).set_lr(1.0);
    assert!(e.unwrap_err().to_string().contains("follows a schedule"));
}

#[test]
fn state_is_named_by_parameter_in_a_fixed_order() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("a", &[1.0, 2.0]), ("b", &[3.0])]);
    let slots = store.trainable_slots().unwrap();
    let names = |mut o: Box<dyn Optimizer>| {
        o.init(&slots).unwrap();
        o.init(&slots).unwrap();
        let state = o.state();
        let names = state.iter().map(|s| s.name().to_string());
        names.collect::<Vec<_>>()
    };
    let adam = [
        "optim/lr",
        "optim/a/m",
        "optim/a/v",
        "optim/b/m",
        "optim/b/v",
    ];
    assert_eq!(names(Box::new(Adam::new(0.1))), adam);
    assert_eq!(
        names(Box::new(Adam::new(warmup_cosine(0.1, 0.0, 1, 9)))),
        adam[1..]
    );
    assert_eq!(names(Box::new(Sgd::new(0.1))), ["optim/lr"]);
    let momentum = ["optim/lr", "optim/a/momentum", "optim/b/momentum"];
    assert_eq!(names(Box::new(Sgd::new(0.1).momentum(0.9))), momentum);
}

#[test]
fn groups_change_settings_by_path_and_later_ones_win() {
    let device = bimetal_cpu::cpu();
    let one: &[f32] = &[1.0];
    let store = store(
        &device,
        &[
            ("body.w", one),
            ("body.b", one),
            ("head.w", one),
            ("frozen", one),
        ],
    );
    let scaler = scaler(LossScale::None, &device);
    let g: Vec<Tensor> = (0..3).map(|_| vector(&[1.0], &device)).collect();
    let mut optimizer = Sgd::new(0.5)
        .weight_decay(1.0)
        .group(ParamGroup::new("body").lr_factor(0.5))
        .group(ParamGroup::new("*.b").lr_factor(0.25).weight_decay(0.0))
        .group(ParamGroup::new("frozen").lr_factor(0.0));
    assert_eq!(store.set_trainable("frozen", false), 1);
    let first = step(&mut optimizer, &store, &scaler, &g);
    let idle = Notice::UnusedGroup {
        pattern: "frozen".into(),
    };
    assert_eq!(first.notices(), [idle]);
    let at = |p: &str| values(&slot(&store, p))[0];
    // w - lr factor (g + decay w).
    assert_eq!(at("body.w"), 1.0 - 0.5 * 0.5 * 2.0);
    assert_eq!(at("body.b"), 1.0 - 0.5 * 0.25 * 1.0);
    assert_eq!(at("head.w"), 1.0 - 0.5 * 2.0);
    let second = step(&mut optimizer, &store, &scaler, &g);
    assert!(second.notices().is_empty());
}

#[test]
fn a_group_that_describes_nothing_is_an_error_before_anything_changes() {
    let device = bimetal_cpu::cpu();
    let one: &[f32] = &[1.0];
    let store = store(&device, &[("body.w", one), ("head.w", one)]);
    let scaler = scaler(LossScale::None, &device);
    let g = [vector(&[1.0], &device), vector(&[1.0], &device)];
    let mut optimizer = Sgd::new(0.5).group(ParamGroup::new("haed").lr_factor(0.0));
    for _ in 0..2 {
        let grads = given(&store, &scaler, &g);
        let e = optimizer
            .step(store.train(), grads)
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("the group `haed` describes no parameter; the nearest are head, "),
            "{e}"
        );
        assert_eq!(values(&slot(&store, "head.w")), [1.0]);
        assert_eq!((optimizer.attempted(), applied(&store)), (0, 0));
    }
}

#[test]
fn decay_of_matrices_only_spares_vectors() {
    let device = bimetal_cpu::cpu();
    let store = ParamStore::new(&device, Policy::float32());
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &device);
    let _ = store.root().param_from("matrix", &ones(&[1, 1]));
    let _ = store.root().param_from("gain", &ones(&[1]));
    let scaler = scaler(LossScale::None, &device);
    let zeros = [ones(&[1, 1]) * 0.0, ones(&[1]) * 0.0];
    let mut optimizer = AdamW::new(0.5).weight_decay(0.5).decay_matrices_only();
    let _ = step(&mut optimizer, &store, &scaler, &zeros);
    assert_eq!(values(&slot(&store, "matrix")), [0.75]);
    assert_eq!(values(&slot(&store, "gain")), [1.0]);
}

#[test]
fn parameters_without_gradient_are_skipped_and_told_once() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("w", &[1.0]), ("idle", &[1.0])]);
    let scaler = scaler(LossScale::dynamic(), &device);
    let mut optimizer = AdamW::new(0.1).weight_decay(0.5);
    let slots = store.trainable_slots().unwrap();
    for t in 0..3 {
        let loss = slot(&store, "w").read().square().sum_all();
        let grads = scaler.scale(&loss).grad(&slots).unwrap().unscale();
        let done = optimizer.step(store.train(), grads).unwrap();
        let idle = Notice::NoGradient {
            parameter: "idle".into(),
        };
        let want: &[Notice] = if t == 0 { &[idle] } else { &[] };
        assert_eq!(done.notices(), want);
    }
    assert_eq!(values(&slot(&store, "idle")), [1.0]);
    assert!(values(&slot(&store, "w"))[0] < 1.0);
}

#[test]
fn frozen_parameters_stay_and_thawed_ones_move() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("body", &[1.0]), ("head", &[1.0])]);
    store.set_trainable("body", false);
    let scaler = scaler(LossScale::None, &device);
    let mut optimizer = Adam::new(0.1);
    let mut run = || {
        let loss = (slot(&store, "body").read() * slot(&store, "head").read()).sum_all();
        let slots = store.trainable_slots().unwrap();
        let grads = scaler.scale(&loss).grad(&slots).unwrap();
        let n = grads.slots().len();
        let done = optimizer.step(store.train(), grads.unscale()).unwrap();
        assert!(done.outcome().unwrap().is_applied());
        n
    };
    assert_eq!(run(), 1);
    assert_eq!(values(&slot(&store, "body")), [1.0]);
    close(&values(&slot(&store, "head")), &[0.9], 1e-6);
    store.set_trainable("body", true);
    assert_eq!(run(), 2);
    assert!(values(&slot(&store, "body"))[0] < 1.0);
}

#[test]
fn parameters_in_half_precision_are_updated_in_f32_and_rounded_once() {
    let device = bimetal_cpu::cpu();
    let store = ParamStore::new(&device, Policy::bfloat16());
    let start = [1.0f32, -0.3, 17.0];
    let _ = store.root().param_from("w", &vector(&start, &device));
    let scaler = scaler(LossScale::None, &device);
    let w = slot(&store, "w");
    assert_eq!(w.dtype(), DType::BF16);
    let g = [0.11f32, 0.7, -3.1];
    let grads = [vector(&g, &device).cast(DType::BF16)];
    let mut optimizer = Sgd::new(0.37).momentum(0.9);
    let _ = step(&mut optimizer, &store, &scaler, &grads);
    let bf = |x: f32| bf16::from_f32(x).to_f32();
    let want: Vec<f64> = start
        .iter()
        .zip(g)
        .map(|(w, g)| bf(bf(*w) - 0.37 * bf(g)) as f64)
        .collect();
    assert_eq!(values(&w), want);
    assert_eq!(optimizer.state()[1].dtype(), DType::F32);
}

#[test]
fn f64_parameters_are_updated_in_f64() {
    let device = bimetal_cpu::cpu();
    let store = ParamStore::new(&device, Policy::float64());
    let start = Tensor::from_slice(&[1.0f64], &[1], &device);
    let _ = store.root().param_from("w", &start);
    let scaler = scaler(LossScale::Static(8.0), &device);
    let w = slot(&store, "w");
    let loss = (w.read() * 1e-12).sum_all();
    let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
    let done = Sgd::new(0.5).step(store.train(), grads).unwrap();
    assert!(done.outcome().unwrap().is_applied());
    assert_eq!(values(&w), [1.0 - 0.5e-12]);
}

/// A weight of 1 whose steps of 0.001 are a fraction of what bf16 resolves there.
#[test]
fn stochastic_rounding_keeps_updates_that_rounding_loses() {
    let device = bimetal_cpu::cpu();
    let n = 512;
    let run = |mut optimizer: Sgd, skip: bool| {
        let store = ParamStore::new(&device, Policy::bfloat16()).seed(5);
        let start = Tensor::ones(&[n], DType::F32, &device);
        let w = store.root().param_from("w", &start);
        let scaler = scaler(LossScale::None, &device);
        for t in 0..200 {
            let bad = skip && t % 2 == 1;
            let g = if bad { f64::NAN } else { -1.0 };
            let g = Tensor::full(&[n], g, DType::BF16, &device);
            let _ = step(&mut optimizer, &store, &scaler, &[g]);
        }
        values(w.slot().unwrap())
    };
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    assert_eq!(run(Sgd::new(1e-3), false), vec![1.0; n]);
    let by_chance = run(Sgd::new(1e-3).stochastic_rounding(), false);
    // 200 steps, each a binomial draw with a variance below 2^-7 times 0.001 per element.
    let error = 5.0 * (200.0 * 0.001 / 128.0 / n as f64).sqrt();
    assert!(
        (mean(&by_chance) - 1.2).abs() < error,
        "{}",
        mean(&by_chance)
    );
    // The same seed gives the same bits, and a skipped step draws nothing.
    assert_eq!(by_chance, run(Sgd::new(1e-3).stochastic_rounding(), false));
    let skipping = mean(&run(Sgd::new(1e-3).stochastic_rounding(), true));
    assert!((skipping - 1.1).abs() < error, "{skipping}");
}

#[test]
fn stochastic_rounding_leaves_f32_alone() {
    let device = bimetal_cpu::cpu();
    let run = |mut optimizer: AdamW| {
        let store = store(&device, &[("w", &[0.3, -1.7])]);
        let scaler = scaler(LossScale::None, &device);
        for t in 0..5 {
            let g = vector(&[t as f32, 0.3], &device);
            let _ = step(&mut optimizer, &store, &scaler, &[g]);
        }
        values(&slot(&store, "w"))
    };
    assert_eq!(
        run(AdamW::new(0.01)),
        run(AdamW::new(0.01).stochastic_rounding())
    );
}
