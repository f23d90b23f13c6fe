//! `cargo xtask cuda-gate`: matrix kernels must compile to matrix instructions, and train steps to modules that load; no GPU is needed.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::args::Args;
use crate::gpu_tool::{self, TOOLKITS};
use crate::workspace::Metadata;
use crate::{Result, cuda_stand_in, process};

/// The task.
pub fn run(mut args: Args) -> Result {
    let json: Option<PathBuf> = args.option("--json")?;
    let planted = args.flag("--plant-scalar-kernel");
    let (runtime, products) = (args.flag("--runtime"), args.flag("--products"));
    args.finish()?;
    let rows = match (runtime, products) {
        (false, false) => rows(planted)?,
        (true, false) => cuda_stand_in::steps()?,
        _ => return cuda_stand_in::products(),
    };
    if let Some(file) = json {
        write(&file, &Value::Array(rows))?;
    }
    Ok(())
}

/// All rows of the gate: both releases of the compiler on every kernel.
pub fn rows(planted: bool) -> Result<Vec<Value>> {
    let tools = gpu_tool::disassemblers()?;
    let folders = TOOLKITS
        .iter()
        .map(gpu_tool::install)
        .collect::<Result<Vec<_>>>()?;
    let program = gpu_tool::build(false)?;
    let file = Metadata::read()?.target.join("cuda/gate.json");
    let mut rows = Vec::new();
    for cuda in &folders {
        let mut command = gpu_tool::command(&program, cuda, &tools)?;
        command.arg("gate").arg("--json").arg(&file);
        if planted {
            command.arg("--plant-scalar-kernel");
        }
        process::run(&mut command)?;
        rows.extend(read(&file)?);
    }
    Ok(rows)
}

/// What continuous integration asks of CUDA without a GPU; where NVIDIA's compiler cannot be installed it says what it leaves out.
pub fn check() -> Result {
    let installed = TOOLKITS
        .iter()
        .map(gpu_tool::install)
        .collect::<Result<Vec<_>>>()
        .and_then(|cuda| Ok((cuda, gpu_tool::disassemblers()?)));
    let (cuda, tools) = match installed {
        Ok(found) => found,
        Err(e) => {
            println!("skipped: the CUDA gates: {e}");
            return Ok(());
        }
    };
    rows(false)?;
    // A gate that lets everything pass would not be noticed otherwise.
    if let Some(cuda) = cuda.last() {
        let mut command = gpu_tool::command(&gpu_tool::build(false)?, cuda, &tools)?;
        command.args(["gate", "--only", "planted", "--plant-scalar-kernel"]);
        if process::run(&mut command).is_ok() {
            return Err("the gate let a kernel without matrix instructions pass".into());
        }
    }
    cuda_stand_in::steps()?;
    cuda_stand_in::products()
}

fn read(file: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))
}

/// Writes a JSON file and says so.
pub fn write(file: &Path, value: &Value) -> Result {
    let text = serde_json::to_string_pretty(value).map_err(|e| e.to_string())?;
    std::fs::write(file, text + "\n").map_err(|e| format!("{}: {e}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}
