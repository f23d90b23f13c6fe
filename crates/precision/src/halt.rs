//! Stopping in the middle of an execution.
use bimetal_tensor::{DType, Device, Result, Slot, Tensor};

/// A word on the device that a skipped step sets and that makes all later steps change nothing, the loss scale included, until the host clears it.
///
/// With it a loop may submit many steps without reading any: if one of them is bad, the state is still that of the bad step when the host comes to look, the step can be
/// computed again to find the cause, and the steps behind it can be submitted once more.
#[derive(Clone, Debug)]
pub struct Halt(Slot);

impl Halt {
    /// A word on `device`, not set.
    pub fn new(device: &Device) -> Result<Halt> {
        let no = Tensor::zeros(&[], DType::Bool, device);
        Ok(Halt(Slot::new("numerics/halt", &no, device)?))
    }

    /// Lets steps go on.
    pub fn clear(&self) -> Result<()> {
        let no = Tensor::zeros(&[], DType::Bool, self.0.device());
        self.0.set(&no)
    }

    /// The state of the word, which a step's transaction reads and writes (Bool scalar).
    pub fn slot(&self) -> &Slot {
        &self.0
    }
}
