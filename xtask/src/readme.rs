//! `readme`: the commands that the README shows must work as they stand.
//!
//! Each `cargo run --release --example NAME ...` line is run as it stands plus options that
//! shorten the training; each `cargo xtask TASK` line must name a task that exists.

use std::path::Path;

use crate::args::Args;
use crate::process::{cargo, run as run_command};
use crate::workspace::{Metadata, root};
use crate::{Result, TASKS};

/// The `readme` task.
pub fn run(args: Args) -> Result {
    args.finish()?;
    check()
}

/// Tries the README's commands.
pub fn check() -> Result {
    let path = root().join("README.md");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let commands = commands(&text);
    if commands.is_empty() {
        return Err("README.md shows no cargo command in a ```sh block".to_string());
    }
    let metadata = Metadata::read()?;
    let examples: Vec<_> = metadata.targets("example");
    let scratch = metadata.target.join("readme");
    for (number, command) in commands.iter().enumerate() {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["cargo", "xtask", task, ..] => {
                if !TASKS.iter().any(|known| known.name == *task) {
                    return Err(format!("README.md: `{command}` names no task of xtask"));
                }
            }
            ["cargo", "run", rest @ ..] => {
                let name = rest
                    .iter()
                    .skip_while(|word| **word != "--example")
                    .nth(1)
                    .copied()
                    .unwrap_or_default();
                if !examples.iter().any(|(example, _)| *example == name) {
                    return Err(format!("README.md: `{command}` names no example"));
                }
                smoke(&words[1..], name, &scratch.join(number.to_string()))?;
            }
            // What a reader does in a project of their own.
            ["cargo", "add" | "new", ..] => {}
            _ => return Err(format!("README.md: no rule here for `{command}`")),
        }
    }
    println!("{} commands of README.md hold", commands.len());
    Ok(())
}

/// Runs one example from a fresh output folder with little to train.
fn smoke(words: &[&str], name: &str, out: &Path) -> Result {
    match std::fs::remove_dir_all(out) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{}: {e}", out.display()));
        }
        _ => {}
    }
    let mut command = cargo(words);
    if !words.contains(&"--") {
        command.arg("--");
    }
    match name {
        "mnist" => command.args(["--epochs", "1", "--limit", "640"]),
        _ => command.args(["--steps", "20"]),
    };
    command.arg("--out").arg(out);
    run_command(&mut command)
}

/// The `cargo` lines in the ```sh blocks of a Markdown text, without comments.
fn commands(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside && line.trim_end() == "```sh";
        } else if inside && line.starts_with("cargo ") {
            let command = line.split(" #").next().unwrap_or(line);
            found.push(command.trim().to_string());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cargo_lines_of_shell_blocks_count() {
        let text = "```rust\ncargo a\n```\n```sh\ncd x\ncargo b --c  # why\n```\ncargo d\n";
        assert_eq!(commands(text), ["cargo b --c"]);
    }
}
