//! How many launches a train step is: `cargo xtask plan gpt2-124m [--json FILE]`.
//!
//! The step is built and planned as for a GPU, and not run. `launches` counts composites as one, as `nodes` does; `kernels` counts what they are made of. It fails where a step takes more than 60 % of one launch for each node, or reads on the host.
use bimetal::{Error, Result};
use bimetal_bench::plan_gpt2;
use std::path::PathBuf;
use std::process::ExitCode;

/// The most launches, as a share of the nodes that are no views.
const MOST: f64 = 0.6;

fn run() -> Result<bool> {
    let mut words = std::env::args().skip(1);
    let (mut model, mut json) = (None, None);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => {
                let file = words.next();
                json = Some(PathBuf::from(
                    file.ok_or_else(|| Error::invalid("`--json` needs a file"))?,
                ));
            }
            _ if model.is_none() => model = Some(word),
            _ => return Err(Error::invalid(format!("unknown argument `{word}`"))),
        }
    }
    match model.as_deref() {
        Some("gpt2-124m") => {}
        found => {
            let found = found.unwrap_or("nothing");
            return Err(Error::invalid(format!(
                "which model: expected `gpt2-124m`, found {found}"
            )));
        }
    }
    let rows = plan_gpt2()?;
    println!(
        "{:<16}{:>9}{:>8}{:>8}{:>9}{:>8}{:>12}",
        "policy", "launches", "nodes", "share", "kernels", "plans", "host reads"
    );
    for r in &rows {
        println!(
            "{:<16}{:>9}{:>8}{:>7.1}%{:>9}{:>8}{:>12}",
            r.policy,
            r.launches,
            r.nodes,
            100.0 * r.share,
            r.kernel_launches,
            r.plans,
            r.host_reads
        );
        let kernels: Vec<String> = r.kernels.iter().map(|(k, n)| format!("{k} {n}")).collect();
        println!("  {}", kernels.join(", "));
    }
    if let Some(path) = json {
        let text =
            serde_json::to_string_pretty(&rows).map_err(|e| Error::invalid(e.to_string()))?;
        std::fs::write(&path, text + "\n")
            .map_err(|e| Error::invalid(format!("cannot write `{}`: {e}", path.display())))?;
    }
    Ok(rows.iter().all(|r| r.share <= MOST && r.host_reads == 0))
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "error: more than {:.0} % of the nodes, or a read on the host",
                100.0 * MOST
            );
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
