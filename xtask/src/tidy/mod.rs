//! `tidy`: the house rules that a program can check.

mod budget;
mod edges;
mod lexer;
mod source;

use crate::Result;
use crate::args::Args;
use crate::workspace::Metadata;

/// What the checks found.
#[derive(Default)]
struct Findings {
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn error(&mut self, message: String) {
        self.errors.push(message);
    }

    fn warn(&mut self, message: String) {
        self.warnings.push(message);
    }
}

/// The `tidy` task.
pub fn run(args: Args) -> Result {
    args.finish()?;
    check()
}

/// Runs all checks and prints every finding; an error if one of them is no mere warning.
pub fn check() -> Result {
    let metadata = Metadata::read()?;
    let mut findings = Findings::default();
    source::check(&mut findings)?;
    edges::check(&metadata.packages, &mut findings);
    budget::check(&metadata.packages, &mut findings)?;
    for warning in &findings.warnings {
        println!("warning: {warning}");
    }
    for error in &findings.errors {
        println!("error: {error}");
    }
    match findings.errors.len() {
        0 => {
            println!("tidy: no errors, {} warnings", findings.warnings.len());
            Ok(())
        }
        n => Err(format!("tidy found {n} errors")),
    }
}
