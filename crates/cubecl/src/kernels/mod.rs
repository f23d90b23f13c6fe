//! The kernels, and how a plan's steps become launches of them.
mod arg_reduce;
mod common;
mod map;
mod matmul;
mod reduce;

use crate::backend::Limits;
use crate::plan::Cx;
use bimetal_tensor::ErrorKind;
use bimetal_tensor::plan::{Kernel, Plan};
use common::Build;

/// A step of a plan, ready to be launched.
pub(crate) trait Launch: Send + Sync {
    /// Puts it on the device's queue.
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind>;

    /// The buffers it touches.
    fn buffers(&self) -> Vec<usize>;

    /// Whether it checks indices that a tensor holds.
    fn checks_indices(&self) -> bool {
        false
    }
}

/// The size of the axis whose indices a kernel checks.
pub(crate) fn axis_size(kernel: &Kernel) -> Option<usize> {
    match kernel {
        Kernel::Take { size, .. } | Kernel::TakeGrad { size, .. } => Some(*size),
        Kernel::GatherAlong { axis, input: wide, .. } | Kernel::ScatterAlong { axis, output: wide, .. } => {
            Some(wide.shape[*axis])
        }
        _ => None,
    }
}

/// Step `step` of `plan`.
pub(crate) fn build(
    kernel: &Kernel,
    step: usize,
    plan: &Plan,
    limits: &Limits,
) -> Result<Box<dyn Launch>, String> {
    let b = Build { plan, step, limits };
    b.check()?;
    Ok(match kernel {
        Kernel::Map { domain, fused } => Box::new(map::Map::new(&b, domain, fused)?),
        Kernel::Reduce {
            domain,
            kept,
            prologue,
            op,
            acc,
            epilogue,
        } => Box::new(reduce::Reduce::new(&b, domain, *kept, prologue, *op, *acc, epilogue)?),
        Kernel::ArgReduce {
            domain,
            input,
            op,
            output,
        } => Box::new(arg_reduce::ArgReduce::new(&b, domain, input, *op, *output)?),
        Kernel::Matmul {
            batch,
            m,
            n,
            k,
            a,
            b: right,
            precision,
            acc,
            epilogue,
        } => Box::new(matmul::Matmul::new(
            &b,
            batch,
            [*m, *n, *k],
            [a, right],
            *precision,
            *acc,
            epilogue,
        )?),
        Kernel::Zero { output } => Box::new(map::Zero::new(*output)),
        other => return Err(format!("the kernel `{}` is not written for GPUs yet", other.name())),
    })
}
