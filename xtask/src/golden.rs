//! `golden`: reference numbers from other frameworks, made by the scripts in `tests/golden`.
//!
//! A script states what it imports in a line `# requires: package==version ...`; it takes
//! `--out DIR` and writes its fixtures there. The packages go into `.venv/` (not committed);
//! the fixtures are small and committed, so that tests need no Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::args::Args;
use crate::process::run as run_command;
use crate::workspace::{Metadata, root};

/// The `golden` task.
pub fn run(mut args: Args) -> Result {
    let check = args.flag("--check");
    let python: Option<PathBuf> = args.option("--python")?;
    let wanted = args.names();
    args.finish()?;

    let folder = root().join("tests/golden");
    let scripts = select(&scripts(&folder)?, &wanted)?;
    let out = if check {
        let made = Metadata::read()?.target.join("golden");
        if made.exists() {
            std::fs::remove_dir_all(&made).map_err(|e| format!("{}: {e}", made.display()))?;
        }
        made
    } else {
        folder.clone()
    };
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    for name in &scripts {
        let script = folder.join(format!("{name}.py"));
        let python = match &python {
            Some(path) => path.clone(),
            None => environment(&requirements(&script)?)?,
        };
        run_command(Command::new(python).arg(&script).arg("--out").arg(&out))?;
    }
    if check {
        compare(&out, &folder)
    } else {
        Ok(())
    }
}

/// The names of the scripts: every Python file that is not a helper (`_*.py`).
fn scripts(folder: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = list(folder)?
        .iter()
        .filter_map(|name| name.strip_suffix(".py"))
        .filter(|name| !name.starts_with('_'))
        .map(str::to_string)
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// All scripts, or those asked for.
fn select(known: &[String], wanted: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        return Err(format!(
            "unknown script `{unknown}`; the scripts are: {}",
            known.join(", ")
        ));
    }
    Ok(if wanted.is_empty() { known } else { wanted }.to_vec())
}

/// The packages in a script's `# requires:` line.
fn requirements(script: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(script).map_err(|e| format!("{}: {e}", script.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("# requires:"))
        .ok_or_else(|| format!("{} has no `# requires:` line", script.display()))?;
    Ok(line.split_whitespace().map(str::to_string).collect())
}

/// The interpreter of `.venv`, made where it is missing, with the packages installed.
fn environment(packages: &[String]) -> Result<PathBuf> {
    let venv = root().join(".venv");
    let python = venv.join(if cfg!(windows) {
        "Scripts/python.exe"
    } else {
        "bin/python"
    });
    if !python.exists() {
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    if !packages.is_empty() {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet"]).args(packages);
        run_command(&mut pip)?;
    }
    Ok(python)
}

/// Whether the fixtures in `made` are byte for byte the committed ones.
fn compare(made: &Path, committed: &Path) -> Result {
    let read = |path: PathBuf| std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()));
    let mut different = Vec::new();
    for name in list(made)? {
        if read(made.join(&name))? != read(committed.join(&name)).unwrap_or_default() {
            different.push(name);
        }
    }
    if different.is_empty() {
        println!("the committed fixtures are what the scripts make");
        Ok(())
    } else {
        Err(format!(
            "these fixtures differ from what the scripts make: {}",
            different.join(", ")
        ))
    }
}

fn list(folder: &Path) -> Result<Vec<String>> {
    std::fs::read_dir(folder)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .map(|entries| {
            let name = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().into_owned();
            entries.iter().map(name).collect()
        })
        .map_err(|e| format!("{}: {e}", folder.display()))
}
