//! The precision report says what is so: against a float32 model of the same seed, counted on the host.

mod common;

use bimetal_autodiff::grad;
use bimetal_data::{Array, Batch, InMemory, Loader};
use bimetal_layers::{Activation, Ctx, Layer, Linear, ParamStore, Sequential, Site, mse};
use bimetal_optim::{Adam, Optimizer, Sgd};
use bimetal_precision::{LossScale, LossScaler};
use bimetal_tensor::graph::exponent_bin;
use bimetal_tensor::{DType, Tensor};
use bimetal_train::{
    Output, PrecisionReport, Severity, Task, TensorBatch, Trainer, Values, precision_report,
};

/// Inputs over many magnitudes, so that something is lost in f16.
fn data(rows: usize) -> InMemory {
    let x: Vec<f32> = (0..rows * 6)
        .map(|i| {
            let unit = ((i * 37) % 101) as f32 / 50.0 - 1.0;
            unit * 2f32.powi((i % 41) as i32 - 34)
        })
        .collect();
    let y: Vec<f32> = x.chunks(6).map(|x| x[0] - x[5]).collect();
    let x = Array::from_vec(x, &[rows, 6]).unwrap();
    InMemory::new(vec![x, Array::from_vec(y, &[rows, 1]).unwrap()]).unwrap()
}

fn batches(rows: usize, n: usize) -> Vec<Batch> {
    let mut loader = Loader::new(data(rows)).batch(rows / n);
    (0..n).map(|_| loader.next_in_cycle().unwrap()).collect()
}

struct Net {
    first: Linear,
    second: Linear,
    head: Linear,
}

impl Net {
    fn new(store: &ParamStore) -> Net {
        let scope = store.root();
        Net {
            first: Linear::new(&scope.at("first"), 6, 8),
            second: Linear::new(&scope.at("second"), 8, 8),
            head: Linear::new(&scope.at("head").policy("float32"), 8, 1),
        }
    }
    fn values(&self, x: &Tensor, cx: &Ctx) -> [Tensor; 3] {
        let first = self.first.forward(x, cx);
        let second = self.second.forward(&first.tanh(), cx);
        let head = self.head.forward(&(&second * 1e-3), cx);
        [first, second, head]
    }
}

impl Task for Net {
    fn training_step(&self, batch: &TensorBatch, cx: &Ctx) -> Output {
        let [.., y] = self.values(&batch[0], cx);
        Output::new(mse(&y, &batch[1]))
    }
}

/// Counts on the host what rounding to f16 makes of f32 numbers.
struct Count {
    exponents: Vec<(i32, u64)>,
    lost: [u64; 3],
    zeros: u64,
    amax: f64,
}

fn count(all: &[f32], scale: f32) -> Count {
    let device = common::device();
    let scaled: Vec<f32> = all.iter().map(|x| x * scale).collect();
    let t = Tensor::from_slice(&scaled, &[all.len()], &device);
    let rounded = t.cast(DType::F16).to_f64_vec().unwrap();
    let mut c = Count {
        exponents: Vec::new(),
        lost: [0; 3],
        zeros: 0,
        amax: 0.0,
    };
    let mut bins = std::collections::BTreeMap::new();
    for ((x, s), r) in all.iter().zip(&scaled).zip(rounded) {
        if *x == 0.0 {
            c.zeros += 1;
            continue;
        }
        let e = f64::from(x.abs()).log2().floor() as i32;
        assert_eq!(exponent_bin(*x) as i32 - 150, e);
        *bins.entry(e).or_insert(0) += 1;
        c.lost[0] += u64::from(*s != 0.0 && r == 0.0);
        c.lost[1] += u64::from(r != 0.0 && r.abs() < 2f64.powi(-14));
        c.lost[2] += u64::from(r.is_infinite());
        c.amax = c.amax.max(f64::from(x.abs()));
    }
    c.exponents = bins.into_iter().collect();
    c
}

fn same(v: &Values, c: &Count, what: &str) {
    assert_eq!(v.exponents, c.exponents, "{what}");
    assert_eq!([v.underflow, v.subnormal, v.overflow], c.lost, "{what}");
    assert_eq!((v.zeros, v.amax), (c.zeros, c.amax), "{what}");
    assert_eq!(v.not_finite, 0, "{what}");
}

#[test]
fn counts_are_those_of_a_float32_model() {
    const SCALE: f32 = 2.0;
    let device = common::device();
    let store = ParamStore::new(&device, "mixed_float16").seed(3);
    let net = Net::new(&store);
    let batches = batches(64, 2);
    let report = precision_report(&store, &net, &batches, LossScale::Static(SCALE)).unwrap();
    assert_eq!((report.steps, report.loss_scale), (2, Some(2.0)));

    let wide = ParamStore::new(&device, "float32").seed(3);
    let net = Net::new(&wide);
    let mut values: [Vec<f32>; 6] = Default::default();
    for host in &batches {
        let batch = TensorBatch::upload(host, &device);
        let acts = net.values(&batch[0], &wide.train());
        let loss = mse(&acts[2], &batch[1]) * f64::from(SCALE);
        let weight = wide.param("first.weight").unwrap().read();
        let bias = wide.param("first.bias").unwrap().read();
        let found = grad(&loss, &[&acts[0], &acts[1], &weight, &bias]).unwrap();
        let unscaled = |t: &Tensor| (t / f64::from(SCALE)).to_vec::<f32>().unwrap();
        values[0].extend(acts[0].to_vec::<f32>().unwrap());
        values[1].extend(acts[1].to_vec::<f32>().unwrap());
        values[2].extend(unscaled(&found[0]));
        values[3].extend(unscaled(&found[1]));
        values[4].extend(unscaled(&found[2]));
        values[4].extend(unscaled(&found[3]));
    }
    let first = report.layer("first").unwrap();
    let second = report.layer("second").unwrap();
    assert_eq!(
        (first.param, first.compute, first.output),
        (Some(DType::F32), DType::F16, DType::F16)
    );
    assert_eq!(first.parameters, 56);
    same(
        first.activations.as_ref().unwrap(),
        &count(&values[0], 1.0),
        "first",
    );
    same(
        second.activations.as_ref().unwrap(),
        &count(&values[1], 1.0),
        "second",
    );
    let grads = |l: &bimetal_train::LayerReport| l.activation_grads.clone().unwrap();
    same(&grads(first), &count(&values[2], SCALE), "first, gradients");
    same(
        &grads(second),
        &count(&values[3], SCALE),
        "second, gradients",
    );
    let weights = first.weight_grads.as_ref().unwrap();
    assert_eq!(weights.dtype, DType::F16);
    same(weights, &count(&values[4], SCALE), "first, weights");
    // The test is about something.
    assert!(
        weights.underflow > 0 && weights.subnormal > 0,
        "{weights:?}"
    );
    assert!(grads(second).subnormal > 0);

    let head = report.layer("head").unwrap();
    assert_eq!((head.compute, head.output), (DType::F32, DType::F32));
    assert_eq!(head.activations.as_ref().unwrap().underflow, 0);
    // The products with 1e-3, in f16, stand outside of layers.
    let outside: Vec<_> = report.layers.iter().filter(|l| l.outside).collect();
    assert!(
        outside
            .iter()
            .all(|l| l.path.contains("precision_report.rs:"))
    );
    assert!(outside.iter().any(|l| l.op == "mul"), "{report}");
}

/// A layer whose numbers are large inside of it, and not beyond it.
struct Wide(Site, bool);

impl Layer for Wide {
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.0.run(cx, || {
            let x = self.0.input(x);
            let large = x * 3e5;
            let y = if self.1 { large * 1e-5 } else { large };
            Ok(self.0.output(&y))
        })
    }
}

fn planted(policy: &str, inside: bool) -> PrecisionReport {
    let device = common::device();
    let store = ParamStore::new(&device, policy).seed(1);
    let scope = store.root();
    let net = Sequential::new()
        .then(Linear::new(&scope.at("a"), 6, 8))
        .then(Activation::Tanh)
        .then(Wide(scope.at("wide").site(), inside))
        .then(Linear::new(&scope.at("b"), 8, 8))
        .then(Linear::new(&scope.at("head").policy("float32"), 8, 1));
    let task = |batch: &TensorBatch, cx: &Ctx| {
        Output::new(mse(&net.forward(&(&batch[0] * 50), cx), &batch[1]) * 1e-8)
    };
    precision_report(&store, &task, &batches(64, 4), LossScale::Static(1.0)).unwrap()
}

#[test]
fn the_layer_that_overflows_is_named_and_no_other() {
    let report = planted("mixed_float16", true);
    let named: Vec<_> = report
        .advice
        .iter()
        .filter(|a| a.severity == Severity::Overflow)
        .collect();
    assert_eq!(named.len(), 1, "{report}");
    assert_eq!(named[0].path, "wide");
    let text = &named[0].text;
    for part in [
        "`wide` overflows in 100 % of batches, inside, in mul at",
        "precision_report.rs:",
        "float16 holds 65504",
        "float32 or bfloat16",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // What comes after it is full of NaN in truth, and innocent.
    let b = report.layer("b").unwrap().activations.as_ref().unwrap();
    assert_eq!((b.overflow, b.not_finite, b.not_finite_steps), (0, 0, 4));

    for policy in ["mixed_bfloat16", "float32", "mixed_float16; wide=float32"] {
        let report = planted(policy, true);
        let worst = report.advice.iter().map(|a| a.severity).min();
        assert_ne!(worst, Some(Severity::Overflow), "{policy}: {report}");
    }
    // If the large numbers leave the layer, the next one cannot hold them either.
    let report = planted("mixed_float16", false);
    let paths: Vec<_> = report.advice.iter().map(|a| a.path.as_str()).collect();
    assert!(paths.contains(&"wide") && paths.contains(&"b"), "{report}");
}

#[test]
fn the_range_of_loss_scales_is_where_nothing_is_lost() {
    let device = common::device();
    let store = ParamStore::new(&device, "mixed_float16").seed(0);
    let net = Linear::new(&store.root().at("net"), 4, 4);
    // The gradients of `net` are these numbers over 16, those of its weights sums of them.
    let weights = [2f32.powi(-21), 3e-3, 40.0, 7.0];
    let weights = Tensor::from_slice(&weights, &[4], &device);
    let task = |batch: &TensorBatch, cx: &Ctx| {
        Output::new((net.forward(&batch[0], cx) * &weights).mean_all())
    };
    let x = Array::from_vec(vec![1.0f32; 16], &[4, 4]).unwrap();
    let loader = || Loader::new(InMemory::new(vec![x.clone()]).unwrap()).batch(4);
    let batch = [loader().next_in_cycle().unwrap()];
    let look =
        |scale: f32| precision_report(&store, &task, &batch, LossScale::Static(scale)).unwrap();
    let scales = look(1.0).scales.unwrap();
    // The smallest is 2^-25 and becomes zero at 1; the largest, of the weights, is 10, and 2^12 times that fits.
    assert_eq!((scales.lowest, scales.highest), (2.0, 4096.0));
    assert!(scales.is_lossless() && scales.lost_at_highest == 0.0);
    for (scale, lost, overflow) in [
        (1.0, true, false),
        (2.0, false, false),
        (4096.0, false, false),
        (8192.0, false, true),
    ] {
        let report = look(scale);
        let layer = report.layer("net").unwrap();
        let all = [&layer.activation_grads, &layer.weight_grads];
        let sum = |f: fn(&Values) -> u64| all.iter().filter_map(|v| v.as_ref()).map(f).sum::<u64>();
        assert_eq!(sum(|v| v.underflow) > 0, lost, "{scale}: {report}");
        assert_eq!(sum(|v| v.overflow) > 0, overflow, "{scale}: {report}");
        assert_eq!(report.scales, Some(scales));
    }
}

#[test]
fn a_trainer_reports_updates_and_stays_as_it_was() {
    let device = common::device();
    let run = |report: bool| {
        let store = ParamStore::new(&device, "mixed_float16").seed(5);
        let net = Net::new(&store);
        let mut trainer = Trainer::new(&store, Adam::new(0.01))
            .progress(false)
            .clip_norm(1.0);
        let loader = || Loader::new(data(64)).batch(16).shuffle(2);
        trainer.fit_steps(&net, loader(), None, 3).unwrap();
        let found = report.then(|| trainer.precision_report(&net, loader(), 4).unwrap());
        trainer.fit_steps(&net, loader(), None, 3).unwrap();
        let state: Vec<Vec<u8>> = store
            .state()
            .unwrap()
            .iter()
            .map(|s| s.to_bytes().unwrap())
            .collect();
        (state, trainer.optimizer().attempted(), found)
    };
    let (with, attempted, report) = run(true);
    let (without, plain, _) = run(false);
    assert_eq!(with, without, "the report changed the training");
    assert_eq!(attempted, plain);
    let report = report.unwrap();
    assert_eq!(
        (report.steps, report.skipped, report.losses.len()),
        (4, 0, 4)
    );
    for path in ["first", "second", "head"] {
        let u = report.layer(path).unwrap().updates.as_ref().unwrap();
        assert_eq!(u.steps, 4);
        assert!(u.ratio > 1e-4 && u.ratio < 1.0, "{path}: {u:?}");
        assert!(u.with_gradient > 0 && u.lost == 0);
    }

    let json = report.to_json().unwrap();
    let back: PrecisionReport = serde_json::from_str(&json).unwrap();
    assert_eq!(back, report);
}

#[test]
fn updates_are_measured_against_a_step_by_hand() {
    let device = common::device();
    let store = ParamStore::new(&device, "p=bf16,c=bf16").seed(0);
    let net = Linear::new(&store.root().at("net"), 6, 4);
    let task =
        |batch: &TensorBatch, cx: &Ctx| Output::new(net.forward(&batch[0], cx).square().mean_all());
    let before = net.weight().read().to_f64_vec().unwrap();
    let bias = net.bias().unwrap().read().to_f64_vec().unwrap();
    let mut trainer = Trainer::new(&store, Sgd::new(1e-4)).progress(false);
    let loader = || Loader::new(data(16)).batch(16);
    let report = trainer.precision_report(&task, loader(), 1).unwrap();
    assert_eq!(
        net.weight().slot().unwrap().read().to_f64_vec().unwrap(),
        before
    );

    let scaler = LossScaler::new(LossScale::None, &device).unwrap();
    let batch = TensorBatch::upload(&loader().next_in_cycle().unwrap(), &device);
    let cx = store.train();
    let loss = net.forward(&batch[0], &cx).square().mean_all();
    let grads = scaler
        .scale(&loss)
        .grad(&store.trainable_slots().unwrap())
        .unwrap();
    let moving: Vec<f64> = grads
        .raw()
        .iter()
        .flat_map(|(_, g)| g.to_f64_vec().unwrap())
        .collect();
    let step = Sgd::new(1e-4).step(cx, grads.unscale()).unwrap();
    assert!(step.outcome().unwrap().is_applied());
    let mut after = net.weight().read().to_f64_vec().unwrap();
    after.extend(net.bias().unwrap().read().to_f64_vec().unwrap());
    let before = [before, bias].concat();
    let (mut change, mut norm, mut lost, mut with) = (0.0, 0.0, 0, 0);
    for ((a, b), g) in after.iter().zip(&before).zip(&moving) {
        change += (a - b) * (a - b);
        norm += b * b;
        with += u64::from(*g != 0.0);
        lost += u64::from(*g != 0.0 && a == b);
    }
    let u = report.layer("net").unwrap().updates.clone().unwrap();
    assert!(
        (u.ratio - (change / norm).sqrt()).abs() < 1e-5 * u.ratio,
        "{u:?}"
    );
    assert_eq!((u.with_gradient, u.lost), (with, lost));
    // Weights in bf16 lose most of such updates, and the report says so.
    assert!(lost * 2 > with, "{lost} of {with}");
    assert!(
        report
            .advice
            .iter()
            .any(|a| a.text.contains("keep parameters in f32")),
        "{report}"
    );
}

#[test]
fn layers_in_8_bits_are_in_the_report() {
    let device = common::device();
    let store = ParamStore::new(&device, "mixed_float8").seed(3);
    let net = Net::new(&store);
    let report = precision_report(&store, &net, &batches(64, 2), LossScale::None).unwrap();
    let first = report.layers.iter().find(|l| l.path == "first").unwrap();
    assert_eq!(
        (first.op.as_str(), first.compute, first.output),
        ("f8_linear", DType::F8E4M3, DType::BF16)
    );
    assert_eq!(report.steps, 2);
}

/// What the operands of products in 8 bits lose is counted before they are rounded, with their scale.
#[test]
fn models_with_8_bit_products_have_a_report() {
    let device = common::device();
    let policies = "mixed_float8; head=float32; second=float32";
    let store = ParamStore::new(&device, policies).seed(0);
    let store = store.f8_recipe(bimetal_precision::F8Recipe::current());
    let net = Net::new(&store);
    let batch = batches(64, 1);
    let x = TensorBatch::upload(&batch[0], &device)[0]
        .to_vec::<f32>()
        .unwrap();
    let amax = x.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let scaled: Vec<f32> = x.iter().map(|x| x * (448.0 / amax)).collect();
    let t = Tensor::from_slice(&scaled, &[x.len()], &device);
    let rounded = t.cast(DType::F8E4M3).to_f64_vec().unwrap();
    let zeros = rounded
        .iter()
        .zip(&x)
        .filter(|(r, x)| **r == 0.0 && **x != 0.0)
        .count();
    let report = precision_report(&store, &net, &batch, LossScale::None).unwrap();
    let (place, inner) = report.layer("first").unwrap().inner.as_ref().unwrap();
    assert!(place.starts_with("f8_linear at"), "{place}");
    assert_eq!(inner.dtype, DType::F8E4M3);
    // The weight's elements are beside those of the input in the same place, and none of them is lost.
    assert_eq!(inner.underflow, zeros as u64, "{inner:?}");
    assert!(zeros > 50 && inner.overflow == 0);

    let mut trainer = Trainer::new(&store, Adam::new(0.01)).progress(false);
    let loader = Loader::new(data(64)).batch(16);
    let report = trainer.precision_report(&net, loader, 2).unwrap();
    let first = report.layer("first").unwrap();
    assert_eq!(first.output, DType::BF16);
    assert!(first.activations.as_ref().unwrap().amax > 0.0);
    assert!(
        first.weight_grads.is_some() && first.updates.is_some(),
        "{report}"
    );
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let report = planted("mixed_float16", true).titled("<model> & co");
    let page = report.to_html();
    assert!(page.contains("<title>&lt;model&gt; &amp; co</title>"));
    for outside in ["http", "src=", "href=", "@import", "url(", "{{"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let rows = page.matches("<tr data-order=").count();
    assert_eq!(rows, report.layers.len());
    assert_eq!(page.matches("class=\"path\">wide<").count(), 1);
    let sorted = page.matches("data-ainf=").count();
    assert_eq!(
        sorted,
        report
            .layers
            .iter()
            .filter(|l| l.activations.is_some())
            .count()
    );
    assert!(
        page.contains("inside, mul at") && page.contains("<code>wide</code> overflows in 100 %")
    );

    let dir = std::env::temp_dir().join(format!("bimetal-report-{}", std::process::id()));
    report.write(&dir).unwrap();
    let written = std::fs::read_to_string(dir.join("precision.html")).unwrap();
    assert_eq!(written, page);
    let text = std::fs::read_to_string(dir.join("precision.txt")).unwrap();
    assert_eq!(text, report.to_string());
    std::fs::remove_dir_all(&dir).unwrap();
}
