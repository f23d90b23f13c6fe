//! `numerics-cost`: what numerics checks add to the CPU time of train steps.

use crate::Result;
use crate::args::Args;
use crate::process::{cargo, run as run_command};

/// The `numerics-cost` task: exits with an error if a bound is not kept.
pub fn cost(args: Args) -> Result {
    let program = [
        "run",
        "--release",
        "--quiet",
        "-p",
        "bimetal-bench",
        "--bin",
        "numerics_cost",
        "--",
    ];
    run_command(cargo(program).args(args.words()))
}
