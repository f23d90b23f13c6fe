//! The loss scale and the order of a step, on the steps that Keras' `LossScaleOptimizer` made.
use crate::golden::{case, list as items, numbers};
use crate::support::*;
use bimetal::layers::ParamStore;
use bimetal::optim::{Accumulator, AdamW, Optimizer, Sgd};
use bimetal::precision::{
    DynamicLossScale, Grads, LossScale, LossScaler, Policy, Scaled, StepOutcome,
};
use bimetal::tensor::{Slot, commit};
use bimetal::{DType, Device, Tensor};
use serde_json::Value;

pub fn keras_loss_scale_optimizer(device: &Device) {
    let golden = case("scales");
    let overflows = numbers(&golden["overflows"]);
    let scaler = LossScaler::new(LossScale::dynamic(), device).unwrap();
    assert_eq!(scaler.current().unwrap(), 32768.0);
    let mut step = 0;
    for run in items(&golden["runs"]) {
        let [scale, length] = numbers(run)[..] else {
            panic!("{run}");
        };
        for _ in 0..length as usize {
            let finite = !overflows.contains(&(step as f64));
            let new = scaler.update(&Tensor::from_slice(&[finite], &[], device));
            let writes: Vec<(&Slot, &Tensor)> = new.iter().map(|(s, t)| (s, t)).collect();
            commit(&[], &writes).unwrap();
            step += 1;
            assert_eq!(f64::from(scaler.current().unwrap()), scale, "step {step}");
        }
    }
    assert_eq!(step, 4100);
    // Better: limits.
    let d = DynamicLossScale::default();
    assert_eq!((d.min, d.max), (1.0, 2f32.powi(24)));
}

/// A training of three weights on given gradients.
struct Run {
    store: ParamStore,
    scaler: LossScaler,
    optimizer: Box<dyn Optimizer>,
    clip: Option<f64>,
}

impl Run {
    fn new(device: &Device, golden: &Value, optimizer: Box<dyn Optimizer>) -> Run {
        let start: Vec<f32> = numbers(&golden["start"])
            .iter()
            .map(|&v| v as f32)
            .collect();
        let d = DynamicLossScale {
            growth_interval: golden["growth"].as_u64().unwrap() as u32,
            ..Default::default()
        };
        Run {
            store: store(device, Policy::mixed_float16(), &[("w", &start)]),
            scaler: LossScaler::new(LossScale::Dynamic(d), device).unwrap(),
            optimizer,
            clip: None,
        }
    }

    fn scaled(&self, g: &Value) -> Grads<Scaled> {
        let g: Vec<f32> = numbers(g).iter().map(|&v| v as f32).collect();
        let device = self.store.device();
        let scaled = vector(&g, device) * self.scaler.scale_tensor();
        let loss = self.scaler.scale(&Tensor::zeros(&[], DType::F32, device));
        loss.with_gradients(vec![(slot(&self.store, "w"), Some(scaled))])
            .unwrap()
    }

    fn step(&mut self, cx: bimetal::layers::Ctx, grads: Grads<Scaled>) -> StepOutcome {
        let mut grads = grads.unscale();
        if let Some(norm) = self.clip {
            grads = grads.clip_global_norm(norm);
        }
        self.optimizer.step(cx, grads).unwrap().outcome().unwrap()
    }

    /// Weights, moments, averages.
    fn state(&self) -> Vec<Vec<u8>> {
        let mut all = self.store.state().unwrap();
        all.extend(self.optimizer.state());
        bits(&all)
    }

    /// Every step is Keras'; one that is not finite changes nothing.
    fn follow(mut self, golden: &Value) {
        let rows = items(&golden["gradients"])
            .iter()
            .zip(items(&golden["steps"]));
        let mut before = None;
        for (g, row) in rows {
            let grads = self.scaled(g);
            let finite = numbers(g).iter().all(|v| v.is_finite());
            let cx = self.store.train();
            assert_eq!(self.step(cx, grads).is_applied(), finite);
            let now = self.state();
            if let (false, Some(before)) = (finite, &before) {
                assert_eq!(&now, before, "{row}");
            }
            before = Some(now);
            close(&values(&slot(&self.store, "w")), &numbers(&row["w"]), 1e-5);
            let scale = self.scaler.current().unwrap();
            assert_eq!(f64::from(scale), row["scale"].as_f64().unwrap(), "{row}");
            let counter = self.scaler.state()[1].to_vec::<u32>().unwrap()[0];
            assert_eq!(
                u64::from(counter),
                row["counter"].as_u64().unwrap(),
                "{row}"
            );
            let count = u64::from(applied(&self.store));
            assert_eq!(count, row["iterations"].as_u64().unwrap(), "{row}");
            if let Some(average) = row.get("average") {
                let averages = self.optimizer.averages().unwrap();
                let found = averages.of(&slot(&self.store, "w")).unwrap();
                close(&values(found), &numbers(average), 1e-5);
            }
        }
    }
}

pub fn keras_overflow(device: &Device) {
    let golden = case("sgd");
    let bad = |g: &&Value| numbers(g).iter().any(|v| !v.is_finite());
    assert!(items(&golden["gradients"]).iter().filter(bad).count() > 3);
    Run::new(device, &golden, Box::new(Sgd::new(0.1).momentum(0.9))).follow(&golden);
}

pub fn keras_order(device: &Device) {
    // Divided by the scale, clipped, decayed, stepped, averaged.
    let golden = case("adamw_ema_clip");
    let optimizer = AdamW::new(0.01).weight_decay(0.1).ema(0.75);
    let mut run = Run::new(device, &golden, Box::new(optimizer));
    run.clip = Some(1.0);
    run.follow(&golden);
}

pub fn keras_gradient_accumulation(device: &Device) {
    let golden = case("accumulate");
    let new = || {
        let mut run = Run::new(device, &golden, Box::new(Sgd::new(0.1).momentum(0.9)));
        // Beyond the norm of the first mean, below that of the second.
        run.clip = Some(2.0);
        run
    };
    let window = |run: &mut Run, parts: &[&Value]| {
        let mut window = Accumulator::new();
        for g in parts {
            let cx = window.context(run.store.train());
            window.add(cx, run.scaled(g)).unwrap();
        }
        let (cx, grads) = window.finish(run.store.train()).unwrap();
        run.step(cx, grads)
    };
    let mut run = new();
    let gradients = items(&golden["gradients"]);
    for (pair, rows) in gradients.chunks(2).zip(items(&golden["steps"]).chunks(2)) {
        assert!(window(&mut run, &[&pair[0], &pair[1]]).is_applied());
        close(
            &values(&slot(&run.store, "w")),
            &numbers(&rows[1]["w"]),
            1e-5,
        );
    }
    // Better: a micro-batch that is not finite drops its window, and the next one begins afresh.
    let bad = serde_json::json!(["nan", 0.0, 1.0]);
    let (mut run, mut plain) = (new(), new());
    assert!(!window(&mut run, &[&gradients[0], &bad]).is_applied());
    assert_eq!(values(&slot(&run.store, "w")), numbers(&golden["start"]));
    assert!(window(&mut run, &[&gradients[2], &gradients[3]]).is_applied());
    assert!(window(&mut plain, &[&gradients[2], &gradients[3]]).is_applied());
    assert_eq!(run.state(), plain.state());
}

pub fn keras_mirrored_strategy(device: &Device) {
    let golden = case("sgd");
    let replicas = || [(); 2].map(|()| Run::new(device, &golden, Box::new(Sgd::new(1.0))));
    let step = |replicas: &mut [Run; 2], shares: [[f64; 3]; 2]| {
        let gradient = |(run, g): (&Run, [f64; 3])| {
            let g: Vec<_> = g.iter().map(|v| v.to_string()).collect();
            run.scaled(&serde_json::json!(g))
        };
        let grads: Vec<_> = replicas.iter().zip(shares).map(gradient).collect();
        let reduced = Grads::all_reduce(&grads).unwrap().into_iter();
        let pairs = replicas.iter_mut().zip(reduced);
        let outcomes = pairs.map(|(run, grads)| {
            let cx = run.store.train();
            run.step(cx, grads).is_applied()
        });
        outcomes.collect::<Vec<_>>()
    };
    let start = numbers(&golden["start"]);
    let weights = |run: &Run| values(&slot(&run.store, "w"));
    // The loss of a replica is divided by their number: the mean of the gradients, (1.5, 2, 0), whose norm is 2.5.
    let (mut clipped, mut plain) = (replicas(), replicas());
    clipped.iter_mut().for_each(|run| run.clip = Some(1.0));
    let shares = [[3.0, 0.0, 1.0], [0.0, 4.0, -1.0]];
    assert_eq!(step(&mut plain, shares), [true, true]);
    assert_eq!(step(&mut clipped, shares), [true, true]);
    for rank in 0..2 {
        let moved = |by: [f64; 3]| [0, 1, 2].map(|i: usize| start[i] - by[i]);
        close(&weights(&plain[rank]), &moved([1.5, 2.0, 0.0]), 1e-6);
        // Better: clipped after the reduction; each by itself it would be half of (1, 1).
        close(&weights(&clipped[rank]), &moved([0.6, 0.8, 0.0]), 1e-5);
    }
    // Better: Keras applies a NaN of replica 1 to both.
    let before = plain.each_ref().map(Run::state);
    let nan = f64::NAN;
    assert_eq!(
        step(&mut plain, [[1.0; 3], [0.0, nan, 0.0]]),
        [false, false]
    );
    assert_eq!(plain.each_ref().map(Run::state), before);
}
