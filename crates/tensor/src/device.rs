//! A device: a backend with the plans compiled for it.
use crate::eval::Cache;
use crate::{Backend, Buffer, DeviceInfo, MemoryReport, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// A device on which tensors live and plans run. Cheap to clone.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    backend: Box<dyn Backend>,
    pub(crate) cache: Mutex<Cache>,
    /// Runs that write state exclude all other runs; taken by user threads only, never by a worker of the backend.
    pub(crate) gate: RwLock<()>,
    pub(crate) compiled: AtomicU64,
    /// Nodes of the graph evaluated last: the next one is probably as large.
    pub(crate) nodes: AtomicUsize,
    pub(crate) saved: AtomicUsize,
    pub(crate) fusion: AtomicBool,
}

impl Device {
    /// A device over a backend.
    pub fn new(backend: impl Backend) -> Device {
        Device(Arc::new(Inner {
            backend: Box::new(backend),
            cache: Mutex::new(Cache::default()),
            gate: RwLock::new(()),
            compiled: AtomicU64::new(0),
            nodes: AtomicUsize::new(0),
            saved: AtomicUsize::new(0),
            fusion: AtomicBool::new(true),
        }))
    }

    /// What the device is and can do.
    pub fn info(&self) -> &DeviceInfo {
        self.0.backend.info()
    }

    /// Memory in bytes: live, peak, reserved, and saved for the backward pass by the last plan that had one.
    pub fn memory(&self) -> MemoryReport {
        MemoryReport {
            saved: self.0.saved.load(Ordering::Relaxed),
            ..self.0.backend.memory()
        }
    }

    /// The number of plans compiled so far. A training loop compiles its step once.
    pub fn plans_compiled(&self) -> u64 {
        self.0.compiled.load(Ordering::Relaxed)
    }

    /// Waits for all work submitted.
    pub fn sync(&self) -> Result<()> {
        self.0.backend.sync()
    }

    /// Whether chains of element-wise operations are fused (they are by default). Values do not depend on it.
    pub fn set_fusion(&self, on: bool) {
        self.0.fusion.store(on, Ordering::Relaxed);
    }

    /// Whether plans that run again and again are recorded and replayed (they are not, by default): one submission for all kernels of a step, as a CUDA graph on NVIDIA's devices. It takes a
    /// copy of each result and of each batch. Values do not depend on it. Gives whether the device can; where it cannot, plans are launched as ever.
    pub fn set_replay(&self, on: bool) -> bool {
        self.0.backend.set_replay(on)
    }

    /// Runs of plans that were replayed so far ([`Device::set_replay`]).
    pub fn replays(&self) -> u64 {
        self.0.backend.replays()
    }

    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// Whether both handles are the same device.
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.0.backend.alloc(bytes)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {})", self.info().kind, self.info().name)
    }
}
