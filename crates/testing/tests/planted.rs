//! Overflows planted in random models: the culprit of the skipped step is the planted operation, every time.
//!
//! Each model is a chain of layers; one of them holds an operation that a marked row of the batch drives out of range, in the forward or in the backward pass.
//! Batches without a mark leave it harmless, so the faulty step can be any.
use bimetal::precision::{Culprit, Level, NonFinite};
use bimetal::prelude::*;
use bimetal_cpu::CpuBackend;
use bimetal_testing::random::Gen;
use std::sync::{Arc, Mutex};

const WIDTH: usize = 8;
const ROWS: usize = 4;

/// An operation and how it is driven out of range.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    Mul,
    Exp,
    Div,
    Log,
    Sqrt,
    Cast,
    Matmul,
    Sum,
    /// The derivative of the root at 0.
    SqrtGrad,
    /// A gradient multiplied by a number whose product with the activation is still in range.
    MulGrad,
    /// The derivative of a quotient by its dividend.
    DivGrad,
}

const PLANTS: [Plant; 11] = [
    Plant::Mul,
    Plant::Exp,
    Plant::Div,
    Plant::Log,
    Plant::Sqrt,
    Plant::Cast,
    Plant::Matmul,
    Plant::Sum,
    Plant::SqrtGrad,
    Plant::MulGrad,
    Plant::DivGrad,
];

impl Plant {
    fn is_backward(self) -> bool {
        matches!(self, Plant::SqrtGrad | Plant::MulGrad | Plant::DivGrad)
    }

    /// The names the operation may have in the graph.
    fn ops(self) -> &'static [&'static str] {
        match self {
            Plant::Mul => &["mul"],
            Plant::Exp => &["exp"],
            Plant::Div => &["div"],
            Plant::Log => &["log"],
            Plant::Sqrt => &["sqrt"],
            Plant::Cast => &["cast"],
            Plant::Matmul => &["matmul"],
            Plant::Sum => &["sum"],
            Plant::SqrtGrad => &["div", "mul", "recip", "cast"],
            Plant::MulGrad => &["mul", "cast"],
            Plant::DivGrad => &["div", "mul", "recip", "cast"],
        }
    }

    /// `x` (`[rows, width]`) with the operation in its way; `mark` is 1 in rows that fail and 0 in others (`[rows, 1]`, f32).
    fn grow(self, x: &Tensor, mark: &Tensor) -> Tensor {
        let half = x.dtype() == DType::F16;
        // 0 in sound rows, `bad` in marked ones; `z` lies between 7 and 9, `t` between -1 and 1.
        let at_mark = |bad: f64| (mark * bad).cast(x.dtype());
        let (t, pick) = (x.tanh(), |f16: f64, f32: f64| if half { f16 } else { f32 });
        let z = &t + 8.0;
        match self {
            Plant::Mul => z * (at_mark(pick(3e4, 6e37)) + 0.01),
            Plant::Exp => (t + at_mark(pick(14.0, 100.0))).exp(),
            Plant::Div => 1.0 / (z * at_mark(-1.0).eq(0.0).cast(x.dtype())),
            Plant::Log => (z * (at_mark(-2.0) + 1.0)).log(),
            Plant::Sqrt => (z * (at_mark(-2.0) + 1.0)).sqrt(),
            Plant::Cast => {
                let wide = z.cast(DType::F32) * (mark * 1e5 + 0.01);
                wide.cast(DType::F16).cast(x.dtype())
            }
            Plant::Matmul => {
                let device = x.device().unwrap();
                let large = Tensor::full(&[WIDTH, WIDTH], 1.0, DType::F32, device)
                    * (mark.sum_all() * pick(2e3, 1e37) + 0.01);
                z.matmul(&large.cast(x.dtype()))
            }
            Plant::Sum => {
                let large = z * (at_mark(pick(2.5e3, 3e37)) + 0.01);
                large.sum(&[1], true) + x
            }
            Plant::SqrtGrad => (z * (at_mark(-1.0) + 1.0)).sqrt(),
            Plant::MulGrad => {
                let large = t * (at_mark(pick(6e4, 3e38)) + 1.0);
                x + (&large - large.detach())
            }
            Plant::DivGrad => {
                let tiny = at_mark(pick(0.99999, 1.0)).eq(0.0).cast(DType::F32) + pick(1e-7, 1e-38);
                let zero = &t - t.detach();
                x + zero / tiny.cast(x.dtype())
            }
        }
    }
}

/// What a case is made of.
#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    plant: Plant,
    half: bool,
    layers: usize,
    /// The layer that holds the plant.
    at: usize,
    /// Whether the layers compute their activations again in the backward pass.
    recompute: bool,
    residual: bool,
    steps: usize,
    /// The step that fails, from 0.
    bad: usize,
    micro: usize,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut g = Gen::new(seed);
        let (layers, steps) = (1 + g.below(6), 3 + g.below(4));
        Case {
            seed,
            // Every plant in both dtypes, whatever the number of cases.
            plant: PLANTS[seed as usize / 2 % PLANTS.len()],
            half: seed.is_multiple_of(2),
            layers,
            at: g.below(layers),
            recompute: g.below(2) == 1,
            residual: g.below(2) == 1,
            steps,
            bad: g.below(steps),
            micro: 1 + g.below(2),
        }
    }

    /// Inputs `[n, width]` and marks `[n, 1]` of all steps; the marked row is any of its batch.
    fn data(&self) -> (Vec<f32>, Vec<f32>) {
        let mut g = Gen::new(self.seed + 1000);
        let rows = self.steps * self.micro * ROWS;
        let x = (0..rows * WIDTH).map(|_| g.unit() as f32 - 0.5).collect();
        let mut marks = vec![0.0; rows];
        let per_step = self.micro * ROWS;
        marks[self.bad * per_step + g.below(per_step)] = 1.0;
        (x, marks)
    }

    fn scale(&self) -> LossScale {
        LossScale::Static(1024.0)
    }

    fn path(&self) -> String {
        format!("block.{}.plant", self.at)
    }

    /// Whether `found` is the planted operation.
    fn check(&self, found: &NonFinite) {
        let right = found.path() == self.path()
            && found.label.is_backward() == self.plant.is_backward()
            && self.plant.ops().contains(&found.op)
            && found.nan + found.plus_inf + found.minus_inf > 0
            && found.label.location().file().ends_with("planted.rs")
            && found.inputs.iter().all(|i| i.non_finite == 0);
        assert!(right, "{self:?} found {found}");
    }
}

struct Model {
    case: Case,
    layers: Vec<(Linear, bimetal::layers::Site)>,
}

impl Model {
    fn new(case: Case, device: &Device) -> (ParamStore, Model) {
        let policy = if case.half {
            "mixed_float16"
        } else {
            "float32"
        };
        let store = ParamStore::new(device, policy.parse::<PolicyMap>().unwrap()).seed(case.seed);
        let layers = (0..case.layers).map(|i| {
            let scope = store.root().at("block").at(i);
            let linear = Linear::new(&scope.at("linear"), WIDTH, WIDTH);
            (linear, scope.at("plant").site())
        });
        let layers = layers.collect();
        (store, Model { case, layers })
    }

    fn loss(&self, x: &Tensor, mark: &Tensor, cx: &Ctx) -> Tensor {
        let mut x = x.clone();
        let mut tap = Tensor::zeros(&[], DType::F32, cx.store().device());
        for (i, (linear, site)) in self.layers.iter().enumerate() {
            let block = |t: &[Tensor]| {
                let mut y = linear.forward(&t[0], cx);
                if i == self.case.at {
                    y = site.run(cx, || Ok(self.case.plant.grow(&y, &t[1])));
                }
                match self.case.residual {
                    true => y + t[0].cast(linear_dtype(self.case)),
                    false => y,
                }
            };
            x = match self.case.recompute {
                true => checkpoint(block, &[&x, mark]),
                false => block(&[x, mark.clone()]),
            };
            // A gradient that does not vanish on its way to the plant.
            if i == self.case.at {
                tap = x.cast(DType::F32).mean_all();
            }
        }
        x.cast(DType::F32).square().mean_all() + tap
    }
}

fn linear_dtype(case: Case) -> DType {
    if case.half { DType::F16 } else { DType::F32 }
}

fn cause(culprit: Option<Culprit>) -> NonFinite {
    *culprit.and_then(|c| c.cause).expect("no cause was found")
}

/// A loop of one's own, with accumulation; each skipped step is asked at once.
fn own_loop(case: Case, level: Level) {
    let device = Device::new(CpuBackend::new(Some(1)));
    let (store, model) = Model::new(case, &device);
    let scaler = LossScaler::new(case.scale(), &device).unwrap();
    let mut optimizer = Sgd::new(1e-6);
    let params = store.trainable_slots().unwrap();
    let (x, marks) = case.data();
    let mut batches = x
        .chunks(ROWS * WIDTH)
        .zip(marks.chunks(ROWS))
        .map(|(x, marks)| {
            let x = Tensor::from_slice(x, &[ROWS, WIDTH], &device);
            (x, Tensor::from_slice(marks, &[ROWS, 1], &device))
        });
    let mut asked_late: Option<StepHandle> = None;
    for n in 0..case.steps {
        let mut window = Accumulator::new();
        for _ in 0..case.micro {
            let (x, mark) = batches.next().unwrap();
            let cx = window.context(store.train());
            let loss = model.loss(&x, &mark, &cx);
            let grads = scaler.scale(&loss).grad(&params).unwrap();
            window.add(cx, grads.check_numerics(level)).unwrap();
        }
        let (cx, grads) = window.finish(store.train()).unwrap();
        let step = optimizer.step(cx, grads.unscale()).unwrap();
        if n == case.bad && level == Level::Step {
            match step.outcome().unwrap() {
                StepOutcome::Applied => panic!("{case:?}: the step was applied"),
                StepOutcome::Skipped { culprit } => case.check(&cause(culprit)),
            }
        } else if n == case.bad {
            asked_late = Some(step);
        } else {
            let outcome = step.outcome().unwrap();
            assert!(outcome.is_applied(), "{case:?}: step {n} was {outcome}");
        }
    }
    // The state has moved on: what the step's own plan saw is what is known.
    if let Some(step) = asked_late
        && case.bad + 1 < case.steps
    {
        let StepOutcome::Skipped { culprit } = step.outcome().unwrap() else {
            panic!("{case:?}: the step was applied");
        };
        let found = cause(culprit);
        let same =
            found.path() == case.path() && found.label.is_backward() == case.plant.is_backward();
        assert!(same, "{case:?} at {level} saw {found}");
        assert!(
            level != Level::Op || case.plant.ops().contains(&found.op),
            "{case:?} saw {found}"
        );
    }
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(u64, Culprit)>>>);

impl Callback for Seen {
    fn on_skipped(&mut self, step: u64, culprit: &Culprit) -> bimetal::Result<Control> {
        self.0.lock().unwrap().push((step, culprit.clone()));
        Ok(Control::Continue)
    }
}

/// The Trainer, with several steps an execution.
fn trainer(case: Case, level: Level) -> Vec<Vec<u8>> {
    let device = Device::new(CpuBackend::new(Some(1)));
    let (store, model) = Model::new(case, &device);
    let (x, marks) = case.data();
    let rows = marks.len();
    let x = Array::from_vec(x, &[rows, WIDTH]).unwrap();
    let marks = Array::from_vec(marks, &[rows, 1]).unwrap();
    let loader = Loader::new(InMemory::new(vec![x, marks]).unwrap()).batch(ROWS);
    let task = |b: &TensorBatch, cx: &Ctx| Output::new(model.loss(&b[0], &b[1], cx));
    let seen = Seen::default();
    let mut trainer = Trainer::new(&store, Adam::new(1e-6))
        .loss_scale(case.scale())
        .accumulate(case.micro)
        .steps_per_execution(if level == Level::Off { 1 } else { 3 })
        .check_numerics(level)
        .callback(seen.clone())
        .progress(false);
    let result = trainer.fit(&task, loader, None, 1);
    let seen = seen.0.lock().unwrap();
    if level == Level::Off {
        assert!(seen.is_empty());
    } else {
        assert_eq!(seen.len(), 1, "{case:?}");
        assert_eq!(seen[0].0, case.bad as u64 + 1);
        case.check(seen[0].1.cause.as_ref().unwrap());
        // A loss that is not finite ends the run; a gradient that is not is one skipped step.
        assert_eq!(result.is_ok(), case.plant.is_backward(), "{case:?}");
    }
    if let Ok(report) = result {
        assert_eq!((report.applied, report.skipped), (case.steps as u64 - 1, 1));
    }
    let mut state = store.state().unwrap();
    state.extend(trainer.optimizer().state());
    state.iter().map(|s| s.to_bytes().unwrap()).collect()
}

/// Cases of a test, every plant in both dtypes the same number of times. More of them: `PLANTED_CASES=2200`.
fn cases(first: u64) -> impl Iterator<Item = Case> {
    let count = std::env::var("PLANTED_CASES").map_or(44, |n| n.parse().unwrap());
    (0..count).map(move |n| Case::new(first * 1_000_000 + n))
}

#[test]
fn in_a_loop_of_ones_own() {
    cases(0).for_each(|case| own_loop(case, Level::Step));
}

#[test]
fn where_the_state_has_moved_on_the_layer_is_known() {
    cases(1).for_each(|case| own_loop(case, Level::Layer));
}

#[test]
fn with_every_operation_checked_in_the_step() {
    cases(2).for_each(|case| own_loop(case, Level::Op));
}

#[test]
fn in_the_trainer_and_nothing_else_changes() {
    for case in cases(3) {
        let watched = trainer(case, Level::Step);
        if case.plant.is_backward() {
            assert_eq!(watched, trainer(case, Level::Off), "{case:?}");
        }
    }
}
