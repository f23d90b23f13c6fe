//! Running other programs, with the command line shown before it runs.

use std::process::Command;
use std::time::Instant;

use crate::{Result, workspace};

/// A `cargo` command in the workspace root, by the cargo that runs this task.
pub fn cargo<I: IntoIterator<Item: AsRef<str>>>(arguments: I) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(workspace::root());
    for argument in arguments {
        command.arg(argument.as_ref());
    }
    command
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let name = program.rsplit(['/', '\\']).next().unwrap_or(&program);
    let arguments = command.get_args().map(|a| a.to_string_lossy());
    std::iter::once(name.into())
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command to its end; its output goes where ours goes.
pub fn run(command: &mut Command) -> Result {
    let line = shown(command);
    println!("$ {line}");
    let start = Instant::now();
    let status = command
        .status()
        .map_err(|e| format!("cannot run `{line}`: {e}"))?;
    if !status.success() {
        return Err(format!("`{line}` failed with {status}"));
    }
    println!("  ({:.0} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a command and returns what it wrote to its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output = command
        .output()
        .map_err(|e| format!("cannot run `{line}`: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "`{line}` failed with {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("`{line}` wrote no UTF-8: {e}"))
}
