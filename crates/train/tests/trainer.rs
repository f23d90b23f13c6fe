//! The loop: what it calls when, what it counts, and what it must not change.
mod common;

use bimetal_data::{Array, InMemory, Loader};
use bimetal_layers::{Ctx, Layer, Linear, cross_entropy, mse};
use bimetal_optim::{AdamW, Sgd, StepDecay};
use bimetal_tensor::DType;
use bimetal_train::{
    Callback, Control, EarlyStopping, Logs, ModelCheckpoint, Output, Result, TensorBatch, Trainer,
    load_checkpoint,
};
use common::{Net, Record, Scratch, bytes_of, data, device, loader, restless, store};

fn quiet(store: &bimetal_layers::ParamStore) -> Trainer {
    Trainer::new(store, AdamW::new(1e-2))
        .loss_scale(restless())
        .progress(false)
}

#[test]
fn callbacks_are_called_in_order_at_the_ends_of_executions() {
    let device = device();
    let store = store(&device, "mixed_float16");
    let net = Net::new(&store);
    let record = Record::default();
    let mut trainer = quiet(&store)
        .steps_per_execution(4)
        .callback(record.clone());
    trainer.fit(&net, loader(80), Some(loader(9)), 2).unwrap();
    let lines: Vec<String> = record
        .lines()
        .iter()
        .map(|l| match l.split_once(" loss ") {
            Some((head, _)) => head.to_string(),
            None => l.clone(),
        })
        .collect();
    let mut expected = vec!["train begin, 2 epochs of Some(10) from 0".to_string()];
    for epoch in 0..2 {
        expected.push(format!("epoch {epoch} begin"));
        for (first, last) in [(0, 3), (4, 7), (8, 9)] {
            expected.extend((first..=last).map(|b| format!("step {}", epoch * 10 + b + 1)));
            expected.push(format!("batch {last} end loss+accuracy"));
        }
        expected.push("validation end loss+accuracy".to_string());
        expected.push(format!("epoch {epoch} end"));
    }
    expected.push("train end loss+accuracy+val_loss+val_accuracy".to_string());
    assert_eq!(lines, expected);
}

#[test]
fn steps_per_execution_threads_and_prefetch_change_no_bit() {
    let run = |threads: usize, spe: usize, prefetch: usize| {
        let device = bimetal_tensor::Device::new(bimetal_cpu::CpuBackend::new(Some(threads)));
        let store = store(&device, "mixed_float16");
        let net = Net::new(&store);
        let record = Record::default();
        let mut trainer = quiet(&store)
            .steps_per_execution(spe)
            .clip_norm(0.5)
            .callback(record.clone());
        trainer
            .fit(&net, loader(83).prefetch(prefetch), None, 2)
            .unwrap();
        (record.steps(), bytes_of(&store))
    };
    let expected = run(1, 1, 0);
    assert_eq!(expected.0.len(), 22);
    for (threads, spe, prefetch) in [(1, 7, 0), (2, 50, 2), (3, 4, 0)] {
        assert_eq!(
            run(threads, spe, prefetch),
            expected,
            "{threads} {spe} {prefetch}"
        );
    }
}

#[test]
fn a_step_is_compiled_once_and_memory_stays_flat() {
    let device = device();
    let store = store(&device, "mixed_float16");
    let net = Net::new(&store);
    let mut trainer = quiet(&store).steps_per_execution(10);
    let mut fit = |steps| trainer.fit_steps(&net, loader(80), None, steps).unwrap();
    let after_100 = fit(100);
    let after_300 = fit(200);
    assert_eq!(after_300.plans_compiled, after_100.plans_compiled);
    assert_eq!(after_300.memory.live, after_100.memory.live);
    assert_eq!(after_300.memory.peak, after_100.memory.peak);

    let mut live = Vec::new();
    for _ in 0..2 {
        for _ in 0..50 {
            trainer.evaluate(&net, loader(80)).unwrap();
        }
        live.push((device.memory().live, device.plans_compiled()));
    }
    assert_eq!(live[0], live[1]);
    assert_eq!(live[0].0, after_300.memory.live);
}

#[test]
fn skipped_steps_leave_everything_but_the_scale() {
    let device = device();
    let store = store(&device, "mixed_float16");
    let net = Net::new(&store);
    let before = bytes_of(&store);
    let record = Record::default();
    let mut trainer = quiet(&store).callback(record.clone());
    let report = trainer.fit_steps(&net, loader(80), None, 2).unwrap();
    assert_eq!(
        (report.skipped, report.applied),
        (2, 0),
        "{:?}",
        record.lines()
    );
    assert_eq!(bytes_of(&store), before);
    assert!(
        record.steps()[1].contains("scale 8388608 Skipped applied 0"),
        "{:?}",
        record.steps()
    );
}

#[test]
fn evaluation_weighs_every_sample_once() {
    let device = device();
    let store = store(&device, "float32");
    let net = Linear::new(&store.root().at("net"), 1, 1);
    // Squared errors of a model that says w x + b.
    let y: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let source = InMemory::new(vec![
        Array::from_vec(vec![0.0f32; 10], &[10, 1]).unwrap(),
        Array::from_vec(y.clone(), &[10, 1]).unwrap(),
    ])
    .unwrap();
    let bias = f64::from(net.bias().unwrap().read().to_vec::<f32>().unwrap()[0]);
    let mean = y
        .iter()
        .map(|y| (f64::from(*y) - bias).powi(2))
        .sum::<f64>()
        / 10.0;
    let scalar = |b: &TensorBatch, cx: &Ctx| {
        let p = net.forward(&b[0], cx);
        Output::new(mse(&p, &b[1])).metric("share", b[1].ge(5.0))
    };
    let rows = |b: &TensorBatch, cx: &Ctx| {
        let p = net.forward(&b[0], cx);
        Output::new((p - &b[1]).square()).metric("share", b[1].ge(5.0))
    };
    let sums = |b: &TensorBatch, cx: &Ctx| {
        let error = (net.forward(&b[0], cx) - &b[1]).square();
        let count = (b[1].ge(0.0)).cast(DType::F32).sum_all();
        Output::weighted(error.sum_all(), count.clone()).metric_sum(
            "share",
            b[1].ge(5.0).cast(DType::F32).sum_all(),
            count,
        )
    };
    let trainer = Trainer::new(&store, Sgd::new(0.1)).progress(false);
    let close = |logs: Logs| {
        let (loss, share) = (logs.get("loss").unwrap(), logs.get("share").unwrap());
        assert!((loss - mean).abs() < 1e-5 * mean, "{loss} {mean}");
        assert_eq!(share, 0.5);
    };
    let loader = |batch| Loader::new(source.clone()).batch(batch);
    for batch in [1, 3, 4, 10, 16] {
        close(trainer.evaluate(&scalar, loader(batch)).unwrap());
        close(trainer.evaluate(&rows, loader(batch)).unwrap());
        close(trainer.evaluate(&sums, loader(batch)).unwrap());
        // Padding repeats the last sample, which must not count.
        close(
            trainer
                .evaluate(&rows, loader(batch).pad_and_mask(true))
                .unwrap(),
        );
    }
    let predicted = trainer.predict(&net, loader(4).pad_and_mask(true)).unwrap();
    assert_eq!(predicted.shape(), [10, 1]);
    assert_eq!(predicted.to_vec::<f32>().unwrap(), [bias as f32; 10]);
}

#[test]
fn padded_rows_carry_no_gradient() {
    let device = device();
    let run = |pad: bool| {
        let store = store(&device, "float32");
        let net = Linear::new(&store.root().at("net"), 64, 3);
        let task = |b: &TensorBatch, cx: &Ctx| {
            let logits = net.forward(&b[0].flatten(1..=2), cx);
            let rows = bimetal_layers::CrossEntropyOptions {
                reduction: bimetal_layers::Reduction::None,
                ..Default::default()
            };
            Output::new(bimetal_layers::cross_entropy_with(&logits, &b[1], rows))
        };
        let mut trainer = Trainer::new(&store, Sgd::new(0.1)).progress(false);
        let report = trainer
            .fit(&task, loader(13).pad_and_mask(pad), None, 2)
            .unwrap();
        (
            store.params()[0].read().to_vec::<f32>().unwrap(),
            report.train_loss(),
        )
    };
    let (padded, loss_padded) = run(true);
    let (plain, loss) = run(false);
    for (a, b) in padded.iter().zip(&plain) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    assert!((loss - loss_padded).abs() < 1e-6);
}

#[test]
fn accumulated_batches_are_one_large_batch() {
    let device = device();
    let run = |batch: usize, accumulate: usize| {
        let store = store(&device, "float32");
        let net = Linear::new(&store.root().at("net"), 64, 3);
        let task = |b: &TensorBatch, cx: &Ctx| {
            let logits = net.forward(&b[0].flatten(1..=2), cx);
            Output::new(cross_entropy(&logits, &b[1])).accuracy(&logits, &b[1])
        };
        let record = Record::default();
        let mut trainer = Trainer::new(&store, Sgd::new(0.5))
            .progress(false)
            .accumulate(accumulate)
            .callback(record.clone());
        let loader = Loader::new(data(80)).batch(batch).shuffle(1);
        let report = trainer.fit(&task, loader, None, 2).unwrap();
        let weights = store.params()[0].read().to_vec::<f32>().unwrap();
        (report.steps, report.train, weights)
    };
    let (steps, large_logs, large) = run(24, 1);
    let (small_steps, small_logs, small) = run(8, 3);
    // 80 = 3 x 24 + 8: the last window holds one batch.
    assert_eq!((steps, small_steps), (8, 8));
    for (a, b) in large.iter().zip(&small) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    assert_eq!(large_logs.get("accuracy"), small_logs.get("accuracy"));
}

#[test]
fn the_default_scale_depends_on_the_layers() {
    let device = device();
    for (policy, scaled) in [
        ("mixed_float16", true),
        ("float32; conv=mixed_float16", true),
        ("mixed_bfloat16", false),
        ("float32", false),
    ] {
        let store = store(&device, policy);
        let net = Net::new(&store);
        let record = Record::default();
        let mut trainer = Trainer::new(&store, AdamW::new(1e-3))
            .progress(false)
            .callback(record.clone());
        trainer.fit_steps(&net, loader(16), None, 1).unwrap();
        let scale = if scaled { "scale 32768 " } else { "scale 1 " };
        assert!(
            record.steps()[0].contains(scale),
            "{policy}: {:?}",
            record.steps()
        );
    }
}

struct Weights(Vec<(String, usize)>);

impl Callback for Weights {
    fn wants_weights(&self, epoch: usize) -> bool {
        epoch == 1
    }
    fn on_weights(&mut self, epoch: usize, weights: &[(String, Vec<f32>)]) -> Result<Control> {
        let sizes: Vec<_> = weights.iter().map(|(n, w)| (n.clone(), w.len())).collect();
        assert_eq!((epoch, sizes), (1, self.0.clone()));
        Ok(Control::stop("seen"))
    }
}

#[test]
fn weights_are_kept_saved_shown_and_put_back() {
    let dir = Scratch::new("kept");
    let device = device();
    let store = store(&device, "mixed_float16");
    let net = Net::new(&store);
    let sizes = store
        .params()
        .iter()
        .map(|p| (p.path().to_string(), p.shape().numel()))
        .collect();
    let best = dir.0.join("best").display().to_string();
    let all = format!("{}/{{epoch:02d}}", dir.0.display());
    // In the second epoch it learns so fast that it gets worse.
    let rate = StepDecay {
        initial: 0.01,
        factor: 300.0,
        every: 10,
    };
    let mut trainer = Trainer::new(&store, Sgd::new(rate))
        .progress(false)
        .callback(
            EarlyStopping::new("val_loss")
                .patience(5)
                .restore_best_weights(true),
        )
        .callback(ModelCheckpoint::best(best.clone(), "val_loss").save_weights_only(true))
        .callback(ModelCheckpoint::new(all))
        .callback(Weights(sizes));
    let report = trainer.fit(&net, loader(80), Some(loader(20)), 5).unwrap();
    assert_eq!(report.history.len(), 2);
    assert_eq!(report.stopped.as_deref(), Some("Weights: seen"));
    assert!(
        report.history[1].get("val_loss") > report.history[0].get("val_loss"),
        "{report:?}"
    );
    assert_eq!(report.checkpoints_written, 3);
    let best = load_checkpoint(best).unwrap();
    assert!(best.infos().iter().all(|a| !a.name.starts_with("optim/")));
    assert_eq!(best.meta().extra["best"]["name"], "val_loss");
    for slot in store.params().iter().chain(&store.buffers()) {
        let slot = slot.slot().unwrap();
        assert_eq!(
            best.array(slot.name()).unwrap().1,
            slot.to_bytes().unwrap(),
            "{}",
            slot.name()
        );
    }
    let second = load_checkpoint(dir.0.join("02")).unwrap();
    assert_eq!(second.meta().attempted, 20);
    assert!(second.infos().iter().any(|a| a.name.starts_with("kept/0/")));
}
