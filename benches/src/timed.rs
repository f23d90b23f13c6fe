//! A backend that counts the time its plans run, to tell it from the time the host spends on them.
use crate::clock;
use bimetal::cpu_backend::CpuBackend;
use bimetal::tensor::graph::Composite;
use bimetal::tensor::plan::{Meta, Plan};
use bimetal::tensor::{
    Backend, Bindings, Buffer, Device, DeviceInfo, ExecError, Executable, MemoryReport, Result,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// CPU time that the calling thread has spent inside of plans, in nanoseconds.
#[derive(Clone, Default)]
pub struct InPlans(Arc<AtomicU64>);

impl InPlans {
    /// The time so far, in milliseconds.
    pub fn ms(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e6
    }
}

struct Timed {
    inner: CpuBackend,
    spent: InPlans,
}

struct TimedPlan {
    inner: Box<dyn Executable>,
    spent: InPlans,
}

/// A CPU device that counts the time its plans run.
pub fn timed_cpu(threads: usize) -> (Device, InPlans) {
    let spent = InPlans::default();
    let backend = Timed {
        inner: CpuBackend::new(Some(threads)),
        spent: spent.clone(),
    };
    (Device::new(backend), spent)
}

impl Executable for TimedPlan {
    fn run(&self, bindings: &Bindings<'_>) -> Result<(), ExecError> {
        let start = clock::thread_ms();
        let result = self.inner.run(bindings);
        let spent = (clock::thread_ms() - start) * 1e6;
        self.spent.0.fetch_add(spent as u64, Ordering::Relaxed);
        result
    }
}

impl Backend for Timed {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn native(&self, composite: &Composite, inputs: &[Meta]) -> bool {
        self.inner.native(composite, inputs)
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.inner.alloc(bytes)
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn upload(&self, dst: &Buffer, src: &[u8]) -> Result<()> {
        self.inner.upload(dst, src)
    }

    fn download(&self, src: &Buffer, dst: &mut [u8]) -> Result<()> {
        self.inner.download(src, dst)
    }

    fn compile(&self, plan: &Arc<Plan>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(TimedPlan {
            inner: self.inner.compile(plan)?,
            spent: self.spent.clone(),
        }))
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
}
