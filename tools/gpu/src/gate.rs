//! The gate without a GPU: every matrix kernel is compiled, and its code must have matrix instructions.
use crate::disassembly;
use crate::options::Options;
use bimetal_cubecl::matrix_kernels;
use bimetal_cuda::{compile, cuda_source, nvrtc_version, offline_units};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Compute capabilities, and whether only kernels of 8-bit floats are compiled for it.
const TARGETS: [(u32, bool); 3] = [(80, false), (89, true), (90, false)];

/// A kernel without matrix instructions, to see that the gate finds it.
const SCALAR: &str =
    "extern \"C\" __global__ void scalar(const float *a, const float *b, float *c) {
    float sum = 0.0f;
    for (int k = 0; k < 16; k++) sum += a[threadIdx.x * 16 + k] * b[k];
    c[threadIdx.x] = sum;
}";

/// One line of the table.
struct Row {
    kernel: String,
    arch: String,
    kind: String,
    /// Where it is not that of the dtype.
    rate: &'static str,
    instructions: usize,
    example: String,
    registers: usize,
    spills: usize,
    sha256: String,
}

impl Row {
    fn json(&self, nvrtc: &str) -> Value {
        json!({
            "kernel": self.kernel, "arch": self.arch, "kind": self.kind, "rate": self.rate, "matrix_instructions": self.instructions, "instruction": self.example,
            "registers": self.registers, "spills": self.spills, "cubin_sha256": self.sha256, "nvrtc": nvrtc,
        })
    }
}

/// The `gate` task.
pub fn run(mut options: Options) -> Result<(), String> {
    let file = options.value("--json")?.map(PathBuf::from);
    let only = options.value("--only")?;
    let (planted, quick) = (
        options.flag("--plant-scalar-kernel"),
        options.flag("--quick"),
    );
    options.finish()?;
    let Some((major, minor)) = nvrtc_version() else {
        return Err("NVRTC was not found; `cargo xtask cuda-gate` installs it".into());
    };
    let include = std::env::var_os("CUDA_PATH").map(|p| PathBuf::from(p).join("include"));
    let include = include.ok_or("CUDA_PATH is not set: it says where CUDA's headers are")?;
    let nvrtc = format!("{major}.{minor}");
    let folder = std::env::temp_dir().join(format!("bimetal-gate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let rows = rows(&include, &folder, planted, quick, only.as_deref());
    let _ = std::fs::remove_dir_all(&folder);
    let rows = rows?;
    println!("NVRTC {nvrtc}");
    println!(
        "{:52} {:6} {:14} {:>6} {:26} {:>4} {:>6}",
        "kernel", "arch", "kind", "matrix", "instruction", "regs", "spills"
    );
    for r in &rows {
        println!(
            "{:52} {:6} {:14} {:6} {:26} {:4} {:6}",
            r.kernel,
            r.arch,
            format!("{} {}", r.kind, r.rate),
            r.instructions,
            r.example,
            r.registers,
            r.spills
        );
    }
    if let Some(file) = file {
        let all: Vec<Value> = rows.iter().map(|r| r.json(&nvrtc)).collect();
        let text = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    let without: Vec<String> = rows
        .iter()
        .filter(|r| r.instructions == 0)
        .map(|r| format!("{} ({})", r.kernel, r.arch))
        .collect();
    match without.is_empty() {
        true => {
            println!(
                "{} matrix kernels, all with matrix instructions",
                rows.len()
            );
            Ok(())
        }
        false => Err(format!("no matrix instructions in {}", without.join(", "))),
    }
}

fn rows(
    include: &Path,
    folder: &Path,
    planted: bool,
    quick: bool,
    only: Option<&str>,
) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (sm, only_f8) in TARGETS {
        if quick && sm != 90 {
            continue;
        }
        for kernel in matrix_kernels(&offline_units(sm)) {
            if (only_f8 && kernel.kind != "f8") || only.is_some_and(|o| !kernel.name.contains(o)) {
                continue;
            }
            let source = cuda_source(&kernel, sm).map_err(|e| e.to_string())?;
            rows.push(row(
                &kernel.name,
                kernel.kind,
                sm,
                &source,
                include,
                folder,
            )?);
        }
    }
    if planted {
        rows.push(row(
            "planted_scalar_kernel",
            "f16",
            90,
            SCALAR,
            include,
            folder,
        )?);
    }
    Ok(rows)
}

fn row(
    name: &str,
    kind: &str,
    sm: u32,
    source: &str,
    include: &Path,
    folder: &Path,
) -> Result<Row, String> {
    let arch = format!("sm_{sm}");
    if let Some(keep) = std::env::var_os("BIMETAL_GATE_KEEP") {
        let _ = std::fs::write(
            PathBuf::from(keep).join(format!("{name}.{arch}.cu")),
            source,
        );
    }
    let cubin = compile(source, &arch, include).map_err(|e| format!("{name} for {arch}: {e}"))?;
    let path = folder.join("kernel.cubin");
    std::fs::write(&path, &cubin).map_err(|e| format!("{}: {e}", path.display()))?;
    let code = disassembly::read(&path)?;
    // Below the instructions of 8-bit floats the compiler unpacks them, and what multiplies is f16.
    let rate = match (kind, code.qmma) {
        ("f8", 0) if code.unpacked > 0 => "f16 rate",
        _ => "",
    };
    let digest = Sha256::digest(&cubin);
    Ok(Row {
        kernel: name.into(),
        arch,
        kind: kind.into(),
        rate,
        instructions: code.hmma + code.qmma,
        example: code.example,
        registers: code.registers,
        spills: code.spills,
        sha256: digest.iter().map(|b| format!("{b:02x}")).collect(),
    })
}
