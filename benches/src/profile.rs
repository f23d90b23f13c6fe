//! Where the time of a run goes: each step of its plans timed by itself.
use crate::catalog::Work;
use crate::clock::{median, process_ms};
use bimetal::cpu_backend::CpuBackend;
use bimetal::tensor::graph::Composite;
use bimetal::tensor::plan::{Kernel, Meta, Plan, Step};
use bimetal::tensor::{
    Backend, Bindings, Buffer, Device, DeviceInfo, ExecError, Executable, MemoryReport, Result,
};
use bimetal::{DType, Error};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A step of a plan, and its CPU time in each run.
struct Timed {
    kernel: &'static str,
    what: String,
    ms: Vec<f64>,
}

type Table = Arc<Mutex<Vec<Timed>>>;

struct Profiler {
    inner: CpuBackend,
    table: Table,
}

/// A plan as one plan for each of its steps. They follow each other in the same arena, so that values pass from one to the next.
struct Steps {
    inner: Vec<Box<dyn Executable>>,
    first: usize,
    table: Table,
}

impl Executable for Steps {
    fn run(&self, bindings: &Bindings<'_>) -> Result<(), ExecError> {
        let mut times = Vec::with_capacity(self.inner.len());
        for (i, step) in self.inner.iter().enumerate() {
            let start = process_ms();
            step.run(bindings).map_err(|e| ExecError { step: i, ..e })?;
            times.push(process_ms() - start);
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for (entry, ms) in table[self.first..].iter_mut().zip(times) {
            entry.ms.push(ms);
        }
        Ok(())
    }
}

impl Backend for Profiler {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn native(&self, composite: &Composite, inputs: &[Meta]) -> bool {
        self.inner.native(composite, inputs)
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.inner.alloc(bytes)
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn upload(&self, dst: &Buffer, src: &[u8]) -> Result<()> {
        self.inner.upload(dst, src)
    }

    fn download(&self, src: &Buffer, dst: &mut [u8]) -> Result<()> {
        self.inner.download(src, dst)
    }

    fn compile(&self, plan: &Arc<Plan>) -> Result<Box<dyn Executable>> {
        let mut inner = Vec::with_capacity(plan.steps.len());
        let mut entries = Vec::with_capacity(plan.steps.len());
        for (i, step) in plan.steps.iter().enumerate() {
            let single = Plan {
                steps: vec![step.clone()],
                first_write: usize::from(i < plan.first_write),
                buffers: plan.buffers.clone(),
                labels: Vec::new(),
                ..**plan
            };
            inner.push(self.inner.compile(&Arc::new(single))?);
            entries.push(Timed {
                kernel: step.kernel.name(),
                what: describe(step, plan),
                ms: Vec::new(),
            });
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let first = table.len();
        table.extend(entries);
        Ok(Box::new(Steps {
            inner,
            first,
            table: self.table.clone(),
        }))
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
}

/// Sizes of a step, and the place in the model it comes from.
fn describe(step: &Step, plan: &Plan) -> String {
    let sizes = match &step.kernel {
        Kernel::Map { domain, fused } => {
            let (code, loads) = (fused.program.instrs.len(), fused.inputs.len());
            format!(
                "{domain}, {code} instructions, {loads} in, {} out",
                fused.outputs.len()
            )
        }
        Kernel::Reduce { domain, kept, .. } => format!("{domain}, {kept} axes kept"),
        Kernel::Matmul {
            batch,
            m,
            n,
            k,
            epilogue,
            ..
        } => {
            let code = epilogue.program.instrs.len();
            format!("{batch} x {m}x{n}x{k}, epilogue of {code}")
        }
        Kernel::Conv2d { input, weight, .. } => format!("{} with {}", input.shape, weight.shape),
        Kernel::Conv2dGradInput { grad, weight, .. } => {
            format!("{} with {}", grad.shape, weight.shape)
        }
        Kernel::Conv2dGradWeight { input, grad, .. } => {
            format!("{} with {}", input.shape, grad.shape)
        }
        Kernel::Composite { inputs, .. } => inputs.first().map_or(String::new(), |i| {
            format!("{} {}, {} inputs", i.access.dtype, i.shape, inputs.len())
        }),
        _ => String::new(),
    };
    let label = plan.labels.get(step.node as usize);
    let path = label.map_or("", |l| l.path());
    let backward = if label.is_some_and(|l| l.is_backward()) {
        " (backward)"
    } else {
        ""
    };
    format!("{sizes}  {path}{backward}")
}

/// The most expensive steps that are listed.
const LISTED: usize = 25;

/// A table of the steps of a workload's run by CPU time: by kind of kernel, then the most expensive ones.
///
/// # Errors
/// Those of the device.
pub fn profile(
    work: &Work,
    dtype: DType,
    threads: usize,
    runs: usize,
) -> Result<Vec<String>, Error> {
    let table = Table::default();
    let device = Device::new(Profiler {
        inner: CpuBackend::new(Some(threads)),
        table: table.clone(),
    });
    let mut case = work.build(dtype, &device)?;
    (case.run)()?;
    // What ran so far was preparation, and the run that compiles.
    for entry in table
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter_mut()
    {
        entry.ms.clear();
    }
    for _ in 0..runs.max(1) {
        (case.run)()?;
    }
    let table = table.lock().unwrap_or_else(PoisonError::into_inner);
    let mut steps: Vec<(&Timed, f64)> = table
        .iter()
        .filter(|t| !t.ms.is_empty())
        .map(|t| (t, median(&t.ms)))
        .collect();
    let total: f64 = steps.iter().map(|(_, ms)| ms).sum();
    let mut kinds: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for (step, ms) in &steps {
        let kind = kinds.entry(step.kernel).or_default();
        *kind = (kind.0 + 1, kind.1 + ms);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    let mut lines = vec![format!("{total:10.4} ms  all {} steps", steps.len())];
    for (kind, (count, ms)) in kinds {
        let share = 100.0 * ms / total;
        lines.push(format!("{ms:10.4} ms  {share:5.1} %  {kind} ({count})"));
    }
    lines.push(String::new());
    steps.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (step, ms) in steps.iter().take(LISTED) {
        let share = 100.0 * ms / total;
        lines.push(format!(
            "{ms:10.4} ms  {share:5.1} %  {:18} {}",
            step.kernel, step.what
        ));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_names_the_kernels_and_the_layers() {
        let work = crate::find("W1", "train").unwrap();
        let lines = profile(&work, DType::F32, 2, 1).unwrap();
        assert!(
            lines.iter().any(|l| l.contains("optim_update (1)")),
            "{lines:?}"
        );
        let product = "128x512x784";
        assert!(lines.iter().any(|l| l.contains(product)), "{lines:?}");
        assert!(lines.iter().any(|l| l.contains("(backward)")), "{lines:?}");
    }
}
