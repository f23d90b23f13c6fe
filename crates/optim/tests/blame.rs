//! Who is to blame for a skipped step, in a loop of one's own.
mod common;
use bimetal_layers::{Layer, Linear, ParamStore};
use bimetal_optim::{Adam, Optimizer, Sgd, StepHandle};
use bimetal_precision::{DynamicLossScale, Halt, Level, LossScale, Policy, StepOutcome};
use bimetal_tensor::{DType, Device, Tensor};
use common::*;

/// A training on one row; `factor` multiplies the activations.
struct Training {
    store: ParamStore,
    up: Linear,
    down: Linear,
    scaler: bimetal_precision::LossScaler,
    optimizer: Adam,
    device: Device,
}

impl Training {
    fn new(scale: LossScale) -> Training {
        let device = bimetal_cpu::cpu();
        let store = ParamStore::new(&device, Policy::mixed_float16()).seed(1);
        let root = store.root();
        Training {
            up: Linear::new(&root.at("up"), 4, 4),
            down: Linear::new(&root.at("down"), 4, 1),
            scaler: scaler(scale, &device),
            optimizer: Adam::new(1e-3),
            store,
            device,
        }
    }

    fn step(&mut self, factor: f32, level: Level, halt: Option<&Halt>) -> StepHandle {
        let x = Tensor::full(&[1, 4], 1.0, DType::F32, &self.device);
        let cx = self.store.train();
        let h = self.up.forward(&x, &cx).square() + 1.0;
        let y = self.down.forward(&(h * factor as f64), &cx);
        let loss = y.cast(DType::F32).square().mean_all();
        let params = self.store.trainable_slots().unwrap();
        let grads = self.scaler.scale(&loss).grad(&params).unwrap();
        let grads = grads.check_numerics(level).unscale();
        let grads = match halt {
            Some(halt) => grads.halting(halt),
            None => grads,
        };
        self.optimizer.step(cx, grads).unwrap()
    }

    fn bits(&self) -> Vec<Vec<u8>> {
        let mut slots = self.store.state().unwrap();
        slots.extend(self.optimizer.state());
        slots.extend(self.scaler.state());
        slots.iter().map(|s| s.to_bytes().unwrap()).collect()
    }
}

#[test]
fn the_culprit_has_all_the_facts() {
    let mut t = Training::new(LossScale::Static(8.0));
    let step = t.step(60000.0, Level::Step, None);
    let StepOutcome::Skipped { culprit } = step.outcome().unwrap() else {
        panic!("the step was applied");
    };
    let culprit = culprit.unwrap();
    assert_eq!(culprit.parameter, "up.weight");
    let cause = culprit.cause.as_ref().unwrap();
    // The product of numbers of about 1 with 60,000 is in range; four of them are not, or their gradient is not.
    assert_eq!(cause.dtype, DType::F16, "{cause}");
    assert!(
        cause
            .inputs
            .iter()
            .all(|i| i.non_finite == 0 && i.min <= i.max),
        "{cause}"
    );
    let text = step.outcome().unwrap().to_string();
    for part in [
        "skipped: ",
        "float16",
        "Inf",
        " of `",
        "blame.rs:",
        " from ",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(culprit.advice().contains("`float32`") && culprit.advice().contains("bfloat16"));
}

#[test]
fn without_checks_the_parameter_is_known() {
    let mut t = Training::new(LossScale::Static(8.0));
    let StepOutcome::Skipped { culprit } = t.step(60000.0, Level::Off, None).outcome().unwrap()
    else {
        panic!("the step was applied");
    };
    let culprit = culprit.unwrap();
    assert_eq!((&culprit.parameter[..], culprit.cause), ("up.weight", None));
}

#[test]
fn asked_too_late_a_step_names_what_its_plan_saw() {
    for (level, known) in [(Level::Step, false), (Level::Layer, true)] {
        let mut t = Training::new(LossScale::Static(8.0));
        let bad = t.step(60000.0, level, None);
        assert!(t.step(1.0, level, None).outcome().unwrap().is_applied());
        let StepOutcome::Skipped { culprit } = bad.outcome().unwrap() else {
            panic!("the step was applied");
        };
        let culprit = culprit.unwrap();
        assert_eq!(culprit.cause.is_some(), known);
        assert_eq!(&culprit.parameter, "up.weight");
    }
}

#[test]
fn a_step_that_halts_stops_those_behind_it() {
    let scale = LossScale::Dynamic(DynamicLossScale {
        initial: 8.0,
        ..DynamicLossScale::default()
    });
    let mut t = Training::new(scale);
    let halt = Halt::new(&t.device).unwrap();
    let factors = [1.0, 60000.0, 2.0, 60000.0, 3.0];
    assert!(
        t.step(1.0, Level::Step, Some(&halt))
            .outcome()
            .unwrap()
            .is_applied()
    );
    let before = t.bits();
    let steps: Vec<StepHandle> = factors[1..]
        .iter()
        .map(|&f| t.step(f, Level::Step, Some(&halt)))
        .collect();
    let halted: Vec<bool> = steps.iter().map(|s| s.halted().unwrap()).collect();
    assert_eq!(halted, [false, true, true, true]);
    for behind in &steps[1..] {
        assert!(!behind.outcome().unwrap().is_applied());
    }
    // Only the scale has moved, and only once.
    assert_eq!(t.scaler.current().unwrap(), 4.0);
    let scale_state = t.scaler.state().len();
    let after = t.bits();
    assert_eq!(
        after[..after.len() - scale_state],
        before[..before.len() - scale_state]
    );
    let StepOutcome::Skipped { culprit } = steps[0].outcome_of_halted().unwrap() else {
        panic!("the step was applied");
    };
    assert!(culprit.unwrap().cause.is_some());

    // The rest, submitted again, does what it does in a loop that reads every step.
    halt.clear().unwrap();
    assert!(
        t.step(2.0, Level::Step, Some(&halt))
            .outcome()
            .unwrap()
            .is_applied()
    );
    let mut plain = Training::new(scale);
    for factor in &factors[..3] {
        let _ = plain.step(*factor, Level::Off, None);
    }
    assert_eq!(t.bits(), plain.bits());
}

#[test]
fn one_plan_serves_all_steps_and_one_all_replays() {
    let mut t = Training::new(LossScale::Static(8.0));
    let _ = t.step(60000.0, Level::Layer, None).outcome().unwrap();
    let compiled = t.device.plans_compiled();
    for _ in 0..3 {
        let _ = t.step(1.5, Level::Layer, None).outcome().unwrap();
        let _ = t.step(60000.0, Level::Layer, None).outcome().unwrap();
    }
    assert_eq!(t.device.plans_compiled(), compiled);
}

#[test]
fn a_parameter_or_a_batch_that_is_not_finite_is_named() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, &[("a.weight", &[1.0, f32::NAN])]);
    let w = slot(&store, "a.weight");
    let scaler = scaler(LossScale::None, &device);
    let mut optimizer = Sgd::new(0.1);
    let loss = w.read().square().sum_all();
    let grads = scaler
        .scale(&loss)
        .grad(&[&w])
        .unwrap()
        .check_numerics(Level::Step);
    let step = optimizer.step(store.train(), grads.unscale()).unwrap();
    let text = step.outcome().unwrap().to_string();
    assert!(
        text.contains("read: `a.weight`") && text.contains("1 NaN"),
        "{text}"
    );
}
