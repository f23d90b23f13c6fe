//! Event files read back by the `tensorboard` package.
//!
//! Needs a Python with `tensorboard`: the one in `BIMETAL_PYTHON`, else `python3`. Without it the tests say so and pass.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use bimetal_train::{
    Callback, EventWriter, Frequency, Histogram, Logs, Outcome, StepRecord, TensorBoard, TrainInfo,
};
use serde_json::Value;

/// A Python that can import `tensorboard`, or `None` after saying once why not.
fn python() -> Option<String> {
    static FOUND: LazyLock<Option<String>> = LazyLock::new(find_python);
    FOUND.clone()
}

fn find_python() -> Option<String> {
    let python = std::env::var("BIMETAL_PYTHON").unwrap_or_else(|_| "python3".into());
    let check = Command::new(&python)
        .args(["-c", "import tensorboard"])
        .output();
    let reason = match check {
        Ok(output) if output.status.success() => return Some(python),
        Ok(_) => "it has no `tensorboard` package".to_string(),
        Err(error) => error.to_string(),
    };
    println!(
        "skipped: tensorboard_readback: `{python}`: {reason}; set BIMETAL_PYTHON to a Python with `pip install tensorboard`"
    );
    None
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("bimetal-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn read_back(python: &str, dir: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tensorboard_readback.py");
    let output = Command::new(python).arg(script).arg(dir).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn scalars_histograms_and_texts() {
    let Some(python) = python() else { return };
    let dir = scratch("tb-kinds");
    let values = [-2.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 3.0];
    let mut writer = EventWriter::create(&dir).unwrap();
    for step in [1, 2, 300] {
        writer
            .scalar("batch_loss", 1.0 / step as f64, step)
            .unwrap();
    }
    writer
        .scalar("größe/β", -7.5, u64::from(u32::MAX) + 1)
        .unwrap();
    writer
        .histogram("head/weight", &Histogram::new(values), 5)
        .unwrap();
    writer
        .text("config", "**policy** mixed_float16", 0)
        .unwrap();
    drop(writer);

    let read = read_back(&python, &dir);
    let run = &read["."];
    let loss: Vec<(u64, f64)> =
        serde_json::from_value(run["scalars"]["batch_loss"].clone()).unwrap();
    let expected = [1u64, 2, 300].map(|step| (step, f64::from((1.0 / step as f64) as f32)));
    assert_eq!(loss, expected);
    assert_eq!(
        run["scalars"]["größe/β"],
        serde_json::json!([[4_294_967_296u64, -7.5]])
    );
    assert_eq!(
        run["texts"]["config"],
        serde_json::json!([[0, ["**policy** mixed_float16"]]])
    );

    let file = run["files"].as_object().unwrap().values().next().unwrap();
    assert_eq!(file["file_version"], "brain.Event:2");
    assert_eq!(file["events"], 2 + 3 + 1 + 1 + 1);
    let raw = &file["raw_histograms"][0];
    let number = |key: &str| raw[key].as_f64().unwrap();
    assert_eq!(
        (number("min"), number("max"), number("num")),
        (-2.0, 3.0, 9.0)
    );
    assert_eq!(
        (number("sum"), number("sum_squares")),
        (4.0, 4.0 + 0.25 + 0.25 + 3.0 + 9.0)
    );

    // What the dashboards see: [left, right, count] rows that cover each value once.
    let rows: Vec<[f64; 3]> =
        serde_json::from_value(run["histograms"]["head/weight"][0][1].clone()).unwrap();
    assert_eq!(run["histograms"]["head/weight"][0][0], 5);
    assert_eq!(rows.iter().map(|r| r[2]).sum::<f64>(), 9.0);
    assert_eq!((rows[0][0], rows[rows.len() - 1][1]), (-2.0, 3.0));
    for pair in rows.windows(2) {
        assert_eq!(pair[0][1], pair[1][0], "edges meet");
    }
    let count_at = |v: f64| -> f64 {
        rows.iter()
            .filter(|r| r[0] <= v && v < r[1])
            .map(|r| r[2])
            .sum()
    };
    assert_eq!(
        (count_at(0.0), count_at(0.5), count_at(1.0), count_at(0.75)),
        (2.0, 1.0, 3.0, 0.0)
    );
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn resume_starts_a_new_file_and_replaces_later_steps() {
    let Some(python) = python() else { return };
    let dir = scratch("tb-resume");
    let mut first = EventWriter::create(&dir).unwrap();
    for step in 1..=5 {
        first.scalar("loss", 10.0, step).unwrap();
    }
    drop(first);
    let mut second = EventWriter::resume(&dir, 4).unwrap();
    for step in 4..=6 {
        second.scalar("loss", 20.0, step).unwrap();
    }
    drop(second);

    let read = read_back(&python, &dir);
    let run = &read["."];
    assert_eq!(run["files"].as_object().unwrap().len(), 2);
    let expected = serde_json::json!([
        [1, 10.0],
        [2, 10.0],
        [3, 10.0],
        [4, 20.0],
        [5, 20.0],
        [6, 20.0]
    ]);
    assert_eq!(run["scalars"]["loss"], expected);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn callback_writes_what_keras_writes() {
    let Some(python) = python() else { return };
    let dir = scratch("tb-callback");
    let mut board = TensorBoard::new(&dir)
        .update_freq(Frequency::Batches(4))
        .histogram_freq(2);
    let info = TrainInfo {
        epochs: 3,
        validation: true,
        ..TrainInfo::default()
    };
    board.on_train_begin(&info).unwrap();
    let mut step = 0;
    for epoch in 0..3 {
        for batch in [2, 5, 8, 9] {
            while step < (epoch * 10 + batch + 1) as u64 {
                step += 1;
                let outcome = if step % 10 == 1 {
                    Outcome::Skipped
                } else {
                    Outcome::Applied
                };
                let applied = step - step.div_ceil(10);
                board
                    .on_step(&StepRecord {
                        step,
                        loss: 0.5,
                        scale: 8.0,
                        grad_norm: 0.5,
                        outcome,
                        applied,
                    })
                    .unwrap();
            }
            let logs: Logs = [("loss", step as f64)].into_iter().collect();
            board.on_batch_end(batch, &logs).unwrap();
        }
        let validation: Logs = [("loss", 0.25)].into_iter().collect();
        board.on_validation_end(&validation).unwrap();
        let mut logs: Logs = [("loss", epoch as f64)].into_iter().collect();
        logs.extend_prefixed("val_", &validation);
        board.on_epoch_end(epoch, &logs).unwrap();
        if board.wants_weights(epoch) {
            board
                .on_weights(epoch, &[("head.weight".into(), vec![1.0, -1.0])])
                .unwrap();
        }
    }
    board.on_train_end(&Logs::new()).unwrap();

    let read = read_back(&python, &dir);
    let (train, validation) = (&read["train"], &read["validation"]);
    // Ten batches an epoch in executions of three: the ends that first reach 4, 8, 12, 16 ...
    let reached: Vec<_> = [6, 9, 13, 16, 20, 26, 29]
        .map(|n| serde_json::json!([n, f64::from(n)]))
        .into();
    assert_eq!(train["scalars"]["batch_loss"], Value::Array(reached));
    assert_eq!(
        train["scalars"]["epoch_loss"],
        serde_json::json!([[0, 0.0], [1, 1.0], [2, 2.0]])
    );
    assert_eq!(
        train["scalars"]["epoch_skipped_steps"],
        serde_json::json!([[0, 1.0], [1, 2.0], [2, 3.0]])
    );
    assert_eq!(
        train["scalars"]["epoch_loss_scale"][2],
        serde_json::json!([2, 8.0])
    );
    assert_eq!(
        validation["scalars"]["epoch_loss"],
        serde_json::json!([[0, 0.25], [1, 0.25], [2, 0.25]])
    );
    assert_eq!(
        validation["scalars"]["evaluation_loss_vs_iterations"],
        serde_json::json!([[9, 0.25], [18, 0.25], [27, 0.25]])
    );
    let epochs: Vec<_> = train["histograms"]["head.weight/histogram"]
        .as_array()
        .unwrap()
        .iter()
        .map(|h| h[0].clone())
        .collect();
    assert_eq!(epochs, [0, 2]);
    std::fs::remove_dir_all(&dir).unwrap();
}
