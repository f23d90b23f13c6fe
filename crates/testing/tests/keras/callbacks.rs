//! Callbacks, whose decisions on fixed numbers are compared with Keras' in the crate they are in.
use crate::support::*;
use bimetal::Device;
use bimetal::optim::Adam;
use bimetal::train::{Frequency, Mode, ModelCheckpoint, TensorBoard, Trainer, load_checkpoint};
use std::path::Path;

fn fit(device: &Device, with: impl FnOnce(Trainer) -> Trainer) {
    let store = seeded(device, "mixed_float16");
    let net = Net::new(&store);
    let trainer = Trainer::new(&store, Adam::new(1e-2)).progress(false);
    with(trainer)
        .fit(&net, loader(40), Some(loader(16)), 2)
        .unwrap();
}

/// The names in a folder that begin like this, sorted.
fn names(dir: &Path, prefix: &str) -> Vec<String> {
    let Ok(found) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let name =
        |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = found.map(name).filter(|n| n.starts_with(prefix)).collect();
    names.sort();
    names
}

pub fn keras_model_checkpoint(device: &Device) {
    let scratch = Scratch::new("model-checkpoint");
    let at = |name: &str| scratch.0.join(name).to_string_lossy().into_owned();
    fit(device, |t| {
        t.callback(ModelCheckpoint::new(at("epoch-{epoch:02d}")))
            .callback(
                ModelCheckpoint::new(at("batch-{batch:02d}")).save_freq(Frequency::Batches(4)),
            )
            .callback(ModelCheckpoint::new(at("weights")).save_weights_only(true))
            .callback(ModelCheckpoint::best(at("best"), "val_loss"))
            .callback(ModelCheckpoint::best(at("never"), "val_loss").initial_value_threshold(0.0))
            .callback(
                ModelCheckpoint::best(at("most"), "val_accuracy")
                    .mode(Mode::Max)
                    .initial_value_threshold(-1.0),
            )
    });
    assert_eq!(names(&scratch.0, "epoch"), ["epoch-01", "epoch-02"]);
    assert_eq!(names(&scratch.0, "batch").len(), 2);
    let arrays = |name: &str| load_checkpoint(at(name)).unwrap().infos();
    let moments = |name: &str| {
        arrays(name)
            .iter()
            .filter(|a| a.name.starts_with("optim/"))
            .count()
    };
    assert!(moments("epoch-02") > 0 && !arrays("weights").is_empty());
    assert_eq!(moments("weights"), 0);
    assert!(!arrays("best").is_empty() && !arrays("most").is_empty());
    assert!(names(&scratch.0, "never").is_empty());
}

pub fn keras_tensorboard(device: &Device) {
    let scratch = Scratch::new("tensorboard");
    fit(device, |t| {
        t.callback(
            TensorBoard::new(&scratch.0)
                .histogram_freq(1)
                .update_freq(Frequency::Batches(2)),
        )
    });
    let events = |run: &str| {
        let dir = scratch.0.join(run);
        let files = names(&dir, "events").into_iter();
        let bytes: Vec<u8> = files
            .flat_map(|f| std::fs::read(dir.join(f)).unwrap())
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (train, validation) = (events("train"), events("validation"));
    for tag in [
        "epoch_loss",
        "epoch_accuracy",
        "batch_loss",
        "head.weight/histogram",
    ] {
        assert!(train.contains(tag), "{tag}");
    }
    for tag in ["epoch_loss", "evaluation_loss_vs_iterations"] {
        assert!(validation.contains(tag), "{tag}");
    }
}
