//! A compiled plan.
use super::conv::{Conv, Pool};
use super::cx::{Compile, Cx, Kernel};
use super::host::{AllReduce, Custom, Zero};
use super::index::Index;
use super::map::Map;
use super::matmul::Matmul;
use super::reduce::{ArgReduce, Reduce};
use super::scan::{CumSum, Sort};
use crate::alloc::Block;
use crate::backend::Shared;
use bimetal_tensor::plan::{self, Place, Plan};
use bimetal_tensor::{Bindings, Buffer, Error, ErrorKind, ExecError, Executable, Result};
use std::sync::Arc;

/// Below this much work a plan runs on the calling thread: waking a pool would take longer.
const SMALL: usize = 1 << 16;

/// A plan whose kernels are ready to run.
pub(crate) struct CpuPlan {
    plan: Arc<Plan>,
    device: Arc<Shared>,
    steps: Vec<Box<dyn Kernel>>,
    small: bool,
}

impl CpuPlan {
    pub(crate) fn new(plan: &Arc<Plan>, device: &Arc<Shared>) -> Result<CpuPlan> {
        check_arena(plan)?;
        let mut steps = Vec::with_capacity(plan.steps.len());
        for (i, step) in plan.steps.iter().enumerate() {
            steps.push(compile(&step.kernel, &Compile { plan, step: i })?);
        }
        let work = steps.iter().fold(0usize, |w, s| w.saturating_add(s.work()));
        Ok(CpuPlan {
            plan: plan.clone(),
            device: device.clone(),
            steps,
            small: work < SMALL,
        })
    }

    /// The error of step `step`, before or after state was written.
    fn error(&self, step: usize, kind: ErrorKind) -> ExecError {
        // Kernels check before they write, except a user's.
        let custom = matches!(
            self.plan.steps.get(step).map(|s| &s.kernel),
            Some(plan::Kernel::Custom { .. })
        );
        ExecError {
            step,
            kind,
            state_written: step + custom as usize > self.plan.first_write,
        }
    }

    /// The addresses of all buffers.
    fn addresses(&self, b: &Bindings<'_>, arena: &Block) -> Result<Vec<*mut u8>, ErrorKind> {
        let get = |list: &[Buffer], n: u32, bytes: usize, what: &str| {
            let found = list.get(n as usize).and_then(|b| b.downcast::<Block>());
            match found {
                Some(block) if block.bytes() >= bytes => Ok(block.ptr()),
                Some(block) => Err(device(format!(
                    "{what} {n} has {} bytes, but the plan needs {bytes}",
                    block.bytes()
                ))),
                None => Err(device(format!(
                    "{what} {n} is missing or not a buffer of the `cpu` backend"
                ))),
            }
        };
        let address = |d: &plan::BufDesc| match d.place {
            Place::Leaf(n) => get(b.leaves, n, d.bytes(), "leaf"),
            Place::Slot(n) => get(b.slots, n, d.bytes(), "slot"),
            Place::Output(n) => get(b.outputs, n, d.bytes(), "output"),
            Place::Arena(at) => Ok(arena.ptr().wrapping_add(at)),
        };
        self.plan.buffers.iter().map(address).collect()
    }
}

fn device(detail: String) -> ErrorKind {
    ErrorKind::Device { detail }
}

fn check_arena(plan: &Plan) -> Result<()> {
    for d in &plan.buffers {
        if let Place::Arena(at) = d.place
            && (at % crate::alloc::ALIGN != 0 || at + d.bytes() > plan.arena_bytes)
        {
            return Err(Error::device(
                "compile",
                format!(
                    "a buffer of {} bytes at {at} is misaligned or outside of the arena of {} bytes",
                    d.bytes(),
                    plan.arena_bytes
                ),
            ));
        }
    }
    Ok(())
}

fn compile(kernel: &plan::Kernel, cx: &Compile<'_>) -> Result<Box<dyn Kernel>> {
    use plan::Kernel as K;
    Ok(match kernel {
        K::Map { domain, fused } => Box::new(Map::new(domain, fused, cx)?),
        K::Reduce {
            domain,
            kept,
            prologue,
            op,
            acc,
            epilogue,
        } => Box::new(Reduce::new(
            domain, *kept, prologue, *op, *acc, epilogue, cx,
        )?),
        K::ArgReduce {
            domain,
            input,
            op,
            output,
        } => Box::new(ArgReduce::new(domain, input, *op, *output, cx)?),
        K::Matmul {
            batch,
            m,
            n,
            k,
            a,
            b,
            precision,
            acc,
            epilogue,
        } => Box::new(Matmul::new(
            batch,
            [*m, *n, *k],
            a,
            b,
            *precision,
            *acc,
            epilogue,
            cx,
        )?),
        K::Conv2d {
            conv,
            input,
            weight,
            weight_compute,
            shape,
            epilogue,
        } => Box::new(Conv::forward(
            conv,
            input,
            weight,
            *weight_compute,
            shape,
            epilogue,
            cx,
        )?),
        K::Conv2dGradInput {
            conv,
            weight,
            weight_compute,
            grad,
            output,
        } => Box::new(Conv::grad_input(
            conv,
            weight,
            *weight_compute,
            grad,
            output,
            cx,
        )?),
        K::Conv2dGradWeight {
            conv,
            input,
            grad,
            output,
        } => Box::new(Conv::grad_weight(conv, input, grad, output, cx)?),
        K::MaxPool2d {
            pool,
            input,
            values,
            indices,
        } => Box::new(Pool::max(
            pool,
            input,
            values.as_ref(),
            indices.as_ref(),
            cx,
        )?),
        K::MaxPool2dGrad {
            pool,
            indices,
            grad,
            output,
        } => Box::new(Pool::max_grad(pool, indices, grad, output, cx)?),
        K::AvgPool2d {
            pool,
            input,
            output,
        } => Box::new(Pool::avg(pool, input, output, cx)?),
        K::AvgPool2dGrad { pool, grad, output } => {
            Box::new(Pool::avg_grad(pool, grad, output, cx)?)
        }
        K::Take {
            outer,
            inner,
            size,
            input,
            index,
            output,
        } => Box::new(Index::take(
            false,
            [*outer, *size, *inner],
            index,
            input,
            output,
            cx,
        )?),
        K::TakeGrad {
            outer,
            inner,
            size,
            index,
            update,
            output,
        } => Box::new(Index::take(
            true,
            [*outer, *size, *inner],
            index,
            update,
            output,
            cx,
        )?),
        K::GatherAlong {
            axis,
            input,
            index,
            output,
        } => Box::new(Index::along(false, *axis, index, input, output, cx)?),
        K::ScatterAlong {
            axis,
            index,
            update,
            output,
        } => Box::new(Index::along(true, *axis, index, update, output, cx)?),
        K::CumSum {
            outer,
            size,
            inner,
            reverse,
            input,
            output,
        } => Box::new(CumSum::new(
            [*outer, *size, *inner],
            *reverse,
            input,
            output,
            cx,
        )?),
        K::Sort {
            descending,
            input,
            values,
            indices,
        } => Box::new(Sort::new(
            *descending,
            input,
            values.as_ref(),
            indices.as_ref(),
            cx,
        )?),
        K::Zero { output } => Box::new(Zero::new(*output, cx)?),
        K::AllReduce { .. } => Box::new(AllReduce),
        K::Custom {
            custom,
            inputs,
            outputs,
        } => Box::new(Custom::new(custom, inputs, outputs, cx)?),
        K::Composite {
            composite,
            random,
            inputs,
            outputs,
        } => super::composite::compile(composite, *random, inputs, outputs, cx)?,
    })
}

impl Executable for CpuPlan {
    fn run(&self, b: &Bindings<'_>) -> Result<(), ExecError> {
        if b.scalars.len() < self.plan.scalars {
            let (found, want) = (b.scalars.len(), self.plan.scalars);
            let detail = format!("the plan needs {want} scalars and got {found}");
            return Err(self.error(0, device(detail)));
        }
        let arena = self.device.arena(self.plan.arena_bytes).ok_or_else(|| {
            let detail = format!(
                "the system has no {} bytes of memory left for intermediate results; use a smaller batch",
                self.plan.arena_bytes
            );
            self.error(0, device(detail))
        })?;
        let cx = Cx {
            ptrs: self.addresses(b, &arena).map_err(|k| self.error(0, k))?,
            scalars: b.scalars,
        };
        let result = self.device.install(self.small, || {
            for (i, step) in self.steps.iter().enumerate() {
                step.run(&cx).map_err(|kind| self.error(i, kind))?;
            }
            Ok(())
        });
        self.device.put_arena(arena);
        result
    }
}
