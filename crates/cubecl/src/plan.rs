//! A compiled plan: its kernels in order, and the buffers they are launched on.
use crate::backend::{FAULT_WORDS, Shared, block};
use crate::code::scalar_words;
use crate::kernels::{self, Launch};
use crate::memory::Block;
use crate::replay::Replay;
use bimetal_tensor::plan::{BufDesc, Place, Plan};
use bimetal_tensor::{Bindings, Buffer, Error, ErrorKind, ExecError, Executable, Result};
use cubecl::prelude::*;
use cubecl::server::Handle;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct GpuPlan {
    plan: Arc<Plan>,
    device: Arc<Shared>,
    steps: Vec<Box<dyn Launch>>,
    number: u32,
    /// Whether every kernel has run once and was seen to be compiled.
    checked: AtomicBool,
    /// Whether indices are checked by kernels whose results nobody but a reader sees.
    indexed: bool,
    /// What it is recorded as.
    replay: Mutex<Replay>,
}

/// What kernels are launched on.
pub(crate) struct Cx<'a> {
    pub(crate) device: &'a Shared,
    buffers: Vec<Handle>,
    words: Vec<usize>,
    scalars: Handle,
    scalar_words: usize,
    pub(crate) plan: u32,
    arena: Option<Arc<Block>>,
    /// What kernels took for themselves, with its size, in the order in which they asked.
    scratch: RefCell<Vec<(usize, Handle)>>,
    /// How many of them were given out since the launches began.
    taken: Cell<usize>,
}

/// The buffers of one kernel: each once, and those whose words several threads write apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    pub(crate) buffers: Vec<usize>,
    pub(crate) atomics: Vec<usize>,
}

impl Bound {
    /// All of them.
    pub(crate) fn all(&self) -> Vec<usize> {
        self.buffers.iter().chain(&self.atomics).copied().collect()
    }

    /// The number of a buffer's binding.
    pub(crate) fn buffer(&mut self, id: usize) -> usize {
        number(&mut self.buffers, id)
    }

    /// The number of the binding of a buffer whose words are shared.
    pub(crate) fn atomic(&mut self, id: usize) -> usize {
        number(&mut self.atomics, id)
    }
}

fn number(list: &mut Vec<usize>, id: usize) -> usize {
    match list.iter().position(|b| *b == id) {
        Some(n) => n,
        None => {
            list.push(id);
            list.len() - 1
        }
    }
}

type Words = SequenceArg<Box<[u32]>>;
type AtomicWords = SequenceArg<Box<[Atomic<u32>]>>;

impl Cx<'_> {
    /// The buffers of a kernel as its arguments.
    pub(crate) fn bind(&self, bound: &Bound) -> (Words, AtomicWords) {
        let (mut words, mut atomics) = (SequenceArg::new(), SequenceArg::new());
        for b in &bound.buffers {
            words.push(self.buffer(*b));
        }
        for b in &bound.atomics {
            // SAFETY: the handle has as many words.
            atomics.push(unsafe {
                BufferArg::from_raw_parts(self.buffers[*b].clone(), self.words[*b])
            });
        }
        (words, atomics)
    }

    pub(crate) fn buffer(&self, b: usize) -> BufferArg {
        // SAFETY: the handle has as many words.
        unsafe { BufferArg::from_raw_parts(self.buffers[b].clone(), self.words[b]) }
    }

    /// The scalar table.
    pub(crate) fn scalars(&self) -> BufferArg {
        // SAFETY: as above.
        unsafe { BufferArg::from_raw_parts(self.scalars.clone(), self.scalar_words) }
    }

    /// The fault word.
    pub(crate) fn fault(&self) -> BufferArg {
        // SAFETY: as above.
        unsafe { BufferArg::from_raw_parts(self.device.fault.clone(), FAULT_WORDS) }
    }

    /// A grid of at least `cubes` cubes.
    pub(crate) fn grid(&self, cubes: usize) -> CubeCount {
        self.device.grid(cubes)
    }

    /// Words of a buffer.
    pub(crate) fn words(&self, b: usize) -> usize {
        self.words[b]
    }

    pub(crate) fn handle(&self, b: usize) -> &Handle {
        &self.buffers[b]
    }

    /// Memory that a kernel needs between two launches. It is held until all are submitted, or for as long as a recording of them; who is launched again is given the same again,
    /// since nothing can be allocated while launches are recorded.
    pub(crate) fn scratch(&self, bytes: usize) -> Handle {
        let mut all = self.scratch.borrow_mut();
        let place = self.taken.replace(self.taken.get() + 1);
        match all.get(place) {
            Some((size, handle)) if *size == bytes => handle.clone(),
            _ => {
                let handle = self.device.client.empty(bytes);
                all.push((bytes, handle.clone()));
                handle
            }
        }
    }

    /// The memory of the scalar table.
    pub(crate) fn scalars_handle(&self) -> Handle {
        self.scalars.clone()
    }

    /// All that the launches read or write: a recording of them needs it for as long as it is replayed.
    pub(crate) fn into_held(self) -> Held {
        let mut handles = self.buffers;
        handles.extend(self.scratch.into_inner().into_iter().map(|(_, h)| h));
        handles.push(self.scalars);
        Held {
            _handles: handles,
            arena: self.arena,
        }
    }
}

/// Memory that stays where it is.
pub(crate) struct Held {
    _handles: Vec<Handle>,
    pub(crate) arena: Option<Arc<Block>>,
}

impl GpuPlan {
    pub(crate) fn new(plan: &Arc<Plan>, device: &Arc<Shared>) -> Result<GpuPlan> {
        let mut steps = Vec::with_capacity(plan.steps.len());
        for (i, step) in plan.steps.iter().enumerate() {
            let built = kernels::build(&step.kernel, i, plan, &device.limits);
            steps.push(built.map_err(|detail| {
                let label = plan.labels.get(step.node as usize).cloned();
                let kind = ErrorKind::Device { detail };
                match label {
                    Some(l) => Error::at("compile", kind, l),
                    None => Error::new("compile", kind),
                }
            })?);
        }
        Ok(GpuPlan {
            plan: plan.clone(),
            device: device.clone(),
            indexed: steps.iter().any(|s| s.checks_indices()),
            replay: Mutex::new(Replay::new(steps.iter().any(|s| s.is_on_host()))),
            steps,
            number: device.register(plan),
            checked: AtomicBool::new(false),
        })
    }

    /// The device.
    pub(crate) fn device(&self) -> &Shared {
        &self.device
    }

    /// The memory of temporaries, if the plan has any.
    pub(crate) fn arena(&self) -> Result<Option<Arc<Block>>, String> {
        match self.plan.arena_bytes {
            0 => Ok(None),
            bytes => self
                .device
                .arena
                .get(bytes, || self.device.block(bytes))
                .map(Some),
        }
    }

    /// What the kernels are launched on for these buffers and numbers.
    pub(crate) fn context(&self, b: &Bindings<'_>, scalars: &[u32]) -> Result<Cx<'_>, String> {
        let arena = self.arena()?;
        let get = |list: &[Buffer], n: u32, d: &BufDesc| {
            let buffer = list.get(n as usize).ok_or("a binding is missing")?;
            let found = block("run", buffer, d.bytes()).map_err(|e| e.to_string())?;
            Ok::<_, String>((found.handle.clone(), found.bytes / 4))
        };
        let mut handles = Vec::with_capacity(self.plan.buffers.len());
        let mut words = Vec::with_capacity(self.plan.buffers.len());
        for d in &self.plan.buffers {
            let (handle, n) = match d.place {
                Place::Leaf(n) => get(b.leaves, n, d)?,
                Place::Slot(n) => get(b.slots, n, d)?,
                Place::Output(n) => get(b.outputs, n, d)?,
                Place::Arena(at) => {
                    let arena = arena.as_ref().ok_or("the plan has no arena")?;
                    let bytes = d.bytes().max(4).next_multiple_of(4);
                    let rest = arena.bytes.saturating_sub(at + bytes);
                    let handle = arena.handle.clone().offset_start(at as u64);
                    (handle.offset_end(rest as u64), bytes / 4)
                }
            };
            handles.push(handle);
            words.push(n);
        }
        Ok(Cx {
            device: &self.device,
            buffers: handles,
            words,
            scalar_words: scalars.len(),
            scalars: self
                .device
                .client
                .create_from_slice(bytemuck::cast_slice(scalars)),
            plan: self.number,
            arena,
            scratch: RefCell::default(),
            taken: Cell::new(0),
        })
    }

    /// Puts all kernels on the device's queue.
    pub(crate) fn launch(&self, cx: &Cx<'_>) -> Result<(), ExecError> {
        cx.taken.set(0);
        for (i, step) in self.steps.iter().enumerate() {
            step.launch(cx).map_err(|e| ExecError {
                step: i,
                kind: e,
                state_written: i > self.plan.first_write,
            })?;
            if !self.checked.load(Ordering::Relaxed) {
                // A kernel that does not compile is reported on its buffers only: who does not ask reads what was there before.
                let written = step.buffers();
                let check = written.iter().map(|b| cx.handle(*b));
                self.device.check(check).map_err(|e| {
                    let node = self.plan.steps[i].kernel.name();
                    let detail = format!("{}: kernel `{node}` failed: {e}", self.device.name);
                    self.error(i, self.device.fail(detail))
                })?;
            }
        }
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn error(&self, step: usize, detail: String) -> ExecError {
        ExecError {
            step,
            kind: ErrorKind::Device { detail },
            state_written: step > self.plan.first_write,
        }
    }
}

impl Executable for GpuPlan {
    fn run(&self, b: &Bindings<'_>) -> Result<(), ExecError> {
        self.device.alive().map_err(|e| self.error(0, e))?;
        let scalars = scalar_words(b.scalars);
        let replayed = self.device.replays() && {
            let mut replay = self.replay.lock().unwrap_or_else(PoisonError::into_inner);
            replay.run(self, b, &scalars)?
        };
        if !replayed {
            let cx = self.context(b, &scalars).map_err(|e| self.error(0, e))?;
            self.launch(&cx)?;
        }
        // Where no state is written somebody asked for a value now; a step of training is told at its next read, and does not apply.
        if self.indexed && b.slots.is_empty() {
            self.device.check_faults()?;
        }
        Ok(())
    }
}
