//! `test`: the tests of the workspace, or one suite, and then what was skipped and why.
//!
//! A test that cannot run here (no such device, no Python package) prints a line that starts
//! with `skipped: ` and returns. The test harness hides what passing tests print, so this task
//! asks for it, keeps those lines, and shows them at the end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::args::Args;
use crate::process::{cargo, run as run_command, shown};
use crate::tables::{self, State};
use crate::workspace::{CORE, GPU, GPU_CRATES, Metadata};
use crate::{Result, kill, simd};

/// What `cargo test` reported.
#[derive(Default, Debug, PartialEq)]
struct Report {
    passed: usize,
    failed: usize,
    skipped: Vec<String>,
    tests: Vec<(String, State)>,
    /// Inside a harness's listing of what passing tests printed.
    in_listing: bool,
}

/// The `test` task.
pub fn run(mut args: Args) -> Result {
    if let Some(name) = args.option::<String>("--backend")? {
        let suite = args.option::<String>("--suite")?;
        args.finish()?;
        return backend(&name, suite.as_deref());
    }
    match args.option::<String>("--suite")? {
        None => {
            args.finish()?;
            all()
        }
        Some(name) if name == "kill" => kill::run(args),
        Some(name) if name == "simd" => simd::levels_suite(args),
        Some(name) if name == "valgrind" => simd::valgrind_suite(args),
        Some(name) => {
            args.finish()?;
            suite(&name)
        }
    }
}

/// All tests of the workspace, documentation examples included.
pub fn all() -> Result {
    let mut report = Report::default();
    let outcome = execute(
        cargo(format!("test {CORE} --no-fail-fast").split_whitespace()),
        &mut report,
    );
    for name in ["kill", "simd", "valgrind"] {
        report.skipped.push(format!(
            "suite {name}: it takes minutes, run `cargo xtask test --suite {name}` for it"
        ));
    }
    report.skipped.push(
        "the GPU crates: they compile for many minutes, run `cargo xtask gpu` for them".to_string(),
    );
    finish(outcome, &report)
}

/// The suites that every backend is put through.
const BACKEND_SUITES: [&str; 3] = ["conformance", "gradcheck", "pitfalls"];

/// The suites of a backend on a device of this machine; without one it says what was skipped, and that is no error.
pub fn backend(name: &str, suite: Option<&str>) -> Result {
    let cargo_test = match name {
        "cpu" => "test -p bimetal-testing".to_string(),
        "wgpu" | "cuda" => format!("test {GPU}"),
        _ => {
            return Err(format!(
                "unknown backend `{name}`; there are cpu, wgpu, cuda"
            ));
        }
    };
    let suites: Vec<&str> = match suite {
        None => BACKEND_SUITES.to_vec(),
        Some(one) if BACKEND_SUITES.contains(&one) => vec![one],
        Some(other) => {
            return Err(format!(
                "unknown suite `{other}` of a backend; there are {}",
                BACKEND_SUITES.join(", ")
            ));
        }
    };
    let mut report = Report::default();
    let mut run = |suite: &str| {
        let mut command = cargo(format!("{cargo_test} --test {suite}").split_whitespace());
        command.env("BIMETAL_TEST_DEVICE", name);
        execute(command, &mut report).map(|()| report.skipped.len())
    };
    if run("device")? > 0 {
        for suite in &suites {
            report
                .skipped
                .push(format!("suite {suite} on {name}: no such device here"));
        }
        return finish(Ok(()), &report);
    }
    let mut outcome = Ok(());
    for suite in &suites {
        outcome = outcome.and(run(suite).map(drop));
    }
    if suites.contains(&"pitfalls") {
        for line in tables::pitfalls(&report.tests) {
            println!("{line}");
        }
    }
    finish(outcome, &report)
}

/// The tests that the GPU crates have of their own, and a training with them.
pub fn gpu_crates() -> Result {
    // With `--test`, examples are not built.
    run_command(&mut cargo(
        format!("build {GPU} --example mnist").split_whitespace(),
    ))?;
    let mut report = Report::default();
    let metadata = Metadata::read()?;
    let mut line = format!("test {GPU} --no-fail-fast --lib --bins --test gpu");
    for (target, package) in metadata.targets("test") {
        if GPU_CRATES.contains(&package) {
            line += &format!(" --test {target}");
        }
    }
    let outcome = execute(cargo(line.split_whitespace()), &mut report);
    finish(outcome, &report)
}

/// One test target of the workspace by its name.
fn suite(name: &str) -> Result {
    let metadata = Metadata::read()?;
    let targets = metadata.targets("test");
    let Some((_, package)) = targets.iter().find(|(target, _)| *target == name) else {
        let known: Vec<_> = targets.iter().map(|(target, _)| *target).collect();
        return Err(format!(
            "unknown suite `{name}`; the suites are: {}",
            ["kill", "simd", "valgrind"]
                .into_iter()
                .chain(known)
                .collect::<Vec<_>>()
                .join(", ")
        ));
    };
    let mut report = Report::default();
    let command = cargo(["test", "-p", package, "--test", name]);
    let mut outcome = execute(command, &mut report);
    if name == "pitfalls" {
        // What must not compile is tested where it is documented.
        let documented = ["-p", "bimetal-precision", "-p", "bimetal-optim"];
        let command = cargo(["test", "--doc"].into_iter().chain(documented));
        let documented = execute(command, &mut report);
        outcome = outcome.and(documented);
    }
    let lines = match name {
        "pitfalls" => tables::pitfalls(&report.tests),
        "keras" => tables::keras(&report.tests),
        _ => Vec::new(),
    };
    for line in lines {
        println!("{line}");
    }
    finish(outcome, &report)
}

/// Runs a `cargo test` command passes its output on and fills the report.
fn execute(mut command: Command, report: &mut Report) -> Result {
    let line = shown(&command);
    println!("$ {line}");
    command.args(["--", "--show-output"]).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|e| format!("cannot run `{line}`: {e}"))?;
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).split(b'\n') {
            let text = text.map_err(|e| format!("reading the output of `{line}`: {e}"))?;
            let text = String::from_utf8_lossy(&text);
            if report.read(&text) {
                println!("{text}");
            }
        }
    }
    let status = child.wait().map_err(|e| format!("`{line}`: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{line}` failed with {status}"))
    }
}

impl Report {
    /// Takes in one line of output; whether it is worth showing.
    fn read(&mut self, line: &str) -> bool {
        // Many tests may say the same.
        if let Some(reason) = line.trim_start().strip_prefix("skipped: ")
            && !self.skipped.iter().any(|known| known == reason)
        {
            self.skipped.push(reason.to_string());
        }
        if let Some((test, note)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... ignored"))
        {
            let reason = note.trim_start_matches(", ");
            self.skipped.push(format!("{test}: {reason}"));
        }
        self.tests.extend(State::read(line));
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += number_before(counts, " passed");
            self.failed += number_before(counts, " failed");
        }
        match line {
            "successes:" => self.in_listing = true,
            "failures:" => self.in_listing = false,
            _ if line.starts_with("test result: ") => self.in_listing = false,
            _ => {}
        }
        !self.in_listing
    }
}

/// The number that stands right before a word, as in `12 passed`; 0 where there is none.
fn number_before(text: &str, word: &str) -> usize {
    text.split(';')
        .find_map(|part| part.strip_suffix(word))
        .and_then(|part| part.rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// Shows what was skipped and the sums, and decides.
fn finish(outcome: Result, report: &Report) -> Result {
    println!("\nskipped ({}):", report.skipped.len());
    for reason in &report.skipped {
        println!("  {reason}");
    }
    println!("tests: {} passed, {} failed", report.passed, report.failed);
    outcome?;
    if report.passed == 0 {
        return Err("no test ran".to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_counts_and_collects() {
        let output = "\
running 3 tests
test a ... ok
test b ... ok
test c ... ignored, takes an hour

successes:

---- a stdout ----
skipped: no GPU on this machine
chatter

successes:
    a
    b

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 10 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let mut report = Report::default();
        let shown: Vec<_> = output.lines().filter(|line| report.read(line)).collect();
        assert_eq!((report.passed, report.failed), (12, 1));
        assert_eq!(
            report.skipped,
            ["c: takes an hour", "no GPU on this machine"]
        );
        assert!(shown.contains(&"test a ... ok"));
        assert!(!shown.contains(&"chatter"));
        assert_eq!(shown.len(), 7, "{shown:?}");
    }
}
