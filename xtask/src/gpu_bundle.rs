//! `cargo xtask gpu-bundle`: one folder for a machine that has a GPU and no Rust.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Args;
use crate::workspace::{self, Metadata};
use crate::{Result, cuda_stand_in, process};

/// What the folder may weigh.
const MOST: u64 = 40 << 20;

/// The files beside the program, in `tools/gpu/bundle`.
const FILES: [&str; 2] = ["run.sh", "torch_steps.py"];

/// The task.
pub fn run(mut args: Args) -> Result {
    let out: Option<PathBuf> = args.option("--out")?;
    let tried = args.flag("--try");
    args.finish()?;
    let target = Metadata::read()?.target;
    let out = out.unwrap_or_else(|| target.join("gpu-bundle"));
    // Without wgpu, and by itself: what other packages ask of shared dependencies does not come in.
    let words = "build --profile bundle -p bimetal-gpu";
    process::run(&mut process::cargo(words.split_whitespace()))?;
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    copy(&target.join("bundle/bimetal-gpu"), &out)?;
    for file in FILES {
        copy(&workspace::root().join("tools/gpu/bundle").join(file), &out)?;
    }
    let size = size(&out)?;
    println!(
        "{}: {:.1} MiB of {} that it may have; `./run.sh` there runs everything",
        out.display(),
        size as f64 / (1u64 << 20) as f64,
        MOST >> 20
    );
    if size > MOST {
        return Err(format!(
            "the bundle has {size} bytes; at most {MOST} are carried to a GPU machine"
        ));
    }
    if tried { try_out(&out) } else { Ok(()) }
}

fn copy(file: &Path, folder: &Path) -> Result {
    let name = file.file_name().unwrap_or_default();
    std::fs::copy(file, folder.join(name))
        .map(drop)
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// The bytes of the files in a folder, without those of earlier results.
fn size(folder: &Path) -> Result<u64> {
    let text = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut size = 0;
    for entry in std::fs::read_dir(folder).map_err(text)? {
        let data = entry.and_then(|e| e.metadata()).map_err(text)?;
        size += if data.is_file() { data.len() } else { 0 };
    }
    Ok(size)
}

/// Runs it on a stand-in for NVIDIA's driver, which loads kernels and executes none: every part must come to its verdict.
fn try_out(folder: &Path) -> Result {
    let (cuda, libraries) = cuda_stand_in::driver()?;
    let out = folder.join("tried");
    let mut command = Command::new(folder.join("run.sh"));
    command
        .args(["--seconds", "300", "--out"])
        .arg(&out)
        .env("CUDA_PATH", &cuda)
        .env("LD_LIBRARY_PATH", libraries);
    process::run(&mut command)?;
    let file = out.join("results.json");
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let results: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    let parts = results["parts"].as_object();
    match parts.is_some_and(|p| p.len() == 7 && p.values().all(|v| v["verdict"].is_string())) {
        true => Ok(()),
        false => Err(format!("{}: a part has no verdict", file.display())),
    }
}
