//! What the loop says when something is wrong, and when it says it.
mod common;

use bimetal_data::Loader;
use bimetal_layers::{Ctx, Layer, Linear, cross_entropy};
use bimetal_optim::{Adam, AdamW, Sgd};
use bimetal_precision::{Level, LossScale, PolicyMap};
use bimetal_train::{Output, TensorBatch, Trainer};
use common::{Net, Record, bytes_of, data, device, loader, restless, store};

fn quiet(store: &bimetal_layers::ParamStore) -> Trainer {
    Trainer::new(store, AdamW::new(1e-2))
        .loss_scale(restless())
        .progress(false)
}

#[test]
fn a_training_that_only_skips_ends_with_the_culprit() {
    let device = device();
    let store = store(&device, "float32");
    let scope = store.root();
    let (good, bad) = (
        Linear::new(&scope.at("good"), 64, 3),
        Linear::new(&scope.at("bad"), 64, 3),
    );
    let task = |batch: &TensorBatch, cx: &Ctx| {
        let x = batch[0].flatten(1..=2);
        // The square root of a negative number, whose derivative is not a number either.
        let nan = (bad.forward(&x, cx).square() * -1.0 - 1.0).sqrt();
        Output::new(cross_entropy(&good.forward(&x, cx), &batch[1]) + nan.mean_all())
    };
    let mut trainer = Trainer::new(&store, Adam::new(1e-2))
        .progress(false)
        .max_skipped_in_a_row(5);
    let error = trainer
        .fit(&task, loader(80), None, 1)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("5 steps in a row") && error.contains("`bad.weight`"),
        "{error}"
    );
}

#[test]
fn numerics_checks_name_the_operation() {
    let device = device();
    let store_a = store(&device, "mixed_float16");
    let net = Net::new(&store_a);
    let record = Record::default();
    let run = |trainer: Trainer, record: &Record| {
        let mut trainer = trainer.steps_per_execution(10).callback(record.clone());
        trainer.fit(&net, loader(40), None, 1).unwrap()
    };
    // The first steps overflow: the scale is far too high.
    let report = run(quiet(&store_a).check_numerics(Level::Step), &record);
    let skipped: Vec<_> = report
        .warnings
        .iter()
        .filter(|w| w.contains("was skipped"))
        .collect();
    assert_eq!(skipped.len() as u64, report.skipped);
    assert!(
        skipped[0].starts_with("step 1 was skipped: "),
        "{skipped:?}"
    );
    assert!(
        skipped[0].contains("+Inf") && skipped[0].contains("float16"),
        "{skipped:?}"
    );
    assert!(skipped[0].contains("backward"), "{skipped:?}");
    // Looking changes nothing.
    let store_b = store(&device, "mixed_float16");
    let net = Net::new(&store_b);
    let plain = Record::default();
    let mut trainer = quiet(&store_b).callback(plain.clone());
    trainer.fit(&net, loader(40), None, 1).unwrap();
    assert_eq!(plain.steps(), record.steps());
    assert_eq!(bytes_of(&store_a), bytes_of(&store_b));

    // A loss that is not finite is an error with the forward operation.
    let store = store(&device, "float32");
    let layer = Linear::new(&store.root().at("layer"), 64, 3);
    let task = |batch: &TensorBatch, cx: &Ctx| {
        let y = layer.forward(&batch[0].flatten(1..=2), cx);
        Output::new((y.square() * -1.0 - 1.0).sqrt().mean_all())
    };
    let mut trainer = Trainer::new(&store, Adam::new(1e-2))
        .progress(false)
        .check_numerics(Level::Step);
    let error = trainer
        .fit(&task, loader(40), None, 1)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the loss of step 1 is NaN: sqrt") && error.contains("mistakes.rs"),
        "{error}"
    );
}

#[test]
fn a_loss_that_is_not_finite_is_seen_where_its_gradient_is() {
    let device = device();
    let store = store(&device, "float32");
    let layer = Linear::new(&store.root().at("layer"), 64, 3);
    // The logarithm of a negative number, whose derivative is a number.
    let task = |batch: &TensorBatch, cx: &Ctx| {
        let y = layer.forward(&batch[0].flatten(1..=2), cx);
        Output::new((y.square() * -1.0 - 1.0).log().mean_all())
    };
    let mut trainer = Trainer::new(&store, Adam::new(1e-2))
        .progress(false)
        .check_numerics(Level::Step);
    let error = trainer.fit(&task, loader(40), None, 1).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("the loss of step 1 is NaN although") && text.contains("find_non_finite"),
        "{text}"
    );
}

/// What was told, without the note that this device computes f16 by conversion.
fn told(report: bimetal_train::Report) -> Vec<String> {
    let (slow, rest): (Vec<_>, Vec<_>) = report
        .warnings
        .into_iter()
        .partition(|w| w.contains("only by conversion"));
    assert_eq!(slow.len(), 1);
    rest
}

#[test]
fn likely_mistakes_are_told_once() {
    let device = device();
    let store =
        bimetal_layers::ParamStore::new(&device, "mixed_float16".parse::<PolicyMap>().unwrap());
    let scope = store.root();
    let head = Linear::new(&scope.at("head"), 64, 3);
    let _unused = Linear::new(&scope.at("unused"), 2, 2);
    let task = |b: &TensorBatch, cx: &Ctx| {
        Output::new(cross_entropy(
            &head.forward(&b[0].flatten(1..=2), cx),
            &b[1],
        ))
    };
    let fit = |trainer: &mut Trainer| told(trainer.fit(&task, loader(20), None, 2).unwrap());
    let mut trainer = Trainer::new(&store, Adam::new(1e-3)).progress(false);
    let warnings = fit(&mut trainer);
    let about = |part: &str| warnings.iter().filter(|w| w.contains(part)).count();
    assert_eq!(
        about("from `head`, whose policy was not chosen"),
        1,
        "{warnings:?}"
    );
    assert_eq!(
        (
            about("`unused.weight`"),
            about("`unused.bias`"),
            warnings.len()
        ),
        (1, 1, 3)
    );

    let chosen = bimetal_layers::ParamStore::new(
        &device,
        "mixed_float16; head=mixed_float16"
            .parse::<PolicyMap>()
            .unwrap(),
    );
    let head = Linear::new(&chosen.root().at("head"), 64, 3);
    let task = |b: &TensorBatch, cx: &Ctx| {
        Output::new(cross_entropy(
            &head.forward(&b[0].flatten(1..=2), cx),
            &b[1],
        ))
    };
    let mut trainer = Trainer::new(&chosen, Adam::new(1e-3)).progress(false);
    assert!(told(trainer.fit(&task, loader(20), None, 1).unwrap()).is_empty());

    // The shared network has a head in f32.
    let store = common::store(&device, "mixed_float16");
    let net = Net::new(&store);
    assert!(told(quiet(&store).fit(&net, loader(20), None, 1).unwrap()).is_empty());
}

#[test]
fn patterns_that_describe_nothing_are_named() {
    let device = device();
    let run = |policy: &str, optimizer: Adam| {
        let store = store(&device, policy);
        let net = Net::new(&store);
        let before = bytes_of(&store);
        let mut trainer = Trainer::new(&store, optimizer).progress(false);
        let e = trainer.fit(&net, loader(20), None, 1).unwrap_err();
        assert!(policy != "float32" || bytes_of(&store) == before);
        e.to_string()
    };
    let group = Adam::new(1e-3).group(bimetal_optim::ParamGroup::new("haed").lr_factor(0.1));
    let text = run("float32", group);
    assert!(
        text.contains("the group `haed` describes no parameter") && text.contains("head"),
        "{text}"
    );
    // Parameters without masters cannot be trained under a loss scale, which f16 gets without asking.
    let text = run("float16", Adam::new(1e-3));
    assert!(
        text.contains("`conv.weight` is float16 without an f32 master"),
        "{text}"
    );
    let store = store(&device, "mixed_float16; convv=float32");
    let net = Net::new(&store);
    let mut trainer = Trainer::new(&store, Adam::new(1e-3)).progress(false);
    let rule = "the rule `convv=float32` describes no layer; the nearest are conv, ";
    let text = trainer
        .fit(&net, loader(20), None, 1)
        .unwrap_err()
        .to_string();
    assert!(text.contains(rule), "{text}");
    let text = trainer.evaluate(&net, loader(20)).unwrap_err().to_string();
    assert!(text.contains(rule), "{text}");
}

#[test]
fn mistakes_are_found_before_the_first_step() {
    let device = device();
    let record = Record::default();
    let make = || {
        let store = store(&device, "mixed_float16");
        let net = Net::new(&store);
        (store, net)
    };
    let (store, net) = make();
    let fail = |trainer: Trainer, loader: Loader| {
        let error = trainer
            .progress(false)
            .callback(record.clone())
            .fit(&net, loader, None, 1);
        error.map(|_| ()).unwrap_err().to_string()
    };
    let new = || Trainer::new(&store, AdamW::new(1e-3));
    for (trainer, part) in [
        (new().steps_per_execution(0), "steps_per_execution is 0"),
        (new().accumulate(0), "accumulate is 0"),
        (new().steps_per_epoch(0), "steps_per_epoch is 0"),
        (new().clip_norm(-1.0), "clip_norm is -1"),
        (new().clip_norm(f32::NAN), "clip_norm is NaN"),
        (new().save_every(3), ".checkpoint(dir)"),
        (new().resume(true), ".checkpoint(dir)"),
        (
            new().loss_scale(LossScale::Static(f32::NAN)),
            "static scale is NaN",
        ),
        (
            Trainer::new(&store, AdamW::new(f64::NAN)),
            "learning rate is NaN",
        ),
        (
            Trainer::new(&store, AdamW::new(1e-3).weight_decay(-1.0)),
            "weight decay is -1",
        ),
    ] {
        let text = fail(trainer, loader(20));
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let text = fail(new(), Loader::new(data(5)).batch(8).drop_remainder(true));
    assert!(text.contains('8') && text.contains('5'), "{text}");
    let broken = bimetal_layers::ParamStore::new(&device, bimetal_precision::Policy::float32());
    let _ = Linear::new(&broken.root().at("a"), 2, 2);
    let _ = Linear::new(&broken.root().at("a"), 2, 2);
    let text = fail(Trainer::new(&broken, AdamW::new(1e-3)), loader(20));
    assert!(text.contains("`a.weight`"), "{text}");
    assert!(record.lines().is_empty());
}

#[test]
fn mistakes_in_a_task_name_layer_and_line_and_lose_nothing() {
    let device = device();
    let store = store(&device, "float32");
    let net = Linear::new(&store.root().at("net"), 64, 3);
    let before = bytes_of(&store);
    let shape = |b: &TensorBatch, cx: &Ctx| Output::new(net.forward(&b[0], cx).mean_all());
    let range = |b: &TensorBatch, cx: &Ctx| {
        Output::new(cross_entropy(
            &net.forward(&b[0].flatten(1..=2), cx),
            &(&b[1] + 1),
        ))
    };
    let rows = |b: &TensorBatch, cx: &Ctx| {
        Output::new(net.forward(&b[0].flatten(1..=2), cx).sum(&[0], false))
    };
    let mut trainer = Trainer::new(&store, Sgd::new(0.1)).progress(false);
    let text = trainer
        .fit(&shape, loader(20), None, 1)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("net") && text.contains("mistakes.rs") && text.contains("[8, 8, 8]"),
        "{text}"
    );
    let text = trainer
        .fit(&range, loader(20), None, 1)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("index 3") && text.contains("mistakes.rs"),
        "{text}"
    );
    let text = trainer
        .fit(&rows, loader(20), None, 1)
        .unwrap_err()
        .to_string();
    assert!(text.contains("8 rows") && text.contains("[3]"), "{text}");
    assert_eq!(bytes_of(&store), before);
}
