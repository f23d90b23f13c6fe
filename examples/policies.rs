//! Precision policies compared on handwritten digits, and the layers found that need float32.
//!
//! `cargo run --release --example policies` trains a small network under three policies with three seeds each and writes a page with the curves; then it
//! looks for the fewest layers that must stay in float32 under `--policy`.

use bimetal::prelude::*;
use bimetal::train::{SearchBudget, Setup, compare_policies, search_policy};
use bimetal_examples::{Defaults, Extra, Options};
use std::path::PathBuf;
use std::process::ExitCode;

const DEFAULTS: Defaults = Defaults {
    name: "policies",
    about: "Compares precision policies on MNIST and finds the layers that need float32.",
    policy: "mixed_float16",
    length: ("steps", 150),
    batch: 64,
    data: "mnist",
    extra: &[Extra {
        name: "seeds",
        value: 3,
        help: "runs under each policy",
    }],
};

/// Three layers on the pixels. Nothing is given `float32` by hand: that is what the search is for.
fn network(scope: &Scope) -> Sequential {
    Sequential::new()
        .then(Flatten)
        .then(Linear::new(&scope.at("first"), 28 * 28, 128))
        .then(Activation::Relu)
        .then(Linear::new(&scope.at("second"), 128, 64))
        .then(Activation::Relu)
        .then(Linear::new(&scope.at("head"), 64, 10))
}

fn main() -> ExitCode {
    bimetal_examples::main(&DEFAULTS, run)
}

fn run(options: Options) -> Result<()> {
    let images = mnist(&options.data, Split::Train)?;
    let images = images.take(options.limit.unwrap_or(usize::MAX));
    let test = mnist(&options.data, Split::Test)?;
    let build = |store: &ParamStore| {
        let net = network(&store.root());
        let classify = move |batch: &TensorBatch, cx: &Ctx| {
            let logits = net.forward(&(batch[0].cast(DType::F32) / 255), cx);
            Output::new(cross_entropy(&logits, &batch[1])).accuracy(&logits, &batch[1])
        };
        // The run's seed orders the data, so that all policies see the same batches.
        let train = Loader::new(images.clone())
            .batch(options.batch)
            .shuffle(store.seed_value());
        let trainer = Trainer::new(store, Adam::new(1e-3));
        let test = Loader::new(test.clone()).batch(500);
        Ok(Setup::new(trainer, classify, train).valid(test))
    };
    let device = bimetal::device(&options.device, options.threads)?;
    println!("on {}", device.info().name);
    // A device of its own for each run, so that its memory can be told.
    let fresh = || bimetal::device(&options.device, options.threads).unwrap_or(device.clone());
    let seeds: Vec<u64> = (0..options.extra("seeds") as u64)
        .map(|i| options.seed + i)
        .collect();

    let policies = ["float32", "mixed_float16", "mixed_bfloat16"];
    let compared = compare_policies(fresh, &policies, &seeds, options.length, build)?;
    println!("\n{compared}");

    let budget = SearchBudget {
        low: options.policy.default,
        steps: options.length,
        seeds,
        ..SearchBudget::default()
    };
    let found = search_policy(fresh, &budget, build)?;
    println!("{found}");

    let dir = options.report.unwrap_or(PathBuf::from("runs/policies"));
    compared.titled("MNIST").write(&dir)?;
    found.save(dir.join("found.json"))?;
    println!("written: {}", dir.join("policies.html").display());
    Ok(())
}
