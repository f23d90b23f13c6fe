//! The device of a cubecl runtime, as the front end sees it.
use crate::kernels;
use crate::matrix_units::MatrixUnits;
use crate::memory::{Arena, Block, Counters};
use crate::plan::GpuPlan;
use bimetal_tensor::graph::Composite;
use bimetal_tensor::plan::{Meta, Plan};
use bimetal_tensor::{
    Backend, Buffer, DeviceInfo, Error, ErrorKind, ExecError, Executable, Label, MemoryReport,
    Result,
};
use cubecl::bytes::Bytes;
use cubecl::client::Client;
use cubecl::prelude::CubeCount;
use cubecl::server::Handle;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A backend on a client of any cubecl runtime: `bimetal-wgpu` and `bimetal-cuda` open the client and say what the device can do.
pub struct GpuBackend {
    info: DeviceInfo,
    shared: Arc<Shared>,
}

/// What compiled plans keep of their device.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) limits: Limits,
    pub(crate) arena: Arena,
    counters: Arc<Counters>,
    /// The most bytes that buffers may hold together.
    memory: AtomicUsize,
    /// Whether plans are recorded and replayed.
    replay: AtomicBool,
    /// Runs that were replayed.
    pub(crate) replayed: AtomicU64,
    /// Set by kernels that met an index outside of its axis: a code, the plan, its step, the index.
    pub(crate) fault: Handle,
    plans: Mutex<HashMap<u32, Weak<Plan>>>,
    next_plan: AtomicU32,
    /// The first failure of the device, after which nothing on it can be trusted.
    failed: Mutex<Option<String>>,
}

/// What kernels have to respect.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest buffer that a kernel can bind, in bytes.
    pub max_binding: usize,
    /// The most units of a cube.
    pub max_units: u32,
    /// The most cubes along one axis of a launch.
    pub max_cubes: u32,
    /// The matrix units.
    pub matrix: MatrixUnits,
}

/// Words of the fault buffer.
pub(crate) const FAULT_WORDS: usize = 4;

impl GpuBackend {
    /// A backend on an open client.
    pub fn new(client: Client, info: DeviceInfo, limits: Limits) -> GpuBackend {
        let fault = client.create_from_slice(&[0; 4 * FAULT_WORDS]);
        GpuBackend {
            shared: Arc::new(Shared {
                client,
                name: info.name.clone(),
                limits,
                arena: Arena::default(),
                counters: Arc::new(Counters::default()),
                memory: AtomicUsize::new(usize::MAX),
                replay: AtomicBool::new(false),
                replayed: AtomicU64::new(0),
                fault,
                plans: Mutex::default(),
                next_plan: AtomicU32::new(1),
                failed: Mutex::default(),
            }),
            info,
        }
    }

    /// Lets buffers hold at most `bytes` bytes together, for runtimes that do not say when the device's memory ends, or end with it. An allocation beyond is an error that changes
    /// nothing.
    pub fn with_memory(self, bytes: usize) -> GpuBackend {
        self.shared.memory.store(bytes, Ordering::Relaxed);
        self
    }
}

/// Buffers from this size on are asked for at once whether they are there, if there were never as many bytes before.
const CHECKED_BYTES: usize = 1 << 20;

impl Shared {
    /// Whether plans are recorded and replayed.
    pub(crate) fn replays(&self) -> bool {
        self.replay.load(Ordering::Relaxed)
    }

    /// A grid of at least `cubes` cubes.
    pub(crate) fn grid(&self, cubes: usize) -> CubeCount {
        let most = self.limits.max_cubes as usize;
        if cubes <= most {
            CubeCount::Static(cubes as u32, 1, 1)
        } else {
            let y = cubes.div_ceil(most);
            CubeCount::Static(cubes.div_ceil(y) as u32, y as u32, 1)
        }
    }

    /// A number under which kernels report a plan's faults.
    pub(crate) fn register(&self, plan: &Arc<Plan>) -> u32 {
        let number = self.next_plan.fetch_add(1, Ordering::Relaxed);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.retain(|_, p| p.strong_count() > 0);
        plans.insert(number, Arc::downgrade(plan));
        number
    }

    /// Marks the device as failed, unless it was; returns the message for this failure.
    pub(crate) fn fail(&self, detail: String) -> String {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.get_or_insert_with(|| detail.clone());
        detail
    }

    /// An error if the device has failed before.
    pub(crate) fn alive(&self) -> Result<(), String> {
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(first) => Err(format!(
                "{} failed before and what it holds cannot be trusted; open it again and reload the checkpoint. The first failure: {first}",
                self.name
            )),
        }
    }

    pub(crate) fn block(&self, bytes: usize) -> Result<Block, String> {
        let padded = bytes.max(4).next_multiple_of(4);
        let MemoryReport { live, peak, .. } = self.counters.report(0);
        let held = format!("buffers hold {live} bytes now and held at most {peak}");
        let name = &self.name;
        if padded > self.limits.max_binding {
            return Err(format!(
                "a buffer of {bytes} bytes is larger than {name} can bind ({} bytes); use a smaller batch or split the tensor ({held})",
                self.limits.max_binding
            ));
        }
        let memory = self.memory.load(Ordering::Relaxed);
        let beyond = |why: String| {
            format!(
                "out of device memory: {name} has no {bytes} bytes left ({why}{held}); use a smaller batch, recompute by `checkpoint`, or free other tensors"
            )
        };
        if live.saturating_add(padded) > memory {
            return Err(beyond(format!("of {memory}; ")));
        }
        let handle = self.client.empty(padded);
        if padded >= CHECKED_BYTES && live + padded > peak {
            self.check([&handle])
                .map_err(|e| beyond(format!("{e}; ")))?;
        }
        Ok(Block::new(handle, padded, &self.counters))
    }

    /// What a kernel reported since the last call, and forgets it.
    fn fault(&self, words: &[u32]) -> Option<Fault> {
        if words.first().is_none_or(|code| *code == 0) {
            return None;
        }
        self.client
            .write(&self.fault, Bytes::from_bytes_vec(vec![0; 4 * FAULT_WORDS]));
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.get(&words[1]).and_then(Weak::upgrade);
        let number = words[2] as usize;
        let step = plan.as_ref().and_then(|p| p.steps.get(number));
        let label = step.and_then(|s| plan.as_ref()?.labels.get(s.node as usize));
        Some(Fault {
            step: number,
            op: step.map_or("eval", |s| s.kernel.name()),
            label: label.cloned(),
            kind: ErrorKind::IndexOutOfRange {
                index: words[3] as i32 as i64,
                size: step
                    .and_then(|s| kernels::axis_size(&s.kernel))
                    .unwrap_or(0),
            },
        })
    }

    /// What the runtime has to say against these buffers.
    pub(crate) fn check<'a>(
        &self,
        handles: impl IntoIterator<Item = &'a Handle>,
    ) -> Result<(), String> {
        caught(|| self.client.check(handles)).map(drop)
    }

    /// Reads buffers together with what kernels reported.
    fn read_all(&self, mut handles: Vec<Handle>) -> Result<(Vec<Bytes>, Option<Fault>), String> {
        self.alive()?;
        handles.push(self.fault.clone());
        let read = caught(|| self.client.read(handles));
        let mut bytes = read.map_err(|e| self.fail(format!("{}: {e}", self.name)))?;
        let words = bytes.pop();
        let words: &[u32] = words.as_ref().map_or(&[], |w| bytemuck::cast_slice(w));
        let fault = self.fault(words);
        Ok((bytes, fault))
    }

    /// Reads buffers; an error if a kernel reported one since the last time.
    pub(crate) fn read(&self, op: &'static str, handles: Vec<Handle>) -> Result<Vec<Bytes>> {
        match self.read_all(handles) {
            Ok((bytes, None)) => Ok(bytes),
            Ok((_, Some(f))) => Err(Error::at(
                f.op,
                f.kind,
                f.label.unwrap_or_else(Label::current),
            )),
            Err(e) => Err(Error::device(op, e)),
        }
    }

    /// Waits, and says what a kernel of the plan that was run last reported.
    pub(crate) fn check_faults(&self) -> Result<(), ExecError> {
        let (step, kind) = match self.read_all(Vec::new()) {
            Ok((_, None)) => return Ok(()),
            Ok((_, Some(f))) => (f.step, f.kind),
            Err(detail) => (0, ErrorKind::Device { detail }),
        };
        Err(ExecError {
            step,
            kind,
            state_written: false,
        })
    }
}

/// An index outside of its axis, found by a kernel.
struct Fault {
    step: usize,
    op: &'static str,
    label: Option<Label>,
    kind: ErrorKind,
}

/// What a call of the runtime gives; a panic of the runtime's own thread, which it passes on to whoever waits, is an error like any other.
fn caught<T, E: std::fmt::Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|e| first_lines(&e)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(first_lines(&text.unwrap_or("the runtime gave up")))
        }
    }
}

/// The beginning of a runtime's message, whose rest is a backtrace.
fn first_lines(e: &dyn std::fmt::Display) -> String {
    let text = e.to_string();
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    lines
        .take_while(|l| !l.starts_with("Backtrace"))
        .take(6)
        .collect::<Vec<_>>()
        .join("; ")
}

pub(crate) fn block<'a>(op: &'static str, buffer: &'a Buffer, bytes: usize) -> Result<&'a Block> {
    let block = buffer
        .downcast::<Block>()
        .ok_or_else(|| Error::device(op, "the buffer belongs to another backend"))?;
    if bytes > block.bytes {
        return Err(Error::device(
            op,
            format!(
                "{bytes} bytes do not fit in a buffer of {} bytes",
                block.bytes
            ),
        ));
    }
    Ok(block)
}

impl Backend for GpuBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn native(&self, composite: &Composite, inputs: &[Meta]) -> bool {
        kernels::native(composite, inputs)
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.shared
            .alive()
            .and_then(|()| self.shared.block(bytes))
            .map(|block| Buffer::new(bytes, Arc::new(block)))
            .map_err(|e| Error::device("alloc", e))
    }

    fn memory(&self) -> MemoryReport {
        self.shared.counters.report(0)
    }

    fn upload(&self, dst: &Buffer, src: &[u8]) -> Result<()> {
        let block = block("upload", dst, src.len())?;
        if src.is_empty() {
            return Ok(());
        }
        let mut bytes = src.to_vec();
        bytes.resize(src.len().next_multiple_of(4), 0);
        let rest = (block.bytes - bytes.len()) as u64;
        let handle = block.handle.clone().offset_end(rest);
        self.shared
            .client
            .write(&handle, Bytes::from_bytes_vec(bytes));
        Ok(())
    }

    fn download(&self, src: &Buffer, dst: &mut [u8]) -> Result<()> {
        let block = block("download", src, dst.len())?;
        let bytes = self.shared.read("download", vec![block.handle.clone()])?;
        match bytes.first() {
            Some(b) if b.len() >= dst.len() => {
                dst.copy_from_slice(&b[..dst.len()]);
                Ok(())
            }
            _ => Err(Error::device(
                "download",
                format!("{} gave fewer bytes than asked for", self.shared.name),
            )),
        }
    }

    fn compile(&self, plan: &Arc<Plan>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(GpuPlan::new(plan, &self.shared)?))
    }

    fn set_replay(&self, on: bool) -> bool {
        // A way out, should a driver not do what recordings need.
        let allowed = std::env::var_os("BIMETAL_REPLAY").is_none_or(|v| v != "0");
        self.shared.replay.store(on && allowed, Ordering::Relaxed);
        allowed
    }

    fn replays(&self) -> u64 {
        self.shared.replayed.load(Ordering::Relaxed)
    }

    fn sync(&self) -> Result<()> {
        self.shared.read("sync", Vec::new()).map(drop)
    }
}
