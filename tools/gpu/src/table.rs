//! The short table at the end of `all`.
use serde_json::Value;
use std::fmt::Write;

/// Parts with their verdicts, the best product of each kind, and train steps beside PyTorch's.
pub fn summary(results: &Value) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!("{:14} {:>6}  verdict", "part", "s"));
    for (name, part) in results["parts"].as_object().into_iter().flatten() {
        let seconds = part["seconds"].as_f64().unwrap_or(0.0);
        let verdict = part["verdict"].as_str().unwrap_or("-");
        line(format!("{name:14} {seconds:6.0}  {verdict}"));
    }
    let bench = &results["parts"]["bench"]["rows"];
    let mut best: Vec<(&str, &Value)> = Vec::new();
    for row in bench["gemm"].as_array().into_iter().flatten() {
        let (Some(kind), Some(rate)) = (row["kind"].as_str(), row["tflops"].as_f64()) else {
            continue;
        };
        match best.iter_mut().find(|(k, _)| *k == kind) {
            None => best.push((kind, row)),
            Some(entry) if entry.1["tflops"].as_f64() < Some(rate) => entry.1 = row,
            Some(_) => {}
        }
    }
    for (kind, row) in best {
        line(format!(
            "product {kind:6} {:9.1} TFLOP/s, {} % of the peak, at {}x{}x{}",
            row["tflops"].as_f64().unwrap_or(0.0),
            percent(&row["percent_of_peak"]),
            row["m"],
            row["n"],
            row["k"]
        ));
    }
    let theirs = results["parts"]["torch"]["rows"].as_array();
    for row in bench["steps"].as_array().into_iter().flatten() {
        let Some(seconds) = row["seconds"].as_f64() else {
            continue;
        };
        let same = |r: &&Value| {
            r["network"] == row["network"]
                && r["precision"] == row["precision"]
                && r["compiled"] == false
        };
        let torch = theirs.and_then(|rows| rows.iter().find(same));
        let torch = torch.and_then(|r| r["seconds"].as_f64());
        line(format!(
            "step {:10} {:15} fusion {:6} {:9.2} ms, {} of float32, {} of PyTorch's",
            row["network"].as_str().unwrap_or("-"),
            row["precision"].as_str().unwrap_or("-"),
            if row["replay"] == true {
                "replay"
            } else if row["fusion"] == true {
                "on"
            } else {
                "off"
            },
            1e3 * seconds,
            share(row["of_float32"]["time"].as_f64()),
            share(torch.map(|t| seconds / t)),
        ));
    }
    out
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |v| format!("{v:.1}"))
}

fn share(value: Option<f64>) -> String {
    value.map_or("-".into(), |v| format!("{v:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_stand_beside_those_of_torch() {
        let results = json!({"parts": {
            "bench": {"verdict": "passed", "seconds": 10.0, "rows": {
                "gemm": [
                    {"kind": "f16", "m": 1, "n": 2, "k": 3, "tflops": 5.0, "percent_of_peak": 50.0},
                    {"kind": "f16", "m": 4, "n": 5, "k": 6, "tflops": 6.0, "percent_of_peak": 60.0},
                ],
                "steps": [
                    {"network": "a", "precision": "float32", "fusion": true, "seconds": 2.0, "of_float32": {"time": 1.0}},
                    {"network": "b", "precision": "float32", "fusion": true, "error": "out of memory"},
                ],
            }},
            "torch": {"verdict": "passed", "seconds": 1.0, "rows": [
                {"network": "a", "precision": "float32", "compiled": true, "seconds": 1.0},
                {"network": "a", "precision": "float32", "compiled": false, "seconds": 4.0},
            ]},
        }});
        let text = summary(&results);
        assert!(
            text.contains("6.0 TFLOP/s, 60.0 % of the peak, at 4x5x6"),
            "{text}"
        );
        assert!(
            text.contains("1.00 of float32, 0.50 of PyTorch's"),
            "{text}"
        );
        assert!(!text.contains("step b"), "{text}");
    }
}
