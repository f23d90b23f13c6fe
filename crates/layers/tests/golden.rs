//! Layers against PyTorch: values and gradients, in f64, f32 and mixed precision.
mod common;

use bimetal_layers::*;
use bimetal_tensor::{DType, Tensor};
use common::{Case, POLICIES, cases};

/// A layer with one input `x`: result and all gradients.
fn check_layer<L: Layer>(
    case: &Case,
    build: impl Fn(&ParamStore) -> L,
    training: bool,
    integers: bool,
) {
    for policy in POLICIES {
        let (store, layer) = case.model(policy.0, &build, &[]);
        let device = store.device();
        let input = store.policies().default.param;
        let x = match integers {
            true => case.indices("index", device),
            false => case.input("x", device).cast(input),
        };
        // A leaf of the input dtype, so that its gradient arrives in it.
        let x = if integers { x } else { x.detach() };
        let cx = if training {
            store.train()
        } else {
            store.eval()
        };
        let y = layer.forward(&x, &cx);
        assert_eq!(y.dtype(), store.policies().default.output, "{}", case.name);
        let params = store.params();
        let reads: Vec<Tensor> = params.iter().map(Param::read).collect();
        let mut inputs: Vec<(&str, &Tensor)> = params.iter().map(Param::path).zip(&reads).collect();
        if !integers {
            inputs.push(("x", &x));
        }
        case.check(policy, &[("y", &y)], &inputs);
    }
}

#[test]
fn linear() {
    for case in cases("torch_linear") {
        let (outputs, inputs) = (case.shape("weight")[0], case.shape("weight")[1]);
        let options = LinearOptions {
            bias: case.has("bias"),
            ..Default::default()
        };
        let build = |s: &ParamStore| Linear::with(&s.root(), inputs, outputs, options);
        check_layer(&case, build, true, false);
    }
}

#[test]
fn conv2d() {
    for case in cases("torch_conv2d") {
        let weight = case.shape("weight");
        let inputs = case.shape("x")[1];
        let padding = match case.name.as_str() {
            "conv2d_same" => Padding::Same,
            _ => Padding::Zeros(case.size("padding")),
        };
        let options = Conv2dOptions {
            stride: case.size("stride"),
            padding,
            dilation: case.size("dilation"),
            groups: case.f64("groups") as usize,
            ..Default::default()
        };
        let build = |s: &ParamStore| {
            Conv2d::with(
                &s.root(),
                inputs,
                weight[0],
                (weight[2], weight[3]),
                options,
            )
        };
        check_layer(&case, build, true, false);
    }
}

#[test]
fn pooling() {
    for case in cases("torch_pool2d") {
        let options = PoolOptions {
            stride: Some(case.size("stride")),
            padding: case.size("padding"),
            count_include_pad: case.flag("count_include_pad"),
        };
        let kernel = case.size("kernel");
        for policy in &POLICIES[..2] {
            let device = bimetal_cpu::cpu();
            let store = ParamStore::new(
                &device,
                policy.0.parse::<bimetal_precision::Policy>().unwrap(),
            );
            let x = case
                .input("x", &device)
                .cast(store.policies().default.param);
            let cx = store.train();
            let y = match case.name.starts_with("pool2d_max") {
                true => MaxPool2d::with(kernel, options).forward(&x, &cx),
                false => AvgPool2d::with(kernel, options).forward(&x, &cx),
            };
            case.check(*policy, &[("y", &y)], &[("x", &x)]);
        }
    }
}

#[test]
fn activations() {
    for case in cases("torch_activations") {
        let activation = match case.name.trim_end_matches("_far_out") {
            "relu" => Activation::Relu,
            "gelu" => Activation::Gelu,
            "gelu_tanh" => Activation::GeluTanh,
            "silu" => Activation::Silu,
            "tanh" => Activation::Tanh,
            "sigmoid" => Activation::Sigmoid,
            _ => continue,
        };
        for (dtype, policy) in [(DType::F64, POLICIES[0]), (DType::F32, POLICIES[1])] {
            let device = bimetal_cpu::cpu();
            let store = ParamStore::new(&device, bimetal_precision::Policy::float32());
            let x = case.input("x", &device).cast(dtype);
            let y = activation.forward(&x, &store.eval());
            case.check(policy, &[("y", &y)], &[("x", &x)]);
        }
    }
}

#[test]
fn norms() {
    for case in cases("torch_norms") {
        if case.name.starts_with("layer_norm") {
            let shape: Vec<usize> = case.shape("weight");
            let options = LayerNormOptions {
                eps: case.f64("eps"),
                bias: case.has("bias"),
            };
            let build = |s: &ParamStore| LayerNorm::with(&s.root(), &shape, options);
            check_layer(&case, build, true, false);
            continue;
        }
        let training = case.flag("training");
        let before = |name: &str, device: &bimetal_tensor::Device| {
            let v: Vec<f64> = case
                .attr(name)
                .as_array()
                .unwrap()
                .iter()
                .map(|x| x.as_f64().unwrap())
                .collect();
            Tensor::from_slice(&v, &[v.len()], device)
        };
        let build = |s: &ParamStore| {
            let norm = BatchNorm2d::new(&s.root(), case.shape("weight")[0]);
            norm.running_mean()
                .set(&before("running_mean_before", s.device()))
                .unwrap();
            norm.running_var()
                .set(&before("running_var_before", s.device()))
                .unwrap();
            norm
        };
        check_layer(&case, build, training, false);
        // The statistics that a step would write.
        for (policy, tolerance) in POLICIES {
            let (store, norm) = case.model(policy, build, &[]);
            let cx = if training {
                store.train()
            } else {
                store.eval()
            };
            let x = case
                .input("x", store.device())
                .cast(store.policies().default.compute);
            let _ = norm.forward(&x, &cx);
            let (mean, var) = (
                norm.running_mean().slot().unwrap(),
                norm.running_var().slot().unwrap(),
            );
            let wide = if policy == "float64" {
                DType::F64
            } else {
                DType::F32
            };
            assert_eq!((mean.dtype(), var.dtype()), (wide, wide));
            let tolerance = tolerance.min(1e-5);
            common::close(
                "mean",
                &cx.state(mean),
                case.expected("outputs", "running_mean"),
                tolerance,
            );
            common::close(
                "var",
                &cx.state(var),
                case.expected("outputs", "running_var"),
                tolerance,
            );
            assert_eq!(cx.into_updates().len(), if training { 2 } else { 0 });
        }
    }
}

#[test]
fn embedding() {
    for case in cases("torch_embedding") {
        let shape = case.shape("weight");
        let build = |s: &ParamStore| Embedding::new(&s.root(), shape[0], shape[1]);
        check_layer(&case, build, true, true);
    }
}

#[test]
fn multi_head_attention() {
    for case in cases("torch_multi_head_attention") {
        let width = case.shape("x")[2];
        let heads = case.f64("heads") as usize;
        let options = MultiHeadAttentionOptions {
            causal: case.flag("causal"),
            ..Default::default()
        };
        for policy in POLICIES {
            let build = |s: &ParamStore| MultiHeadAttention::with(&s.root(), width, heads, options);
            let (store, layer) = case.model(policy.0, build, &[]);
            let (device, dtype) = (store.device(), store.policies().default.param);
            let x = case.input("x", device).cast(dtype);
            let memory = case
                .has("memory")
                .then(|| case.input("memory", device).cast(dtype));
            // PyTorch's mask says what to leave out.
            let mask = case
                .has("key_padding")
                .then(|| case.input("key_padding", device).eq(0.0));
            let y = layer.attend(&x, memory.as_ref(), mask.as_ref(), &store.train());
            let params = store.params();
            let reads: Vec<Tensor> = params.iter().map(Param::read).collect();
            let mut inputs: Vec<(&str, &Tensor)> =
                params.iter().map(Param::path).zip(&reads).collect();
            inputs.push(("x", &x));
            inputs.extend(memory.as_ref().map(|m| ("memory", m)));
            case.check(policy, &[("y", &y)], &inputs);
        }
    }
}

#[test]
fn lstm() {
    for case in cases("torch_lstm") {
        let (layers, hidden) = (case.f64("layers") as usize, case.f64("hidden") as usize);
        let inputs = case.shape("x")[2];
        for policy in POLICIES {
            let options = LstmOptions {
                layers,
                ..Default::default()
            };
            let build = |s: &ParamStore| Lstm::with(&s.root(), inputs, hidden, options);
            let (store, layer) = case.model(policy.0, build, &[]);
            let (device, dtype) = (store.device(), store.policies().default.param);
            let x = case.input("x", device).cast(dtype);
            let state = case.has("h0").then(|| LstmState {
                h: case.input("h0", device).cast(dtype),
                c: case.input("c0", device).cast(dtype),
            });
            let (y, last) = layer.run(&x, state.as_ref(), &store.train());
            let params = store.params();
            let reads: Vec<Tensor> = params.iter().map(Param::read).collect();
            let mut inputs: Vec<(&str, &Tensor)> =
                params.iter().map(Param::path).zip(&reads).collect();
            inputs.push(("x", &x));
            if let Some(s) = &state {
                inputs.extend([("h0", &s.h), ("c0", &s.c)]);
            }
            case.check(
                policy,
                &[("y", &y), ("hn", &last.h), ("cn", &last.c)],
                &inputs,
            );
        }
    }
}

#[test]
fn losses() {
    for case in cases("torch_losses") {
        let reduction = match case.attr("reduction").as_str() {
            Some("sum") => Reduction::Sum,
            Some("none") => Reduction::None,
            _ => Reduction::Mean,
        };
        for (policy, dtype) in [
            (POLICIES[0], DType::F64),
            (POLICIES[1], DType::F32),
            (POLICIES[2], DType::F16),
        ] {
            let device = bimetal_cpu::cpu();
            let wide = if dtype == DType::F64 {
                dtype
            } else {
                DType::F32
            };
            if case.name.starts_with("cross_entropy") {
                let logits = case.input("logits", &device).cast(dtype);
                let options = CrossEntropyOptions {
                    ignore_index: case.f64("ignore_index") as i64,
                    label_smoothing: case.f64("label_smoothing"),
                    reduction,
                    weights: None,
                };
                let y = cross_entropy_with(&logits, &case.indices("target", &device), options);
                assert_eq!(y.dtype(), wide);
                case.check(policy, &[("y", &y)], &[("logits", &logits)]);
                continue;
            }
            let x = case.input("x", &device).cast(dtype);
            let target = case.input("target", &device).cast(dtype);
            let options = LossOptions {
                reduction,
                weights: None,
            };
            let y = match case.name.starts_with("mse") {
                true => mse_with(&x, &target, options),
                false => bce_with_logits_with(&x, &target, options),
            };
            assert_eq!(y.dtype(), wide);
            case.check(policy, &[("y", &y)], &[("x", &x), ("target", &target)]);
        }
    }
}
