//! EarlyStopping and ModelCheckpoint decide as Keras' own do; the expected decisions come from
//! `tests/golden/keras_callbacks.py`.

use bimetal_train::{
    Actions, Callbacks, EarlyStopping, Frequency, Logs, Mode, ModelCheckpoint, TrainInfo,
};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../tests/golden/keras_callbacks.json")).unwrap()
}

fn mode(options: &Value) -> Mode {
    if options["mode"] == "min" {
        Mode::Min
    } else {
        Mode::Max
    }
}

fn val_loss(value: &Value) -> Logs {
    value
        .as_f64()
        .map(|v| ("val_loss", v))
        .into_iter()
        .collect()
}

fn begin(callbacks: &mut Callbacks) {
    assert_eq!(
        callbacks.on_train_begin(&TrainInfo::default()).unwrap(),
        Actions::default()
    );
}

#[test]
fn early_stopping() {
    let golden = golden();
    let cases = golden["early_stopping"].as_array().unwrap();
    assert!(cases.len() >= 96);
    for case in cases {
        let options = &case["options"];
        let count = |key: &str| options[key].as_u64().unwrap() as usize;
        let mut stopping = EarlyStopping::new("val_loss")
            .mode(mode(options))
            .patience(count("patience"))
            .min_delta(options["min_delta"].as_f64().unwrap())
            .start_from_epoch(count("start_from_epoch"))
            .restore_best_weights(options["restore_best_weights"] == true);
        if let Some(baseline) = options["baseline"].as_f64() {
            stopping = stopping.baseline(baseline);
        }
        let mut callbacks = Callbacks::new();
        callbacks.push(stopping);
        begin(&mut callbacks);

        let (mut stopped, mut kept) = (None, None);
        for (epoch, value) in case["values"].as_array().unwrap().iter().enumerate() {
            let actions = callbacks.on_epoch_end(epoch, &val_loss(value)).unwrap();
            if !actions.keep_weights.is_empty() {
                kept = Some(epoch);
            }
            if actions.stop.is_some() {
                stopped = Some(epoch);
                break;
            }
        }
        let end = callbacks.on_train_end(&Logs::new()).unwrap();
        let restored = kept.filter(|_| !end.restore_weights.is_empty());
        let expect = |key: &str| case[key].as_u64().map(|epoch| epoch as usize);
        assert_eq!(
            (stopped, restored),
            (expect("stopped"), expect("restored")),
            "{case}"
        );
    }
}

#[test]
fn model_checkpoint() {
    let golden = golden();
    let cases = golden["model_checkpoint"].as_array().unwrap();
    assert!(cases.len() >= 96);
    for case in cases {
        let options = &case["options"];
        let frequency = match options["save_freq"].as_u64() {
            Some(batches) => Frequency::Batches(batches),
            None => Frequency::Epoch,
        };
        let mut checkpoint = ModelCheckpoint::new("c/{epoch:02d}-{val_loss:.2f}.keras")
            .mode(mode(options))
            .save_freq(frequency)
            .save_best_only(options["save_best_only"] == true);
        if let Some(threshold) = options["initial_value_threshold"].as_f64() {
            checkpoint = checkpoint.initial_value_threshold(threshold);
        }
        let mut callbacks = Callbacks::new();
        callbacks.push(checkpoint);
        begin(&mut callbacks);

        let mut saves = Vec::new();
        for (epoch, of_epoch) in case["epochs"].as_array().unwrap().iter().enumerate() {
            saves.extend(callbacks.on_epoch_begin(epoch).unwrap().saves);
            let value = of_epoch[1].as_f64().unwrap();
            for batch in of_epoch[0].as_array().unwrap() {
                let batch = batch.as_u64().unwrap() as usize;
                let logs = [("val_loss", value + batch as f64)].into_iter().collect();
                saves.extend(callbacks.on_batch_end(batch, &logs).unwrap().saves);
            }
            let logs = [("val_loss", value)].into_iter().collect();
            saves.extend(callbacks.on_epoch_end(epoch, &logs).unwrap().saves);
        }
        let saved: Vec<_> = saves
            .iter()
            .map(|save| save.path.to_str().unwrap())
            .collect();
        let expected: Vec<_> = case["saved"]
            .as_array()
            .unwrap()
            .iter()
            .map(|path| path.as_str().unwrap())
            .collect();
        assert_eq!(saved, expected, "{case}");
    }
}
