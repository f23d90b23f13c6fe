//! Policies compared, and the layer that needs float32 found.

mod common;

use bimetal_data::{Array, InMemory, Loader};
use bimetal_layers::{Activation, Ctx, Layer, Linear, ParamStore, Sequential, Site, mse};
use bimetal_optim::Adam;
use bimetal_tensor::Tensor;
use bimetal_train::{
    Output, Result, SearchBudget, Setup, TensorBatch, Trainer, Verdict, compare_policies,
    load_policies, search_policy,
};

/// A head whose numbers go far beyond what f16 holds, and are used as they are: targets are that large.
struct Wide {
    site: Site,
    inner: Linear,
}

impl Layer for Wide {
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let y = self.inner.forward(x, cx);
        self.site
            .run(cx, || Ok(self.site.output(&(self.site.input(&y) * 2e5))))
    }
}

/// A deep plain network with the wide layer as its head, or, squashed again, in its middle.
fn build(store: &ParamStore, middle: bool) -> Result<Setup> {
    let scope = store.root();
    let wide = |inputs, outputs| Wide {
        site: scope.at("wide").site(),
        inner: Linear::new(&scope.at("wide").at("inner"), inputs, outputs),
    };
    let mut net = Sequential::new();
    for i in 0..4 {
        let inputs = if i == 0 { 3 } else { 16 };
        net = net
            .then(Linear::new(&scope.at("blocks").at(i), inputs, 16))
            .then(Activation::Tanh);
        if middle && i == 1 {
            net = net.then(wide(16, 16)).then(|x: &Tensor, _: &Ctx| x * 5e-6);
        }
    }
    let net = match middle {
        false => net.then(wide(16, 1)),
        true => net.then(Linear::new(&scope.at("head"), 16, 1)),
    };
    let size = if middle { 1.0 } else { 2e5 };
    let x: Vec<f32> = (0..192)
        .map(|i| ((i * 37) % 64) as f32 / 32.0 - 1.0)
        .collect();
    let y: Vec<f32> = x
        .chunks(3)
        .map(|x| (x[0] + 0.5 * x[1] - x[2]).sin() * size)
        .collect();
    let x = Array::from_vec(x, &[64, 3])?;
    let y = Array::from_vec(y, &[64, 1])?;
    let data = InMemory::new(vec![x, y])?;
    let train = Loader::new(data.clone())
        .batch(16)
        .shuffle(store.seed_value());
    let task = move |batch: &TensorBatch, cx: &Ctx| {
        let size = f64::from(size);
        let y = net.forward(&batch[0], cx).cast(bimetal_tensor::DType::F32);
        Output::new(mse(&(y / size), &(&batch[1] / size)))
    };
    let trainer = Trainer::new(store, Adam::new(0.01));
    Ok(Setup::new(trainer, task, train).valid(Loader::new(data).batch(64)))
}

#[test]
fn policies_are_compared_with_the_noise_of_seeds() {
    let seeds = [0, 1, 2];
    let policies = [
        "float32",
        "mixed_bfloat16",
        "mixed_float16",
        "mixed_float16; wide=float32",
    ];
    let build = |store: &ParamStore| build(store, false);
    let c = compare_policies(common::device, &policies, &seeds, 60, build).unwrap();
    assert_eq!((c.result.as_str(), c.steps), ("val_loss", 60));
    let [float32, bfloat16, float16, mended] = &c.policies[..] else {
        panic!("{c}");
    };
    assert_eq!(float32.verdict, Verdict::Baseline);
    assert_eq!(
        float32.runs.iter().map(|r| r.seed).collect::<Vec<_>>(),
        seeds
    );
    // Same weights, same batches: the first losses differ by rounding alone.
    for (a, b) in float32.runs.iter().zip(&bfloat16.runs) {
        let (a, b) = (a.losses[0].unwrap(), b.losses[0].unwrap());
        assert!(a != b && (a - b).abs() < 0.05 * a, "{a} {b}");
    }
    // Seeds differ, and training works.
    assert!(float32.deviation > 0.0 && float32.curve().len() == 60);
    assert!(
        float32.mean.unwrap() < 0.5 * float32.runs[0].losses[0].unwrap(),
        "{c}"
    );
    assert_eq!(float16.verdict, Verdict::Failed);
    assert!(
        float16
            .runs
            .iter()
            .all(|r| r.result.is_none() && r.skipped > 40),
        "{c}"
    );
    assert!(mended.verdict.is_within_noise(), "{c}");
    assert!(float32.peak_bytes > 0 && float32.seconds > 0.0);

    let back = serde_json::from_str(&c.to_json().unwrap());
    assert_eq!(c, back.unwrap());
    let page = c.clone().titled("a <b> & c").to_html();
    assert!(page.contains("<title>a &lt;b&gt; &amp; c</title>") && page.contains("<polyline"));
    assert!(!page.contains("{{") && !page.contains("http"));
    assert!(c.to_string().contains("failed"), "{c}");

    let one = compare_policies(common::device, &policies[..2], &[5], 5, build).unwrap();
    assert!(
        matches!(one.policies[1].verdict, Verdict::Unknown { .. }),
        "{one}"
    );
    for (policies, seeds, steps, part) in [
        (&["float17"][..], &[0u64][..], 5, "no precision policy"),
        (&[], &[0], 5, "no policies"),
        (&["float32"], &[], 5, "0 seeds"),
        (&["float32"], &[0], 0, "0 steps"),
        (&["float32"], &[3, 1, 3], 5, "seed 3 was given twice"),
    ] {
        let e = compare_policies(common::device, policies, seeds, steps, build);
        let text = e.unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn the_layer_that_needs_float32_is_found() {
    let budget = SearchBudget {
        steps: 60,
        ..SearchBudget::default()
    };
    let head = |store: &ParamStore| build(store, false);
    let found = search_policy(common::device, &budget, head).unwrap();
    assert_eq!(found.float32_layers, ["wide"], "{found}");
    assert!(found.finished);
    // Everything low, and then the right one at once: the report knew.
    assert_eq!(found.trials.len(), 2, "{found}");
    assert!(!found.trials[0].within_noise && found.trials[1].within_noise);
    assert!(found.candidates.len() >= 5, "{found}");

    let path = std::env::temp_dir().join(format!("bimetal-policies-{}.json", std::process::id()));
    found.save(&path).unwrap();
    let map = load_policies(&path).unwrap();
    assert_eq!(map, found.policies);
    assert_eq!(map.to_string(), "mixed_float16; wide=float32");
    // It trains.
    let store = ParamStore::new(&common::device(), map).seed(9);
    let Ok(_) = build(&store, false) else {
        panic!("it does not build")
    };
    std::fs::write(&path, "[]").unwrap();
    let text = load_policies(&path).unwrap_err().to_string();
    assert!(text.contains("holds no policies"), "{text}");
    std::fs::remove_file(&path).unwrap();

    // In the middle of a network as well.
    let middle = |store: &ParamStore| build(store, true);
    let found = search_policy(common::device, &budget, middle).unwrap();
    assert_eq!(found.float32_layers, ["wide"], "{found}");

    // What bfloat16 can hold needs nothing.
    let budget = SearchBudget {
        low: "mixed_bfloat16".parse().unwrap(),
        tolerance: 0.25,
        ..budget
    };
    let found = search_policy(common::device, &budget, head).unwrap();
    assert!(found.float32_layers.is_empty() && found.finished, "{found}");
    let few = SearchBudget { runs: 4, ..budget };
    let text = search_policy(common::device, &few, head)
        .unwrap_err()
        .to_string();
    assert!(text.contains("4 runs are fewer than the 6"), "{text}");
}

#[test]
fn a_search_that_cannot_work_is_an_error_before_anything_is_trained() {
    let usual = SearchBudget::default;
    let wrong = [
        (
            SearchBudget { runs: 0, ..usual() },
            "0 runs are fewer than the 6",
        ),
        (
            SearchBudget { runs: 5, ..usual() },
            "5 runs are fewer than the 6",
        ),
        (
            SearchBudget {
                steps: 0,
                ..usual()
            },
            "0 steps",
        ),
        (
            SearchBudget {
                seeds: vec![1, 1],
                ..usual()
            },
            "seed 1 was given twice",
        ),
        (
            SearchBudget {
                deviations: f64::NAN,
                ..usual()
            },
            "deviations is NaN",
        ),
        (
            SearchBudget {
                tolerance: -1.0,
                ..usual()
            },
            "tolerance is -1",
        ),
    ];
    for (budget, part) in wrong {
        let build = |_: &ParamStore| -> Result<Setup> { panic!("{budget:?} was tried") };
        let text = search_policy(common::device, &budget, build)
            .unwrap_err()
            .to_string();
        assert!(text.contains(part), "{text}");
    }
}
