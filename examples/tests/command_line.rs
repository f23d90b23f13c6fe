//! What a user types, and what comes back.
mod common;

use common::{Scratch, program, run};
use serde_json::Value;
use std::path::Path;

const SHORT: [&str; 4] = ["--steps", "6", "--limit", "200"];

fn figures(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_run_leaves_its_steps_and_figures_and_a_finished_one_only_evaluates() {
    let Some(custom_loop) = program("custom_loop") else {
        return;
    };
    let scratch = Scratch::new("finished");
    let files = ["--out", "run", "--json", "a.json"];
    let out = run(&custom_loop, &scratch, &[&SHORT[..], &files].concat());
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let a = figures(&scratch.0.join("a.json"));
    for (name, expected) in [
        ("policy", "mixed_float16".into()),
        ("device", "cpu".into()),
        ("seed", 0.into()),
        ("steps", 6.into()),
        ("skipped_steps", 0.into()),
        ("resumed_from", 0.into()),
        ("checkpoints_written", 1.into()),
    ] {
        let expected: Value = expected;
        assert_eq!(a[name], expected, "{name}");
    }
    for name in [
        "final_train_loss",
        "final_val_loss",
        "test_accuracy",
        "seconds",
    ] {
        assert!(a[name].as_f64().is_some_and(|x| x > 0.0), "{name}: {a}");
    }
    for name in [
        "peak_bytes",
        "live_bytes",
        "saved_bytes",
        "parameters",
        "plans_compiled",
    ] {
        assert!(a[name].as_u64().is_some_and(|x| x > 0), "{name}: {a}");
    }
    let steps = std::fs::read_to_string(scratch.0.join("run/steps.jsonl")).unwrap();
    let lines: Vec<Value> = steps
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6);
    let bits = u32::from_str_radix(lines[5]["loss_bits"].as_str().unwrap(), 16).unwrap();
    assert_eq!(
        f64::from(f32::from_bits(bits)),
        a["final_train_loss"].as_f64().unwrap()
    );
    assert_eq!(
        (&lines[5]["step"], &lines[5]["outcome"]),
        (&6.into(), &"applied".into())
    );
    assert_eq!(lines[0]["scale"], 32768.0);

    let again = ["--out", "run", "--json", "b.json", "--resume"];
    let out = run(&custom_loop, &scratch, &[&SHORT[..], &again].concat());
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let b = figures(&scratch.0.join("b.json"));
    assert_eq!(
        (&b["resumed_from"], &b["checkpoints_written"]),
        (&6.into(), &0.into())
    );
    for name in [
        "steps",
        "final_train_loss",
        "final_val_loss",
        "test_accuracy",
    ] {
        assert_eq!(a[name], b[name], "{name}");
    }
}

#[test]
fn mistakes_are_one_message_and_lose_nothing() {
    let Some(mnist) = program("mnist") else {
        return;
    };
    let scratch = Scratch::new("mistakes");
    let at = |name: &str| scratch.0.join(name);
    std::fs::create_dir_all(at("old/checkpoints")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    std::fs::create_dir_all(at("broken")).unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/mnist");
    for file in std::fs::read_dir(&data).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let mut bytes = std::fs::read(file.path()).unwrap();
        if name.starts_with("train-images") {
            bytes.truncate(bytes.len() / 2);
        }
        std::fs::write(at("broken").join(name), bytes).unwrap();
    }
    for (arguments, parts) in [
        (
            &["--epoch", "1"][..],
            &["`--epoch`", "--epochs", "--json"][..],
        ),
        (&["--steps", "1"], &["`--steps`"]),
        (
            &["--policy", "float17"],
            &["float17", "mixed_float16", "float32"],
        ),
        (&["--device", "tpu"], &["`tpu`", "cpu"]),
        (&["--out", "old"], &["`old`", "--resume", "--out"]),
        (&["--out", "file/run"], &["file/run", "cannot be written"]),
        (&["--data", "nowhere"], &["nowhere", "train-images"]),
        (
            &["--data", "broken"],
            &["broken", "train-images-idx3-ubyte.gz"],
        ),
        (&["--batch", "0"], &["--batch", "at least 1"]),
    ] {
        let out = run(&mnist, &scratch, arguments);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(
            !out.status.success() && text.starts_with("error: "),
            "{arguments:?}: {text}"
        );
        for part in parts {
            assert!(text.contains(part), "{arguments:?}: no `{part}` in {text}");
        }
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
    for (name, built) in [
        ("wgpu", cfg!(feature = "wgpu")),
        ("cuda", cfg!(feature = "cuda")),
    ] {
        if !built {
            let out = run(&mnist, &scratch, &["--device", name]);
            let text = String::from_utf8_lossy(&out.stderr);
            assert!(
                !out.status.success() && text.contains(&format!("--features {name}")),
                "{name}: {text}"
            );
        }
    }
    // Nothing began.
    assert!(!at("runs").join("steps.jsonl").exists());
    assert_eq!(std::fs::read_dir(at("old/checkpoints")).unwrap().count(), 0);
}
