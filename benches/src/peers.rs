//! Other frameworks, where they are installed.
use crate::row::Row;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The peers there are scripts or crates for. The first two are looked for with a bare `--peers`; the others are built when they are named.
pub(crate) const PEERS: [&str; 4] = ["torch", "jax", "burn", "candle"];

/// A peer that can be run.
pub(crate) struct Peer {
    pub name: &'static str,
    program: PathBuf,
    script: Option<PathBuf>,
}

/// Looks for peers by name; of those that cannot be run it says why.
pub(crate) fn find(names: &[String]) -> (Vec<Peer>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in PEERS {
        if names.iter().any(|n| n == name) {
            let peer = match name {
                "torch" | "jax" => python(name),
                _ => native(name),
            };
            match peer {
                Ok(peer) => found.push(peer),
                Err(why) => missing.push(format!("{name} is not measured: {why}")),
            }
        }
    }
    (found, missing)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

fn python(name: &'static str) -> Result<Peer, String> {
    let variable = format!("BIMETAL_BENCH_{}_PYTHON", name.to_uppercase());
    let program = std::env::var_os(&variable).unwrap_or_else(|| "python3".into());
    let program = PathBuf::from(program);
    let import = format!("import {name}");
    let shown = program.display();
    let tried = Command::new(&program).args(["-c", &import]).output();
    match tried {
        Ok(out) if out.status.success() => Ok(Peer {
            name,
            program,
            script: Some(folder().join(format!("{name}_peer.py"))),
        }),
        Ok(_) => Err(format!(
            "`{shown}` cannot import it; {variable} names a Python that can"
        )),
        Err(e) => Err(format!(
            "`{shown}` does not start ({e}); {variable} names a Python"
        )),
    }
}

fn native(name: &'static str) -> Result<Peer, String> {
    let folder = folder().join(name);
    let manifest = folder.join("Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    eprintln!("building the peer {name}, which takes minutes the first time");
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(&manifest)
        // The compiler's own settings for this machine, and a folder that is not the workspace's.
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .status();
    match built {
        Ok(status) if status.success() => Ok(Peer {
            name,
            program: folder.join("target/release").join(format!("{name}-peer")),
            script: None,
        }),
        Ok(status) => Err(format!("its build failed with {status}")),
        Err(e) => Err(format!("cargo does not start: {e}")),
    }
}

impl Peer {
    /// Whether the peer has this workload at all.
    pub fn knows(&self, workload: &str, dtype: &str) -> bool {
        self.script.is_some() || (dtype == "f32" && ["W1", "W2", "W4"].contains(&workload))
    }

    /// Measures variants of a workload in one process; a peer that fails gives rows that say so.
    pub fn rows(
        &self,
        workload: &str,
        variants: &[&str],
        dtype: &str,
        threads: usize,
        seconds: f64,
    ) -> Vec<Row> {
        let mut command = Command::new(&self.program);
        command.args(&self.script);
        command.args(["--name", workload, "--variants", &variants.join(",")]);
        command.args(["--dtype", dtype, "--threads", &threads.to_string()]);
        command.args(["--seconds", &seconds.to_string()]);
        for pool in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"] {
            command.env(pool, threads.to_string());
        }
        let (text, said) = match command.output() {
            Ok(out) => (
                String::from_utf8_lossy(&out.stdout).into_owned(),
                String::from_utf8_lossy(&out.stderr).into_owned(),
            ),
            Err(e) => (String::new(), e.to_string()),
        };
        let rows: Vec<Row> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let failed = |variant: &&str| !rows.iter().any(|r| r.variant == **variant);
        let last = said.lines().rfind(|l| !l.trim().is_empty());
        let failures = variants.iter().filter(|v| failed(v)).map(|variant| Row {
            name: workload.into(),
            variant: (*variant).into(),
            dtype: dtype.into(),
            threads,
            peer: self.name.into(),
            error: Some(last.unwrap_or("it printed no row").trim().to_string()),
            ..Row::default()
        });
        let failures: Vec<Row> = failures.collect();
        rows.into_iter().chain(failures).collect()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_fails_says_why_and_one_that_prints_is_read() {
        let script = std::env::temp_dir().join(format!("bimetal-peer-{}.sh", std::process::id()));
        let text = r#"echo '{"name":"W9","variant":"fwd","cpu_ms":2.5,"peer":"torch"}'; echo "no bwd" >&2; exit 1"#;
        std::fs::write(&script, text).unwrap();
        let peer = Peer {
            name: "torch",
            program: "sh".into(),
            script: Some(script.clone()),
        };
        let rows = peer.rows("W9", &["fwd", "bwd"], "f32", 1, 0.0);
        std::fs::remove_file(script).unwrap();
        assert_eq!((rows[0].cpu_ms, &rows[0].error), (Some(2.5), &None));
        assert_eq!(rows[1].variant, "bwd");
        assert_eq!(rows[1].error.as_deref(), Some("no bwd"));
    }
}
