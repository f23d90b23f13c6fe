//! A step is a transaction: a batch whose step is skipped leaves no trace. The bits of everything are those of a run that never saw the batch.
mod common;

use std::sync::{Arc, Mutex};

use bimetal_data::{Array, InMemory, Loader};
use bimetal_layers::{Ctx, cross_entropy};
use bimetal_optim::{AdamW, Ema, warmup_cosine};
use bimetal_precision::{Culprit, DynamicLossScale, Level, LossScale};
use bimetal_tensor::DType;
use bimetal_train::{Callback, Control, Output, Report, Result, Task, TensorBatch, Trainer};
use common::{Net, device, store};

const ROWS: usize = 8;

/// How a marked batch fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The loss and all gradients are NaN.
    Forward,
    /// A gradient alone is infinite.
    Backward,
}

/// The small network of the other tests, with dropout and statistics; marked rows make a step fail.
struct Marked {
    net: Net,
    fault: Fault,
}

impl Task for Marked {
    fn training_step(&self, batch: &TensorBatch, cx: &Ctx) -> Output {
        use bimetal_layers::Layer;
        let mark = batch[2].max(&[], false);
        let logits = self.net.0.forward(&batch[0].unsqueeze(1), cx);
        let loss = cross_entropy(&logits, &batch[1]);
        let t = logits.cast(DType::F32).mean_all().tanh();
        Output::new(match self.fault {
            Fault::Forward => loss * ((1.0 - mark).log() + 1.0),
            Fault::Backward => {
                let large = t * (mark * 3e38);
                loss + (&large - large.detach()) * 10.0
            }
        })
    }
}

/// `batches` batches; those in `bad` are marked, those in `without` are left out.
fn loader(batches: usize, bad: &[usize], without: &[usize]) -> Loader {
    let (mut x, mut y, mut mark) = (Vec::new(), Vec::new(), Vec::new());
    let mut state = 9u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32
    };
    for batch in 0..batches {
        let image: Vec<f32> = (0..ROWS * 64).map(|_| random() * 2.0 - 1.0).collect();
        let classes: Vec<i32> = (0..ROWS).map(|_| (random() * 3.0) as i32).collect();
        if without.contains(&batch) {
            continue;
        }
        x.extend(image);
        y.extend(classes);
        let marked = if bad.contains(&batch) { 1.0 } else { 0.0 };
        mark.extend((0..ROWS).map(|row| if row == 5 { marked } else { 0.0f32 }));
    }
    let n = y.len();
    let x = Array::from_vec(x, &[n, 8, 8]).unwrap();
    let mark = Array::from_vec(mark, &[n]).unwrap();
    Loader::new(InMemory::new(vec![x, Array::from(y), mark]).unwrap()).batch(ROWS)
}

/// The culprits by step.
#[derive(Clone, Default)]
struct Culprits(Arc<Mutex<Vec<(u64, Culprit)>>>);

impl Callback for Culprits {
    fn on_skipped(&mut self, step: u64, culprit: &Culprit) -> Result<Control> {
        self.0.lock().unwrap().push((step, culprit.clone()));
        Ok(Control::Continue)
    }
}

#[derive(Clone, Copy)]
struct Run {
    policy: &'static str,
    fault: Fault,
    scale: LossScale,
    accumulate: usize,
    execution: usize,
    level: Level,
}

type Bits = Vec<(String, Vec<u8>)>;

impl Run {
    /// All state afterwards, what was reported, and who was to blame.
    fn run(self, loader: Loader) -> (Bits, Report, Vec<(u64, Culprit)>) {
        let device = device();
        let store = store(&device, self.policy);
        let task = Marked {
            net: Net::new(&store),
            fault: self.fault,
        };
        let culprits = Culprits::default();
        let optimizer = AdamW::new(warmup_cosine(1e-2, 1e-4, 3, 20)).ema(Ema::new(0.9));
        let mut trainer = Trainer::new(&store, optimizer)
            .loss_scale(self.scale)
            .accumulate(self.accumulate)
            .steps_per_execution(self.execution)
            .check_numerics(self.level)
            .callback(culprits.clone())
            .progress(false);
        let report = trainer.fit(&task, loader, None, 1).unwrap();
        let mut slots = store.state().unwrap();
        slots.extend(trainer.optimizer().state());
        let bits = slots
            .iter()
            .map(|s| (s.name().to_string(), s.to_bytes().unwrap()));
        let culprits = culprits.0.lock().unwrap().clone();
        (bits.collect(), report, culprits)
    }
}

#[test]
fn a_skipped_step_leaves_no_trace() {
    for (policy, scale) in [
        ("float32", LossScale::None),
        ("mixed_float16", LossScale::Static(128.0)),
    ] {
        for (accumulate, fault) in [
            (1, Fault::Forward),
            (1, Fault::Backward),
            (2, Fault::Backward),
        ] {
            let run = |execution, level| Run {
                policy,
                fault,
                scale,
                accumulate,
                execution,
                level,
            };
            // Of the bad steps two lie in one execution of four, one is the last of its execution.
            let (batches, bad, without) = match accumulate {
                1 => (10, vec![1, 2, 7], vec![1, 2, 7]),
                _ => (20, vec![3, 4, 14], vec![2, 3, 4, 5, 14, 15]),
            };
            let never = run(1, Level::Off).run(loader(batches, &[], &without));
            assert_eq!((never.1.applied, never.1.skipped), (7, 0));
            let mut runs = vec![(1, Level::Off), (4, Level::Off)];
            if fault == Fault::Backward {
                runs.extend([
                    (1, Level::Step),
                    (4, Level::Step),
                    (4, Level::Layer),
                    (3, Level::Op),
                ]);
            }
            for (execution, level) in runs {
                let (bits, report, culprits) =
                    run(execution, level).run(loader(batches, &bad, &[]));
                assert_eq!((report.applied, report.skipped), (7, 3));
                assert!(bits.iter().any(|(name, _)| name.ends_with("running_var")));
                assert!(bits.iter().any(|(name, _)| name.contains("ema")));
                assert_eq!(
                    bits, never.0,
                    "{policy} {fault:?} x{accumulate}, {execution} at {level}"
                );
                if level != Level::Off {
                    let steps: Vec<u64> = culprits.iter().map(|(step, _)| *step).collect();
                    assert_eq!(steps, [2, 3, 8]);
                    for (_, culprit) in &culprits {
                        let cause = culprit.cause.as_ref().unwrap();
                        assert!(cause.label.is_backward() && cause.op == "mul", "{cause}");
                        assert!(
                            cause.label.location().file().ends_with("transaction.rs"),
                            "{cause}"
                        );
                    }
                }
            }
        }
    }
}

// The scale alone moves, and in the same way whether the host reads every step or the device stops by itself.
#[test]
fn overflows_of_the_scale_are_counted_and_nothing_depends_on_when_they_are_read() {
    let scale = LossScale::Dynamic(DynamicLossScale {
        initial: 16_777_216.0,
        growth_interval: 3,
        ..DynamicLossScale::default()
    });
    let run = |execution, level| Run {
        policy: "mixed_float16",
        fault: Fault::Backward,
        scale,
        accumulate: 1,
        execution,
        level,
    };
    let (bits, report, _) = run(1, Level::Off).run(loader(24, &[20], &[]));
    assert!(report.skipped > 2 && report.applied > 8, "{report}");
    for (execution, level) in [
        (4, Level::Off),
        (1, Level::Step),
        (4, Level::Step),
        (24, Level::Layer),
    ] {
        let (found, again, culprits) = run(execution, level).run(loader(24, &[20], &[]));
        assert_eq!(found, bits, "{execution} at {level}");
        assert_eq!(
            (again.applied, again.skipped),
            (report.applied, report.skipped)
        );
        assert_eq!(again.history, report.history);
        if level != Level::Off {
            assert_eq!(culprits.len() as u64, report.skipped);
            let first = &culprits[0].1;
            let cause = first.cause.as_ref().unwrap();
            assert!(
                cause.label.is_backward() && cause.dtype == DType::F16,
                "{cause}"
            );
            assert!(first.advice().contains("`float32`"));
        }
    }
}
