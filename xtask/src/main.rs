//! Development tasks of the workspace, run as `cargo xtask <task>`.
//!
//! Every check that continuous integration makes is a task here, so that anyone can run the
//! same thing with nothing but cargo: `.ci/run` only sets the target folder and calls
//! `cargo xtask ci`.

mod args;
mod bench;
mod bench_tensorcore;
mod ci;
mod cuda_gate;
mod cuda_stand_in;
mod golden;
mod gpu;
mod gpu_bundle;
mod gpu_tool;
mod kill;
mod numerics;
mod plan;
mod process;
mod readme;
mod simd;
mod tables;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use args::Args;

/// What a task returns: a message for the user when it fails.
type Result<T = ()> = std::result::Result<T, String>;

/// A task: its name, one line of help, its options, and what runs it.
struct Task {
    name: &'static str,
    help: &'static str,
    usage: &'static str,
    run: fn(Args) -> Result,
}

const TASKS: &[Task] = &[
    Task {
        name: "ci",
        help: "everything continuous integration checks",
        usage: "",
        run: ci::run,
    },
    Task {
        name: "test",
        help: "all tests, then a list of what was skipped and why",
        usage: "[--suite NAME] [suite options] | --backend wgpu|cuda [--suite conformance|gradcheck|pitfalls]",
        run: test::run,
    },
    Task {
        name: "gpu",
        help: "lints, documentation and tests of the GPU crates; on software Vulkan where there is no GPU",
        usage: "",
        run: gpu::run,
    },
    Task {
        name: "fmt",
        help: "check the formatting of all Rust files",
        usage: "",
        run: ci::fmt,
    },
    Task {
        name: "clippy",
        help: "lints on all targets, with warnings as errors",
        usage: "",
        run: ci::clippy,
    },
    Task {
        name: "docs",
        help: "build the API documentation, with warnings as errors",
        usage: "",
        run: ci::docs,
    },
    Task {
        name: "tidy",
        help: "house rules: file sizes, crate edges, unsafe code, dependency budgets",
        usage: "",
        run: tidy::run,
    },
    Task {
        name: "readme",
        help: "run the commands the README shows, training shortened",
        usage: "",
        run: readme::run,
    },
    Task {
        name: "bench",
        help: "measure train steps and kernels, also beside peers that are installed",
        usage: "[--only W1,W4] [--dtype f32,bf16,f16] [--threads 1|2] [--rounds N] [--json [FILE]] [--peers] ...",
        run: bench::run,
    },
    Task {
        name: "plan",
        help: "launches of a train step as planned for a GPU, against one for each node; runs nothing",
        usage: "gpt2-124m [--json FILE]",
        run: plan::run,
    },
    Task {
        name: "numerics-cost",
        help: "what numerics checks add to the CPU time of train steps, in alternated pairs",
        usage: "[PAIRS] [W1,W2,...]",
        run: numerics::cost,
    },
    Task {
        name: "cuda-gate",
        help: "compile every matrix kernel for NVIDIA's GPUs, without one, and count its matrix instructions",
        usage: "[--json FILE] [--plant-scalar-kernel] | --runtime (train steps on a stand-in for the driver) | --products (run on the host)",
        run: cuda_gate::run,
    },
    Task {
        name: "bench-tensorcore",
        help: "products, kernels and train steps on a GPU; without one what cuda-gate counts",
        usage: "[--backend cuda|wgpu] [--json FILE] [--quick] [--tiny]",
        run: bench_tensorcore::run,
    },
    Task {
        name: "gpu-bundle",
        help: "a folder for a machine with a GPU and no Rust: tests and measurements, PyTorch's beside them",
        usage: "[--out DIR] [--try (on a stand-in for the driver)]",
        run: gpu_bundle::run,
    },
    Task {
        name: "golden",
        help: "regenerate tests/golden/*.json from their Python scripts, or compare with them",
        usage: "[SCRIPT...] [--check] [--python PATH]",
        run: golden::run,
    },
];

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let outcome = match words.next().as_deref() {
        None | Some("help" | "--help" | "-h") => {
            print!("{}", help());
            Ok(())
        }
        Some(name) => match TASKS.iter().find(|task| task.name == name) {
            Some(task) => (task.run)(Args::new(task.name, words)),
            None => Err(format!("unknown task `{name}`\n\n{}", help())),
        },
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> String {
    let mut text = String::from("usage: cargo xtask <task> [options]\n\ntasks:\n");
    for task in TASKS {
        text += &format!("  {:8} {}\n", task.name, task.help);
        if !task.usage.is_empty() {
            text += &format!("           {}\n", task.usage);
        }
    }
    text
}
