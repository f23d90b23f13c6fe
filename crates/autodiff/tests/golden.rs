//! Values and gradients against PyTorch's, in f64.
mod common;
use bimetal_autodiff::vjp;
use bimetal_tensor::graph::{AttentionSpec, Attr, Composite, Conv2d, OptimRule, Pool2d};
use bimetal_tensor::{DType, Tensor};
use common::*;
use serde_json::Value;
use std::collections::HashMap;

fn numbers(v: &Value) -> Vec<f64> {
    let number = |v: &Value| match v.as_str() {
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        Some(_) => f64::NAN,
        None => v.as_f64().unwrap(),
    };
    v.as_array().unwrap().iter().map(number).collect()
}

fn sizes(v: &Value) -> Vec<usize> {
    numbers(v).iter().map(|&v| v as usize).collect()
}

fn pair(v: &Value) -> [u32; 2] {
    [sizes(v)[0] as u32, sizes(v)[1] as u32]
}

/// One case: named inputs as f64 tensors.
struct Case {
    json: Value,
    inputs: HashMap<String, Tensor>,
}

impl Case {
    fn name(&self) -> &str {
        self.json["case"].as_str().unwrap()
    }
    fn attr(&self, name: &str) -> &Value {
        &self.json["attrs"][name]
    }
    fn number(&self, name: &str) -> f64 {
        self.attr(name).as_f64().unwrap()
    }
    fn get(&self, name: &str) -> Option<&Tensor> {
        self.inputs.get(name)
    }
    fn at(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| panic!("no {name}"))
    }
    fn want(&self, group: &str, name: &str) -> Vec<f64> {
        numbers(&self.json[group][name]["data"])
    }

    /// Compares the result and all gradients.
    fn check(&self, y: &Tensor) {
        let name = self.name();
        println!("{name}");
        close(&values(y), &self.want("outputs", "y"), 1e-9);
        let grads = self.json["grads"].as_object().unwrap();
        let names: Vec<&String> = grads.keys().collect();
        let wrt: Vec<&Tensor> = names.iter().map(|n| self.at(n)).collect();
        let one = y.ones_like();
        let cotangent = self.get("cotangent").unwrap_or(&one);
        let found = vjp(&[y], &[cotangent], &wrt).unwrap();
        for (n, g) in names.iter().zip(found) {
            println!("{name}: {n}");
            close(&values(&g.unwrap()), &numbers(&grads[*n]["data"]), 1e-9);
        }
    }
}

fn cases(subject: &str) -> Vec<Case> {
    let path = format!(
        "{}/../../tests/golden/torch_{subject}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    let list: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(!list.is_empty());
    let build = |json: Value| {
        let inputs = json["inputs"].as_object().unwrap();
        let tensor = |v: &Value| f64s(&numbers(&v["data"]), &sizes(&v["shape"]));
        Case {
            inputs: inputs.iter().map(|(k, v)| (k.clone(), tensor(v))).collect(),
            json,
        }
    };
    list.into_iter().map(build).collect()
}

#[test]
fn activations() {
    for c in cases("activations") {
        let x = c.at("x");
        let kind = c.name().replace("_far_out", "");
        c.check(&match kind.as_str() {
            "relu" => x.relu(),
            "gelu" => x.gelu(),
            "gelu_tanh" => x.gelu_tanh(),
            "silu" => x.silu(),
            "tanh" => x.tanh(),
            "sigmoid" => x.sigmoid(),
            "softplus" => x.softplus(),
            "elu" => x.gt(0.0).select(x, x.expm1()),
            other => panic!("{other}"),
        });
    }
}

#[test]
fn attention() {
    for c in cases("attention") {
        let spec = AttentionSpec {
            scale: Attr(c.number("scale")),
            causal: c.attr("causal").as_bool().unwrap(),
            key_mask: false,
            dropout: None,
        };
        let mask = c.get("key_padding").map(|p| p.eq(0.0));
        let heads = |name: &str| c.at(name).transpose(1, 2);
        let y = heads("q").attention(&heads("k"), &heads("v"), mask.as_ref(), None, spec);
        c.check(&y.transpose(1, 2));
    }
}

#[test]
fn convolutions() {
    for c in cases("conv2d") {
        let p = pair(c.attr("padding"));
        let conv = Conv2d {
            stride: pair(c.attr("stride")),
            padding: [p[0], p[0], p[1], p[1]],
            dilation: pair(c.attr("dilation")),
            groups: c.number("groups") as u32,
        };
        let bias = c.at("bias").reshape(&[-1, 1, 1]);
        c.check(&(c.at("x").conv2d(c.at("weight"), conv) + bias));
    }
}

#[test]
fn embeddings_and_linear_layers() {
    for c in cases("embedding") {
        c.check(&c.at("weight").take(&c.at("index").cast(DType::I32), 0));
    }
    for c in cases("linear") {
        let y = c.at("x").matmul(&c.at("weight").t());
        c.check(&match c.get("bias") {
            Some(b) => y + b,
            None => y,
        });
    }
}

#[test]
fn losses() {
    for c in cases("losses") {
        let reduction = c.attr("reduction").as_str().unwrap();
        let target = c.at("target");
        let (rows, count) = match c.get("logits") {
            Some(logits) => {
                let ignore = c.number("ignore_index");
                let target = target.cast(DType::I64);
                let rows =
                    logits.cross_entropy_rows(&target, ignore as i64, c.number("label_smoothing"));
                let count = target.ne(ignore).cast(DType::F64).sum_all();
                (rows, count)
            }
            None if c.name().starts_with("mse") => {
                let x = c.at("x");
                ((x - target).square(), x.ones_like().sum_all())
            }
            None => {
                let x = c.at("x");
                (x.softplus() - x * target, x.ones_like().sum_all())
            }
        };
        c.check(&match reduction {
            "mean" => rows.sum_all() / count,
            "sum" => rows.sum_all(),
            _ => rows,
        });
    }
}

#[test]
fn lstm() {
    for c in cases("lstm") {
        let [b, time, _] = c.at("x").dims().unwrap();
        let hidden = c.number("hidden") as usize;
        let mut x = c.at("x").clone();
        let (mut hs, mut cs) = (Vec::new(), Vec::new());
        for l in 0..c.number("layers") as usize {
            let w = |n: &str| c.at(&format!("{n}_l{l}"));
            let state = |n: &str| match c.get(n) {
                Some(t) => t.index(0, l),
                None => Tensor::zeros(&[b, hidden], DType::F64, device()),
            };
            let (mut h, mut cell) = (state("h0"), state("c0"));
            let mut out = Vec::new();
            for t in 0..time {
                let gates = x.index(1, t).matmul(&w("weight_ih").t())
                    + w("bias_ih")
                    + h.matmul(&w("weight_hh").t())
                    + w("bias_hh");
                (h, cell) = gates.lstm_cell(&cell);
                out.push(h.clone());
            }
            x = Tensor::stack(&out.iter().collect::<Vec<_>>(), 1);
            hs.push(h);
            cs.push(cell);
        }
        let all = |v: &[Tensor]| values(&Tensor::stack(&v.iter().collect::<Vec<_>>(), 0));
        close(&all(&hs), &c.want("outputs", "hn"), 1e-9);
        close(&all(&cs), &c.want("outputs", "cn"), 1e-9);
        c.check(&x);
    }
}

#[test]
fn norms() {
    for c in cases("norms") {
        let (x, w, eps) = (c.at("x"), c.at("weight"), c.number("eps"));
        let zero = w.zeros_like();
        let b = c.get("bias").unwrap_or(&zero);
        let shape = x.shape().unwrap();
        c.check(&match c.attr("training").as_bool() {
            Some(true) => x.batch_norm(w, b, eps).0,
            Some(false) => {
                let stat = |n: &str| f64s(&numbers(c.attr(n)), &[2, 1, 1]);
                let n =
                    (x - stat("running_mean_before")) / (stat("running_var_before") + eps).sqrt();
                n * w.reshape(&[-1, 1, 1]) + b.reshape(&[-1, 1, 1])
            }
            None => {
                let d = w.numel().unwrap() as isize;
                let dims: Vec<isize> = shape.iter().map(|&d| d as isize).collect();
                let (w, b) = (w.reshape(&[-1]), b.reshape(&[-1]));
                x.reshape(&[-1, d]).layer_norm(&w, &b, eps).reshape(&dims)
            }
        });
    }
}

#[test]
fn pooling() {
    for c in cases("pool2d") {
        let p = pair(c.attr("padding"));
        let pool = Pool2d {
            kernel: pair(c.attr("kernel")),
            stride: pair(c.attr("stride")),
            padding: [p[0], p[0], p[1], p[1]],
            count_include_pad: c.attr("count_include_pad").as_bool().unwrap_or(true),
        };
        let x = c.at("x");
        c.check(&match c.name().contains("max") {
            true => x.max_pool2d(pool).0,
            false => x.avg_pool2d(pool),
        });
    }
}

#[test]
fn softmax() {
    for c in cases("softmax") {
        let (x, axis) = (c.at("x"), c.number("axis") as isize);
        c.check(&match c.name().starts_with("log") {
            true => x.log_softmax(axis),
            false => x.softmax(axis),
        });
    }
}

/// Ten steps of each optimizer; learning rate, factor and count are f32 by contract.
#[test]
fn optimizers() {
    for c in cases("optimizers") {
        println!("{}", c.name());
        let number = |name: &str| c.attr(name).as_f64().unwrap_or(0.0);
        let adam = c.name().starts_with("adam");
        let (rule, beta1, beta2) = if adam {
            let betas = numbers(c.attr("betas"));
            let decoupled = c.name().starts_with("adamw");
            (OptimRule::Adam { decoupled }, betas[0], betas[1])
        } else {
            let (momentum, dampening) = (number("momentum"), number("dampening"));
            let nesterov = c.attr("nesterov").as_bool().unwrap();
            let momentum_on = momentum != 0.0;
            let rule = OptimRule::Sgd {
                momentum: momentum_on,
                nesterov,
            };
            (rule, momentum, dampening)
        };
        for name in ["weight", "bias"] {
            let group = &c.attr("groups")[name];
            let of = |key: &str| group[key].as_f64().unwrap_or_else(|| number(key));
            let composite = Composite::OptimUpdate {
                rule,
                beta1: Attr(beta1),
                beta2: Attr(beta2),
                eps: Attr(number("eps")),
                weight_decay: Attr(of("weight_decay")),
            };
            let grads = c.at(&format!("grad_{name}"));
            let want = c.want("outputs", name);
            let mut state = vec![c.at(name).clone()];
            state.resize(1 + rule.moments(), c.at(name).zeros_like());
            let n = state[0].numel().unwrap();
            for step in 0..10 {
                let lr = match c.attr("lr").as_array() {
                    Some(list) => list[step].as_f64().unwrap(),
                    None => of("lr"),
                };
                let f = |v: f64| Tensor::full(&[], v, DType::F32, device());
                let apply = Tensor::full(&[], 1.0, DType::Bool, device());
                // The gradient arrives scaled by 4 and the factor takes that back.
                let g = grads.index(0, step) * 4.0;
                let scalars = [f(lr), f(0.25), f(step as f64 + 1.0)];
                let mut inputs = vec![&apply, &scalars[0], &scalars[1], &scalars[2], &state[0], &g];
                inputs.extend(&state[1..]);
                let t = Tensor::composite(composite, &inputs);
                state = (0..state.len()).map(|i| t.output(i)).collect();
                close(&values(&state[0]), &want[step * n..(step + 1) * n], 1e-7);
            }
            let moments = match adam {
                true => vec!["exp_avg", "exp_avg_sq"],
                false => vec!["momentum_buffer"],
            };
            for (t, moment) in state[1..].iter().zip(moments) {
                let want = c.want("outputs", &format!("{name}.{moment}"));
                close(&values(t), &want, 1e-7);
            }
        }
    }
}
