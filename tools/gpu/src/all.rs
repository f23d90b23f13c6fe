//! `all`: everything that a GPU machine can show, each part in a process of its own and with a time of its own, and a table at the end.
use crate::options::Options;
use crate::table;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// A part: its name, the seconds it may take, and the words that make this program do it; `JSON` stands for the file of its rows.
struct Part {
    name: &'static str,
    seconds: u64,
    words: &'static [&'static str],
}

/// What matters most comes first: with the time up, the rest is left out. `--seconds` lets a part end by itself with what it has.
const PARTS: [Part; 7] = [
    part("products", 30, &["products"]),
    part("losses", 40, &["losses"]),
    part(
        "bench",
        100,
        &["bench", "--quick", "--seconds", "85", "--json", "JSON"],
    ),
    part("torch", 60, &[]),
    part(
        "conformance",
        50,
        &["suite", "conformance", "--seconds", "40"],
    ),
    part("gradcheck", 30, &["suite", "gradcheck", "--seconds", "25"]),
    part("pitfalls", 40, &["suite", "pitfalls", "--seconds", "35"]),
];

const fn part(name: &'static str, seconds: u64, words: &'static [&'static str]) -> Part {
    Part {
        name,
        seconds,
        words,
    }
}

/// The exit code by which the script of PyTorch says that there is none.
const NO_TORCH: i32 = 3;

/// The `all` task.
pub fn run(mut options: Options) -> Result<(), String> {
    let out = options.value("--out")?.unwrap_or_else(|| "results".into());
    let out = PathBuf::from(out);
    let only = options.value("--only")?;
    let total = match options.value("--seconds")?.map(|s| s.parse()) {
        None => 360,
        Some(Ok(n)) => n,
        Some(Err(_)) => return Err("`--seconds` needs a whole number".into()),
    };
    let full = options.flag("--full");
    options.finish()?;
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let end = Instant::now() + Duration::from_secs(total);
    let me = std::env::current_exe().map_err(|e| e.to_string())?;

    let probe = Command::new(&me).args(["bench", "--probe"]).output();
    let probe = probe.map_err(|e| format!("{}: {e}", me.display()))?;
    let device = String::from_utf8_lossy(&probe.stdout).trim().to_string();
    if !device.starts_with("device:") {
        return Err(format!("there is no device to measure: {device}"));
    }
    println!("{device}");
    let mut results = json!({"device": device, "parts": {}});
    for part in PARTS {
        if only
            .as_ref()
            .is_some_and(|o| !o.split(',').any(|o| o == part.name))
        {
            continue;
        }
        let left = end.saturating_duration_since(Instant::now());
        let limit = left.min(Duration::from_secs(if full {
            10 * part.seconds
        } else {
            part.seconds
        }));
        println!("\n=== {} (at most {} s)", part.name, limit.as_secs());
        let file = out.join(format!("{}.json", part.name));
        let _ = std::fs::remove_file(&file);
        let command = command(&me, &part, &file, full);
        let (verdict, seconds) = match limit.as_secs() {
            0 => ("left out: the time was up".into(), 0.0),
            _ => execute(command, limit, &out.join(format!("{}.log", part.name)))?,
        };
        println!("{}: {verdict}", part.name);
        let rows = std::fs::read_to_string(&file).ok();
        let rows: Option<Value> = rows.and_then(|text| serde_json::from_str(&text).ok());
        results["parts"][part.name] = json!({"verdict": verdict, "seconds": seconds, "rows": rows});
        // After each part, so that who stops it keeps what there is.
        let path = out.join("results.json");
        std::fs::write(&path, format!("{results:#}\n"))
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    println!("\n{}", table::summary(&results));
    println!("all of it: {}", out.join("results.json").display());
    Ok(())
}

fn command(me: &Path, part: &Part, file: &Path, full: bool) -> Command {
    if part.name == "torch" {
        let mut command = Command::new("python3");
        command
            .arg(me.with_file_name("torch_steps.py"))
            .arg("--json")
            .arg(file);
        if full {
            command.arg("--full");
        }
        return command;
    }
    let mut command = Command::new(me);
    for word in part.words {
        match *word {
            "JSON" => command.arg(file),
            "--quick" if full => &mut command,
            word => command.arg(word),
        };
    }
    command
}

/// Runs a part with its output in a file, whose last lines are shown; stopped when its time is up. The verdict, and the seconds it took.
fn execute(mut command: Command, limit: Duration, log: &Path) -> Result<(String, f64), String> {
    let text = |e: std::io::Error| format!("{}: {e}", log.display());
    let file = File::create(log).map_err(text)?;
    command.stdout(file.try_clone().map_err(text)?).stderr(file);
    let start = Instant::now();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => {
            let program = command.get_program().display().to_string();
            return Ok((format!("left out: {program}: {e}"), 0.0));
        }
    };
    let status = loop {
        match child.try_wait().map_err(text)? {
            Some(status) => break Some(status),
            None if start.elapsed() >= limit => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let all = std::fs::read(log).map_err(text)?;
    let all = String::from_utf8_lossy(&all);
    let lines: Vec<&str> = all.lines().collect();
    for line in &lines[lines.len().saturating_sub(40)..] {
        println!("{line}");
    }
    Ok((verdict(status, limit), start.elapsed().as_secs_f64()))
}

fn verdict(status: Option<ExitStatus>, limit: Duration) -> String {
    match status {
        None => format!("stopped after {} s", limit.as_secs()),
        Some(s) if s.success() => "passed".into(),
        Some(s) if s.code() == Some(NO_TORCH) => {
            "left out: python3 has no torch for this device".into()
        }
        Some(s) => format!("FAILED ({s})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: f64) -> (String, String) {
        let log =
            std::env::temp_dir().join(format!("bimetal-all-{}-{seconds}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let (verdict, _) = execute(command, Duration::from_secs_f64(seconds), &log).unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        let _ = std::fs::remove_file(log);
        (verdict, text)
    }

    /// What a part printed is kept however it ends.
    #[test]
    fn parts_end_in_a_verdict() {
        assert_eq!(shell("echo a; exit 0", 60.0).0, "passed");
        assert!(shell("exit 3", 61.0).0.contains("no torch"));
        assert!(shell("exit 1", 62.0).0.starts_with("FAILED"));
        let (verdict, text) = shell("echo begun; exec sleep 60", 1.0);
        assert_eq!(
            (verdict.as_str(), text.as_str()),
            ("stopped after 1 s", "begun\n")
        );
        let missing = execute(
            Command::new("/nowhere/program"),
            Duration::from_secs(1),
            &std::env::temp_dir().join("bimetal-all-missing"),
        );
        assert!(missing.unwrap().0.starts_with("left out: /nowhere/program"));
    }

    /// The limits leave time for what is between the parts.
    #[test]
    fn six_minutes_are_enough() {
        assert!(PARTS.iter().map(|p| p.seconds).sum::<u64>() <= 355);
    }
}
