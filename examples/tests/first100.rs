//! The first 100 losses of the examples, kept in `tests/golden` for comparison: with what another device gives, or a later version.
//!
//! Bits may change with the order of a sum; a training may not. `BIMETAL_BLESS=1` writes the files anew.
mod common;

use common::{Scratch, program, run};
use serde_json::{Value, json};
use std::path::Path;

/// 100 steps.
const RUNS: [(&str, &[&str]); 3] = [
    ("mnist", &["--epochs", "2", "--limit", "3200"]),
    ("char_gpt", &["--steps", "100"]),
    ("custom_loop", &["--steps", "100"]),
];

fn losses(name: &str, arguments: &[&str]) -> Option<Vec<Value>> {
    let program = program(name)?;
    let scratch = Scratch::new(&format!("first100-{name}"));
    let out = run(&program, &scratch, &[arguments, &["--out", "run"]].concat());
    assert!(
        out.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    let steps = std::fs::read_to_string(scratch.0.join("run/steps.jsonl")).unwrap();
    let lines = steps
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    Some(lines.collect())
}

fn compare(name: &str) {
    let (_, arguments) = RUNS.into_iter().find(|(known, _)| *known == name).unwrap();
    let Some(found) = losses(name, arguments) else {
        return;
    };
    assert_eq!(found.len(), 100);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let path = golden.join(format!("first100_{name}.json"));
    if std::env::var_os("BIMETAL_BLESS").is_some() {
        let column = |name: &str| {
            found
                .iter()
                .map(|line| line[name].clone())
                .collect::<Vec<_>>()
        };
        let file = json!({
            "example": name,
            "arguments": arguments,
            "policy": "mixed_float16",
            "seed": 0,
            "instruction_set": bimetal::cpu().info().architecture,
            "loss": column("loss"),
            "loss_bits": column("loss_bits"),
        });
        std::fs::write(&path, format!("{file}\n")).unwrap();
    }
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let mut equal = 0;
    for (i, line) in found.iter().enumerate() {
        let (found, expected) = (
            line["loss"].as_f64().unwrap(),
            golden["loss"][i].as_f64().unwrap(),
        );
        // Rounding differences grow as a training goes on.
        let tolerance = if i < 10 { 2e-3 } else { 5e-2 };
        assert!(
            (found - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{name}, step {}: {found} instead of {expected}",
            i + 1
        );
        equal += usize::from(line["loss_bits"] == golden["loss_bits"][i]);
    }
    println!("{name}: {equal} of 100 losses have the same bits");
}

#[test]
fn mnist() {
    compare("mnist");
}

#[test]
fn char_gpt() {
    compare("char_gpt");
}

#[test]
fn custom_loop() {
    compare("custom_loop");
}
