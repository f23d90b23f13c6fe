//! `ci` and the single steps of it that are one cargo command.

use std::time::Instant;

use crate::args::Args;
use crate::process::{cargo, run as run_command};
use crate::workspace::{CORE, GPU};
use crate::{Result, gpu, readme, test, tidy};

/// Everything that must hold before a change lands, cheapest first; all steps run, then it fails.
pub fn run(args: Args) -> Result {
    args.finish()?;
    type Step = (&'static str, fn() -> Result);
    let steps: &[Step] = &[
        ("fmt", fmt_step),
        ("tidy", tidy::check),
        ("clippy", clippy_step),
        ("docs", docs_step),
        ("test", test::all),
        ("readme", readme::check),
        ("gpu", gpu::check),
    ];
    let mut rows = Vec::new();
    for (name, step) in steps {
        println!("\n=== {name}");
        let start = Instant::now();
        let outcome = step();
        if let Err(message) = &outcome {
            println!("error: {message}");
        }
        rows.push((name, start.elapsed(), outcome.is_ok()));
    }
    println!("\n=== ci");
    for (name, time, passed) in &rows {
        let verdict = if *passed { "passed" } else { "FAILED" };
        println!("{name:8} {verdict} {:6.0} s", time.as_secs_f64());
    }
    let failed: Vec<&str> = rows.iter().filter(|r| !r.2).map(|r| *r.0).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

/// The `fmt` task.
pub fn fmt(args: Args) -> Result {
    args.finish()?;
    fmt_step()
}

/// The `clippy` task.
pub fn clippy(args: Args) -> Result {
    args.finish()?;
    clippy_step()
}

/// The `docs` task.
pub fn docs(args: Args) -> Result {
    args.finish()?;
    docs_step()
}

fn fmt_step() -> Result {
    run_command(&mut cargo(["fmt", "--all", "--check"]))
        .map_err(|_| "some files are not formatted: run `cargo fmt --all`".to_string())
}

fn clippy_step() -> Result {
    lint(CORE, CORE)
}

/// Lints all targets of the chosen packages, and more strictly the libraries of others.
fn lint(all: &str, libraries: &str) -> Result {
    let all = format!(
        "clippy {all} --all-targets -- -D warnings -D clippy::undocumented_unsafe_blocks \
         -D clippy::dbg_macro -D clippy::todo -D clippy::unimplemented"
    );
    run_command(&mut cargo(all.split_whitespace()))?;
    // Tests may unwrap; library code reports errors. `--lib` leaves the test modules out.
    let libraries =
        format!("clippy {libraries} --lib -- -D warnings -D clippy::unwrap_used -D clippy::panic");
    run_command(&mut cargo(libraries.split_whitespace()))
}

fn docs_step() -> Result {
    document(&format!("doc {CORE} --no-deps"))
}

fn document(line: &str) -> Result {
    let mut command = cargo(line.split_whitespace());
    command.env("RUSTDOCFLAGS", "-D warnings");
    run_command(&mut command)
}

/// Lints and documentation of the GPU crates, and of the facade with their features.
pub fn gpu_lints() -> Result {
    lint(GPU, GPU)?;
    document(&format!("doc {GPU} --no-deps"))
}
