//! The loss scale.
use super::support::*;
use bimetal::layers::{Ctx, Layer, Linear, cross_entropy, mse};
use bimetal::optim::{Accumulator, Adam, Optimizer, ParamGroup, Sgd};
use bimetal::precision::{DynamicLossScale, LossScale, LossScaler, Policy, SkipLimit, StepOutcome};
use bimetal::train::{
    Callback, Control, Logs, Output, Progress, ProgressState, Result, StepRecord, TensorBatch,
    TensorBoard, Trainer,
};
use bimetal::{DType, Device, Tensor};
use std::io::Write;
use std::sync::{Arc, Mutex};

fn scaler(device: &Device, settings: DynamicLossScale) -> LossScaler {
    LossScaler::new(LossScale::Dynamic(settings), device).unwrap()
}

// pytorch#40497, #99640, #96755
pub fn pitfall_01_the_scale_stops_at_its_minimum_and_the_training_with_an_error(device: &Device) {
    let params: &[(&str, &[f32])] = &[("fine", &[1.0]), ("broken", &[-1.0])];
    let store = store(device, Policy::float32(), params);
    let scaler = dynamic(device);
    let mut optimizer = Sgd::new(0.1);
    let mut limit = SkipLimit::default();
    let loss = |_: &Ctx| {
        let read = |p: &str| slot(&store, p).read();
        read("fine").sum_all() + read("broken").log().sum_all() * f64::INFINITY
    };
    let mut steps = 0;
    let e = (0..110).find_map(|_| {
        steps += 1;
        let done = train(&mut optimizer, &store, &scaler, loss);
        limit.observe(&done.outcome().unwrap()).err()
    });
    let text = e.expect("no error in 110 skipped steps").to_string();
    assert_eq!(steps, 100);
    assert!(text.contains("100 ") && text.contains("`broken`"), "{text}");
    assert_eq!(scaler.current().unwrap(), 1.0);
    assert_eq!(values(&slot(&store, "fine")), [1.0]);
}

pub fn pitfall_01_the_trainer_stops_and_names_the_layer(device: &Device) {
    let store = seeded(device, "mixed_float16");
    let scope = store.root().policy("float32");
    let good = Linear::new(&scope.at("good"), 64, 3);
    let bad = Linear::new(&scope.at("bad"), 64, 3);
    let task = |batch: &TensorBatch, cx: &Ctx| {
        let x = batch[0].flatten(1..=2);
        let nan = (bad.forward(&x, cx).square() * -1.0 - 1.0).sqrt();
        Output::new(cross_entropy(&good.forward(&x, cx), &batch[1]) + nan.mean_all())
    };
    let mut trainer = Trainer::new(&store, Adam::new(1e-2)).progress(false);
    let e = trainer.fit_steps(&task, loader(16), None, 110).unwrap_err();
    let text = e.to_string();
    assert!(text.contains("100 ") && text.contains("`bad."), "{text}");
}

// pytorch#98828, Keras 3
pub fn pitfall_02_the_scale_stops_at_its_maximum_and_is_never_infinite(device: &Device) {
    let often = DynamicLossScale {
        growth_interval: 1,
        ..Default::default()
    };
    let huge = DynamicLossScale {
        initial: 2f32.powi(120),
        max: 2f32.powi(125),
        ..often
    };
    for (settings, top) in [(often, 2f32.powi(24)), (huge, 2f32.powi(125))] {
        let store = store(device, Policy::float32(), &[("w", &[0.0])]);
        let scaler = scaler(device, settings);
        let mut optimizer = Sgd::new(0.1);
        for _ in 0..15 {
            let zero = [vector(&[0.0], device)];
            let done = step(&mut optimizer, &store, &scaler, &zero);
            assert!(done.scale().unwrap() <= top);
        }
        assert_eq!(scaler.current().unwrap(), top);
    }
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let scaler = dynamic(device);
        let e = scaler.set(bad).unwrap_err().to_string();
        assert!(e.contains(&format!("the scale is {bad}")), "{e}");
        assert_eq!(scaler.current().unwrap(), 32768.0);
    }
}

// pytorch#157436
pub fn pitfall_03_the_scale_moves_once_a_step(device: &Device) {
    let one: &[f32] = &[1.0];
    let params = [("a", one), ("b", one), ("c", one)];
    let store = store(device, Policy::float32(), &params);
    let scaler = scaler(
        device,
        DynamicLossScale {
            growth_interval: 2,
            ..Default::default()
        },
    );
    let group = |p: &str, f: f64| ParamGroup::new(p).lr_factor(f);
    let mut optimizer = Sgd::new(0.1).group(group("a", 0.5)).group(group("b", 0.25));
    let mut scales = Vec::new();
    for bad in [0, 1, 0, 0, 0, 1] {
        // Three groups, each of which has something that is not finite, and two micro-batches.
        let mut window = Accumulator::new();
        for _ in 0..2 {
            let cx = window.context(store.train());
            let slots = store.trainable_slots().unwrap();
            let factor = if bad == 1 { f64::INFINITY } else { 1.0 };
            let sum = slots
                .iter()
                .fold(Tensor::scalar(0.0), |sum, s| sum + s.read().sum_all());
            let grads = scaler.scale(&(sum * factor)).grad(&slots).unwrap();
            window.add(cx, grads).unwrap();
        }
        let (cx, grads) = window.finish(store.train()).unwrap();
        let done = optimizer.step(cx, grads.unscale()).unwrap();
        assert_eq!(done.outcome().unwrap().is_applied(), bad == 0);
        scales.push(done.scale().unwrap() / 32768.0);
    }
    scales.push(scaler.current().unwrap() / 32768.0);
    assert_eq!(scales, [1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 0.5]);
}

// pytorch#111739, #70346
pub fn pitfall_04_a_skipped_step_says_so_with_its_culprit(device: &Device) {
    let params: &[(&str, &[f32])] = &[("fine", &[1.0]), ("w", &[1.0])];
    let store = store(device, Policy::mixed_float16(), params);
    let scaler = dynamic(device);
    let mut optimizer = Sgd::new(1e-4);
    // The gradient in f16 is 20 times the scale: finite from 2^11 on, after four halvings.
    let loss = |_: &Ctx| {
        let x = Tensor::full(&[1], 20.0, DType::F16, device);
        let w = store.param("w").unwrap().compute();
        (w * x).sum_all().cast(DType::F32) + slot(&store, "fine").read().sum_all()
    };
    for attempt in 0..8 {
        let done = train(&mut optimizer, &store, &scaler, loss);
        match done.outcome().unwrap() {
            StepOutcome::Applied => assert!(attempt >= 4),
            StepOutcome::Skipped { culprit } => {
                assert!(attempt < 4);
                assert_eq!(culprit.expect("no culprit").parameter, "w");
            }
        }
    }
    assert_eq!(scaler.current().unwrap(), 2048.0);
    assert_eq!((optimizer.attempted(), applied(&store)), (8, 4));
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<u8>>>, Arc<Mutex<u64>>);

impl Callback for Seen {
    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        *self.1.lock().unwrap() += u64::from(record.outcome == bimetal::train::Outcome::Skipped);
        Ok(Control::Continue)
    }
}

impl Write for Seen {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(data)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub fn pitfall_04_skipped_steps_are_counted_where_the_user_looks(device: &Device) {
    let scratch = Scratch::new("skipped");
    let store = seeded(device, "mixed_float16");
    let (net, seen) = (Net::new(&store), Seen::default());
    let mut trainer = Trainer::new(&store, Adam::new(1e-2))
        .progress(false)
        .loss_scale(restless())
        .callback(seen.clone())
        .callback(TensorBoard::new(&scratch.0));
    let report = trainer.fit(&net, loader(80), None, 1).unwrap();
    assert!(report.skipped > 0 && report.applied > 0);
    assert_eq!(report.skipped + report.applied, report.steps);
    assert_eq!(*seen.1.lock().unwrap(), report.skipped);
    assert_eq!(u64::from(applied(&store)), report.applied);
    let mut events = Vec::new();
    for file in std::fs::read_dir(scratch.0.join("train")).unwrap() {
        events.extend(std::fs::read(file.unwrap().path()).unwrap());
    }
    let tag = b"epoch_skipped_steps";
    let at = events.windows(tag.len()).position(|w| w == tag);
    let at = at.expect("TensorBoard has no number of skipped steps");
    let number = (report.skipped as f32).to_le_bytes();
    let near = &events[at..events.len().min(at + 120)];
    assert!(near.windows(4).any(|w| w == number), "{near:?}");
    let mut progress = Progress::new(Box::new(seen.clone()), true, 1);
    progress.begin_epoch(0, Some(4), 0);
    progress.update(&ProgressState {
        batch: 2,
        samples: 16,
        logs: &Logs::new(),
        scale: Some(1024.0),
        skipped: 3,
    });
    let line = String::from_utf8(seen.0.lock().unwrap().clone()).unwrap();
    assert!(line.contains("scale 1024 skipped 3"), "{line}");
}

// tensorflow#38357
pub fn pitfall_05_the_smallest_scale_may_be_below_one(device: &Device) {
    // The f16 gradient is 2^20 times the scale: finite from 2^-5 on.
    let run = |min: f32| {
        let store = store(device, Policy::mixed_float16(), &[("w", &[1.0])]);
        let scaler = scaler(
            device,
            DynamicLossScale {
                initial: 1.0,
                min,
                ..Default::default()
            },
        );
        let mut optimizer = Sgd::new(2f64.powi(-20));
        for _ in 0..12 {
            let _ = train(&mut optimizer, &store, &scaler, |_| {
                let half = store.param("w").unwrap().compute().cast(DType::F32);
                half.cast(DType::F16).cast(DType::F32).sum_all() * 2f64.powi(20)
            });
        }
        (scaler.current().unwrap(), values(&slot(&store, "w"))[0])
    };
    let (scale, w) = run(2f32.powi(-10));
    assert_eq!(scale, 2f32.powi(-5));
    assert_eq!(w, 1.0 - 7.0);
    assert_eq!(run(1.0), (1.0, 1.0));
}

// tensorflow#33484
pub fn pitfall_06_the_loss_is_scaled_in_f32(device: &Device) {
    let store = store(device, Policy::mixed_float16(), &[("w", &[3.0])]);
    let scaler = LossScaler::new(LossScale::Static(65536.0), device).unwrap();
    let x = Tensor::full(&[1], 2f64.powi(-6), DType::F16, device);
    let loss = (store.param("w").unwrap().compute() * x).sum_all() * 64.0;
    assert_eq!(loss.dtype(), DType::F16);
    let scaled = scaler.scale(&loss);
    assert_eq!(scaled.scaled().dtype(), DType::F32);
    assert_eq!(scaled.scaled().item().unwrap(), 3.0 * 65536.0);
    assert_eq!(scaled.loss().item().unwrap(), 3.0);
    // Losses of the library are f32 from the start, so that their gradient is finite, too.
    let prediction = store.param("w").unwrap().compute();
    let loss = mse(&prediction, &Tensor::full(&[1], 2.875, DType::F16, device));
    assert_eq!(loss.dtype(), DType::F32);
    let w = slot(&store, "w");
    let grads = scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
    assert_eq!(list(&grads.get(&w).unwrap()), [0.25]);
}
