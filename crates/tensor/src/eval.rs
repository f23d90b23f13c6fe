//! Evaluation.
use crate::{Device, Element, Error, Result, Slot, Tensor};
#[derive(Default)]
pub(crate) struct Cache {}

/// Computes tensors together, in one plan, and keeps their values.
pub fn eval(tensors: &[&Tensor]) -> Result<()> {
    commit(tensors, &[])
}
/// Computes tensors and writes state, in one plan: all checks come before the first write, which is last. After it, reads of the written slots
/// that were not evaluated before are out of date.
pub fn commit(_tensors: &[&Tensor], _writes: &[(&Slot, &Tensor)]) -> Result<()> {
    Err(Error::other("eval", "under construction"))
}
pub(crate) fn write_slot(slot: &Slot, value: &Tensor) -> Result<()> {
    commit(&[], &[(slot, value)])
}
pub(crate) fn shared<R>(_d: &Device, f: impl FnOnce() -> R) -> R {
    f()
}
impl Tensor {
    /// Computes the value, and keeps it.
    pub fn eval(&self) -> Result<()> {
        eval(&[self])
    }
    /// Computes the elements, row-major; `T` must be the tensor's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.eval()?;
        Err(Error::other("eval", "under construction"))
    }
    /// Computes the only element as f64, whatever the dtype.
    pub fn item(&self) -> Result<f64> {
        self.eval()?;
        Err(Error::other("eval", "under construction"))
    }
    /// Computes the elements as f64, whatever the dtype.
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        self.eval()?;
        Err(Error::other("eval", "under construction"))
    }
    /// The value copied to another device.
    pub fn to_device(&self, _device: &Device) -> Tensor {
        self.clone()
    }
}
