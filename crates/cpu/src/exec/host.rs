//! Kernels that need no arithmetic of their own.
use super::cx::{Compile, Cx, Kernel, Operand};
use bimetal_kernels::par;
use bimetal_tensor::graph::{CustomHandle, HostView, HostViewMut};
use bimetal_tensor::plan::{BufId, Dense};
use bimetal_tensor::{ErrorKind, Result};

/// Bytes of a task.
const TASK: usize = 1 << 20;

/// Zeros in a whole buffer.
pub(crate) struct Zero {
    buf: usize,
    bytes: usize,
}

impl Zero {
    pub(crate) fn new(buf: BufId, cx: &Compile<'_>) -> Result<Zero> {
        Ok(Zero {
            bytes: cx.desc(buf)?.bytes(),
            buf: buf as usize,
        })
    }
}

impl Kernel for Zero {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        par::for_each(par::pieces(self.bytes, TASK), |t| {
            let r = par::piece(self.bytes, TASK, t);
            // SAFETY: the range lies in the buffer and is this task's alone.
            unsafe { std::ptr::write_bytes(cx.ptr(self.buf).add(r.start), 0, r.len()) };
        });
        Ok(())
    }

    fn work(&self) -> usize {
        self.bytes / 32
    }
}

/// A user's operation on the host.
pub(crate) struct Custom {
    custom: CustomHandle,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
}

impl Custom {
    pub(crate) fn new(
        custom: &CustomHandle,
        inputs: &[Dense],
        outputs: &[Dense],
        cx: &Compile<'_>,
    ) -> Result<Custom> {
        let dense = |d: &[Dense]| d.iter().map(|d| cx.dense(d)).collect::<Result<Vec<_>>>();
        let (inputs, outputs) = (dense(inputs)?, dense(outputs)?);
        for (i, o) in outputs.iter().enumerate() {
            let alone = inputs
                .iter()
                .chain(&outputs[..i])
                .all(|d| !cx.overlap(d.buf, o.buf));
            cx.check(alone, "results of a custom operation share memory")?;
        }
        Ok(Custom {
            custom: custom.clone(),
            inputs,
            outputs,
        })
    }
}

impl Kernel for Custom {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let inputs: Vec<HostView<'_>> = self
            .inputs
            .iter()
            .map(|d| HostView {
                shape: d.shape,
                dtype: d.dtype,
                // SAFETY: the buffer has these bytes, and nobody writes them during the run.
                bytes: unsafe {
                    std::slice::from_raw_parts(cx.ptr(d.buf), d.numel * d.dtype.size())
                },
            })
            .collect();
        let mut outputs: Vec<HostViewMut<'_>> = self
            .outputs
            .iter()
            .map(|d| HostViewMut {
                shape: d.shape,
                dtype: d.dtype,
                // SAFETY: the buffer has these bytes; results share memory with nothing else, as checked.
                bytes: unsafe {
                    std::slice::from_raw_parts_mut(cx.ptr(d.buf), d.numel * d.dtype.size())
                },
            })
            .collect();
        let result = self.custom.0.forward(&inputs, &mut outputs);
        result.map_err(|e| e.kind().clone())
    }

    fn work(&self) -> usize {
        // Unknown: a user's code may want the pool.
        usize::MAX / 1024
    }
}

/// A sum over ranks on a device without any other.
pub(crate) struct AllReduce;

impl Kernel for AllReduce {
    fn run(&self, _: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        Err(ErrorKind::Device {
            detail: "no communicator: this device belongs to no group of ranks; evaluate collectives through a distributed strategy"
                .into(),
        })
    }

    fn work(&self) -> usize {
        0
    }
}
