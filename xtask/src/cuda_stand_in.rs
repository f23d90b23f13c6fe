//! The CUDA runtime on a stand-in for NVIDIA's driver: what a train step launches must compile and load, and products must be right.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::gpu_tool::{self, TOOLKITS};
use crate::workspace::{self, GPU, Metadata};
use crate::{Result, process};

/// Train steps whose kernels are compiled: an example and its options.
const STEPS: [(&str, &[&str]); 2] = [
    (
        "mnist",
        &["--device", "cuda", "--epochs", "1", "--limit", "640"],
    ),
    ("char_gpt", &["--device", "cuda", "--steps", "12"]),
];

/// Compiles one of the stand-ins.
fn library(name: &str, source: &str) -> Result<PathBuf> {
    let folder = Metadata::read()?.target.join("cuda/stand-in");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let out = folder.join(name);
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c++20", "-O1", "-shared", "-fPIC", "-o"]);
    command
        .arg(&out)
        .arg(workspace::root().join("stubs/fake-cuda").join(source));
    process::run(&mut command)?;
    Ok(folder)
}

fn paths(all: &[&Path]) -> Result<std::ffi::OsString> {
    std::env::join_paths(all).map_err(|e| e.to_string())
}

/// The folder of NVIDIA's newest compiler, and where the libraries lie: the stand-in for the driver, and that compiler.
pub fn driver() -> Result<(PathBuf, std::ffi::OsString)> {
    let newest = TOOLKITS.last().ok_or("no release of CUDA is named")?;
    let cuda = gpu_tool::install(newest)?;
    let folder = library("libcuda.so", "driver.cpp")?;
    // The compiler of the other stand-in must not be found here.
    let alone = folder.join("driver");
    std::fs::create_dir_all(&alone)
        .and_then(|()| std::fs::copy(folder.join("libcuda.so"), alone.join("libcuda.so")))
        .map_err(|e| format!("{}: {e}", alone.display()))?;
    let libraries = paths(&[&alone, &cuda.join("lib")])?;
    Ok((cuda, libraries))
}

/// Runs a train step of each example through NVIDIA's compiler and the CUDA runtime; what was loaded and launched, a row each.
pub fn steps() -> Result<Vec<Value>> {
    let (cuda, libraries) = driver()?;
    let logs = Metadata::read()?.target.join("cuda/stand-in");
    let folder = match std::env::var_os("BIMETAL_GPU_EXAMPLES") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let words = std::iter::once("build").chain(GPU.split_whitespace());
            process::run(&mut process::cargo(words.chain(["--examples"])))?;
            Metadata::read()?.target.join("debug/examples")
        }
    };
    let mut rows = Vec::new();
    for (example, options) in STEPS {
        let log = logs.join(format!("{example}.json"));
        let _ = std::fs::remove_file(&log);
        let mut command = Command::new(folder.join(example));
        command
            .args(options)
            .current_dir(workspace::root())
            .env("CUDA_PATH", &cuda)
            .env("LD_LIBRARY_PATH", &libraries)
            .env("BIMETAL_FAKE_CUDA_LOG", &log);
        println!("$ {}", process::shown(&command));
        let output = command.output().map_err(|e| format!("{example}: {e}"))?;
        let text = [output.stdout, output.stderr]
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .concat();
        // Kernels are not run, so that the numbers may be refused; a kernel that does not compile or load is named.
        if let Some(line) = text
            .lines()
            .find(|l| l.contains("kernel `") || l.contains("panicked"))
        {
            return Err(format!("{example}: {line}"));
        }
        let found = std::fs::read_to_string(&log)
            .map_err(|e| format!("{example} did not reach the driver ({e}):\n{text}"))?;
        let found: Value =
            serde_json::from_str(&found).map_err(|e| format!("{}: {e}", log.display()))?;
        let matrix = found["kernels"]
            .as_object()
            .is_some_and(|k| k.keys().any(|k| k.contains("cmma")));
        println!(
            "  {example}: {} modules loaded, {} launches, {} Tensor-Core kernels",
            found["modules"],
            found["launches"],
            if matrix { "with" } else { "without" }
        );
        if found["launches"].as_u64().unwrap_or(0) == 0 {
            return Err(format!("{example} launched nothing:\n{text}"));
        }
        println!(
            "  {} graphs recorded and launched {} times, with {} kernels in all",
            found["graphs"], found["graph_launches"], found["graph_kernels"]
        );
        if found["graph_launches"].as_u64().unwrap_or(0) == 0 {
            return Err(format!("{example} replayed no graph:\n{text}"));
        }
        rows.push(json!({"step": example, "graphs": found["graphs"], "graph_launches": found["graph_launches"], "modules": found["modules"], "launches": found["launches"], "kernels": found["kernels"]}));
    }
    Ok(rows)
}

/// Runs products on the host, through the CUDA C++ of their kernels.
pub fn products() -> Result {
    let folder = library("libcuda.so", "driver.cpp")?;
    library("libnvrtc.so", "nvrtc.cpp")?;
    let mut command = Command::new(gpu_tool::build(false)?);
    command
        .arg("products")
        .env("CUDA_PATH", workspace::root().join("stubs/fake-cuda"))
        .env("LD_LIBRARY_PATH", folder);
    process::run(&mut command)
}
