//! Suites about instruction sets: every level by force, and the kernels under valgrind.

use std::process::Command;

use serde_json::Value;

use crate::Result;
use crate::args::Args;
use crate::process::{cargo, output, run};

/// The levels that `BIMETAL_SIMD` takes, and whether this machine runs them.
fn levels() -> [(&'static str, bool); 3] {
    #[cfg(target_arch = "x86_64")]
    let (avx2, avx512) = (
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"),
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl"),
    );
    #[cfg(not(target_arch = "x86_64"))]
    let (avx2, avx512) = (false, false);
    [
        ("portable", true),
        ("avx2", avx2),
        ("avx512", avx2 && avx512),
    ]
}

/// `test --suite simd`: kernels, conformance and gradient checks with each instruction set in turn.
pub fn levels_suite(args: Args) -> Result {
    args.finish()?;
    let mut failed = Vec::new();
    let mut lines = Vec::new();
    for (level, here) in levels() {
        if !here {
            lines.push(format!(
                "simd {level}: not run, this machine does not have it"
            ));
            continue;
        }
        let suites: [&[&str]; 2] = [
            &["test", "-p", "bimetal-kernels", "--lib"],
            &[
                "test",
                "-p",
                "bimetal-testing",
                "--test",
                "conformance",
                "--test",
                "gradcheck",
            ],
        ];
        let mut state = "pass";
        for suite in suites {
            if let Err(e) = run(cargo(suite.iter().copied()).env("BIMETAL_SIMD", level)) {
                state = "fail";
                failed.push(format!("{level}: {e}"));
            }
        }
        lines.push(format!("simd {level}: {state}"));
    }
    for line in lines {
        println!("{line}");
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("\n")),
    }
}

/// Exit status of valgrind when it has found an error.
const FOUND: &str = "--error-exitcode=99";

/// `test --suite valgrind`: the tests of the kernels under valgrind, with the sets it knows.
pub fn valgrind_suite(args: Args) -> Result {
    args.finish()?;
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed (the package `valgrind`)");
        return Ok(());
    }
    let program = kernel_tests()?;
    for (level, here) in levels() {
        if level == "avx512" || !here {
            println!("valgrind {level}: not run, valgrind or this machine does not have it");
            continue;
        }
        let mut command = Command::new("valgrind");
        command
            .args(["--quiet", FOUND])
            .arg(&program)
            .args(["--test-threads", "1"])
            .env("BIMETAL_SIMD", level);
        run(&mut command)?;
        println!("valgrind {level}: pass");
    }
    Ok(())
}

/// Builds the tests of the kernels; the program that holds them.
fn kernel_tests() -> Result<String> {
    let build = [
        "test",
        "-p",
        "bimetal-kernels",
        "--lib",
        "--no-run",
        "--message-format=json",
    ];
    let text = output(&mut cargo(build))?;
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|json| json["executable"].as_str().map(str::to_string))
        .next_back()
        .ok_or_else(|| "cargo built no tests of bimetal-kernels".to_string())
}
