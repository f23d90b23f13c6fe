//! Building and running `bimetal-gpu`, with NVIDIA's compiler from the Python package index.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{GPU, Metadata};
use crate::{Result, process};

/// A release of CUDA: the packages of its compiler and headers.
pub struct Toolkit {
    /// As in `13.0`.
    pub version: &'static str,
    packages: &'static [&'static str],
}

/// The oldest release whose compiler the kernels are tried with, which is that of driver 580, and the newest.
pub const TOOLKITS: [Toolkit; 2] = [
    Toolkit {
        version: "13.0",
        packages: &[
            "nvidia-cuda-nvrtc==13.0.88",
            "nvidia-cuda-runtime==13.0.96",
            "nvidia-cuda-crt==13.0.88",
            "nvidia-cuda-cccl==13.0.85",
        ],
    },
    Toolkit {
        version: "13.5",
        packages: &[
            "nvidia-cuda-nvrtc==13.5.37",
            "nvidia-cuda-runtime==13.5.37",
            "nvidia-cuda-crt==13.5.37",
            "nvidia-cuda-cccl==13.3.5.0.6",
        ],
    },
];

/// Disassemblers read what older compilers wrote.
const DISASSEMBLERS: Toolkit = Toolkit {
    version: "disassemblers",
    packages: &[
        "nvidia-cuda-nvdisasm==13.5.37",
        "nvidia-cuda-cuobjdump==13.5.37",
    ],
};

/// The folder of a release, as `CUDA_PATH` names it; installed from the package index if it is not there.
pub fn install(toolkit: &Toolkit) -> Result<PathBuf> {
    let folder = Metadata::read()?.target.join("cuda").join(toolkit.version);
    let root = folder.join("nvidia/cu13");
    let done = folder.join("installed");
    if done.exists() {
        return Ok(root);
    }
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let mut command = Command::new(&python);
    command.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        "--upgrade",
        "--target",
    ]);
    command.arg(&folder).args(toolkit.packages);
    process::run(&mut command).map_err(|e| {
        format!(
            "NVIDIA's compiler of CUDA {} was not installed, so the gate did not run: {e}; it takes `{python}` with pip and a package index with {}",
            toolkit.version,
            toolkit.packages.join(", ")
        )
    })?;
    #[cfg(unix)]
    for tool in ["nvdisasm", "cuobjdump"] {
        use std::os::unix::fs::PermissionsExt;
        let path = root.join("bin").join(tool);
        if path.exists() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    std::fs::write(&done, toolkit.packages.join("\n"))
        .map_err(|e| format!("{}: {e}", done.display()))?;
    Ok(root)
}

/// The folder of the disassemblers.
pub fn disassemblers() -> Result<PathBuf> {
    Ok(install(&DISASSEMBLERS)?.join("bin"))
}

/// Builds the tool, with all that cubecl is compiled for; the path of its program. `BIMETAL_GPU_TOOL` names one that is built.
pub fn build(release: bool) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("BIMETAL_GPU_TOOL") {
        return Ok(program.into());
    }
    let mut words: Vec<&str> = std::iter::once("build")
        .chain(GPU.split_whitespace())
        .collect();
    if release {
        words.push("--release");
    }
    process::run(&mut process::cargo(words))?;
    let profile = if release { "release" } else { "debug" };
    Ok(Metadata::read()?.target.join(profile).join("bimetal-gpu"))
}

/// A command of the tool that finds this release of CUDA, and nothing else of it.
pub fn command(program: &Path, cuda: &Path, tools: &Path) -> Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(tools.to_path_buf()).chain(std::env::split_paths(&path));
    let mut command = Command::new(program);
    command
        .env("CUDA_PATH", cuda)
        .env("LD_LIBRARY_PATH", cuda.join("lib"))
        .env(
            "PATH",
            std::env::join_paths(all).map_err(|e| e.to_string())?,
        );
    Ok(command)
}
