//! The kernels, and how a plan's steps become launches of them.
// Kernels are read twice, as Rust and by cubecl's macro, and part of them runs when they are compiled: conditions at both times stay apart, the macro knows neither
// `&&` chains with `let` nor iterators, and what is taken out of an option was asked for there.
#![allow(
    clippy::assign_op_pattern,
    clippy::collapsible_if,
    clippy::needless_range_loop,
    clippy::unwrap_used
)]
mod arg_reduce;
mod attention;
mod common;
mod group;
mod host;
mod index;
mod map;
mod matmul;
mod optim;
mod pool;
mod reduce;
mod rows;
mod scan;
mod source;
mod split;
pub(crate) mod tensor_cores;

use crate::backend::Limits;
use crate::plan::Cx;
use bimetal_tensor::graph::Composite;
use bimetal_tensor::plan::{Kernel, Meta, Plan};
use bimetal_tensor::{ErrorKind, Shape};
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

    /// Whether the host computes it.
    fn is_on_host(&self) -> bool {
        false
    }
}

/// The size of the axis whose indices a kernel checks.
pub(crate) fn axis_size(kernel: &Kernel) -> Option<usize> {
    match kernel {
        Kernel::Take { size, .. } | Kernel::TakeGrad { size, .. } => Some(*size),
        Kernel::GatherAlong {
            axis, input: wide, ..
        }
        | Kernel::ScatterAlong {
            axis, output: wide, ..
        } => Some(wide.shape[*axis]),
        Kernel::Composite {
            composite: Composite::CrossEntropy { .. } | Composite::CrossEntropyGrad { .. },
            inputs,
            ..
        } => inputs.first().and_then(|x| x.shape.last().copied()),
        _ => None,
    }
}

/// Whether a composite has a kernel of its own for operands like these.
pub(crate) fn native(composite: &Composite, inputs: &[Meta]) -> bool {
    rows::native(composite, inputs)
        || attention::native(composite, inputs)
        || optim::native(composite, inputs)
}

/// Step `step` of `plan`.
pub(crate) fn build(
    kernel: &Kernel,
    step: usize,
    plan: &Plan,
    limits: &Limits,
) -> Result<Box<dyn Launch>, String> {
    let b = Build { plan, step, limits };
    Ok(match kernel {
        Kernel::Map { domain, fused } => Box::new(map::Map::new(&b, domain, fused)?),
        Kernel::Reduce {
            domain,
            kept,
            prologue,
            op,
            acc,
            epilogue,
        } => Box::new(reduce::Reduce::new(
            &b, domain, *kept, prologue, *op, *acc, epilogue,
        )?),
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
        } => {
            let (sizes, operands) = ([*m, *n, *k], [a, right]);
            match tensor_cores::TensorCores::new(
                &b, batch, sizes, operands, *precision, *acc, epilogue,
            )? {
                Some(product) => Box::new(product),
                None => Box::new(matmul::Matmul::new(
                    &b, batch, sizes, operands, *precision, *acc, epilogue,
                )?),
            }
        }
        Kernel::Conv2d {
            conv,
            input,
            weight,
            weight_compute,
            shape,
            epilogue,
        } => {
            let compute = *weight_compute;
            let plain = matmul::Matmul::conv(&b, conv, input, weight, compute, shape, epilogue)?;
            tensor_cores::TensorCores::patches(plain, &limits.matrix)
        }
        Kernel::Conv2dGradInput {
            conv,
            weight,
            weight_compute,
            grad,
            output,
        } => {
            let compute = *weight_compute;
            let plain = matmul::Matmul::conv_input(&b, conv, weight, compute, grad, output)?;
            tensor_cores::TensorCores::patches(plain, &limits.matrix)
        }
        Kernel::Conv2dGradWeight {
            conv,
            input,
            grad,
            output,
        } => {
            let plain = matmul::Matmul::conv_weight(&b, conv, input, grad, output)?;
            tensor_cores::TensorCores::patches(plain, &limits.matrix)
        }
        Kernel::MaxPool2d {
            pool,
            input,
            values,
            indices,
        } => {
            let (values, indices) = (values.as_ref(), indices.as_ref());
            Box::new(pool::Pool::forward(&b, pool, true, input, values, indices)?)
        }
        Kernel::AvgPool2d {
            pool,
            input,
            output,
        } => Box::new(pool::Pool::forward(
            &b,
            pool,
            false,
            input,
            Some(output),
            None,
        )?),
        Kernel::MaxPool2dGrad {
            pool,
            indices,
            grad,
            output,
        } => Box::new(pool::Pool::grad(&b, pool, Some(indices), grad, output)?),
        Kernel::AvgPool2dGrad { pool, grad, output } => {
            Box::new(pool::Pool::grad(&b, pool, None, grad, output)?)
        }
        Kernel::Take {
            outer,
            inner,
            size,
            input,
            index,
            output,
        } => {
            let sizes = [*outer, *size, *inner];
            Box::new(index::Index::new(
                &b, false, false, sizes, index, input, output,
            )?)
        }
        Kernel::TakeGrad {
            outer,
            inner,
            size,
            index,
            update,
            output,
        } => {
            let sizes = [*outer, *size, *inner];
            Box::new(index::Index::new(
                &b, true, false, sizes, index, update, output,
            )?)
        }
        Kernel::GatherAlong {
            axis,
            input,
            index,
            output,
        } => {
            let sizes = around(&input.shape, *axis);
            Box::new(index::Index::new(
                &b, false, true, sizes, index, input, output,
            )?)
        }
        Kernel::ScatterAlong {
            axis,
            index,
            update,
            output,
        } => {
            let sizes = around(&output.shape, *axis);
            Box::new(index::Index::new(
                &b, true, true, sizes, index, update, output,
            )?)
        }
        Kernel::CumSum {
            outer,
            size,
            inner,
            reverse,
            input,
            output,
        } => {
            let sizes = [*outer, *size, *inner];
            Box::new(scan::CumSum::new(&b, sizes, *reverse, input, output)?)
        }
        Kernel::Sort {
            descending,
            input,
            values,
            indices,
        } => {
            let (values, indices) = (values.as_ref(), indices.as_ref());
            Box::new(scan::Sort::new(&b, *descending, input, values, indices)?)
        }
        Kernel::Zero { output } => Box::new(map::Zero::new(*output)),
        Kernel::Custom {
            custom,
            inputs,
            outputs,
        } => Box::new(host::Custom::new(custom, inputs, outputs)),
        Kernel::AllReduce { .. } => {
            return Err("no communicator: this device belongs to no group of ranks; evaluate collectives through a distributed strategy".into());
        }
        Kernel::Composite {
            composite,
            random,
            inputs,
            outputs,
        } => match composite {
            Composite::Attention(spec) | Composite::AttentionGrad(spec) => {
                let grad = matches!(composite, Composite::AttentionGrad(_));
                Box::new(attention::Attention::new(
                    &b, spec, grad, *random, inputs, outputs,
                )?)
            }
            Composite::OptimUpdate { .. } => {
                Box::new(optim::Update::new(&b, composite, inputs, outputs)?)
            }
            Composite::GradStats => Box::new(optim::Stats::new(&b, inputs, outputs)?),
            _ => Box::new(rows::Rows::new(&b, composite, inputs, outputs)?),
        },
    })
}

/// `[outer, size, inner]` of an axis.
fn around(shape: &Shape, axis: usize) -> [usize; 3] {
    [
        shape[..axis].iter().product(),
        shape[axis],
        shape[axis + 1..].iter().product(),
    ]
}
