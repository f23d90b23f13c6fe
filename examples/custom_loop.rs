//! The training loop written out by hand: scale, differentiate, unscale, clip, step, outcome, checkpoint.
//!
//! `cargo run --release --example custom_loop`. Everything that `Trainer` does in the other examples stands here in the open, around a
//! small network on MNIST.

use bimetal::prelude::*;
use bimetal::train::{
    Callbacks, Checkpoints, Meta, Outcome, Resumed, StepRecord, TrainInfo, load_latest_checkpoint,
    load_slots, slot_arrays,
};
use bimetal::{data, precision::SkipLimit, train};
use bimetal_examples::{Defaults, Figures, Folder, Options};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const DEFAULTS: Defaults = Defaults {
    name: "custom_loop",
    about: "Trains a small network on MNIST by a loop written out by hand.",
    policy: "mixed_float16",
    length: ("steps", 1000),
    batch: 64,
    data: "mnist",
    extra: &[],
};

struct Net {
    hidden: Linear,
    dropout: Dropout,
    head: Linear,
}

impl Net {
    fn new(scope: &Scope) -> Net {
        Net {
            hidden: Linear::new(&scope.at("hidden"), 28 * 28, 256),
            dropout: Dropout::new(&scope.at("dropout"), 0.2),
            head: Linear::new(&scope.at("head").policy("float32"), 256, 10),
        }
    }
}

impl Layer for Net {
    /// Bytes `[n, 28, 28]` to logits `[n, 10]`.
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let x = x.flatten(1..=2).cast(DType::F32) / 255;
        let x = self.hidden.forward(&x, cx).relu();
        self.head.forward(&self.dropout.forward(&x, cx), cx)
    }
}

fn main() -> ExitCode {
    bimetal_examples::main(&DEFAULTS, run)
}

/// Everything that moves, and must therefore be saved.
struct State {
    store: ParamStore,
    optimizer: AdamW,
    scaler: LossScaler,
    attempted: u64,
    applied: u64,
    loss: f32,
}

impl State {
    fn slots(&self) -> Result<Vec<Slot>> {
        let mut slots = self.store.state()?;
        slots.extend(self.optimizer.state());
        slots.extend(self.scaler.state());
        Ok(slots)
    }

    fn save(&self, to: &mut Checkpoints, data: &Loader) -> Result<()> {
        let cursor = data.state();
        let meta = Meta {
            attempted: self.attempted,
            applied: self.applied,
            cursor: train::Cursor {
                epoch: cursor.epoch,
                index: cursor.index,
            },
            extra: [("loss".to_string(), self.loss.to_bits().into())].into(),
            ..Meta::default()
        };
        to.save(&slot_arrays(&self.slots()?)?, &meta)?;
        Ok(())
    }

    fn load(&mut self, from: &train::Checkpoint, data: &mut Loader) -> Result<()> {
        let meta = from.meta();
        load_slots(&self.slots()?, from)?;
        data.restore(data::Cursor {
            epoch: meta.cursor.epoch,
            index: meta.cursor.index,
        })?;
        self.attempted = meta.attempted;
        self.applied = meta.applied;
        let bits = meta.extra.get("loss").and_then(|bits| bits.as_u64());
        self.loss = f32::from_bits(bits.unwrap_or(0) as u32);
        Ok(())
    }
}

fn run(options: Options) -> Result<()> {
    let folder = Folder::open(&options)?;
    let images = mnist(&options.data, Split::Train)?.take(options.limit.unwrap_or(usize::MAX));
    let mut data = Loader::new(images)
        .batch(options.batch)
        .shuffle(options.seed)
        .prefetch(2);
    let test = Loader::new(mnist(&options.data, Split::Test)?).batch(500);

    let device = bimetal::device(&options.device, options.threads)?;
    let store = ParamStore::new(&device, options.policy.clone()).seed(options.seed);
    let net = Net::new(&store.root());
    let params = store.trainable_slots()?;
    let scale = match store.computes_in_f16() {
        true => LossScale::dynamic(),
        false => LossScale::None,
    };
    let total = u32::try_from(options.length).unwrap_or(u32::MAX);
    let mut state = State {
        scaler: LossScaler::new(scale, &device)?,
        optimizer: AdamW::new(warmup_cosine(1e-3, 1e-5, 50.min(total / 2), total))
            .decay_matrices_only(),
        store,
        attempted: 0,
        applied: 0,
        loss: f32::NAN,
    };
    state.optimizer.init(&params)?;

    let mut checkpoints = Checkpoints::open(folder.checkpoints())?;
    let mut resumed = None;
    if let Some(saved) = load_latest_checkpoint(folder.checkpoints())? {
        state.load(&saved, &mut data)?;
        resumed = Some(Resumed {
            step: state.attempted,
            applied: state.applied,
            ..Resumed::default()
        });
    }
    // Callbacks work without a Trainer, too: this one writes steps.jsonl.
    let mut callbacks = Callbacks::new();
    callbacks.push(JsonlLogger::new(folder.steps()));
    let info = TrainInfo {
        resumed,
        ..TrainInfo::default()
    };
    let _ = callbacks.on_train_begin(&info)?;

    let mut written = 0;
    let mut seconds = Duration::ZERO;
    let mut skipped_in_a_row = SkipLimit::default();
    while state.attempted < options.length {
        let begin = Instant::now();
        let batch = TensorBatch::upload(&data.next_in_cycle()?, &device);
        let cx = state.store.train();
        let loss = cross_entropy(&net.forward(&batch[0], &cx), &batch[1]);

        // The types keep the order: a scaled loss gives scaled gradients, which can only be unscaled; only unscaled ones
        // can be clipped, and only those does an optimizer take.
        let scaled: Grads<Scaled> = state.scaler.scale(&loss).grad(&params)?;
        let grads: Grads<Unscaled> = scaled.unscale().clip_global_norm(1.0);
        // One transaction: weights, moments, schedule and loss scale. It consumes the context, which has collected
        // what layers want to update, such as the statistics of a BatchNorm.
        let step = state.optimizer.step(cx, grads)?;

        // Asking waits for the device; a loop that asks only now and then keeps it busy.
        let outcome = step.outcome()?;
        (state.loss, state.attempted) = (step.loss()?, state.attempted + 1);
        seconds += begin.elapsed();
        let record = StepRecord {
            step: state.attempted,
            loss: state.loss,
            scale: step.scale()?,
            grad_norm: step.norm()?,
            outcome: match &outcome {
                StepOutcome::Applied => Outcome::Applied,
                StepOutcome::Skipped { .. } => Outcome::Skipped,
            },
            applied: state.applied + u64::from(outcome.is_applied()),
        };
        state.applied = record.applied;
        let _ = callbacks.on_step(&record)?;
        if !outcome.is_applied() {
            eprintln!("step {}: {outcome}", state.attempted);
        }
        skipped_in_a_row.observe(&outcome)?;
        if state.attempted.is_multiple_of(100) {
            let (step, loss, norm, lr) = (state.attempted, state.loss, step.norm()?, step.lr()?);
            eprintln!("step {step:5}  loss {loss:.4}  gradient norm {norm:.3}  lr {lr:.2e}");
        }

        let due = options
            .save_every
            .is_some_and(|every| state.attempted.is_multiple_of(every));
        if due || state.attempted == options.length {
            callbacks.flush()?;
            state.save(&mut checkpoints, &data)?;
            written += 1;
        }
    }
    let _ = callbacks.on_train_end(&Logs::new())?;

    let (loss, accuracy) = evaluate(&net, &state.store, test)?;
    let mut report = Report::default();
    report.steps = state.attempted;
    report.applied = state.applied;
    report.skipped = state.attempted - state.applied;
    report.train = [("loss", f64::from(state.loss))].into_iter().collect();
    report.valid = [("loss", loss), ("accuracy", accuracy)]
        .into_iter()
        .collect();
    report.seconds = seconds.as_secs_f64();
    let steps = state.attempted - resumed.map_or(0, |r| r.step);
    report.samples_per_second = (steps * options.batch as u64) as f64 / report.seconds.max(1e-9);
    report.memory = device.memory();
    report.plans_compiled = device.plans_compiled();
    report.parameters = state.store.params().iter().map(|p| p.shape().numel()).sum();
    report.resumed_from = resumed.map_or(0, |r| r.step);
    report.checkpoints_written = written;

    println!(
        "\n{} in {} on {}",
        options.name,
        options.policy_name,
        device.info().name
    );
    print!("{report}");
    println!("{:<22}{:>12.2} %", "test accuracy", 100.0 * accuracy);
    println!("\nrun folder: {}", folder.path().display());
    let mut figures = Figures::new(&options, &report);
    figures.set("test_accuracy", accuracy.into());
    figures.write(&options)
}

/// Mean loss and accuracy on the test images.
fn evaluate(net: &Net, store: &ParamStore, mut test: Loader) -> Result<(f64, f64)> {
    let (mut loss, mut hits, mut count) = (0.0, 0.0, 0.0);
    while let Some(host) = test.next_batch()? {
        let batch = TensorBatch::upload(&host, store.device());
        let logits = net.forward(&batch[0], &store.eval());
        let mean = cross_entropy(&logits, &batch[1]);
        let right = logits
            .argmax(-1, false)
            .eq(&batch[1])
            .cast(DType::F32)
            .sum_all();
        // Both in one plan: asked for one by one, the network would run twice.
        eval(&[&mean, &right])?;
        loss += mean.item()? * host.valid as f64;
        hits += right.item()?;
        count += host.valid as f64;
    }
    Ok((loss / count, hits / count))
}
