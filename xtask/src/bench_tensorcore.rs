//! `cargo xtask bench-tensorcore`: what products, kernels and train steps reach on a GPU; without one, what their code consists of.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::args::Args;
use crate::{Result, cuda_gate, gpu_tool, process};

/// The task.
pub fn run(mut args: Args) -> Result {
    let json_file: Option<PathBuf> = args.option("--json")?;
    let backend = args
        .option::<String>("--backend")?
        .unwrap_or_else(|| "cuda".into());
    // `--tiny` is for trying whether everything runs, on software adapters.
    let flags: Vec<&str> = ["--quick", "--tiny"]
        .into_iter()
        .filter(|f| args.flag(f))
        .collect();
    args.finish()?;
    if !["cuda", "wgpu"].contains(&backend.as_str()) {
        return Err(format!("`--backend {backend}` is neither cuda nor wgpu"));
    }
    let result = match measured(&backend, &flags)? {
        Some(result) => result,
        None => {
            println!("no {backend} device: instructions are counted instead");
            json!({"device": null, "gate": cuda_gate::rows(false)?, "gemm": [], "kernels": [], "steps": []})
        }
    };
    if let Some(file) = json_file {
        cuda_gate::write(&file, &result)?;
    }
    Ok(())
}

/// What the tool measured, or none without a device.
fn measured(backend: &str, flags: &[&str]) -> Result<Option<Value>> {
    let program = gpu_tool::build(false)?;
    let mut command = std::process::Command::new(&program);
    command.args(["bench", "--backend", backend]);
    if !process::output(command.arg("--probe"))?.starts_with("device:") {
        return Ok(None);
    }
    // Kernels are the driver's work: for trying them the faster build does.
    let program = gpu_tool::build(!flags.contains(&"--tiny"))?;
    let file = std::env::temp_dir().join(format!("bimetal-bench-{}.json", std::process::id()));
    let mut command = std::process::Command::new(&program);
    command
        .args(["bench", "--backend", backend, "--json"])
        .arg(&file)
        .args(flags);
    process::run(&mut command)?;
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let _ = std::fs::remove_file(&file);
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|e| format!("{}: {e}", file.display()))
}
