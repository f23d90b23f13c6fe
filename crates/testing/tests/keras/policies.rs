//! Policies: names, casts, parameters, the way to the loss.
use crate::golden::{case, dtype, list, text};
use crate::support::*;
use bimetal::layers::{Layer, Linear, ParamStore, cross_entropy, mse};
use bimetal::optim::{Adam, Optimizer};
use bimetal::precision::{LossScale, Policy};
use bimetal::train::{Callback, Control, Output, Result, StepRecord, TensorBatch, Trainer};
use bimetal::{DType, Device, Tensor};
use std::sync::{Arc, Mutex};

pub fn keras_policy_names(_: &Device) {
    let golden = case("policies");
    for known in list(&golden["known"]) {
        let policy: Policy = text(&known[0]).parse().unwrap();
        let want = (dtype(&known[1]), dtype(&known[2]));
        assert_eq!((policy.param, policy.compute), want, "{known}");
        assert_eq!(policy.output, policy.compute);
        assert_eq!(policy.to_string(), text(&known[0]));
    }
    for unknown in list(&golden["unknown"]) {
        let e = text(unknown).parse::<Policy>().unwrap_err().to_string();
        for known in list(&golden["known"]) {
            assert!(e.contains(text(&known[0])), "{e}");
        }
    }
    // Better: each of the three dtypes by itself.
    let policy: Policy = "p=f32,c=f16,o=f32".parse().unwrap();
    let found = (policy.param, policy.compute, policy.output);
    assert_eq!(found, (DType::F32, DType::F16, DType::F32));
}

pub fn keras_inputs(device: &Device) {
    let store = ParamStore::new(device, Policy::mixed_float16());
    let site = store.root().at("layer").site();
    for seen in list(&case("inputs")["seen"]) {
        let x = Tensor::ones(&[2, 2], dtype(&seen[0]), device);
        assert_eq!(site.input(&x).dtype(), dtype(&seen[1]), "{seen}");
    }
}

pub fn keras_weights(device: &Device) {
    let golden = case("gradients");
    let store = ParamStore::new(device, Policy::mixed_float16());
    let layer = Linear::new(&store.root().at("layer"), 3, 2);
    let x = Tensor::ones(&[4, 3], DType::F32, device);
    let (scaler, mut optimizer) = (dynamic(device), Adam::new(0.1));
    let cx = store.train();
    let y = layer.forward(&x, &cx);
    let slots = store.trainable_slots().unwrap();
    let weight = store.param("layer.weight").unwrap();
    assert_eq!(
        (weight.dtype(), weight.compute().dtype()),
        (DType::F32, DType::F16)
    );
    let loss = y.cast(DType::F32).mean_all();
    let grads = scaler.scale(&loss).grad(&slots).unwrap();
    let want = list(&golden["gradients"]).iter().map(dtype);
    assert!(grads.raw().iter().map(|(_, g)| g.dtype()).eq(want));
    let _ = optimizer.step(cx, grads.unscale()).unwrap();
    let moments: Vec<_> = optimizer.state()[1..].iter().map(|s| s.dtype()).collect();
    let want: Vec<_> = list(&golden["slots"]).iter().map(dtype).collect();
    assert_eq!(moments, want);
}

/// The loss scale of the last step.
#[derive(Clone, Default)]
struct Scale(Arc<Mutex<f32>>);

impl Callback for Scale {
    fn on_step(&mut self, record: &StepRecord) -> Result<Control> {
        *self.0.lock().unwrap() = record.scale;
        Ok(Control::Continue)
    }
}

/// One step of a model of two layers; its loss scale, and what the user was told of the way to the loss.
fn one_step(device: &Device, policy: &str, scale: Option<LossScale>) -> (f32, usize) {
    let store = seeded(device, policy);
    let scope = store.root();
    let body = Linear::new(&scope.at("body"), 64, 8);
    let head = Linear::new(&scope.at("head"), 8, 3);
    let task = |batch: &TensorBatch, cx: &_| {
        let x = body.forward(&batch[0].flatten(1..=2), cx);
        Output::new(cross_entropy(&head.forward(&x, cx), &batch[1]))
    };
    let seen = Scale::default();
    let mut trainer = Trainer::new(&store, Adam::new(1e-3)).progress(false);
    if let Some(scale) = scale {
        trainer = trainer.loss_scale(scale);
    }
    let mut trainer = trainer.callback(seen.clone());
    let report = trainer.fit_steps(&task, loader(8), None, 1).unwrap();
    let told = |w: &&String| w.contains("`head`, whose policy was not chosen");
    let told = report.warnings.iter().filter(told).count();
    (*seen.0.lock().unwrap(), told)
}

pub fn keras_model_output(device: &Device) {
    // Half precision unless the last layer says otherwise, and then the user is told.
    assert_eq!(one_step(device, "mixed_float16", None).1, 1);
    assert_eq!(one_step(device, "mixed_bfloat16", None).1, 1);
    assert_eq!(one_step(device, "mixed_float16; head=float32", None).1, 0);
    assert_eq!(
        one_step(device, "mixed_float16; head=mixed_float16", None).1,
        0
    );
    assert_eq!(one_step(device, "float32", None).1, 0);
    let store = ParamStore::new(device, Policy::mixed_float16());
    let scope = store.root();
    let x = Tensor::ones(&[1, 2], DType::F32, device);
    let y = Linear::new(&scope.at("half"), 2, 1).forward(&x, &store.eval());
    let z = Linear::new(&scope.at("full").policy("float32"), 2, 1).forward(&x, &store.eval());
    assert_eq!((y.dtype(), z.dtype()), (DType::F16, DType::F32));
    assert_eq!(mse(&y, &z.detach()).dtype(), DType::F32);
}

pub fn keras_auto_wrap(device: &Device) {
    // Keras wraps for the policy `mixed_float16` alone; here any layer in f16 will do.
    let any = [
        "mixed_float16",
        "float32; head=mixed_float16",
        "mixed_bfloat16; body=p=f32,c=f16,o=f32",
    ];
    for policy in any {
        assert_eq!(one_step(device, policy, None).0, 32768.0, "{policy}");
    }
    for policy in ["float32", "mixed_bfloat16", "float64"] {
        assert_eq!(one_step(device, policy, None).0, 1.0, "{policy}");
    }
    let fixed = one_step(device, "mixed_float16", Some(LossScale::Static(64.0)));
    assert_eq!(fixed.0, 64.0);
}
