//! A run that was interrupted and resumed is the run that was not, bit for bit.
mod common;

use bimetal_layers::ParamStore;
use bimetal_optim::{AdamW, warmup_cosine};
use bimetal_precision::LossScale;
use bimetal_train::{
    Callback, Control, EarlyStopping, ErrorKind, JsonlLogger, Logs, Result, StepRecord, Trainer,
    load_latest_checkpoint, load_weights,
};
use common::{Net, Record, Scratch, bytes_of, data, device, loader, restless, store};

/// Ends the process' run after a step, as a kill would: with an error, so that nothing is tidied up.
struct Kill(u64);

impl Callback for Kill {
    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        match record.step >= self.0 {
            true => Err(bimetal_train::Error::invalid("killed")),
            false => Ok(Control::Continue),
        }
    }
}

fn trainer(store: &ParamStore, dir: &Scratch) -> Trainer {
    let optimizer = AdamW::new(warmup_cosine(1e-2, 1e-3, 5, 33));
    Trainer::new(store, optimizer)
        .loss_scale(restless())
        .clip_norm(1.0)
        .progress(false)
        .checkpoint(dir.0.join("checkpoints"))
        .save_every(4)
        .callback(
            EarlyStopping::new("val_loss")
                .patience(10)
                .restore_best_weights(true),
        )
        .callback(JsonlLogger::new(dir.0.join("steps.jsonl")))
}

/// A part of a folder's name.
fn tag(policy: &str) -> String {
    policy.replace([',', '='], "-")
}

/// A net in which layers multiply in 8 bits, if the policy says so.
fn net(store: &ParamStore) -> Net {
    match store.policies().default.multiplies_in_f8() {
        true => Net::deep(store),
        false => Net::new(store),
    }
}

/// 33 steps in three epochs of eleven, with dropout, shuffling, overflows, a schedule and BatchNorm.
fn whole(policy: &str) -> (Vec<String>, Vec<Vec<u8>>, String, Logs) {
    let dir = Scratch::new(&format!("whole-{}", tag(policy)));
    let device = device();
    let store = store(&device, policy);
    let model = net(&store);
    let record = Record::default();
    let mut trainer = trainer(&store, &dir).callback(record.clone());
    let report = trainer
        .fit(&model, loader(83), Some(loader(20)), 3)
        .unwrap();
    assert_eq!((report.steps, report.resumed_from), (33, 0));
    assert!(report.skipped > 1 && report.applied > 20, "{report:?}");
    let log = std::fs::read_to_string(dir.0.join("steps.jsonl")).unwrap();
    (record.lines(), bytes_of(&store), log, report.train)
}

#[test]
fn a_resumed_run_has_the_bits_of_the_uninterrupted_one() {
    // Before the first checkpoint, within an epoch, at the very end of one, and right after it.
    let kills = [(3, 0), (7, 4), (11, 8), (13, 12), (30, 28)];
    resumed_runs_are_whole_ones("mixed_float16", &kills);
}

#[test]
fn a_resumed_run_in_8_bits_has_the_bits_of_the_uninterrupted_one() {
    resumed_runs_are_whole_ones("p=f32,c=f8e4m3,o=f16", &[(7, 4), (13, 12)]);
}

fn resumed_runs_are_whole_ones(policy: &str, kills: &[(u64, u64)]) {
    let (lines, state, log, train) = whole(policy);
    let mut ends: Vec<_> = lines
        .iter()
        .filter(|l| l.starts_with("epoch"))
        .cloned()
        .collect();
    ends.retain(|l| l.contains(" end "));
    assert_eq!(ends.len(), 3);
    for &(kill, from) in kills {
        for accumulate_reads in [1, 3] {
            let dir = Scratch::new(&format!("kill-{}-{kill}-{accumulate_reads}", tag(policy)));
            {
                let device = device();
                let store = store(&device, policy);
                let model = net(&store);
                let mut trainer = trainer(&store, &dir).callback(Kill(kill));
                let error = trainer
                    .fit(&model, loader(83), Some(loader(20)), 3)
                    .unwrap_err();
                assert_eq!(error.to_string(), "killed");
            }
            let device = device();
            let store = store(&device, policy);
            let model = net(&store);
            let record = Record::default();
            let mut trainer = trainer(&store, &dir)
                .resume(true)
                .steps_per_execution(accumulate_reads)
                .callback(record.clone());
            let train_loader = loader(83).prefetch(3);
            let report = trainer
                .fit(&model, train_loader, Some(loader(20)), 3)
                .unwrap();
            assert_eq!(report.resumed_from, from);
            assert_eq!(bytes_of(&store), state, "killed at {kill}");
            assert_eq!(
                std::fs::read_to_string(dir.0.join("steps.jsonl")).unwrap(),
                log
            );
            assert_eq!(report.train, train);
            assert_eq!(report.history.len(), 3);
            let last = record
                .lines()
                .into_iter()
                .rfind(|l| l.starts_with("epoch 2 end"));
            assert_eq!(last.as_ref(), ends.last());
        }
    }
}

#[test]
fn a_finished_run_trains_nothing_and_evaluates() {
    let dir = Scratch::new("finished");
    let device = device();
    let store_a = store(&device, "mixed_float16");
    let net = Net::new(&store_a);
    let first = trainer(&store_a, &dir)
        .fit(&net, loader(83), Some(loader(20)), 2)
        .unwrap();

    let store_b = store(&device, "mixed_float16");
    let net = Net::new(&store_b);
    let record = Record::default();
    let mut again = trainer(&store_b, &dir)
        .resume(true)
        .callback(record.clone());
    let again = again.fit(&net, loader(83), Some(loader(20)), 2).unwrap();
    assert_eq!(record.steps(), [""; 0]);
    assert_eq!(
        (again.steps, again.resumed_from, again.skipped),
        (22, 22, first.skipped)
    );
    assert_eq!(again.train, first.train);
    assert_eq!(again.history, first.history);
    assert_eq!(again.checkpoints_written, 0);
    // Both put the best weights back, and report the validation before that.
    assert_eq!(bytes_of(&store_a), bytes_of(&store_b));

    // Two more epochs go on where it ended.
    let store_c = store(&device, "mixed_float16");
    let net = Net::new(&store_c);
    let more = trainer(&store_c, &dir)
        .resume(true)
        .fit(&net, loader(83), None, 3)
        .unwrap();
    assert_eq!((more.steps, more.resumed_from), (33, 22));
}

#[test]
fn what_does_not_fit_is_named_and_nothing_changes() {
    let dir = Scratch::new("misfit");
    let device = device();
    let store_a = store(&device, "mixed_float16");
    let net = Net::new(&store_a);
    trainer(&store_a, &dir)
        .fit(&net, loader(83), None, 1)
        .unwrap();
    let saved = load_latest_checkpoint(dir.0.join("checkpoints"))
        .unwrap()
        .unwrap();

    // Another model.
    let other = store(&device, "mixed_float16");
    let small = bimetal_layers::Linear::new(&other.root().at("head").policy("float32"), 64, 3);
    let before = bytes_of(&other);
    let task = |b: &bimetal_train::TensorBatch, cx: &bimetal_layers::Ctx| {
        let logits = bimetal_layers::Layer::forward(&small, &b[0].flatten(1..=2), cx);
        bimetal_train::Output::new(bimetal_layers::cross_entropy(&logits, &b[1]))
    };
    let error = trainer(&other, &dir)
        .resume(true)
        .fit(&task, loader(83), None, 1)
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::StateMismatch(_)),
        "{error}"
    );
    let text = error.to_string();
    for part in [
        "conv.weight",
        "optim/conv.weight/",
        "head.weight float32 [3, 64] in the model, float32 [3, 144]",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    assert_eq!(bytes_of(&other), before);
    let error = load_weights(&other, &saved).unwrap_err().to_string();
    assert!(
        error.contains("head.weight float32 [3, 64]") && !error.contains("optim/"),
        "{error}"
    );

    // Other data.
    let again = || trainer(&store_a, &dir).resume(true);
    let error = again()
        .fit(&net, loader(84), None, 2)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("with 83 samples") && error.contains("has 84 samples"),
        "{error}"
    );
    let error = again()
        .accumulate(2)
        .fit(&net, loader(83), None, 2)
        .unwrap_err()
        .to_string();
    assert!(error.contains("2 batches a step"), "{error}");
    // Another seed.
    let seeded =
        bimetal_layers::ParamStore::new(&device, bimetal_precision::Policy::mixed_float16())
            .seed(8);
    let net_b = Net::new(&seeded);
    let error = trainer(&seeded, &dir)
        .resume(true)
        .fit(&net_b, loader(83), None, 2)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("seed 7") && error.contains("seed 8"),
        "{error}"
    );
    // A folder with a run, without resume.
    let error = trainer(&store_a, &dir)
        .fit(&net, loader(83), None, 2)
        .unwrap_err()
        .to_string();
    assert!(error.contains(".resume(true)"), "{error}");
}

#[test]
fn weights_move_between_policies_and_scales() {
    let dir = Scratch::new("policies");
    let device = device();
    let mixed = store(&device, "mixed_float16");
    let net = Net::new(&mixed);
    trainer(&mixed, &dir)
        .fit(&net, loader(83), None, 1)
        .unwrap();
    let saved = load_latest_checkpoint(dir.0.join("checkpoints"))
        .unwrap()
        .unwrap();

    let plain = store(&device, "float32");
    let net = Net::new(&plain);
    load_weights(&plain, &saved).unwrap();
    let weights = |s: &ParamStore| -> Vec<_> {
        s.params()
            .iter()
            .map(|p| p.slot().unwrap().to_bytes().unwrap())
            .collect()
    };
    assert_eq!(weights(&plain), weights(&mixed));

    // The run itself can go on under another policy, and says that the numbers will differ.
    let optimizer = AdamW::new(warmup_cosine(1e-2, 1e-3, 5, 33));
    let mut trainer = Trainer::new(&plain, optimizer)
        .progress(false)
        .checkpoint(dir.0.join("checkpoints"))
        .resume(true);
    let report = trainer.fit(&net, loader(83), None, 2).unwrap();
    assert_eq!(report.resumed_from, 11);
    let warnings = report.warnings.join("\n");
    assert!(!warnings.contains("8 bits"), "{warnings}");
    assert!(
        warnings.contains("mixed_float16") && warnings.contains("dynamic loss scaling"),
        "{warnings}"
    );
}

/// Histories of 8-bit products are how a run computes, not what the model is.
#[test]
fn weights_move_into_8_bits_and_back() {
    let dir = Scratch::new("eight-bits");
    let device = device();
    let train = |policy: &str, epochs| {
        let store = store(&device, policy);
        let net = Net::deep(&store);
        let trainer = trainer(&store, &dir).loss_scale(LossScale::None);
        let report = trainer
            .resume(true)
            .fit(&net, loader(83), Some(loader(20)), epochs)
            .unwrap();
        (store, report.resumed_from, report.warnings.join("\n"))
    };
    let (wide, from, _) = train("float32", 1);
    assert_eq!(from, 0);
    let (narrow, from, warnings) = train("mixed_float8", 2);
    assert_eq!(from, 11);
    assert!(warnings.contains("other layers in 8 bits"), "{warnings}");
    let (_, from, warnings) = train("float32", 3);
    assert_eq!(from, 22);
    assert!(warnings.contains("other layers in 8 bits"), "{warnings}");

    let saved = load_latest_checkpoint(dir.0.join("checkpoints"))
        .unwrap()
        .unwrap();
    for store in [&wide, &narrow] {
        load_weights(store, &saved).unwrap();
    }
    assert_eq!(wide.params().len(), narrow.params().len());
}

#[test]
fn a_folder_that_cannot_be_written_is_found_before_training() {
    let dir = Scratch::new("unwritable");
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = dir.0.join("file");
    std::fs::write(&file, "").unwrap();
    let device = device();
    let store = store(&device, "mixed_float16");
    let net = Net::new(&store);
    let record = Record::default();
    let mut trainer = Trainer::new(&store, AdamW::new(1e-3))
        .progress(false)
        .checkpoint(file.join("x"))
        .callback(record.clone());
    let error = trainer.fit(&net, loader(83), None, 1).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unwritable { .. }),
        "{error}"
    );
    assert!(record.lines().is_empty());
    let _ = data(3);
}
