//! What all examples share: options, the run folder, and the object of `--json`.

mod options;
mod random;
mod run;

pub use options::{Defaults, Extra, Options};
pub use random::Random;
pub use run::{Figures, Folder, report};

use bimetal::Result;
use std::process::ExitCode;

/// Runs an example with the options of the command line; an error goes to standard error as one message.
pub fn main(defaults: &Defaults, example: impl FnOnce(Options) -> Result<()>) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        print!("{}", defaults.help());
        return ExitCode::SUCCESS;
    }
    match Options::parse(defaults, words).and_then(example) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
