//! Operations of a user's crate.
use crate::plan::Meta;
use crate::{CastMode, DType, Element, Error, Result, Shape, Tensor, cast_slice};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A dense row-major operand on the host.
pub struct HostView<'a> {
    /// The shape.
    pub shape: Shape,
    /// The dtype.
    pub dtype: DType,
    /// The elements' bytes.
    pub bytes: &'a [u8],
}

/// A dense row-major result on the host.
pub struct HostViewMut<'a> {
    /// The shape.
    pub shape: Shape,
    /// The dtype.
    pub dtype: DType,
    /// The elements' bytes, to be filled.
    pub bytes: &'a mut [u8],
}

impl HostView<'_> {
    /// The elements; `T` must be the dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.dtype != T::DTYPE {
            let detail = format!("{} elements were asked for", T::DTYPE);
            return Err(Error::dtype("to_vec", &[self.dtype], detail));
        }
        T::vec_from_bytes(self.bytes).map_err(|e| Error::other("to_vec", e.to_string()))
    }

    /// The elements as f64, whatever the dtype.
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        let mut bytes = vec![0; self.shape.numel() * DType::F64.size()];
        let mode = CastMode::default();
        cast_slice(self.bytes, self.dtype, &mut bytes, DType::F64, mode)
            .and_then(|_| f64::vec_from_bytes(&bytes))
            .map_err(|e| Error::other("to_vec", e.to_string()))
    }
}

impl HostViewMut<'_> {
    /// Writes all elements, each rounded once to the dtype. Error: another number of values than elements.
    pub fn write<T: Element>(&mut self, values: &[T]) -> Result<()> {
        let mode = CastMode::default();
        cast_slice(T::as_bytes(values), T::DTYPE, self.bytes, self.dtype, mode)
            .map_err(|e| Error::other("write", e.to_string()))
    }
}

/// An operation of a user's crate. Its decomposition defines it; a host kernel is optional.
pub trait CustomOp: Send + Sync + 'static {
    /// The operation's name; with [`CustomOp::attributes`] it identifies the operation in plan keys.
    fn name(&self) -> &'static str;

    /// Everything that makes two instances compute differently, as bits.
    fn attributes(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Shapes and dtypes of the results.
    fn infer(&self, inputs: &[Meta]) -> Result<Vec<Meta>>;

    /// The results in terms of other operations; `None` if there is only a host kernel.
    fn decompose(&self, inputs: &[Tensor]) -> Option<Vec<Tensor>>;

    /// Whether [`CustomOp::forward`] is to be used on host devices.
    fn has_host_kernel(&self) -> bool {
        false
    }

    /// Computes the results on the host.
    fn forward(&self, inputs: &[HostView<'_>], outputs: &mut [HostViewMut<'_>]) -> Result<()> {
        let _ = (inputs, outputs);
        Err(crate::Error::other(
            self.name(),
            "the operation has no host kernel",
        ))
    }

    /// The gradients of the inputs from inputs, results and the results' gradients (`None`: not needed); `None` asks for the
    /// derivative of the decomposition.
    fn vjp(
        &self,
        inputs: &[Tensor],
        outputs: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> Option<Vec<Option<Tensor>>> {
        let _ = (inputs, outputs, grads);
        None
    }
}

/// A shared [`CustomOp`]; equal if name and attributes are equal.
#[derive(Clone)]
pub struct CustomHandle(pub Arc<dyn CustomOp>);

impl CustomHandle {
    /// The operation's name.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }
}

impl PartialEq for CustomHandle {
    fn eq(&self, o: &CustomHandle) -> bool {
        self.0.name() == o.0.name() && self.0.attributes() == o.0.attributes()
    }
}
impl Eq for CustomHandle {}
impl Hash for CustomHandle {
    fn hash<H: Hasher>(&self, h: &mut H) {
        self.0.name().hash(h);
        self.0.attributes().hash(h);
    }
}
impl fmt::Debug for CustomHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Custom({})", self.name())
    }
}
