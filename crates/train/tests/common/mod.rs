//! A small network with everything a resume must keep: dropout, BatchNorm statistics, a schedule, a dynamic loss scale.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bimetal_data::{Array, InMemory, Loader};
use bimetal_layers::{
    Activation, BatchNorm2d, Conv2d, Ctx, Dropout, Flatten, Layer, Linear, ParamStore, Sequential,
    cross_entropy,
};
use bimetal_precision::{DynamicLossScale, LossScale, PolicyMap};
use bimetal_tensor::Device;
use bimetal_train::{
    Callback, Control, Logs, Output, Result, StepRecord, Task, TensorBatch, TrainInfo,
};

pub fn device() -> Device {
    Device::new(bimetal_cpu::CpuBackend::new(Some(2)))
}

pub fn store(device: &Device, policy: &str) -> ParamStore {
    ParamStore::new(device, policy.parse::<PolicyMap>().unwrap()).seed(7)
}

pub struct Net(pub Sequential);

impl Net {
    pub fn new(store: &ParamStore) -> Net {
        let scope = store.root();
        let trunk = Net::trunk(store);
        Net(trunk.then(Linear::new(&scope.at("head").policy("float32"), 4 * 36, 3)))
    }

    /// With a linear layer that follows the store's policy.
    pub fn deep(store: &ParamStore) -> Net {
        let scope = store.root();
        let trunk = Net::trunk(store);
        let deep = trunk
            .then(Linear::new(&scope.at("hidden"), 4 * 36, 16))
            .then(Activation::Relu);
        Net(deep.then(Linear::new(&scope.at("head").policy("float32"), 16, 3)))
    }

    fn trunk(store: &ParamStore) -> Sequential {
        let scope = store.root();
        Sequential::new()
            .then(Conv2d::new(&scope.at("conv"), 1, 4, 3))
            .then(BatchNorm2d::new(&scope.at("norm"), 4))
            .then(Activation::Relu)
            .then(Flatten)
            .then(Dropout::new(&scope.at("dropout"), 0.3))
    }
}

impl Task for Net {
    fn training_step(&self, batch: &TensorBatch, cx: &Ctx) -> Output {
        let logits = self.0.forward(&batch[0].unsqueeze(1), cx);
        Output::new(cross_entropy(&logits, &batch[1])).accuracy(&logits, &batch[1])
    }
}

/// `n` images of 8 by 8 whose class is the third of the image that is brightest.
pub fn data(n: usize) -> InMemory {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32
    };
    let mut x = Vec::new();
    let mut y = Vec::new();
    for i in 0..n {
        let class = i % 3;
        for row in 0..8 {
            for _ in 0..8 {
                let bright = if row / 3 == class { 1.0 } else { 0.0 };
                x.push(random() - 0.5 + bright);
            }
        }
        y.push(class as i32);
    }
    let x = Array::from_vec(x, &[n, 8, 8]).unwrap();
    InMemory::new(vec![x, Array::from(y)]).unwrap()
}

pub fn loader(n: usize) -> Loader {
    Loader::new(data(n)).batch(8).shuffle(3)
}

/// A scale that starts so high that the first steps overflow, and grows within a few steps.
pub fn restless() -> LossScale {
    LossScale::Dynamic(DynamicLossScale {
        initial: 16_777_216.0,
        growth_interval: 4,
        ..DynamicLossScale::default()
    })
}

/// What happened, in order.
#[derive(Clone, Default)]
pub struct Record(pub Arc<Mutex<Vec<String>>>);

impl Record {
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// The lines of steps alone.
    pub fn steps(&self) -> Vec<String> {
        let steps = self.lines().into_iter();
        steps.filter(|line| line.starts_with("step")).collect()
    }

    fn push(&self, line: String) -> Result<Control> {
        self.0.lock().unwrap().push(line);
        Ok(Control::Continue)
    }
}

fn names(logs: &Logs) -> String {
    logs.keys().collect::<Vec<_>>().join("+")
}

impl Callback for Record {
    fn on_train_begin(&mut self, info: &TrainInfo) -> Result<Control> {
        let from = info.resumed.map_or(0, |r| r.step);
        self.push(format!(
            "train begin, {} epochs of {:?} from {from}",
            info.epochs, info.batches
        ))
    }
    fn on_train_end(&mut self, logs: &Logs) -> Result<Control> {
        self.push(format!("train end {}", names(logs)))
    }
    fn on_epoch_begin(&mut self, epoch: usize) -> Result<Control> {
        self.push(format!("epoch {epoch} begin"))
    }
    fn on_epoch_end(&mut self, epoch: usize, logs: &Logs) -> Result<Control> {
        let numbers: Vec<_> = logs
            .iter()
            .map(|(n, v)| format!("{n} {:016x}", v.to_bits()))
            .collect();
        self.push(format!("epoch {epoch} end {}", numbers.join(" ")))
    }
    fn on_batch_end(&mut self, batch: usize, logs: &Logs) -> Result<Control> {
        self.push(format!("batch {batch} end {}", names(logs)))
    }
    fn on_step(&mut self, r: &StepRecord) -> Result<Control> {
        let (loss, scale) = (r.loss.to_bits(), r.scale);
        self.push(format!(
            "step {} loss {loss:08x} scale {scale} {:?} applied {}",
            r.step, r.outcome, r.applied
        ))
    }
    fn on_validation_end(&mut self, logs: &Logs) -> Result<Control> {
        self.push(format!("validation end {}", names(logs)))
    }
}

/// A folder that is removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        // Tests of one name run at the same time.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = format!("bimetal-trainer-{name}-{process}-{number}");
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

/// All state of a store, as bytes.
pub fn bytes_of(store: &ParamStore) -> Vec<Vec<u8>> {
    let state = store.state().unwrap();
    state.iter().map(|slot| slot.to_bytes().unwrap()).collect()
}
