//! What a device must be able to do: an object-safe trait of a few methods.
use crate::graph::Composite;
use crate::plan::{Meta, Plan};
use crate::{DType, Error, Result};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Device memory of a backend's own kind. Cheap to clone; the memory is returned when the last handle is dropped.
#[derive(Clone)]
pub struct Buffer {
    bytes: usize,
    data: Arc<dyn Any + Send + Sync>,
}

impl Buffer {
    /// Wraps a backend's memory of `bytes` bytes.
    pub fn new(bytes: usize, data: Arc<dyn Any + Send + Sync>) -> Buffer {
        Buffer { bytes, data }
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The backend's memory, if it is of type `T`.
    pub fn downcast<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.data.downcast_ref()
    }

    /// Whether this is the only handle: the memory may be reused in place.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.data) == 1
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

/// Whether a device computes a dtype in hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// In hardware.
    Native,
    /// By conversion: right, but not faster than f32.
    Emulated,
    /// Not at all.
    No,
}

/// What a device is and can do.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The device's name, such as a processor or card.
    pub name: String,
    /// The backend: `cpu`, `wgpu`, `cuda`.
    pub kind: &'static str,
    /// The instruction set or architecture: results are bit-equal only on equal ones.
    pub architecture: String,
    /// Dtypes and how they are computed.
    pub dtypes: Vec<(DType, Support)>,
    /// Dtypes that matrix units multiply, empty if there are none.
    pub matrix_units: Vec<DType>,
    /// Worker threads (CPU) or multiprocessors.
    pub units: usize,
    /// The most instructions of a fused program.
    pub max_instructions: usize,
    /// The most buffers of a fused program.
    pub max_buffers: usize,
}

impl DeviceInfo {
    /// How the device computes `dtype`.
    pub fn support(&self, dtype: DType) -> Support {
        self.dtypes
            .iter()
            .find(|(d, _)| *d == dtype)
            .map_or(Support::No, |(_, s)| *s)
    }
}

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// In buffers that somebody holds.
    pub live: usize,
    /// The largest `live` plus arena seen.
    pub peak: usize,
    /// Taken from the system, cached blocks included.
    pub reserved: usize,
    /// Saved for the backward pass by the plan that was run last.
    pub saved: usize,
}

/// What one run of a plan works on, in the plan's numbering.
pub struct Bindings<'a> {
    /// Values of the leaves.
    pub leaves: &'a [Buffer],
    /// Buffers of the state slots.
    pub slots: &'a [Buffer],
    /// Buffers for the outputs.
    pub outputs: &'a [Buffer],
    /// The run-time scalar table.
    pub scalars: &'a [f64],
}

/// A compiled plan.
pub trait Executable: Send + Sync {
    /// Submits the plan; does not wait where the device is asynchronous. An error before the first state write leaves all state
    /// as it was; the error of an index check names the plan's step through [`ExecError::step`].
    fn run(&self, bindings: &Bindings<'_>) -> Result<(), ExecError>;
}

/// Why a plan did not run to its end.
#[derive(Debug, Clone)]
pub struct ExecError {
    /// The number of the plan's step.
    pub step: usize,
    /// What went wrong.
    pub kind: crate::ErrorKind,
    /// Whether state may have been half written.
    pub state_written: bool,
}

/// A device of some kind. `CONTRIBUTING.md` says how to write one.
pub trait Backend: Send + Sync + 'static {
    /// Name, kind, dtypes, matrix units, limits.
    fn info(&self) -> &DeviceInfo;
    /// Whether the backend runs this composite on operands like these itself; otherwise it is decomposed.
    fn native(&self, composite: &Composite, inputs: &[Meta]) -> bool;
    /// Memory of at least `bytes` bytes; contents are undefined.
    fn alloc(&self, bytes: usize) -> Result<Buffer>;
    /// Present use of memory.
    fn memory(&self) -> MemoryReport;
    /// Copies host bytes to the start of `dst`.
    fn upload(&self, dst: &Buffer, src: &[u8]) -> Result<()>;
    /// Copies the start of `src` to host bytes, after the work submitted before.
    fn download(&self, src: &Buffer, dst: &mut [u8]) -> Result<()>;
    /// Makes a plan runnable.
    fn compile(&self, plan: &Arc<Plan>) -> Result<Box<dyn Executable>>;
    /// Waits for all work submitted.
    fn sync(&self) -> Result<()>;
    /// Whether plans that run again and again are recorded, launches and all, and replayed; values do not depend on it. Gives whether the backend can.
    fn set_replay(&self, on: bool) -> bool {
        let _ = on;
        false
    }
    /// Runs of plans that were replayed so far.
    fn replays(&self) -> u64 {
        0
    }
}

impl ExecError {
    /// As an error of the operation at `label`.
    pub(crate) fn into_error(self, op: &'static str, label: crate::Label) -> Error {
        Error::at(op, self.kind, label)
    }
}
