//! What the layers look like in TensorBoard: computed by the last step of an epoch, and read back by the `tensorboard` package.
//!
//! Needs a Python with `tensorboard`: the one in `BIMETAL_PYTHON`, else `python3`. Without it the test that reads back says so and passes.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use bimetal_data::Loader;
use bimetal_optim::AdamW;
use bimetal_precision::LossScale;
use bimetal_tensor::Device;
use bimetal_train::{Callback, Control, LayerStats, Result, StepRecord, TensorBoard, Trainer};

type Shown = (usize, Vec<LayerStats>);

/// Keeps what it is shown of every second epoch.
#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Vec<Shown>>>, Arc<Mutex<Vec<StepRecord>>>);

impl Callback for Keep {
    fn wants_layers(&self, epoch: usize) -> bool {
        epoch.is_multiple_of(2)
    }
    fn on_layers(&mut self, epoch: usize, layers: &[LayerStats]) -> Result<Control> {
        self.0.lock().unwrap().push((epoch, layers.to_vec()));
        Ok(Control::Continue)
    }
    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        self.1.lock().unwrap().push(*record);
        Ok(Control::Continue)
    }
}

fn train(device: &Device, callbacks: Vec<Box<dyn FnOnce(Trainer) -> Trainer>>) -> Vec<Vec<u8>> {
    let store = common::store(device, "mixed_float16");
    let net = common::Net::new(&store);
    let mut trainer = Trainer::new(&store, AdamW::new(0.01))
        .loss_scale(LossScale::Static(1024.0))
        .steps_per_execution(3)
        .progress(false);
    for add in callbacks {
        trainer = add(trainer);
    }
    let loader: Loader = common::loader(40);
    trainer.fit(&net, loader, None, 5).unwrap();
    let state = store.state().unwrap();
    state.iter().map(|s| s.to_bytes().unwrap()).collect()
}

#[test]
fn looking_costs_one_plan_and_changes_nothing() {
    let plain = common::device();
    let without = train(&plain, Vec::new());
    let device = common::device();
    let keep = Keep::default();
    let added = keep.clone();
    let with = train(&device, vec![Box::new(|t: Trainer| t.callback(added))]);
    assert_eq!(with, without, "looking at the layers changed the training");
    // The step that looks is one more plan, in all epochs the same; the others run the plan they always ran.
    assert_eq!(device.plans_compiled(), plain.plans_compiled() + 1);

    let seen = keep.0.lock().unwrap();
    let epochs: Vec<usize> = seen.iter().map(|(epoch, _)| *epoch).collect();
    assert_eq!(epochs, [0, 2, 4]);
    let records = keep.1.lock().unwrap();
    for (epoch, layers) in seen.iter() {
        let record = &records[epoch * 5 + 4];
        // The layers' norms make the norm of all.
        let squares = layers.iter().filter_map(|l| l.grad_norm).map(|n| n * n);
        let norm = squares.sum::<f64>().sqrt();
        let whole = f64::from(record.grad_norm);
        assert!((norm - whole).abs() < 1e-3 * whole, "{norm} {whole}");
        let paths: Vec<&str> = layers.iter().map(|l| l.path.as_str()).collect();
        assert_eq!(paths, ["conv", "norm", "dropout", "head"]);
        let conv = &layers[0];
        let activations = conv.activations.as_ref().unwrap();
        assert_eq!(activations.count(), 8 * 4 * 36);
        assert_eq!(conv.weight_grads.as_ref().unwrap().count(), 4 * 9 + 4);
        assert!(conv.update_ratio.unwrap() < 1.0);
        assert_eq!((layers[2].grad_norm, layers[2].update_ratio), (None, None));
    }
}

fn python() -> Option<String> {
    let python = std::env::var("BIMETAL_PYTHON").unwrap_or_else(|_| "python3".into());
    let check = Command::new(&python)
        .args(["-c", "import tensorboard"])
        .output();
    if check.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    println!(
        "skipped: tensorboard_layers: `{python}` has no `tensorboard` package; set BIMETAL_PYTHON to a Python with `pip install tensorboard`"
    );
    None
}

#[test]
fn pages_of_layers_read_back() {
    let Some(python) = python() else { return };
    let dir: PathBuf =
        std::env::temp_dir().join(format!("bimetal-tb-layers-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let (keep, folder) = (Keep::default(), dir.clone());
    let added = keep.clone();
    train(
        &common::device(),
        vec![
            Box::new(|t: Trainer| t.callback(TensorBoard::new(folder).histogram_freq(2))),
            Box::new(|t: Trainer| t.callback(added)),
        ],
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tensorboard_readback.py");
    let output = Command::new(python).arg(script).arg(&dir).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let read: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let train = &read["train"];

    let charts = train["layout"]["precision"].as_object().unwrap();
    assert_eq!(charts.len(), 6);
    assert_eq!(charts["gradient norm of each layer"][0], "^grad_norm/");
    assert_eq!(charts["loss scale"][0], "^(batch|epoch)_loss_scale$");
    for tag in ["epoch_loss_scale", "epoch_skipped_steps", "epoch_grad_norm"] {
        assert_eq!(train["scalars"][tag].as_array().unwrap().len(), 5, "{tag}");
    }
    for (n, (epoch, layers)) in keep.0.lock().unwrap().iter().enumerate() {
        for layer in layers {
            for (tag, value) in [
                (format!("grad_norm/{}", layer.path), layer.grad_norm),
                (format!("update_ratio/{}", layer.path), layer.update_ratio),
            ] {
                let point = value.map(|v| serde_json::json!([epoch, f64::from(v as f32)]));
                assert_eq!(train["scalars"][&tag].get(n), point.as_ref(), "{tag}");
            }
            for (name, histogram) in [
                ("activations", &layer.activations),
                ("activation_gradients", &layer.activation_grads),
                ("gradients", &layer.weight_grads),
            ] {
                let tag = format!("{}/{name}", layer.path);
                let Some(h) = histogram else {
                    assert!(train["histograms"].get(&tag).is_none(), "{tag}");
                    continue;
                };
                let rows = &train["histograms"][&tag][n];
                assert_eq!(rows[0], *epoch, "{tag}");
                let rows: Vec<[f64; 3]> = serde_json::from_value(rows[1].clone()).unwrap();
                let total: f64 = rows.iter().map(|r| r[2]).sum();
                assert_eq!(total, h.count() as f64, "{tag}");
            }
        }
        // Weights stay where they were.
        assert_eq!(train["histograms"]["conv.weight/histogram"][n][0], *epoch);
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn steps_of_several_batches_show_their_last() {
    let run = |keep: Option<Keep>| {
        let device = common::device();
        let store = common::store(&device, "mixed_float16");
        let net = common::Net::new(&store);
        let mut trainer = Trainer::new(&store, AdamW::new(0.01))
            .loss_scale(LossScale::Static(1024.0))
            .accumulate(2)
            .progress(false);
        if let Some(keep) = keep {
            trainer = trainer.callback(keep);
        }
        trainer.fit(&net, common::loader(32), None, 1).unwrap();
        let state = store.state().unwrap();
        let bytes: Vec<Vec<u8>> = state.iter().map(|s| s.to_bytes().unwrap()).collect();
        bytes
    };
    let keep = Keep::default();
    assert_eq!(run(Some(keep.clone())), run(None));
    let seen = keep.0.lock().unwrap();
    let conv = &seen[0].1[0];
    assert_eq!(conv.path, "conv");
    assert_eq!(conv.activations.as_ref().unwrap().count(), 8 * 4 * 36);
    assert!(conv.update_ratio.unwrap() > 0.0 && conv.grad_norm.unwrap() > 0.0);
}
