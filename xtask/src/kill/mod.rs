//! `test --suite kill`: a run that is killed at any moment and resumed is the run that was not.
//!
//! One example trains without interruption. Then, again and again, the same command is killed at
//! a random moment (no signal handler runs) and resumed from its output folder. The bits of every
//! step's loss and the final figures must be those of the uninterrupted run.

mod log;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::Result;
use crate::args::Args;
use crate::process::{cargo, run as run_command, shown};
use crate::workspace::Metadata;

/// How the training is shortened, unless words after the options say otherwise.
///
/// Some hundred steps in some seconds, with a checkpoint every few of them.
fn training(example: &str) -> &'static [&'static str] {
    match example {
        "mnist" => &[
            "--epochs",
            "2",
            "--limit",
            "2000",
            "--batch",
            "32",
            "--save-every",
            "5",
        ],
        _ => &["--steps", "200", "--save-every", "5"],
    }
}

/// The figures of the `--json` object that a resumed run must reproduce.
const SAME: &[&str] = &[
    "steps",
    "skipped_steps",
    "final_train_loss",
    "final_val_loss",
    "test_accuracy",
];

/// Runs the suite; the options are those of `cargo xtask test --suite kill`.
pub fn run(mut args: Args) -> Result {
    let example = args
        .option("--example")?
        .unwrap_or_else(|| "mnist".to_string());
    let trials: usize = args.option("--trials")?.unwrap_or(20);
    let needed = args.option("--min-resumed")?.unwrap_or(trials * 3 / 4);
    let policy = args
        .option("--policy")?
        .unwrap_or_else(|| "mixed_float16".to_string());
    let seed = args.option("--seed")?.unwrap_or_else(clock);
    args.finish()?;

    let metadata = Metadata::read()?;
    let known: Vec<&str> = metadata.targets("example").iter().map(|t| t.0).collect();
    if !known.contains(&example.as_str()) {
        return Err(format!(
            "there is no example `{example}`; the examples are: {}",
            known.join(", ")
        ));
    }
    run_command(&mut cargo(["build", "--release", "--example", &example]))?;
    let program = Training {
        binary: metadata
            .target
            .join("release/examples")
            .join(format!("{example}{}", std::env::consts::EXE_SUFFIX)),
        arguments: training(&example)
            .iter()
            .map(|word| word.to_string())
            .collect(),
        policy,
    };
    let folder = metadata.target.join("kill").join(&example);
    clear(&folder)?;

    let start = Instant::now();
    let reference = program.to_the_end(&folder.join("uninterrupted"), false)?;
    let length = start.elapsed();
    println!(
        "uninterrupted: {} steps in {:.1} s; seed of the moments: {seed}",
        reference.log.steps(),
        length.as_secs_f64()
    );

    let mut random = Random(seed);
    let mut resumed = 0;
    for trial in 1..=trials {
        let moment = length.mul_f64(random.fraction());
        let out = folder.join(format!("trial-{trial:02}"));
        let finished = program.killed_after(moment, &out)?;
        let run = program.to_the_end(&out, true)?;
        let from = run.figures["resumed_from"]
            .as_u64()
            .ok_or_else(|| format!("{}: no number `resumed_from`", run.json.display()))?;
        let what = if finished { "had finished" } else { "killed" };
        println!(
            "trial {trial:2}: {what} at {:5.2} s, resumed from step {from}",
            moment.as_secs_f64()
        );
        run.must_equal(&reference)
            .map_err(|e| format!("trial {trial}: {e}"))?;
        resumed += usize::from(from > 0);
        clear(&out)?;
    }
    println!("{resumed} of {trials} runs resumed from a checkpoint, {needed} are needed");
    if resumed < needed {
        return Err(format!(
            "only {resumed} of {trials} runs resumed from a checkpoint"
        ));
    }
    println!("all runs have the uninterrupted run's bits");
    Ok(())
}

/// The command under test.
struct Training {
    binary: PathBuf,
    arguments: Vec<String>,
    policy: String,
}

/// What one run left behind.
struct Outcome {
    log: log::StepLog,
    json: PathBuf,
    figures: Value,
}

impl Training {
    fn command(&self, out: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(&self.arguments)
            .args(["--seed", "0", "--policy", &self.policy, "--out"])
            .arg(out)
            .stdout(Stdio::null());
        command
    }

    /// Starts afresh and kills the run after `moment`; whether it had ended by then.
    fn killed_after(&self, moment: Duration, out: &Path) -> Result<bool> {
        let mut command = self.command(out);
        command.stderr(Stdio::null());
        let mut child = command
            .spawn()
            .map_err(|e| format!("cannot run `{}`: {e}", shown(&command)))?;
        std::thread::sleep(moment);
        let ended = child.try_wait().map_err(|e| e.to_string())?;
        if ended.is_none() {
            child
                .kill()
                .map_err(|e| format!("cannot kill the run: {e}"))?;
        }
        let status = child.wait().map_err(|e| e.to_string())?;
        match ended.is_some() && !status.success() {
            true => Err(failed(&command, status)),
            false => Ok(ended.is_some()),
        }
    }

    /// Runs until it ends by itself, and reads what it left.
    fn to_the_end(&self, out: &Path, resume: bool) -> Result<Outcome> {
        let json = out.with_extension("json");
        let mut command = self.command(out);
        command.arg("--json").arg(&json);
        if resume {
            command.arg("--resume");
        }
        let status = command
            .status()
            .map_err(|e| format!("cannot run `{}`: {e}", shown(&command)))?;
        if !status.success() {
            return Err(failed(&command, status));
        }
        let text =
            std::fs::read_to_string(&json).map_err(|e| format!("{}: {e}", json.display()))?;
        let figures =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", json.display()))?;
        let log = log::StepLog::read(&out.join("steps.jsonl"))?;
        Ok(Outcome { log, json, figures })
    }
}

impl Outcome {
    fn must_equal(&self, reference: &Outcome) -> Result {
        self.log.must_equal(&reference.log)?;
        for name in SAME {
            let (found, expected) = (&self.figures[name], &reference.figures[name]);
            if found != expected {
                return Err(format!(
                    "{}: `{name}` is {found}, the uninterrupted run has {expected}",
                    self.json.display()
                ));
            }
        }
        Ok(())
    }
}

fn failed(command: &Command, status: ExitStatus) -> String {
    format!("`{}` failed with {status}", shown(command))
}

fn clear(folder: &Path) -> Result {
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))
}

fn clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64)
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough for choosing moments.
struct Random(u64);

impl Random {
    /// Uniform in `[0, 1)`.
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn moments_spread_over_the_whole_run() {
        let mut random = Random(1);
        let mut quarters = [0; 4];
        for _ in 0..400 {
            quarters[(random.fraction() * 4.0) as usize] += 1;
        }
        assert!(
            quarters.iter().all(|n| (70..130).contains(n)),
            "{quarters:?}"
        );
    }
}
