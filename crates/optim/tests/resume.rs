//! Saved and restored state continues with the same bits.
mod common;
use bimetal_layers::ParamStore;
use bimetal_optim::{Adam, AdamW, Ema, Optimizer, Sgd, warmup_cosine};
use bimetal_precision::{DynamicLossScale, LossScale, LossScaler};
use bimetal_tensor::{DType, Device, Slot, Tensor};
use common::*;

type Saved = Vec<(String, Vec<u8>)>;

/// A training of one parameter whose gradients overflow now and then.
struct Run {
    device: Device,
    store: ParamStore,
    scaler: LossScaler,
    optimizer: Box<dyn Optimizer>,
}

impl Run {
    fn new(optimizer: Box<dyn Optimizer>) -> Run {
        let device = bimetal_cpu::cpu();
        let d = DynamicLossScale {
            growth_interval: 3,
            ..Default::default()
        };
        let store = store(&device, &[("w", &[0.3, -1.7, 2.2])]);
        let scaler = scaler(LossScale::Dynamic(d), &device);
        let mut run = Run {
            device,
            store,
            scaler,
            optimizer,
        };
        let slots = run.store.trainable_slots().unwrap();
        run.optimizer.init(&slots).unwrap();
        run
    }

    fn state(&self) -> Vec<Slot> {
        let mut all = self.store.state().unwrap();
        all.extend(self.optimizer.state());
        all.extend(self.scaler.state());
        all
    }

    fn save(&self) -> Saved {
        let pair = |s: &Slot| (s.name().to_string(), s.to_bytes().unwrap());
        self.state().iter().map(pair).collect()
    }

    fn load(&self, saved: &Saved) {
        let state = self.state();
        assert_eq!(state.len(), saved.len());
        for (s, (name, bytes)) in state.iter().zip(saved) {
            assert_eq!(s.name(), name);
            let t = Tensor::from_bytes(bytes, &s.shape(), s.dtype(), &self.device);
            s.set(&t).unwrap();
        }
        self.scaler.check_state().unwrap();
    }

    fn train(&mut self, steps: std::ops::Range<usize>) {
        for t in steps {
            let x = if t % 5 == 4 {
                f64::INFINITY
            } else {
                t as f64 * 0.21 - 1.0
            };
            let w = slot(&self.store, "w");
            let loss = (w.read() - x).square().mean_all();
            let grads = self.scaler.scale(&loss).grad(&[&w]).unwrap().unscale();
            let grads = grads.clip_global_norm(0.8);
            let _ = self.optimizer.step(self.store.train(), grads).unwrap();
        }
    }
}

// fairseq2#1346, transformers#11663, composer#1376: the scaler's state is not saved.
#[test]
fn pitfall_22_a_resumed_run_has_the_same_bits() {
    let makes: [fn() -> Box<dyn Optimizer>; 5] = [
        || Box::new(Sgd::new(0.1).momentum(0.9)),
        || Box::new(Adam::new(0.02)),
        || Box::new(Adam::new(0.02).ema(Ema::new(0.9).warmup())),
        || Box::new(AdamW::new(warmup_cosine(0.05, 0.001, 4, 25)).weight_decay(0.1)),
        || {
            Box::new(
                Sgd::new(warmup_cosine(0.05, 0.001, 4, 25))
                    .momentum(0.5)
                    .nesterov(),
            )
        },
    ];
    for make in makes {
        let mut straight = Run::new(make());
        straight.train(0..24);
        let mut first = Run::new(make());
        first.train(0..13);
        let saved = first.save();
        let mut second = Run::new(make());
        second.train(0..2);
        second.load(&saved);
        second.optimizer.set_attempted(first.optimizer.attempted());
        second.train(13..24);
        assert_eq!(second.save(), straight.save());
        assert_eq!(second.optimizer.attempted(), 24);
        // 20 of 24 steps were applied; the scale has moved both ways.
        assert_eq!(applied(&second.store), 20);
    }
}

#[test]
fn a_rate_set_by_hand_is_part_of_the_state() {
    let mut first = Run::new(Box::new(Sgd::new(0.1)));
    first.optimizer.set_lr(0.025).unwrap();
    let second = Run::new(Box::new(Sgd::new(0.1)));
    second.load(&first.save());
    assert_eq!(values(&second.optimizer.state()[0]), [0.025f32 as f64]);
}

#[test]
fn a_resumed_run_rounds_by_the_same_chance() {
    let device = bimetal_cpu::cpu();
    let new = || {
        let store = ParamStore::new(&device, bimetal_precision::Policy::bfloat16()).seed(9);
        let start = vector(&[1.0, -0.3, 2.5, 0.7], &device);
        let _ = store.root().param_from("w", &start);
        (store, Adam::new(0.002).stochastic_rounding())
    };
    let scaler = scaler(LossScale::None, &device);
    let train = |run: &mut (ParamStore, Adam), steps: std::ops::Range<usize>| {
        for t in steps {
            let g = Tensor::full(&[4], (t as f64 * 0.7).sin(), DType::BF16, &device);
            let _ = step(&mut run.1, &run.0, &scaler, &[g]);
        }
    };
    let state = |run: &(ParamStore, Adam)| {
        let mut all = run.0.state().unwrap();
        all.extend(run.1.state());
        all
    };
    let bits = |run: &(ParamStore, Adam)| -> Vec<Vec<u8>> {
        state(run).iter().map(|s| s.to_bytes().unwrap()).collect()
    };
    let mut straight = new();
    train(&mut straight, 0..20);
    let (mut first, mut second) = (new(), new());
    train(&mut first, 0..9);
    train(&mut second, 0..1);
    for (slot, bytes) in state(&second).iter().zip(bits(&first)) {
        slot.set(&Tensor::from_bytes(
            &bytes,
            &slot.shape(),
            slot.dtype(),
            &device,
        ))
        .unwrap();
    }
    train(&mut second, 9..20);
    assert_eq!(bits(&second), bits(&straight));
}
