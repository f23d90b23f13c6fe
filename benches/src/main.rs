//! The bench as a program: `cargo xtask bench` builds and runs it.
use std::process::ExitCode;

fn main() -> ExitCode {
    match bimetal_bench::main(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
