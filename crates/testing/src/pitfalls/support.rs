//! What the tests share.
use bimetal::data::{Array, InMemory, Loader};
use bimetal::layers::{
    Activation, BatchNorm2d, Conv2d, Ctx, Dropout, Flatten, Layer, Linear, ParamStore, Sequential,
    cross_entropy,
};
use bimetal::optim::{Optimizer, StepHandle};
use bimetal::precision::{
    DynamicLossScale, Grads, LossScale, LossScaler, Policy, PolicyMap, Unscaled,
};
use bimetal::tensor::{Slot, Support};
use bimetal::train::{Output, Task, TensorBatch};
use bimetal::{DType, Device, Tensor};
use std::path::PathBuf;

pub fn vector(data: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(data, &[data.len()], device)
}

/// A store with vectors as parameters.
pub fn store(device: &Device, policy: Policy, params: &[(&str, &[f32])]) -> ParamStore {
    let store = ParamStore::new(device, policy);
    for (name, data) in params {
        let _ = store.root().param_from(name, &vector(data, device));
    }
    store.check().unwrap();
    store
}

pub fn slot(store: &ParamStore, path: &str) -> Slot {
    store.param(path).unwrap().slot().unwrap().clone()
}

pub fn list(t: &Tensor) -> Vec<f64> {
    t.to_f64_vec().unwrap()
}

pub fn values(slot: &Slot) -> Vec<f64> {
    list(&slot.read())
}

pub fn bits(slots: &[Slot]) -> Vec<Vec<u8>> {
    slots.iter().map(|s| s.to_bytes().unwrap()).collect()
}

pub fn applied(store: &ParamStore) -> u32 {
    store.applied().unwrap().to_vec::<u32>().unwrap()[0]
}

pub fn dynamic(device: &Device) -> LossScaler {
    LossScaler::new(LossScale::dynamic(), device).unwrap()
}

/// Where a float64 run is made that others are compared with: the device itself, or the CPU where it has no f64.
pub fn reference(device: &Device) -> Device {
    match device.info().support(DType::F64) {
        Support::No => bimetal::cpu(),
        _ => device.clone(),
    }
}

/// Within `tolerance` of the wanted values, or of 1 where they are smaller.
#[track_caller]
pub fn close(found: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(found.len(), want.len());
    for (i, (x, y)) in found.iter().zip(want).enumerate() {
        let bound = tolerance * y.abs().max(1.0);
        assert!((x - y).abs() <= bound, "element {i}: {x} is not {y}");
    }
}

/// The same bits; on devices whose driver may contract a product and a sum of one kernel, within a few units in the last place.
#[track_caller]
pub fn same(found: &[f64], want: &[f64], device: &Device) {
    match device.info().kind {
        "cpu" => assert_eq!(found, want),
        _ => close(found, want, 1e-6),
    }
}

/// Unscaled gradients from values, in the order of the store's parameters; what is given is multiplied by the scale first.
pub fn given(store: &ParamStore, scaler: &LossScaler, grads: &[Tensor]) -> Grads<Unscaled> {
    let scale = scaler.scale_tensor();
    let loss = Tensor::zeros(&[], DType::F32, store.device());
    let slots = store.trainable_slots().unwrap();
    assert_eq!(slots.len(), grads.len());
    let pairs = slots.into_iter().zip(grads);
    let pairs = pairs.map(|(s, g)| (s, Some(g * &scale))).collect();
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

/// One step on the gradients of a loss.
pub fn train(
    optimizer: &mut dyn Optimizer,
    store: &ParamStore,
    scaler: &LossScaler,
    loss: impl Fn(&Ctx) -> Tensor,
) -> StepHandle {
    let cx = store.train();
    let loss = loss(&cx);
    let slots = store.trainable_slots().unwrap();
    let grads = scaler.scale(&loss).grad(&slots).unwrap().unscale();
    optimizer.step(cx, grads).unwrap()
}

/// A small network with everything that training has to keep: BatchNorm statistics, dropout, an f32 head.
pub struct Net(pub Sequential);

impl Net {
    pub fn new(store: &ParamStore) -> Net {
        let scope = store.root();
        let net = Sequential::new()
            .then(Conv2d::new(&scope.at("conv"), 1, 4, 3))
            .then(BatchNorm2d::new(&scope.at("norm"), 4))
            .then(Activation::Relu)
            .then(Flatten)
            .then(Dropout::new(&scope.at("dropout"), 0.3))
            .then(Linear::new(&scope.at("head").policy("float32"), 4 * 36, 3));
        Net(net)
    }
}

impl Task for Net {
    fn training_step(&self, batch: &TensorBatch, cx: &Ctx) -> Output {
        let logits = self.0.forward(&batch[0].unsqueeze(1), cx);
        Output::new(cross_entropy(&logits, &batch[1])).accuracy(&logits, &batch[1])
    }
}

pub fn seeded(device: &Device, policy: &str) -> ParamStore {
    ParamStore::new(device, policy.parse::<PolicyMap>().unwrap()).seed(7)
}

/// `n` images of 8 by 8 whose class is the third that is brightest, in batches of 8.
pub fn loader(n: usize) -> Loader {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32
    };
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for i in 0..n {
        let class = i % 3;
        for k in 0..64 {
            let bright = if k / 8 / 3 == class { 1.0 } else { 0.0 };
            x.push(random() - 0.5 + bright);
        }
        y.push(class as i32);
    }
    let x = Array::from_vec(x, &[n, 8, 8]).unwrap();
    let data = InMemory::new(vec![x, Array::from(y)]).unwrap();
    Loader::new(data).batch(8).shuffle(3)
}

/// A scale that starts so high that the first steps overflow, and grows within a few steps.
pub fn restless() -> LossScale {
    LossScale::Dynamic(DynamicLossScale {
        initial: 16_777_216.0,
        growth_interval: 4,
        ..DynamicLossScale::default()
    })
}

/// A folder that is removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let dir = format!("bimetal-pitfalls-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let _ = std::fs::remove_dir_all(&dir);
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
