//! The plan of a train step without running it: how many launches a GPU would be given.
use crate::large::GPT2;
use crate::train::{Training, policy};
use bimetal::prelude::*;
use bimetal::tensor::graph::Composite;
use bimetal::tensor::plan::{Kernel, MAX_BUFFERS, MAX_INSTRUCTIONS, Meta, Plan};
use bimetal::tensor::{
    Backend, Bindings, Buffer, DeviceInfo, ExecError, Executable, MemoryReport, Support,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What happened on a device that only plans.
#[derive(Default)]
struct Seen {
    plans: Vec<Arc<Plan>>,
    runs: Vec<Arc<Plan>>,
    reads: usize,
}

/// A GPU that plans and runs nothing: buffers have sizes only, and reading one gives zeros.
struct Planner {
    info: DeviceInfo,
    native: fn(&Composite) -> bool,
    seen: Arc<Mutex<Seen>>,
}

/// A plan that was run, to the planner's knowledge.
struct Noted(Arc<Plan>, Arc<Mutex<Seen>>);

/// The composites that the GPU backends have kernels of their own for.
fn native_on_gpus(composite: &Composite) -> bool {
    matches!(
        composite,
        Composite::Softmax
            | Composite::SoftmaxGrad
            | Composite::LogSoftmax
            | Composite::LogSoftmaxGrad
            | Composite::LayerNorm { .. }
            | Composite::LayerNormGrad
            | Composite::CrossEntropy { .. }
            | Composite::CrossEntropyGrad { .. }
            | Composite::Attention(_)
            | Composite::AttentionGrad(_)
            | Composite::GradStats
            | Composite::OptimUpdate { .. }
    )
}

/// How many launches a step of a plan is: those over all parameters take as many tensors at once as a kernel may bind.
fn launches_of(kernel: &Kernel) -> usize {
    match kernel {
        Kernel::Composite {
            composite: Composite::OptimUpdate { rule, .. },
            inputs,
            ..
        } => {
            let tensors = 2 + rule.moments();
            let parameters = (inputs.len() - 4) / tensors;
            parameters.div_ceil(25 / tensors)
        }
        Kernel::Composite {
            composite: Composite::GradStats,
            inputs,
            ..
        } => inputs.len().div_ceil(25) + 1,
        // One for the queries, one for keys and values.
        Kernel::Composite {
            composite: Composite::AttentionGrad(_),
            ..
        } => 2,
        // Sums in f32, and their rounding.
        Kernel::TakeGrad { .. } => 2,
        // One along the rows, one down the columns.
        Kernel::Composite {
            composite: Composite::LayerNormGrad,
            outputs,
            ..
        } => 1 + usize::from(outputs[1..].iter().any(Option::is_some)),
        _ => 1,
    }
}

/// A device that plans and runs nothing, for the host's part of a step.
pub fn planner() -> Device {
    open(native_on_gpus).0
}

fn open(native: fn(&Composite) -> bool) -> (Device, Arc<Mutex<Seen>>) {
    let support = |d: DType| match d {
        DType::F64 | DType::I64 => Support::No,
        _ => Support::Native,
    };
    let seen = Arc::new(Mutex::new(Seen::default()));
    let planner = Planner {
        info: DeviceInfo {
            name: "a GPU that only plans".into(),
            kind: "plan",
            architecture: "none".into(),
            dtypes: DType::ALL.iter().map(|d| (*d, support(*d))).collect(),
            matrix_units: vec![DType::F16, DType::BF16],
            units: 1,
            max_instructions: MAX_INSTRUCTIONS,
            max_buffers: MAX_BUFFERS,
        },
        native,
        seen: seen.clone(),
    };
    (Device::new(planner), seen)
}

impl Backend for Planner {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn native(&self, composite: &Composite, _: &[Meta]) -> bool {
        (self.native)(composite)
    }

    fn alloc(&self, bytes: usize) -> bimetal::tensor::Result<Buffer> {
        Ok(Buffer::new(bytes, Arc::new(())))
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport::default()
    }

    fn upload(&self, _: &Buffer, _: &[u8]) -> bimetal::tensor::Result<()> {
        Ok(())
    }

    fn download(&self, _: &Buffer, dst: &mut [u8]) -> bimetal::tensor::Result<()> {
        lock(&self.seen).reads += 1;
        dst.fill(0);
        Ok(())
    }

    fn compile(&self, plan: &Arc<Plan>) -> bimetal::tensor::Result<Box<dyn Executable>> {
        lock(&self.seen).plans.push(plan.clone());
        Ok(Box::new(Noted(plan.clone(), self.seen.clone())))
    }

    fn sync(&self) -> bimetal::tensor::Result<()> {
        Ok(())
    }
}

impl Executable for Noted {
    fn run(&self, _: &Bindings<'_>) -> std::result::Result<(), ExecError> {
        lock(&self.1).runs.push(self.0.clone());
        Ok(())
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Launches of the plans that a step ran, by kernel.
type Launches = BTreeMap<&'static str, usize>;

/// A train step's launches, the plans among which they lie, and the host's reads.
struct Step {
    launches: Launches,
    /// With those that composites are made of.
    kernels: usize,
    plans: usize,
    reads: usize,
}

/// The second train step of GPT-2 124M (the first makes what is kept): forward, loss, backward, loss scale, clipping, AdamW.
fn step(dtype: DType, native: fn(&Composite) -> bool, fused: bool) -> Result<Step> {
    let (device, seen) = open(native);
    device.set_fusion(fused);
    let store = ParamStore::new(&device, policy(dtype)).seed(0);
    let mut training =
        Training::with(store, |s| GPT2.build(s), Box::new(AdamW::new(1e-3)))?.clip(1.0);
    for _ in 0..2 {
        *lock(&seen) = Seen::default();
        let _ = training.submit()?;
    }
    let seen = lock(&seen);
    let (mut launches, mut kernels) = (Launches::new(), 0);
    for plan in &seen.runs {
        for step in &plan.steps {
            *launches.entry(step.kernel.name()).or_default() += 1;
            kernels += launches_of(&step.kernel);
        }
    }
    Ok(Step {
        launches,
        kernels,
        plans: seen.runs.len(),
        reads: seen.reads,
    })
}

/// A dtype's train step, planned.
#[derive(serde::Serialize)]
pub struct Planned {
    /// The policy.
    pub policy: &'static str,
    /// Launches of the fused plan, composites counted as one.
    pub launches: usize,
    /// Launches if each node that is no view had one of its own, composites counted as one.
    pub nodes: usize,
    /// Launches of the fused plan with all that composites are made of: an update of 148 parameters is more than one.
    pub kernel_launches: usize,
    /// The first as a share of the second.
    pub share: f64,
    /// Plans that a step runs.
    pub plans: usize,
    /// Times that the host reads within a step.
    pub host_reads: usize,
    /// Launches by kernel.
    pub kernels: BTreeMap<&'static str, usize>,
}

/// Plans the train step of GPT-2 124M under three policies.
///
/// # Errors
/// Those of building the step.
pub fn plan_gpt2() -> Result<Vec<Planned>> {
    [DType::F32, DType::BF16, DType::F16]
        .into_iter()
        .map(|dtype| {
            let fused = step(dtype, native_on_gpus, true)?;
            let plain = step(dtype, |_| true, false)?;
            let sum = |l: &Launches| l.values().sum::<usize>();
            let (launches, nodes) = (sum(&fused.launches), sum(&plain.launches));
            Ok(Planned {
                policy: policy(dtype),
                launches,
                nodes,
                kernel_launches: fused.kernels,
                share: launches as f64 / nodes as f64,
                plans: fused.plans,
                host_reads: fused.reads,
                kernels: fused.launches,
            })
        })
        .collect()
}
