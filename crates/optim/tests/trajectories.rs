//! Ten steps of each optimizer, clipping and schedules against PyTorch.
mod common;
use bimetal_layers::ParamStore;
use bimetal_optim::{
    Adam, AdamW, Cosine, Exponential, LinearDecay, Optimizer, ParamGroup, Schedule, Sgd, StepDecay,
    Warmup, warmup_cosine,
};
use bimetal_precision::{LossScale, Policy};
use bimetal_tensor::{Device, Tensor};
use common::*;
use serde_json::Value;

const PARAMS: [&str; 2] = ["weight", "bias"];

fn number(case: &Value, key: &str) -> f64 {
    case["attrs"][key].as_f64().unwrap()
}

fn betas(case: &Value) -> (f64, f64) {
    let b = &case["attrs"]["betas"];
    (b[0].as_f64().unwrap(), b[1].as_f64().unwrap())
}

fn optimizer(case: &Value) -> Box<dyn Optimizer> {
    let name = case["case"].as_str().unwrap();
    if name == "adamw_groups" {
        let (b1, b2) = betas(case);
        return Box::new(
            AdamW::new(1e-2)
                .betas(b1, b2)
                .weight_decay(0.1)
                .group(ParamGroup::new("bias").lr_factor(2.0).weight_decay(0.0)),
        );
    }
    let decay = number(case, "weight_decay");
    let lr = case["attrs"]["lr"].as_f64().unwrap_or(1.0);
    if name.starts_with("sgd") {
        let sgd = Sgd::new(lr)
            .momentum(number(case, "momentum"))
            .dampening(number(case, "dampening"))
            .weight_decay(decay);
        return match case["attrs"]["nesterov"].as_bool().unwrap() {
            true => Box::new(sgd.nesterov()),
            false => Box::new(sgd),
        };
    }
    let ((b1, b2), eps) = (betas(case), number(case, "eps"));
    match name.starts_with("adamw") {
        true => Box::new(AdamW::new(lr).betas(b1, b2).eps(eps).weight_decay(decay)),
        false => Box::new(Adam::new(lr).betas(b1, b2).eps(eps).weight_decay(decay)),
    }
}

/// PyTorch's names of the moments are not ours.
fn moment(name: &str) -> String {
    name.replace("/momentum", ".momentum_buffer")
        .replace("/m", ".exp_avg")
        .replace("/v", ".exp_avg_sq")
        .replace("optim/", "")
}

fn run(case: &Value, device: &Device, scale: LossScale) {
    let name = case["case"].as_str().unwrap();
    let store = ParamStore::new(device, Policy::float32());
    for p in PARAMS {
        let start = tensor(&case["inputs"][p], device);
        let _ = store.root().param_from(p, &start);
    }
    let scaler = scaler(scale, device);
    let mut optimizer = optimizer(case);
    let grads = PARAMS.map(|p| tensor(&case["inputs"][format!("grad_{p}")], device));
    let want = PARAMS.map(|p| array(&case["outputs"][p]).1);
    for t in 0..10 {
        if let Some(lrs) = case["attrs"]["lr"].as_array() {
            optimizer.set_lr(lrs[t].as_f64().unwrap()).unwrap();
        }
        let now: Vec<Tensor> = grads.iter().map(|g| g.index(0, t)).collect();
        let outcome = step(&mut *optimizer, &store, &scaler, &now).outcome();
        assert!(outcome.unwrap().is_applied(), "{name}");
        for (p, want) in PARAMS.iter().zip(&want) {
            let found = values(&slot(&store, p));
            let n = found.len();
            close_to_ones(&found, &want[t * n..(t + 1) * n], 1e-6);
        }
    }
    let mut moments = 0;
    for s in optimizer.state() {
        if let Some(want) = case["outputs"].get(moment(s.name())) {
            close_to_ones(&values(&s), &array(want).1, 1e-6);
            moments += 1;
        }
    }
    let outputs = case["outputs"].as_object().unwrap().len();
    assert_eq!(moments + PARAMS.len(), outputs, "{name}");
}

#[test]
fn optimizers_follow_pytorch_for_ten_steps() {
    let cases = golden("torch_optimizers.json");
    assert_eq!(cases.len(), 13);
    for case in &cases {
        run(case, &bimetal_cpu::cpu(), LossScale::None);
    }
}

#[test]
fn under_a_loss_scale_the_trajectory_is_the_same() {
    for name in ["sgd_nesterov_weight_decay", "adam", "adamw_nanogpt"] {
        let case = case("torch_optimizers.json", name);
        run(&case, &bimetal_cpu::cpu(), LossScale::dynamic());
    }
}

#[test]
fn clipping_by_global_norm_is_pytorchs() {
    let device = bimetal_cpu::cpu();
    for name in ["clipped", "not_reached", "zero"] {
        let case = case("torch_clipping.json", &format!("clip_grad_norm_{name}"));
        for scale in [LossScale::None, LossScale::Static(1024.0)] {
            let store = ParamStore::new(&device, Policy::float32());
            let grads = PARAMS.map(|p| {
                let g = tensor(&case["inputs"][p], &device);
                let _ = store.root().param_from(p, &g);
                g
            });
            let scaler = scaler(scale, &device);
            let grads = given(&store, &scaler, &grads).clip_global_norm(number(&case, "max_norm"));
            let norm = grads.norm_before_clipping().item().unwrap();
            close(&[norm], &array(&case["outputs"]["norm"]).1, 1e-6);
            for p in PARAMS {
                let found = grads.get(&slot(&store, p)).unwrap().to_f64_vec().unwrap();
                close(&found, &array(&case["outputs"][p]).1, 1e-6);
            }
        }
    }
}

fn rates(schedule: &dyn Schedule, n: usize, device: &Device) -> Vec<f64> {
    schedule.check().unwrap();
    let zero = Tensor::from_slice(&[0f32], &[], device);
    let lr: Vec<Tensor> = (0..n)
        .map(|t| &zero + schedule.lr(&Tensor::from_slice(&[t as f32], &[], device)))
        .collect();
    Tensor::stack(&lr.iter().collect::<Vec<_>>(), 0)
        .to_f64_vec()
        .unwrap()
}

#[test]
fn warm_up_and_cosine_are_those_of_nanogpt_and_pytorch() {
    let device = bimetal_cpu::cpu();
    let (peak, floor) = (1e-3, 1e-4);
    let cosine = |steps| Cosine {
        from: peak,
        to: floor,
        steps,
    };
    let cases: [(&str, Box<dyn Schedule>); 3] = [
        (
            "warmup_cosine_nanogpt",
            Box::new(warmup_cosine(peak, floor, 5, 25)),
        ),
        (
            "warmup_cosine_torch",
            Box::new(Warmup::reaching_peak(5, cosine(20))),
        ),
        ("cosine", Box::new(cosine(10))),
    ];
    for (name, schedule) in cases {
        let want = array(&case("torch_schedules.json", name)["outputs"]["lr"]).1;
        close(&rates(&*schedule, want.len(), &device), &want, 2e-6);
    }
}

#[test]
fn other_schedules_follow_their_formulas() {
    let device = bimetal_cpu::cpu();
    let check = |schedule: &dyn Schedule, want: &dyn Fn(f64) -> f64| {
        let want: Vec<f64> = (0..30).map(|t| want(t as f64)).collect();
        close(&rates(schedule, 30, &device), &want, 1e-5);
    };
    let line = LinearDecay {
        from: 0.1,
        to: 0.02,
        steps: 20,
    };
    check(&line, &|t| 0.1 - 0.08 * (t / 20.0).min(1.0));
    let stairs = StepDecay {
        initial: 0.5,
        factor: 0.1,
        every: 7,
    };
    check(&stairs, &|t| 0.5 * 0.1f64.powf((t / 7.0).floor()));
    let smooth = Exponential {
        initial: 0.5,
        factor: 0.9,
        every: 4,
    };
    check(&smooth, &|t| 0.5 * 0.9f64.powf(t / 4.0));
    check(&Warmup::new(9, 0.25), &|t| {
        0.25 * ((t + 1.0) / 10.0).min(1.0)
    });
    check(&Warmup::new(0, 0.25), &|_| 0.25);
}
