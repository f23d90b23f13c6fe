//! The training loop.
use crate::support::*;
use bimetal::Device;
use bimetal::layers::{Layer, Linear};
use bimetal::optim::{Adam, AdamW, warmup_cosine};
use bimetal::precision::Level;
use bimetal::train::{Callback, Control, Logs, Output, Result, TensorBatch, Trainer};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Batches(Arc<Mutex<Vec<usize>>>);

impl Callback for Batches {
    fn on_batch_end(&mut self, batch: usize, _: &Logs) -> Result<Control> {
        self.0.lock().unwrap().push(batch);
        Ok(Control::Continue)
    }
}

pub fn keras_steps_per_execution(device: &Device) {
    let run = |steps: usize| {
        let store = seeded(device, "mixed_float16");
        let (net, seen) = (Net::new(&store), Batches::default());
        let mut trainer = Trainer::new(&store, Adam::new(1e-2))
            .progress(false)
            .steps_per_execution(steps)
            .callback(seen.clone());
        let report = trainer.fit(&net, loader(80), None, 1).unwrap();
        assert_eq!(report.steps, 10);
        let seen = seen.0.lock().unwrap().clone();
        (seen, bits(&store.state().unwrap()))
    };
    let (one, four) = (run(1), run(4));
    assert_eq!(one.0, Vec::from_iter(0..10));
    // Better: Keras' last index is 11 of 10 batches.
    assert_eq!(four.0, [3, 7, 9]);
    assert_eq!(one.1, four.1);
}

pub fn keras_enable_check_numerics(device: &Device) {
    let store = seeded(device, "mixed_float16");
    let scope = store.root().policy("float32");
    let first = Linear::new(&scope.at("first"), 64, 4);
    let bad = scope.at("bad");
    let site = bad.site();
    let task = |batch: &TensorBatch, cx: &_| {
        let x = first.forward(&batch[0].flatten(1..=2), cx);
        let y = site.run(cx, || Ok((x.square() * -1.0 - 1.0).sqrt()));
        Output::new(y.mean_all())
    };
    let mut trainer = Trainer::new(&store, Adam::new(1e-2))
        .progress(false)
        .check_numerics(Level::Op);
    let e = trainer
        .fit(&task, loader(8), None, 1)
        .unwrap_err()
        .to_string();
    // Operation, output, dtype, shape, counts, source; and better: layer and pass.
    let parts = [
        "sqrt",
        "output 0",
        "float32",
        "[8, 4]",
        "32 NaN",
        "0 +Inf",
        "0 -Inf",
        "training.rs",
        "bad",
    ];
    for part in parts {
        assert!(e.contains(part), "no {part} in {e}");
    }
    assert!(!e.contains("backward"), "{e}");
}

pub fn keras_backup_and_restore(device: &Device) {
    let run = |trainer: Trainer, net: &Net, steps: u64| {
        let mut trainer = trainer
            .progress(false)
            .loss_scale(restless())
            .steps_per_epoch(7);
        trainer.fit_steps(net, loader(83), None, steps).unwrap();
        let mut all = bits(&trainer.store().state().unwrap());
        all.extend(bits(&trainer.optimizer().state()));
        all
    };
    let new = || {
        let store = seeded(device, "mixed_float16");
        let net = Net::new(&store);
        let optimizer = AdamW::new(warmup_cosine(1e-2, 1e-3, 5, 20));
        (Trainer::new(&store, optimizer), net)
    };
    let (trainer, net) = new();
    let straight = run(trainer, &net, 20);
    // Better: to the step, in the middle of an epoch and of a pass over the data.
    let scratch = Scratch::new("backup");
    let mut last = Vec::new();
    for steps in [9, 20] {
        let (trainer, net) = new();
        last = run(trainer.checkpoint(&scratch.0).resume(true), &net, steps);
    }
    assert_eq!(last, straight);
}
