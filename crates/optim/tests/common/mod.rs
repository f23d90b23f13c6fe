//! What the tests share.
#![allow(dead_code)]
use bimetal_layers::ParamStore;
use bimetal_optim::{Optimizer, StepHandle};
use bimetal_precision::{Grads, LossScale, LossScaler, Unscaled};
use bimetal_tensor::{DType, Device, Slot, Tensor};
use serde_json::Value;

/// The cases of a golden file.
pub fn golden(file: &str) -> Vec<Value> {
    let path = format!("{}/../../tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The case of a golden file by name.
pub fn case(file: &str, name: &str) -> Value {
    golden(file)
        .into_iter()
        .find(|c| c["case"] == name)
        .unwrap_or_else(|| panic!("no case {name}"))
}

/// Shape and elements of a golden tensor.
pub fn array(v: &Value) -> (Vec<usize>, Vec<f64>) {
    let list = |v: &Value| v.as_array().unwrap().clone();
    let shape = list(&v["shape"])
        .iter()
        .map(|d| d.as_u64().unwrap() as usize)
        .collect();
    let data = list(&v["data"])
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect();
    (shape, data)
}

/// A golden tensor in f32.
pub fn tensor(v: &Value, device: &Device) -> Tensor {
    let (shape, data) = array(v);
    let data: Vec<f32> = data.iter().map(|&x| x as f32).collect();
    Tensor::from_slice(&data, &shape, device)
}

/// Within `tolerance` of the wanted value.
#[track_caller]
pub fn close(found: &[f64], want: &[f64], tolerance: f64) {
    near(found, want, |y| tolerance * y.abs());
}

/// Within `tolerance` of values near 1, even where they cancel.
#[track_caller]
pub fn close_to_ones(found: &[f64], want: &[f64], tolerance: f64) {
    near(found, want, |y| tolerance * y.abs().max(1.0));
}

#[track_caller]
fn near(found: &[f64], want: &[f64], bound: impl Fn(f64) -> f64) {
    assert_eq!(found.len(), want.len());
    for (i, (x, y)) in found.iter().zip(want).enumerate() {
        assert!((x - y).abs() <= bound(*y), "element {i}: {x} is not {y}");
    }
}

pub fn vector(data: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(data, &[data.len()], device)
}

/// A store with f32 vectors as parameters.
pub fn store(device: &Device, params: &[(&str, &[f32])]) -> ParamStore {
    let store = ParamStore::new(device, bimetal_precision::Policy::float32());
    for (name, data) in params {
        let _ = store.root().param_from(name, &vector(data, device));
    }
    store.check().unwrap();
    store
}

pub fn slot(store: &ParamStore, path: &str) -> Slot {
    store.param(path).unwrap().slot().unwrap().clone()
}

pub fn values(slot: &Slot) -> Vec<f64> {
    slot.read().to_f64_vec().unwrap()
}

pub fn applied(store: &ParamStore) -> u32 {
    store.applied().unwrap().to_vec::<u32>().unwrap()[0]
}

pub fn scaler(scale: LossScale, device: &Device) -> LossScaler {
    LossScaler::new(scale, device).unwrap()
}

/// Unscaled gradients from values, in the order of the store's parameters; what is given is multiplied by the scale first.
pub fn given(store: &ParamStore, scaler: &LossScaler, grads: &[Tensor]) -> Grads<Unscaled> {
    let device = store.device();
    let scale = scaler.scale_tensor();
    let loss = Tensor::zeros(&[], DType::F32, device);
    let slots = store.trainable_slots().unwrap();
    assert_eq!(slots.len(), grads.len());
    let pairs = slots
        .into_iter()
        .zip(grads)
        .map(|(s, g)| (s, Some(g * &scale)))
        .collect();
    scaler.scale(&loss).with_gradients(pairs).unwrap().unscale()
}

/// One step with given gradients.
pub fn step(
    optimizer: &mut dyn Optimizer,
    store: &ParamStore,
    scaler: &LossScaler,
    grads: &[Tensor],
) -> StepHandle {
    let grads = given(store, scaler, grads);
    optimizer.step(store.train(), grads).unwrap()
}
