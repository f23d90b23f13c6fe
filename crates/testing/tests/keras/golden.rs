//! The numbers of real Keras.
use bimetal::{DType, Device, Tensor};
use serde_json::Value;

/// The case of that name.
pub fn case(name: &str) -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/keras_mixed.json"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    let found = cases.into_iter().find(|c| c["case"] == name);
    found.unwrap_or_else(|| panic!("no case {name}"))
}

pub fn list(v: &Value) -> &[Value] {
    v.as_array().unwrap()
}

pub fn text(v: &Value) -> &str {
    v.as_str().unwrap()
}

/// Numbers, among them those that are not finite, as text.
pub fn numbers(v: &Value) -> Vec<f64> {
    let number = |x: &Value| x.as_f64().unwrap_or_else(|| text(x).parse().unwrap());
    list(v).iter().map(number).collect()
}

/// A tensor in f32.
pub fn tensor(v: &Value, device: &Device) -> Tensor {
    let shape = list(&v["shape"]).iter();
    let shape: Vec<usize> = shape.map(|n| n.as_u64().unwrap() as usize).collect();
    let data: Vec<f32> = numbers(&v["data"]).iter().map(|&x| x as f32).collect();
    Tensor::from_slice(&data, &shape, device)
}

/// A dtype by Keras' name for it.
pub fn dtype(name: &Value) -> DType {
    text(name).parse().unwrap()
}
