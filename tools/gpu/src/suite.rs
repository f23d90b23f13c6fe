//! `suite`: the test suites on a device, in a program of their own.
use crate::device::Target;
use crate::options::Options;
use bimetal_testing::conformance::Report;
use bimetal_testing::{conformance, gradcheck, pitfalls};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// What a suite is asked for.
struct Asked {
    rounds: usize,
    only: Option<String>,
    seconds: Option<u64>,
}

/// The `suite` task.
pub fn run(mut options: Options) -> Result<(), String> {
    let backend = options.value("--backend")?.unwrap_or_else(|| "cuda".into());
    let number = |text: Option<String>, name: &str| {
        text.map(|t| t.parse().map_err(|_| format!("`{name}` needs a number")))
            .transpose()
    };
    let asked = Asked {
        rounds: number(options.value("--rounds")?, "--rounds")?.unwrap_or(1) as usize,
        seconds: number(options.value("--seconds")?, "--seconds")?,
        only: options.value("--only")?,
    };
    let name = options.word().unwrap_or_default();
    options.finish()?;
    let suite = match name.as_str() {
        "conformance" => conform,
        "gradcheck" => derive,
        "pitfalls" => fall,
        _ => {
            return Err(format!(
                "`{name}` is none of conformance, gradcheck, pitfalls"
            ));
        }
    };
    let target = Target::find(&backend)?;
    println!("{}", target.json()?["name"]);
    let verdict = suite(&target, &asked)?;
    println!("{name}: {verdict}");
    Ok(())
}

/// Until the time is up; a line now and then.
fn clock(asked: &Asked) -> impl FnMut(&Report) -> bool {
    let (start, mut told) = (Instant::now(), 0);
    let seconds = asked.seconds.unwrap_or(u64::MAX);
    move |report| {
        if report.checked >= told + 100 {
            told = report.checked;
            let failed = report.failures.len();
            println!("{told} checks, {failed} failed, {:.0?}", start.elapsed());
        }
        start.elapsed() < Duration::from_secs(seconds)
    }
}

fn found(report: &Report) -> Result<String, String> {
    for line in report.skips() {
        println!("{line}");
    }
    report.verdict()
}

fn conform(target: &Target, asked: &Asked) -> Result<String, String> {
    let device = target.open()?;
    found(&conformance::run_while(
        &device,
        1,
        asked.rounds,
        &mut clock(asked),
    ))
}

fn derive(target: &Target, asked: &Asked) -> Result<String, String> {
    let device = target.open()?;
    found(&gradcheck::run_while(
        &device,
        1,
        asked.rounds,
        true,
        &mut clock(asked),
    ))
}

/// Each on a device of its own; what fails says why on standard error, as a panic.
fn fall(target: &Target, asked: &Asked) -> Result<String, String> {
    let start = Instant::now();
    let limit = Duration::from_secs(asked.seconds.unwrap_or(u64::MAX));
    let (mut passed, mut failed, mut left) = (0, Vec::new(), 0);
    for (name, test) in pitfalls::all() {
        if asked
            .only
            .as_ref()
            .is_some_and(|o| !name.contains(o.as_str()))
        {
            continue;
        }
        if start.elapsed() >= limit {
            left += 1;
            continue;
        }
        let device = target.open()?;
        match catch_unwind(AssertUnwindSafe(|| test(&device))) {
            Ok(()) => {
                println!("{name} ... ok");
                passed += 1;
            }
            Err(_) => {
                println!("{name} ... FAILED");
                failed.push(name);
            }
        }
    }
    if left > 0 {
        println!("skipped: {left} cases: the time was up");
    }
    match failed.is_empty() {
        true => Ok(format!("{passed} pitfalls passed")),
        false => Err(format!(
            "{passed} pitfalls passed, failed: {}",
            failed.join(", ")
        )),
    }
}
