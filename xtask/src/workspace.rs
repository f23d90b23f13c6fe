//! What the workspace consists of: its root, its packages (from `cargo metadata`), its files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Result, process};

/// The crates that compile cubecl, which takes twenty minutes of a processor: they are built and tested in a stage of their own.
pub const GPU_CRATES: [&str; 4] = [
    "bimetal-cubecl",
    "bimetal-wgpu",
    "bimetal-cuda",
    "bimetal-gpu",
];

/// The arguments that choose all other crates, with their default features.
pub const CORE: &str = "--workspace --exclude bimetal-cubecl --exclude bimetal-wgpu --exclude bimetal-cuda --exclude bimetal-gpu";

/// The arguments that choose the GPU crates and what is tested on them. One choice for all commands: another one would have features of shared dependencies
/// differ, and cubecl compiled once more.
pub const GPU: &str = "-p bimetal-cubecl -p bimetal-wgpu -p bimetal-cuda -p bimetal-gpu -p bimetal -p bimetal-testing -p bimetal-examples \
                       --features bimetal-examples/wgpu,bimetal-examples/cuda,bimetal-gpu/wgpu";

/// The folder of the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    // The run-time value first: with a shared target folder the binary may stem from another clone.
    let here = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
    Path::new(&here)
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// A dependency of one package on another one of the workspace or of the registry.
pub struct Dependency {
    /// The package's name.
    pub name: String,
    /// Whether only tests, examples and benches use it.
    pub dev: bool,
}

/// A target of a package: a library, test, example ...
pub struct Target {
    /// The target's name, as `--test` or `--example` takes it.
    pub name: String,
    /// `lib`, `bin`, `test`, `example` or `bench`.
    pub kind: String,
}

/// A package of the workspace.
pub struct Package {
    /// The package's name.
    pub name: String,
    /// Its declared dependencies.
    pub dependencies: Vec<Dependency>,
    /// Its targets.
    pub targets: Vec<Target>,
}

/// The packages of the workspace, and where their build output lies.
pub struct Metadata {
    /// All members.
    pub packages: Vec<Package>,
    /// The target folder.
    pub target: PathBuf,
}

impl Metadata {
    /// Asks `cargo metadata`, which needs no network for this.
    pub fn read() -> Result<Self> {
        let text = process::output(&mut process::cargo([
            "metadata",
            "--format-version=1",
            "--no-deps",
        ]))?;
        let json: Value =
            serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
        Ok(Self {
            packages: list(&json["packages"]).map(package).collect(),
            target: PathBuf::from(string(&json["target_directory"])),
        })
    }

    /// The names of all targets of a kind, sorted, with the package that has them.
    pub fn targets(&self, kind: &str) -> Vec<(&str, &str)> {
        let mut found: Vec<_> = self
            .packages
            .iter()
            .flat_map(|p| p.targets.iter().map(move |t| (p, t)))
            .filter(|(_, t)| t.kind == kind)
            .map(|(p, t)| (t.name.as_str(), p.name.as_str()))
            .collect();
        found.sort_unstable();
        found
    }
}

fn package(json: &Value) -> Package {
    Package {
        name: string(&json["name"]),
        dependencies: list(&json["dependencies"])
            .map(|d| Dependency {
                name: string(&d["name"]),
                dev: d["kind"] == "dev",
            })
            .collect(),
        targets: list(&json["targets"])
            .map(|t| Target {
                name: string(&t["name"]),
                kind: string(&t["kind"][0]),
            })
            .collect(),
    }
}

fn list(json: &Value) -> impl Iterator<Item = &Value> {
    json.as_array().into_iter().flatten()
}

fn string(json: &Value) -> String {
    json.as_str().unwrap_or_default().to_string()
}

/// All files of the working tree, as paths from the root with `/`, without build output.
///
/// A walk and not `git ls-files`, so that an unpacked archive can be checked too.
pub fn files() -> Result<Vec<String>> {
    const SKIPPED: &[&str] = &["target", ".git", ".venv", "runs", "shared", "__pycache__"];
    let root = root();
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let at = root.join(&folder);
        let entries = std::fs::read_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        for entry in entries {
            let entry = entry.map_err(|e| format!("{}: {e}", at.display()))?;
            let name = entry.file_name();
            if SKIPPED.iter().any(|skipped| name == *skipped) {
                continue;
            }
            let path = folder.join(&name);
            if entry.path().is_dir() {
                folders.push(path);
            } else {
                files.push(path.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}
