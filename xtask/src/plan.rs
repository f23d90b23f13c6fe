//! `plan`: how many launches the train step of a large network is, without running it.

use crate::Result;
use crate::args::Args;
use crate::process::{cargo, run as run_command};

/// The `plan` task. The program behind it knows the options and refuses unknown ones.
pub fn run(args: Args) -> Result {
    let program = "run --quiet -p bimetal-bench --bin plan --";
    let mut command = cargo(program.split_whitespace());
    if let Ok(here) = std::env::current_dir() {
        // A file named on the command line lies where the user is.
        command.current_dir(here);
    }
    run_command(command.args(args.words()))
}
