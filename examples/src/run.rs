//! The folder of a run and its figures.

use crate::Options;
use bimetal::data::Loader;
use bimetal::train::{JsonlLogger, Report, Task, TensorBoard, Trainer};
use bimetal::{Error, Result};
use serde_json::{Map, Value, json};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The folder of a run: `steps.jsonl`, `checkpoints/`, `tensorboard/`.
pub struct Folder(PathBuf);

impl Folder {
    /// Chooses the folder; one that holds a run already is an error unless the run is to be gone on with.
    pub fn open(options: &Options) -> Result<Folder> {
        let default = || PathBuf::from("runs").join(format!("{}-{}", options.name, now()));
        let folder = Folder(options.out.clone().unwrap_or_else(default));
        if !options.resume && (folder.steps().exists() || folder.checkpoints().exists()) {
            return Err(Error::invalid(format!(
                "`{}` holds a run already; go on with it by --resume, or choose another folder with --out",
                folder.0.display()
            )));
        }
        if let Some(path) = &options.json {
            writable(path).map_err(|e| unwritten(path, e))?;
        }
        Ok(folder)
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// One line for each attempted step.
    pub fn steps(&self) -> PathBuf {
        self.0.join("steps.jsonl")
    }

    /// The checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// Tells a trainer to log, save and resume here.
    pub fn trainer(&self, trainer: Trainer, options: &Options) -> Trainer {
        // A checkpoint is written at the end of an execution.
        let execution = options.save_every.unwrap_or(10).min(10) as usize;
        let trainer = trainer
            .steps_per_execution(execution)
            .checkpoint(self.checkpoints())
            .resume(options.resume)
            .callback(JsonlLogger::new(self.steps()))
            .callback(TensorBoard::new(self.0.join("tensorboard")));
        match options.save_every {
            Some(steps) => trainer.save_every(steps),
            None => trainer,
        }
    }
}

/// Writes the precision report of eight more steps where `--report` says, if it does.
pub fn report(
    options: &Options,
    trainer: &mut Trainer,
    task: &dyn Task,
    data: Loader,
) -> Result<()> {
    let Some(dir) = &options.report else {
        return Ok(());
    };
    let report = trainer.precision_report(task, data, 8)?;
    report.titled(options.name).write(dir)?;
    println!("precision report: {}", dir.join("precision.html").display());
    Ok(())
}

/// `20260131-235959`, in UTC.
fn now() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_secs());
    let (days, rest) = (seconds / 86400, seconds % 86400);
    // Civil date from days since 1970 (H. Hinnant's algorithm): years begin in March, so that the leap day is the last.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (
        doy - (153 * mp + 2) / 5 + 1,
        if mp < 10 { mp + 3 } else { mp - 9 },
    );
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// The object that `--json` writes.
pub struct Figures(Map<String, Value>);

impl Figures {
    /// The figures of a trainer's report.
    pub fn new(options: &Options, report: &Report) -> Figures {
        let mut figures = Figures(Map::new());
        figures.set("policy", json!(options.policy_name));
        figures.set("device", json!(options.device));
        figures.set("seed", json!(options.seed));
        figures.set("steps", json!(report.steps));
        figures.set("skipped_steps", json!(report.skipped));
        figures.set("final_train_loss", json!(report.train_loss()));
        figures.set("final_val_loss", json!(report.valid_loss()));
        figures.set("seconds", json!(report.seconds));
        figures.set("peak_bytes", json!(report.memory.peak));
        figures.set("live_bytes", json!(report.memory.live));
        figures.set("saved_bytes", json!(report.memory.saved));
        figures.set("parameters", json!(report.parameters));
        figures.set("plans_compiled", json!(report.plans_compiled));
        figures.set("resumed_from", json!(report.resumed_from));
        figures.set("checkpoints_written", json!(report.checkpoints_written));
        figures
    }

    /// Sets a figure.
    pub fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_string(), value);
    }

    /// Writes them where `--json` says, if it does.
    pub fn write(self, options: &Options) -> Result<()> {
        let Some(path) = &options.json else {
            return Ok(());
        };
        let text = format!("{:#}\n", Value::Object(self.0));
        std::fs::write(path, text).map_err(|e| unwritten(path, e))
    }
}

/// Whether the file can be written, known before the training and not after it; a file that is not there yet is left so.
fn writable(path: &Path) -> std::io::Result<()> {
    let missing = !path.exists();
    OpenOptions::new().create(true).append(true).open(path)?;
    if missing {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn unwritten(path: &Path, error: std::io::Error) -> Error {
    Error::invalid(format!(
        "cannot write `{}`: {error}; choose another file with --json",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::Folder;
    use crate::{Defaults, Options};
    use std::path::Path;

    #[test]
    fn a_folder_with_a_run_is_not_written_over() {
        const DEFAULTS: Defaults = Defaults {
            name: "test",
            about: "",
            policy: "float32",
            length: ("steps", 1),
            batch: 1,
            data: "",
            extra: &[],
        };
        let dir = std::env::temp_dir().join(format!("bimetal-examples-{}", std::process::id()));
        let open = |resume: bool| {
            let mut words = vec!["--out".to_string(), dir.display().to_string()];
            words.extend(resume.then(|| "--resume".to_string()));
            Folder::open(&Options::parse(&DEFAULTS, words).unwrap())
        };
        assert!(open(false).is_ok());
        std::fs::create_dir_all(dir.join("checkpoints")).unwrap();
        let text = open(false).err().unwrap().to_string();
        assert!(
            text.contains("--resume") && text.contains("--out"),
            "{text}"
        );
        assert!(open(true).is_ok());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_figures_file_is_tried_without_leaving_anything() {
        let path = std::env::temp_dir().join(format!("bimetal-figures-{}", std::process::id()));
        super::writable(&path).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "kept").unwrap();
        super::writable(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        assert!(super::writable(&path.join("below")).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(super::writable(Path::new("")).is_err());
    }

    #[test]
    fn the_name_of_a_run_is_a_date() {
        let now = super::now();
        assert_eq!(now.len(), 15);
        assert!(now.starts_with("20") && now.as_bytes()[8] == b'-');
        let month: u32 = now[4..6].parse().unwrap();
        let day: u32 = now[6..8].parse().unwrap();
        assert!((1..=12).contains(&month) && (1..=31).contains(&day));
    }
}
