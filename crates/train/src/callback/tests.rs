//! The callbacks together, in the order the training loop calls them.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::ErrorKind;

/// A folder of its own that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("bimetal-callback-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn logs(items: &[(&str, f64)]) -> Logs {
    items.iter().copied().collect()
}

fn record(step: u64, loss: f32) -> StepRecord {
    let outcome = if step == 2 {
        Outcome::Skipped
    } else {
        Outcome::Applied
    };
    StepRecord {
        step,
        loss,
        scale: 1024.0,
        grad_norm: 0.5,
        outcome,
        applied: step - u64::from(step >= 2),
    }
}

fn resumed(step: u64, epoch: usize, batch: usize) -> TrainInfo {
    let resumed = Some(Resumed {
        step,
        applied: step,
        epoch,
        batch,
    });
    TrainInfo {
        epochs: 9,
        resumed,
        ..TrainInfo::default()
    }
}

#[test]
fn an_interrupted_steps_file_reads_as_an_uninterrupted_one() {
    let scratch = Scratch::new("jsonl");
    let (whole, broken) = (
        scratch.0.join("whole.jsonl"),
        scratch.0.join("broken.jsonl"),
    );
    let loss = |step: u64| {
        if step == 3 {
            f32::NAN
        } else {
            1.0 / step as f32
        }
    };
    let run = |path: &PathBuf, info: &TrainInfo, steps: std::ops::RangeInclusive<u64>| {
        let mut logger = JsonlLogger::new(path).flush_every(2);
        let control = logger.on_train_begin(info).unwrap();
        for step in steps {
            logger.on_step(&record(step, loss(step))).unwrap();
        }
        (control, logger)
    };
    let (control, mut logger) = run(&whole, &TrainInfo::default(), 1..=9);
    assert_eq!(control, Control::Continue);
    logger.on_train_end(&Logs::new()).unwrap();

    // Killed after step 7, with a torn line at the end; the checkpoint was of step 5.
    drop(run(&broken, &TrainInfo::default(), 1..=7));
    let text = fs::read_to_string(&broken).unwrap();
    fs::write(&broken, format!("{text}{{\"step\":8,\"lo")).unwrap();
    let (control, logger) = run(&broken, &resumed(5, 0, 5), 6..=9);
    assert_eq!(control, Control::Continue);
    drop(logger);
    assert_eq!(
        fs::read_to_string(&whole).unwrap(),
        fs::read_to_string(&broken).unwrap()
    );

    let text = fs::read_to_string(&whole).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let steps: Vec<_> = lines.iter().map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(
        text.lines().next().unwrap(),
        r#"{"step":1,"loss":1.0,"loss_bits":"3f800000","scale":1024.0,"outcome":"applied"}"#
    );
    assert_eq!(lines[1]["outcome"], "skipped");
    assert!(lines[2]["loss"].is_null());
    let bits = u32::from_str_radix(lines[6]["loss_bits"].as_str().unwrap(), 16).unwrap();
    assert_eq!(f32::from_bits(bits), 1.0 / 7.0);
}

#[test]
fn a_gap_in_the_steps_file_is_told() {
    let scratch = Scratch::new("jsonl-gap");
    let path = scratch.0.join("steps.jsonl");
    let mut logger = JsonlLogger::new(&path);
    logger.on_train_begin(&TrainInfo::default()).unwrap();
    (1..=3).for_each(|step| drop(logger.on_step(&record(step, 1.0)).unwrap()));
    drop(logger);
    let control = JsonlLogger::new(&path)
        .on_train_begin(&resumed(5, 0, 5))
        .unwrap();
    let Control::Warn(text) = control else {
        panic!("{control:?}")
    };
    assert!(
        text.contains("ends at step 3") && text.contains("after step 5"),
        "{text}"
    );
}

#[test]
fn csv_has_one_line_an_epoch_and_goes_on_after_a_resume() {
    let scratch = Scratch::new("csv");
    let path = scratch.0.join("below/log.csv");
    let epoch_logs = |epoch: usize| match epoch {
        1 => logs(&[("loss", 0.5), ("a,b", 2.0), ("val_loss", 0.25)]),
        _ => logs(&[("loss", 1.0 / (epoch + 1) as f64), ("a,b", f64::NAN)]),
    };
    let mut logger = CsvLogger::new(&path);
    let info = TrainInfo {
        validation: true,
        ..TrainInfo::default()
    };
    logger.on_train_begin(&info).unwrap();
    for epoch in 0..3 {
        assert_eq!(
            logger.on_epoch_end(epoch, &epoch_logs(epoch)).unwrap(),
            Control::Continue
        );
    }
    drop(logger);
    let expected = "epoch,loss,\"a,b\",val_loss,\"val_a,b\"\n0,1,NaN,NA,NA\n1,0.5,2,0.25,NA\n2,0.3333333333333333,NaN,NA,NA\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);

    // The checkpoint was written within epoch 2, so that epoch's line is written again.
    let mut logger = CsvLogger::new(&path);
    logger.on_train_begin(&resumed(25, 2, 5)).unwrap();
    let mut with_new = epoch_logs(2);
    with_new.set("surprise", 1.0);
    let control = logger.on_epoch_end(2, &with_new).unwrap();
    assert!(matches!(control, Control::Warn(text) if text.contains("`surprise` has no column")));
    logger.on_train_end(&Logs::new()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);

    fs::write(&path, "date,loss\n1,2\n").unwrap();
    let error = CsvLogger::new(&path)
        .append(true)
        .on_train_begin(&info)
        .unwrap_err();
    assert!(error.to_string().contains("column `epoch`"), "{error}");
}

#[test]
fn log_files_that_cannot_be_opened_are_told_before_training() {
    let scratch = Scratch::new("unwritable");
    fs::create_dir_all(&scratch.0).unwrap();
    let file = scratch.0.join("file");
    fs::write(&file, "").unwrap();
    let below = file.join("x");
    let info = TrainInfo::default();
    let results = [
        CsvLogger::new(below.join("a.csv")).on_train_begin(&info),
        JsonlLogger::new(below.join("a.jsonl")).on_train_begin(&info),
        TensorBoard::new(&below).on_train_begin(&info),
        ModelCheckpoint::new(format!("{}/e{{epoch}}", below.display())).on_train_begin(&info),
    ];
    for result in results {
        assert!(matches!(
            result.unwrap_err().kind(),
            ErrorKind::Unwritable { .. }
        ));
    }
}

#[test]
fn unknown_names_are_warned_about_once_with_those_there_are() {
    let mut callbacks = Callbacks::new();
    callbacks.push(EarlyStopping::new("val_loss"));
    callbacks.push(ModelCheckpoint::best("c/{epoch}", "val_acc"));
    let begun = callbacks.on_train_begin(&TrainInfo::default()).unwrap();
    assert_eq!(begun, Actions::default());
    let logs = logs(&[("loss", 1.0), ("acc", 0.5)]);
    let first = callbacks.on_epoch_end(0, &logs).unwrap();
    assert_eq!(
        first.warnings,
        [
            "EarlyStopping: `val_loss` is not available; available are: loss, acc",
            "ModelCheckpoint: `val_acc` is not available; available are: loss, acc; saving anyway",
        ]
    );
    let second = callbacks.on_epoch_end(1, &logs).unwrap();
    assert!(second.warnings.is_empty() && second.stop.is_none());
    let paths: Vec<_> = first
        .saves
        .iter()
        .chain(&second.saves)
        .map(|s| s.path.to_str().unwrap())
        .collect();
    assert_eq!(paths, ["c/1", "c/2"]);
}

#[test]
fn the_direction_comes_from_the_name_or_must_be_given() {
    let begin = |name: &str| EarlyStopping::new(name).on_train_begin(&TrainInfo::default());
    for name in [
        "loss",
        "val_loss",
        "head_loss",
        "val_top5_accuracy",
        "acc",
        "val_perplexity",
    ] {
        begin(name).unwrap();
    }
    let error = begin("val_score").unwrap_err().to_string();
    assert!(
        error.contains("`val_score`") && error.contains("Mode::Max"),
        "{error}"
    );
    let given = EarlyStopping::new("val_score")
        .mode(Mode::Max)
        .on_train_begin(&TrainInfo::default());
    given.unwrap();

    // An accuracy that rises is an improvement without being told so.
    let mut stopping = EarlyStopping::new("val_accuracy");
    stopping.on_train_begin(&TrainInfo::default()).unwrap();
    for (epoch, value) in [0.5, 0.6, 0.7].into_iter().enumerate() {
        let control = stopping
            .on_epoch_end(epoch, &logs(&[("val_accuracy", value)]))
            .unwrap();
        assert_eq!(control, Control::Continue);
    }
}

#[test]
fn nan_is_never_the_best() {
    let mut stopping = EarlyStopping::new("loss").patience(3);
    stopping.on_train_begin(&TrainInfo::default()).unwrap();
    let mut saving = ModelCheckpoint::best("c", "loss");
    saving.on_train_begin(&TrainInfo::default()).unwrap();
    let mut saved = Vec::new();
    for (epoch, value) in [f64::NAN, 2.0, 1.0, f64::NAN].into_iter().enumerate() {
        let logs = logs(&[("loss", value)]);
        assert_eq!(
            stopping.on_epoch_end(epoch, &logs).unwrap(),
            Control::Continue
        );
        if let Control::Save(request) = saving.on_epoch_end(epoch, &logs).unwrap() {
            saved.push(request.best.unwrap().1);
        }
    }
    assert_eq!(saved, [2.0, 1.0]);
}

#[test]
fn states_survive_a_resume() {
    let make = || {
        let mut callbacks = Callbacks::new();
        callbacks.push(
            EarlyStopping::new("loss")
                .patience(3)
                .restore_best_weights(true),
        );
        callbacks.push(ModelCheckpoint::best("c", "loss"));
        callbacks.push(TerminateOnNaN::new());
        callbacks
    };
    let values = [0.1 + 0.2, 0.5, 0.4, 0.3 + 1e-16, 0.9];
    let run = |callbacks: &mut Callbacks, epochs: std::ops::Range<usize>| -> Vec<Actions> {
        epochs
            .map(|e| {
                callbacks
                    .on_epoch_end(e, &logs(&[("loss", values[e])]))
                    .unwrap()
            })
            .collect()
    };
    let mut whole = make();
    let _ = whole.on_train_begin(&TrainInfo::default()).unwrap();
    let expected = run(&mut whole, 0..5);
    assert!(expected[4].stop.is_some());

    let mut first = make();
    let _ = first.on_train_begin(&TrainInfo::default()).unwrap();
    let mut found = run(&mut first, 0..2);
    let saved = first.state().to_string();
    let mut second = make();
    let _ = second.on_train_begin(&resumed(20, 2, 0)).unwrap();
    let loaded = second
        .load_state(&serde_json::from_str(&saved).unwrap())
        .unwrap();
    assert!(loaded.warnings.is_empty());
    found.extend(run(&mut second, 2..5));
    assert_eq!(found, expected);
    let end = second.on_train_end(&Logs::new()).unwrap();
    assert_eq!(end.restore_weights, [0]);

    let mut other = Callbacks::new();
    other.push(ModelCheckpoint::new("c"));
    let warnings = other
        .load_state(&serde_json::from_str(&saved).unwrap())
        .unwrap()
        .warnings;
    assert!(
        warnings[0].contains("state of EarlyStopping in its place"),
        "{warnings:?}"
    );
}

#[test]
fn a_non_finite_loss_ends_training_or_is_an_error() {
    let mut stop = TerminateOnNaN::new();
    assert_eq!(stop.on_step(&record(2, 5.0)).unwrap(), Control::Continue);
    assert_eq!(
        stop.on_batch_end(0, &Logs::new()).unwrap(),
        Control::Continue
    );
    let control = stop.on_step(&record(7, f32::INFINITY)).unwrap();
    assert!(matches!(control, Control::StopTraining { reason } if reason.contains("step 7")));
    let mut raise = TerminateOnNaN::new().raise_error(true);
    let error = raise
        .on_batch_end(3, &logs(&[("loss", f64::NAN)]))
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NonFiniteLoss { at, .. } if at == "batch 3"));
}

#[test]
fn settings_that_never_save_are_refused() {
    let begin = |mut c: ModelCheckpoint| c.on_train_begin(&TrainInfo::default()).map(drop);
    begin(ModelCheckpoint::new("c/{epoch:02d}")).unwrap();
    assert!(begin(ModelCheckpoint::new("c").save_freq(Frequency::Batches(0))).is_err());
    assert!(begin(ModelCheckpoint::new("c/{epoch")).is_err());
    let mut board = TensorBoard::new("unused").update_freq(Frequency::Batches(0));
    assert!(board.on_train_begin(&TrainInfo::default()).is_err());
}

#[test]
fn saving_by_batches_goes_on_counting_after_a_resume() {
    // Ten batches an epoch in executions of four; saved every 7 batches.
    let ends = |c: &mut ModelCheckpoint, epoch: usize, batches: &[usize]| -> Vec<(usize, usize)> {
        c.on_epoch_begin(epoch).unwrap();
        let saves =
            |&&b: &&usize| matches!(c.on_batch_end(b, &Logs::new()).unwrap(), Control::Save(_));
        batches.iter().filter(saves).map(|&b| (epoch, b)).collect()
    };
    let make = || ModelCheckpoint::new("c").save_freq(Frequency::Batches(7));
    let mut whole = make();
    whole.on_train_begin(&TrainInfo::default()).unwrap();
    let mut expected = ends(&mut whole, 0, &[3, 7, 9]);
    expected.extend(ends(&mut whole, 1, &[3, 7, 9]));
    assert_eq!(expected, [(0, 7), (1, 7)]);

    let mut first = make();
    first.on_train_begin(&TrainInfo::default()).unwrap();
    let mut found = ends(&mut first, 0, &[3, 7, 9]);
    found.extend(ends(&mut first, 1, &[3]));
    let state = first.state().unwrap();
    let mut second = make();
    second.on_train_begin(&resumed(14, 1, 4)).unwrap();
    second.load_state(&state).unwrap();
    found.extend(ends(&mut second, 1, &[7, 9]));
    assert_eq!(found, expected);
}
