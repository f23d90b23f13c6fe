//! `bench`: builds the bench with optimisation and hands it the arguments.

use crate::Result;
use crate::args::Args;
use crate::process::{cargo, run as run_command};

/// The `bench` task. The program behind it knows the options and refuses unknown ones.
pub fn run(args: Args) -> Result {
    let mut command = cargo(["run", "--release", "--quiet", "-p", "bimetal-bench", "--"]);
    if let Ok(here) = std::env::current_dir() {
        // A file named on the command line lies where the user is.
        command.current_dir(here);
    }
    run_command(command.args(args.words()))
}
