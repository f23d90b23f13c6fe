//! Looking closer does not make the host look more often: with any level of checks a sound step is read once.
use bimetal::cpu_backend::CpuBackend;
use bimetal::precision::{Halt, Level};
use bimetal::prelude::*;
use bimetal::tensor::graph::Composite;
use bimetal::tensor::plan::{Meta, Plan};
use bimetal::tensor::{Backend, Buffer, DeviceInfo, Executable, MemoryReport};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what the host reads.
struct Counted(CpuBackend, Arc<AtomicUsize>);

type Result<T> = bimetal::tensor::Result<T>;

impl Backend for Counted {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn native(&self, composite: &Composite, inputs: &[Meta]) -> bool {
        self.0.native(composite, inputs)
    }
    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.0.alloc(bytes)
    }
    fn memory(&self) -> MemoryReport {
        self.0.memory()
    }
    fn upload(&self, dst: &Buffer, src: &[u8]) -> Result<()> {
        self.0.upload(dst, src)
    }
    fn download(&self, src: &Buffer, dst: &mut [u8]) -> Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.download(src, dst)
    }
    fn compile(&self, plan: &Arc<Plan>) -> Result<Box<dyn Executable>> {
        self.0.compile(plan)
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
}

fn counted() -> (Device, Arc<AtomicUsize>) {
    let reads = Arc::new(AtomicUsize::new(0));
    (
        Device::new(Counted(CpuBackend::new(Some(1)), reads.clone())),
        reads,
    )
}

fn layers(store: &ParamStore) -> Sequential {
    let scope = store.root();
    Sequential::new()
        .then(Linear::new(&scope.at("a"), 8, 8))
        .then(Activation::Gelu)
        .then(Linear::new(&scope.at("b"), 8, 3))
}

#[test]
fn a_step_of_a_loop_is_read_once() {
    for level in [Level::Off, Level::Step, Level::Layer, Level::Op] {
        let (device, reads) = counted();
        let store = ParamStore::new(&device, "mixed_float16".parse::<PolicyMap>().unwrap());
        let net = layers(&store);
        let scaler = LossScaler::new(LossScale::Static(64.0), &device).unwrap();
        let halt = Halt::new(&device).unwrap();
        let params = store.trainable_slots().unwrap();
        let mut optimizer = Adam::new(1e-3);
        let x = Tensor::ones(&[4, 8], DType::F32, &device);
        let y = Tensor::from_slice(&[0, 1, 2, 0], &[4], &device);
        let before = reads.load(Ordering::Relaxed);
        let steps: Vec<StepHandle> = (0..5)
            .map(|_| {
                let cx = store.train();
                let loss = cross_entropy(&net.forward(&x, &cx), &y);
                let grads = scaler.scale(&loss).grad(&params).unwrap();
                let grads = grads.check_numerics(level).unscale().halting(&halt);
                optimizer.step(cx, grads).unwrap()
            })
            .collect();
        assert_eq!(
            reads.load(Ordering::Relaxed),
            before,
            "{level}: submitting waits for nothing"
        );
        for step in &steps {
            assert!(step.outcome().unwrap().is_applied());
            assert!(step.loss().unwrap() > 0.0 && !step.halted().unwrap());
        }
        assert_eq!(reads.load(Ordering::Relaxed), before + 5, "{level}");
    }
}

#[test]
fn the_trainer_reads_no_more_with_checks_than_without() {
    let run = |level: Level| {
        let (device, reads) = counted();
        let store = ParamStore::new(&device, "mixed_float16".parse::<PolicyMap>().unwrap()).seed(1);
        let net = layers(&store);
        let x: Vec<f32> = (0..40 * 8).map(|i| (i % 7) as f32 / 7.0).collect();
        let y: Vec<i32> = (0..40).map(|i| i % 3).collect();
        let data =
            InMemory::new(vec![Array::from_vec(x, &[40, 8]).unwrap(), Array::from(y)]).unwrap();
        let task =
            |b: &TensorBatch, cx: &Ctx| Output::new(cross_entropy(&net.forward(&b[0], cx), &b[1]));
        let mut trainer = Trainer::new(&store, Adam::new(1e-3))
            .loss_scale(LossScale::Static(64.0))
            .steps_per_execution(5)
            .check_numerics(level)
            .progress(false);
        let report = trainer
            .fit(&task, Loader::new(data).batch(4), None, 2)
            .unwrap();
        assert_eq!((report.applied, report.skipped), (20, 0));
        reads.load(Ordering::Relaxed)
    };
    let off = run(Level::Off);
    for level in [Level::Step, Level::Layer, Level::Op] {
        assert_eq!(run(level), off, "{level}");
    }
}
