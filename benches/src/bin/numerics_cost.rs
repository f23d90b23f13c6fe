//! What numerics checks cost: `cargo xtask numerics-cost [PAIRS] [WORKLOADS]`.
//!
//! For each network and dtype, steps with checks and steps without take turns in one process, and the median of the ratios of their CPU times is printed. On a
//! machine that others use as well, the ratio of neighbours is the one number that means something.
use bimetal::precision::{Halt, Level};
use bimetal::prelude::*;
use bimetal_bench::{Model, median, policy, process_ms, w1, w2, w3, w4, w6};
use std::process::ExitCode;

type Build = fn(&Scope) -> Result<Model>;

const NETWORKS: [(&str, Build); 5] = [("W1", w1), ("W2", w2), ("W3", w3), ("W4", w4), ("W6", w6)];
const DTYPES: [DType; 2] = [DType::F32, DType::F16];
/// Bounds on the cost, in percent, that the levels are meant to keep.
const LEVELS: [(Level, f64); 2] = [(Level::Step, 2.0), (Level::Layer, 10.0)];
/// One side of a pair takes at least so long.
const SIDE_MS: f64 = 60.0;

struct Training {
    store: ParamStore,
    params: Vec<Slot>,
    model: Model,
    optimizer: Adam,
    scaler: LossScaler,
    halt: Halt,
    level: Level,
}

impl Training {
    fn new(build: Build, dtype: DType, level: Level, device: &Device) -> Result<Training> {
        let store = ParamStore::new(device, policy(dtype)).seed(0);
        let model = build(&store.root())?;
        let scale = match store.computes_in_f16() {
            true => LossScale::Static(128.0),
            false => LossScale::None,
        };
        Ok(Training {
            params: store.trainable_slots()?,
            scaler: LossScaler::new(scale, device)?,
            halt: Halt::new(device)?,
            optimizer: Adam::new(1e-4),
            store,
            model,
            level,
        })
    }

    /// Steps as the Trainer takes them in an execution of several.
    fn step(&mut self) -> Result<()> {
        let cx = self.store.train();
        let logits = self.model.net.forward(&self.model.x, &cx);
        let loss = cross_entropy(&logits, &self.model.y);
        let grads = self.scaler.scale(&loss).grad(&self.params)?;
        let mut grads = grads.check_numerics(self.level).unscale();
        if self.level != Level::Off {
            grads = grads.halting(&self.halt);
        }
        let step = self.optimizer.step(cx, grads)?;
        match step.outcome()? {
            StepOutcome::Applied => Ok(()),
            skipped => Err(Error::invalid(format!("a step was {skipped}"))),
        }
    }

    fn ms(&mut self, steps: usize) -> Result<f64> {
        let before = process_ms();
        for _ in 0..steps {
            self.step()?;
        }
        Ok((process_ms() - before) / steps as f64)
    }
}

fn cost(build: Build, dtype: DType, level: Level, pairs: usize) -> Result<(f64, f64)> {
    let device = bimetal::device("cpu", Some(1))?;
    let mut off = Training::new(build, dtype, Level::Off, &device)?;
    let mut on = Training::new(build, dtype, level, &device)?;
    for training in [&mut off, &mut on] {
        training.ms(3)?;
    }
    let steps = (SIDE_MS / off.ms(2)?).ceil().max(1.0) as usize;
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (a, b) = match pair % 2 {
            0 => (off.ms(steps)?, on.ms(steps)?),
            _ => {
                let b = on.ms(steps)?;
                (off.ms(steps)?, b)
            }
        };
        ratios.push(b / a);
        times.push(a);
    }
    Ok((median(&times), (median(&ratios) - 1.0) * 100.0))
}

fn run() -> Result<bool> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let pairs = match words.first() {
        Some(word) => word
            .parse()
            .map_err(|_| Error::invalid(format!("`{word}` is no number of pairs")))?,
        None => 21,
    };
    let wanted = |name: &str| match words.get(1) {
        Some(list) => list.split(',').any(|w| w == name),
        None => true,
    };
    println!(
        "network  dtype    without      level   more    bound   ({pairs} pairs, CPU time of one thread)"
    );
    let mut kept = true;
    for (name, build) in NETWORKS.into_iter().filter(|(name, _)| wanted(name)) {
        for dtype in DTYPES {
            for (level, bound) in LEVELS {
                let (ms, more) = cost(build, dtype, level, pairs)?;
                let verdict = if more <= bound { "" } else { "  over" };
                kept &= more <= bound;
                println!(
                    "{name:7}  {dtype:7}  {ms:8.2} ms  {level:5}  {more:+5.1} %  {bound:4} %{verdict}"
                );
            }
        }
    }
    Ok(kept)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
