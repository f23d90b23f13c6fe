//! Whole train steps of large networks in all precisions.
use super::results::Results;
use super::{Plan, percent, text};
use crate::device::Target;
use bimetal::prelude::*;
use bimetal::tensor::graph::MatmulPrecision;
use bimetal_bench::{Large, Training};
use serde_json::{Value, json};
use std::time::Instant;

/// Names of rows, with policy, products of f32 operands, and the kind of matrix unit whose peak is the measure.
const PRECISIONS: [(&str, &str, MatmulPrecision, &str); 4] = [
    ("float32", "float32", MatmulPrecision::Exact, "f32"),
    ("tf32", "float32", MatmulPrecision::Tf32, "tf32"),
    (
        "mixed_bfloat16",
        "mixed_bfloat16",
        MatmulPrecision::Exact,
        "bf16",
    ),
    (
        "mixed_float16",
        "mixed_float16",
        MatmulPrecision::Exact,
        "f16",
    ),
];

/// A step's figures.
struct Figures {
    seconds: f64,
    peak: usize,
    parameters: usize,
    loss: f32,
}

/// All networks in all precisions, fused, and one of them replayed as well, and unfused.
pub fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), String> {
    println!(
        "\n{:10} {:15} {:6} {:>9} {:>12} {:>6} {:>10} {:>7} {:>7}",
        "network", "precision", "fusion", "ms", "items/s", "MFU %", "peak MiB", "time", "memory"
    );
    for large in Large::ALL {
        let large = if plan.tiny { large.tiny() } else { large };
        for (name, policy, precision, kind) in PRECISIONS {
            for (fusion, replay) in [(true, false), (true, true), (false, false)] {
                let plain = fusion && !replay;
                if !(plain || name == "mixed_bfloat16") || plan.is_over() {
                    continue;
                }
                let mut row = json!({"network": large.name, "precision": name, "fusion": fusion, "replay": replay});
                match step(target, &large, policy, precision, [fusion, replay], plan) {
                    Ok(f) => fill(
                        &mut row,
                        f,
                        &large,
                        target.peak(kind),
                        results.rows("steps"),
                    ),
                    Err(e) => row["error"] = json!(e),
                }
                print(&row);
                results.add("steps", row)?;
            }
        }
    }
    Ok(())
}

fn fill(row: &mut Value, f: Figures, large: &Large, peak: Option<f64>, others: &[Value]) {
    let utilisation = peak.map(|p| large.flops() / f.seconds / p);
    row["seconds"] = json!(f.seconds);
    row["unit"] = json!(large.unit());
    row["items_per_second"] = json!(large.items() as f64 / f.seconds);
    row["model_flop_utilisation"] = json!(utilisation);
    row["peak_memory"] = json!(f.peak);
    row["parameters"] = json!(f.parameters);
    row["loss"] = json!(f.loss);
    let base = others
        .iter()
        .find(|r| r["network"] == row["network"] && r["precision"] == "float32");
    if let Some(base) = base {
        for (name, of) in [("seconds", "time"), ("peak_memory", "memory")] {
            let (own, theirs) = (row[name].as_f64(), base[name].as_f64());
            row["of_float32"][of] = json!(own.zip(theirs).map(|(a, b)| a / b));
        }
    }
}

fn print(row: &Value) {
    let word = |name: &str| row[name].as_str().unwrap_or_default().to_string();
    let fusion = match (row["fusion"] == true, row["replay"] == true) {
        (true, true) => "replay",
        (true, false) => "on",
        _ => "off",
    };
    let start = format!("{:10} {:15} {fusion:6}", word("network"), word("precision"));
    if let Some(e) = row["error"].as_str() {
        println!("{start} {e}");
        return;
    }
    let number = |v: &Value| v.as_f64().unwrap_or(f64::NAN);
    let share = |v: &Value| v.as_f64().map_or("-".into(), |s| format!("{s:.2}"));
    println!(
        "{start} {:9.2} {:12.0} {:>6} {:10.0} {:>7} {:>7}",
        1e3 * number(&row["seconds"]),
        number(&row["items_per_second"]),
        percent(row["model_flop_utilisation"].as_f64()),
        number(&row["peak_memory"]) / (1u64 << 20) as f64,
        share(&row["of_float32"]["time"]),
        share(&row["of_float32"]["memory"]),
    );
}

/// On a device of its own, so that its peak memory is its own; the median of batches of steps, each waited for by reading its last loss.
fn step(
    target: &Target,
    large: &Large,
    policy: &str,
    precision: MatmulPrecision,
    [fusion, replay]: [bool; 2],
    plan: &Plan,
) -> Result<Figures, String> {
    let device = target.open()?;
    device.set_fusion(fusion);
    device.set_replay(replay);
    let store = ParamStore::new(&device, policy)
        .seed(0)
        .matmul_precision(precision);
    let mut training = Training::with(store, |s| large.build(s), large.optimizer())
        .map_err(text)?
        .clip(1.0);
    let (batches, steps) = if plan.tiny { (1, 1) } else { (3, 5) };
    let mut batch = |steps: usize| {
        let start = Instant::now();
        for _ in 1..steps {
            // What it came to is asked of the last one, whose loss depends on all.
            let _ = training.submit().map_err(text)?;
        }
        // Reading it waits for all of them.
        training.step().map_err(text)?;
        Ok::<f64, String>(start.elapsed().as_secs_f64() / steps as f64)
    };
    // Kernels are compiled, and with replay the step is recorded.
    batch(if replay { 4 } else { 2 })?;
    let mut times = (0..batches)
        .map(|_| batch(steps))
        .collect::<Result<Vec<f64>, String>>()?;
    times.sort_by(f64::total_cmp);
    Ok(Figures {
        seconds: times[times.len() / 2],
        peak: device.memory().peak,
        parameters: training.parameters(),
        loss: training.loss(),
    })
}
