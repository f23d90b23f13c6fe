//! Two replicas of a model in one process, whose gradients are reduced before anything is decided.
use super::support::*;
use bimetal::layers::{Layer, Linear, ParamStore, mse};
use bimetal::optim::{Adam, Optimizer};
use bimetal::precision::{DynamicLossScale, Grads, LossScale, LossScaler, Scaled, StepOutcome};
use bimetal::tensor::{Error, Result};
use bimetal::{Device, Tensor};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A replica: its own weights, moments and scale.
struct Replica {
    store: ParamStore,
    layer: Linear,
    scaler: LossScaler,
    optimizer: Adam,
}

impl Replica {
    fn new(device: &Device, scale: LossScale) -> Replica {
        let store = seeded(device, "mixed_float16");
        Replica {
            layer: Linear::new(&store.root().at("layer"), 2, 1),
            scaler: LossScaler::new(scale, device).unwrap(),
            optimizer: Adam::new(0.05),
            store,
        }
    }

    /// The scaled gradients of a batch.
    fn grads(&self, x: &[f32]) -> Result<Grads<Scaled>> {
        let rows = x.len() / 2;
        let x = Tensor::from_slice(x, &[rows, 2], self.store.device());
        let y = x.sum(&[1], true) * 0.5;
        let loss = mse(&self.layer.forward(&x, &self.store.train()), &y);
        self.scaler
            .scale(&loss)
            .grad(&self.store.trainable_slots()?)
    }

    fn step(&mut self, grads: Grads<Scaled>, clip: Option<f64>) -> Result<StepOutcome> {
        let grads = match clip {
            Some(norm) => grads.unscale().clip_global_norm(norm),
            None => grads.unscale(),
        };
        self.optimizer.step(self.store.train(), grads)?.outcome()
    }

    fn state(&self) -> Vec<Vec<u8>> {
        let mut all = self.store.state().unwrap();
        all.extend(self.optimizer.state());
        all.extend(self.scaler.state());
        bits(&all)
    }
}

fn two(device: &Device) -> [Replica; 2] {
    let scale = LossScale::Dynamic(DynamicLossScale {
        initial: 1024.0,
        growth_interval: 2,
        ..Default::default()
    });
    [(); 2].map(|()| Replica::new(device, scale))
}

/// One step of both, reduced between the gradients and the decision.
fn step(replicas: &mut [Replica; 2], shares: [&[f32]; 2]) -> [bool; 2] {
    step_clipped(replicas, shares, None)
}

fn step_clipped(replicas: &mut [Replica; 2], shares: [&[f32]; 2], clip: Option<f64>) -> [bool; 2] {
    let grads: Vec<_> = replicas
        .iter()
        .zip(shares)
        .map(|(r, x)| r.grads(x).unwrap())
        .collect();
    let reduced = Grads::all_reduce(&grads).unwrap();
    let mut applied = [false; 2];
    for ((replica, grads), applied) in replicas.iter_mut().zip(reduced).zip(&mut applied) {
        *applied = replica.step(grads, clip).unwrap().is_applied();
    }
    applied
}

const GOOD: [&[f32]; 2] = [&[1.0, 0.5, -0.25, 1.0], &[0.5, -1.0, 2.0, 0.125]];
const BAD: &[f32] = &[1.0, 0.5, f32::NAN, 1.0];

// Keras 3: a NaN on replica 1 only is applied to both.
pub fn pitfall_08_a_nan_on_one_replica_skips_the_step_on_all(device: &Device) {
    for bad in 0..2 {
        let mut replicas = two(device);
        assert_eq!(step(&mut replicas, GOOD), [true; 2]);
        let before = [0, 1].map(|i: usize| bits(&replicas[i].store.state().unwrap()));
        let mut shares = GOOD;
        shares[bad] = BAD;
        assert_eq!(step(&mut replicas, shares), [false; 2]);
        for (replica, before) in replicas.iter().zip(before) {
            assert_eq!(bits(&replica.store.state().unwrap()), before);
            assert_eq!(replica.scaler.current().unwrap(), 512.0);
        }
    }
    // All is well, and the step is that of the whole batch, clipped by the norm of its gradient.
    let mut replicas = two(device);
    let mut whole = Replica::new(device, LossScale::None);
    for _ in 0..5 {
        assert_eq!(step_clipped(&mut replicas, GOOD, Some(0.5)), [true; 2]);
        let grads = whole.grads(&GOOD.concat()).unwrap();
        assert!(whole.step(grads, Some(0.5)).unwrap().is_applied());
    }
    let weights = |r: &Replica| values(&slot(&r.store, "layer.weight"));
    close(&weights(&replicas[0]), &weights(&whole), 2e-3);
}

// pytorch#136009
pub fn pitfall_29_replicas_keep_one_scale_and_the_same_weights(device: &Device) {
    let mut replicas = two(device);
    let mut scales = Vec::new();
    for bad in [false, false, true, false, false, true, true, false] {
        let shares = [GOOD[0], if bad { BAD } else { GOOD[1] }];
        assert_eq!(step(&mut replicas, shares), [!bad; 2]);
        assert_eq!(replicas[0].state(), replicas[1].state());
        scales.push(replicas[0].scaler.current().unwrap() / 1024.0);
    }
    assert_eq!(scales, [1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 0.5, 0.5]);
    // Replicas that are not set up alike are an error before anything is reduced.
    let other = Replica::new(device, LossScale::Static(8.0));
    let grads = [
        replicas[0].grads(GOOD[0]).unwrap(),
        other.grads(GOOD[1]).unwrap(),
    ];
    let e = Grads::all_reduce(&grads).unwrap_err().to_string();
    assert!(e.contains("replica 1 by Static(8.0)"), "{e}");
}

/// Where replicas that run on threads of their own meet to reduce.
#[derive(Default)]
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: [Option<Grads<Scaled>>; 2],
    reduced: [Option<Grads<Scaled>>; 2],
    failed: bool,
}

impl Meeting {
    /// Waits until all have come, and gives each its share; an error if one of them failed, or does not come.
    fn reduce(&self, rank: usize, grads: Result<Grads<Scaled>>) -> Result<Grads<Scaled>> {
        let mut state = self.state.lock().unwrap();
        match grads {
            Ok(grads) => state.arrived[rank] = Some(grads),
            Err(e) => {
                state.failed = true;
                self.changed.notify_all();
                return Err(e);
            }
        }
        if let [Some(a), Some(b)] = &state.arrived {
            let mut reduced = Grads::all_reduce(&[a.clone(), b.clone()])?.into_iter();
            state.reduced = [reduced.next(), reduced.next()];
            state.arrived = [None, None];
            self.changed.notify_all();
        }
        let waiting = |s: &mut State| s.reduced[rank].is_none() && !s.failed;
        let limit = Duration::from_secs(60);
        let (mut state, late) = self
            .changed
            .wait_timeout_while(state, limit, waiting)
            .unwrap();
        let lost = |why: &str| Error::other("all_reduce", format!("the other replica {why}"));
        match state.reduced[rank].take() {
            Some(grads) => Ok(grads),
            None if late.timed_out() => Err(lost("did not come")),
            None => Err(lost("failed")),
        }
    }
}

/// Both replicas on threads; what became of each step, by rank. `None` among the shares fails before the reduction.
fn threads(
    replicas: &mut [Replica; 2],
    steps: &[[Option<&'static [f32]>; 2]],
) -> Vec<Vec<std::result::Result<bool, String>>> {
    let meeting = Meeting::default();
    std::thread::scope(|scope| {
        let handles: Vec<_> = replicas
            .iter_mut()
            .enumerate()
            .map(|(rank, replica)| {
                let meeting = &meeting;
                scope.spawn(move || {
                    let mut outcomes = Vec::new();
                    for shares in steps {
                        let grads = match shares[rank] {
                            Some(x) => replica.grads(x),
                            None => Err(Error::other("data", "the file has vanished")),
                        };
                        let done = meeting
                            .reduce(rank, grads)
                            .and_then(|g| replica.step(g, None));
                        outcomes.push(done.map(|o| o.is_applied()).map_err(|e| e.to_string()));
                    }
                    outcomes
                })
            })
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

// pytorch#115710, fairscale#179
pub fn pitfall_30_the_decision_is_part_of_the_reduction(device: &Device) {
    let mut replicas = two(device);
    let good = GOOD.map(Some);
    let steps = [good, [good[0], Some(BAD)], good, [Some(BAD), good[1]], good];
    let outcomes = threads(&mut replicas, &steps);
    let want = [true, false, true, false, true].map(Ok);
    assert_eq!(outcomes, [want.clone(), want]);
    assert_eq!(replicas[0].state(), replicas[1].state());
}

pub fn pitfall_30_a_replica_that_fails_ends_the_others_wait(device: &Device) {
    let mut replicas = two(device);
    let outcomes = threads(&mut replicas, &[[GOOD[0].into(), None]]);
    let errors: Vec<_> = outcomes.iter().map(|o| o[0].clone().unwrap_err()).collect();
    assert!(errors[0].contains("the other replica failed"), "{errors:?}");
    assert!(errors[1].contains("the file has vanished"), "{errors:?}");
    // Nothing was decided: both are as they were and go on together.
    assert_eq!(replicas[0].state(), replicas[1].state());
    assert_eq!(step(&mut replicas, GOOD), [true; 2]);
}
