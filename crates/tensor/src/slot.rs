//! State: fixed buffers that steps replace in place.
use crate::graph::Op;
use crate::plan::Meta;
use crate::tensor::Inputs;
use crate::{Buffer, DType, Device, Element, Error, ErrorKind, Label, Result, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A named state with one fixed buffer. Parameters, moments, statistics and counters are slots; graphs read them through
/// [`Slot::read`], and [`crate::commit`] writes them.
#[derive(Clone)]
pub struct Slot(Arc<Inner>);

struct Inner {
    id: u64,
    name: Arc<str>,
    meta: Meta,
    device: Device,
    buffer: Buffer,
    version: AtomicU64,
    poison: Mutex<Option<String>>,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Slot {
    /// A slot with a copy of `initial`'s value, on `device`.
    pub fn new(name: impl Into<Arc<str>>, initial: &Tensor, device: &Device) -> Result<Slot> {
        let meta = initial.check()?.meta();
        let buffer = device.alloc(meta.shape.numel() * meta.dtype.size())?;
        let slot = Slot(Arc::new(Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: name.into(),
            meta,
            device: device.clone(),
            buffer,
            version: AtomicU64::new(0),
            poison: Mutex::new(None),
        }));
        crate::eval::write_slot(&slot, initial)?;
        Ok(slot)
    }

    /// A slot with values of the host.
    pub fn from_bytes(
        name: impl Into<Arc<str>>,
        bytes: &[u8],
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Slot> {
        Slot::new(
            name,
            &Tensor::from_bytes(bytes, shape, dtype, device),
            device,
        )
    }

    /// The name, such as a parameter's path.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.0.meta.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.0.meta.dtype
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// A number that identifies the slot within this process.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// How often the slot has been written.
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// The present value in a graph; valid until the next write.
    pub fn read(&self) -> Tensor {
        Tensor::raw(
            Op::Read,
            Inputs::new(),
            SmallVec::from_buf([self.0.meta]),
            Some(self.0.device.clone()),
            Label::current(),
            Some((self.clone(), self.version())),
        )
    }

    /// A copy of the present value that stays.
    pub fn snapshot(&self) -> Result<Tensor> {
        let mut bytes = vec![0u8; self.0.buffer.bytes()];
        self.download(&mut bytes)?;
        Ok(Tensor::from_bytes(
            &bytes,
            &self.0.meta.shape,
            self.0.meta.dtype,
            &self.0.device,
        ))
    }

    /// The present value's bytes, row-major.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; self.0.meta.shape.numel() * self.0.meta.dtype.size()];
        self.download(&mut bytes)?;
        Ok(bytes)
    }

    /// The present value's elements, row-major; `T` must be the slot's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.read().to_vec()
    }

    /// Replaces the value by `value`, of the same shape and dtype.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        crate::eval::write_slot(self, value)
    }

    fn download(&self, bytes: &mut [u8]) -> Result<()> {
        self.check()?;
        crate::eval::shared(&self.0.device, || {
            self.0.device.backend().download(&self.0.buffer, bytes)
        })
    }

    pub(crate) fn meta(&self) -> Meta {
        self.0.meta
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.0.buffer
    }

    pub(crate) fn bump(&self) {
        self.0.version.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn poison(&self, why: &str) {
        *self.0.poison.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_string());
    }

    pub(crate) fn unpoison(&self) {
        *self.0.poison.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// An error if an update failed half-way.
    pub(crate) fn check(&self) -> Result<()> {
        match &*self.0.poison.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(Error::new(
                "read",
                ErrorKind::Poisoned {
                    detail: format!(
                        "`{}` may be half written because a device error interrupted its update ({why}); reload the \
                         checkpoint",
                        self.0.name
                    ),
                },
            )),
        }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Slot({}, {:?}, {})",
            self.0.name, self.0.meta.shape, self.0.meta.dtype
        )
    }
}
