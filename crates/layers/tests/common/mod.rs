//! Golden values of PyTorch, and comparison with them.
#![allow(dead_code)] // each test file uses a part
use bimetal_autodiff::grad;
use bimetal_layers::{ParamStore, Size2d};
use bimetal_precision::Policy;
use bimetal_tensor::{DType, Device, Tensor};
use serde_json::Value;

/// The policies every layer is tested under, with the error allowed relative to the largest element of an array.
pub const POLICIES: [(&str, f64); 6] = [
    ("float64", 1e-9),
    ("float32", 2e-6),
    ("mixed_float16", 6e-3),
    ("mixed_bfloat16", 5e-2),
    ("float16", 6e-3),
    ("p=f32,c=f16,o=f32", 6e-3),
];

pub struct Case {
    value: Value,
    pub name: String,
}

pub fn cases(file: &str) -> Vec<Case> {
    let path = format!(
        "{}/../../tests/golden/{file}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    all.into_iter()
        .map(|value| Case {
            name: value["case"].as_str().unwrap().to_string(),
            value,
        })
        .collect()
}

fn numbers(v: &Value) -> Vec<f64> {
    let number = |x: &Value| match x.as_str() {
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        Some(_) => f64::NAN,
        None => x.as_f64().unwrap(),
    };
    v.as_array().unwrap().iter().map(number).collect()
}

impl Case {
    pub fn attr(&self, name: &str) -> &Value {
        &self.value["attrs"][name]
    }

    pub fn f64(&self, name: &str) -> f64 {
        self.attr(name).as_f64().unwrap()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.attr(name).as_bool().unwrap_or(false)
    }

    pub fn size(&self, name: &str) -> Size2d {
        let v = numbers(self.attr(name));
        (v[0] as usize, v[1] as usize).into()
    }

    pub fn has(&self, input: &str) -> bool {
        self.value["inputs"].get(input).is_some()
    }

    pub fn shape(&self, input: &str) -> Vec<usize> {
        let s = numbers(&self.value["inputs"][input]["shape"]);
        s.into_iter().map(|d| d as usize).collect()
    }

    pub fn data(&self, input: &str) -> Vec<f64> {
        numbers(&self.value["inputs"][input]["data"])
    }

    pub fn input(&self, name: &str, device: &Device) -> Tensor {
        Tensor::from_slice(&self.data(name), &self.shape(name), device)
    }

    pub fn indices(&self, name: &str, device: &Device) -> Tensor {
        let v: Vec<i32> = self.data(name).iter().map(|&x| x as i32).collect();
        Tensor::from_slice(&v, &self.shape(name), device)
    }

    pub fn expected(&self, kind: &str, name: &str) -> (Vec<usize>, Vec<f64>) {
        let v = &self.value[kind][name];
        let shape = numbers(&v["shape"]).into_iter().map(|d| d as usize);
        (shape.collect(), numbers(&v["data"]))
    }

    /// A store whose model `build` makes, with the case's inputs as parameters; names are the same but where `rename` says so.
    pub fn model<M>(
        &self,
        policy: &str,
        build: impl FnOnce(&ParamStore) -> M,
        rename: &[(&str, &str)],
    ) -> (ParamStore, M) {
        let device = bimetal_cpu::cpu();
        let store = ParamStore::new(&device, policy.parse::<Policy>().unwrap()).seed(3);
        let model = build(&store);
        store.check().unwrap();
        for p in store.params() {
            let found = rename.iter().find(|(path, _)| *path == p.path());
            let name = found.map_or(p.path(), |(_, name)| name);
            p.set(&self.input(name, &device)).unwrap();
        }
        (store, model)
    }

    /// Compares results with PyTorch's outputs, and derivatives with its gradients.
    pub fn check(
        &self,
        (policy, tolerance): (&str, f64),
        outputs: &[(&str, &Tensor)],
        inputs: &[(&str, &Tensor)],
    ) {
        for (name, t) in outputs {
            let what = format!("{} {policy} {name}", self.name);
            close(&what, t, self.expected("outputs", name), tolerance);
        }
        let y = outputs[0].1;
        let loss = if self.has("cotangent") {
            let g = self.input("cotangent", y.device().unwrap());
            (y.cast(DType::F64) * g).sum_all()
        } else {
            y.clone()
        };
        if inputs.is_empty() {
            return;
        }
        let wrt: Vec<&Tensor> = inputs.iter().map(|(_, t)| *t).collect();
        let grads = grad(&loss, &wrt).unwrap();
        for ((name, t), g) in inputs.iter().zip(&grads) {
            let what = format!("{} {policy} gradient of {name}", self.name);
            assert_eq!(g.dtype(), t.dtype(), "{what}");
            close(&what, g, self.expected("grads", name), 2.0 * tolerance);
        }
    }
}

pub fn close(what: &str, found: &Tensor, expected: (Vec<usize>, Vec<f64>), tolerance: f64) {
    let (shape, expected) = expected;
    let found_shape = found.shape().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(found_shape[..], shape[..], "{what}");
    let found = found.to_f64_vec().unwrap_or_else(|e| panic!("{what}: {e}"));
    let largest = expected.iter().fold(0.01f64, |m, x| m.max(x.abs()));
    for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
        assert!(
            (f - e).abs() <= tolerance * largest,
            "{what}: element {i} is {f}, expected {e}"
        );
    }
}
