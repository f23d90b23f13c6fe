//! A plan's launches, recorded once and replayed: on NVIDIA's devices as a CUDA graph, elsewhere as what the runtime keeps of them. What is recorded works on fixed memory, so that what changes
//! from run to run is copied there: the scalar table, leaves that are not the same buffer each time (batches), and results.
use crate::backend::block;
use crate::memory::Block;
use crate::plan::{GpuPlan, Held};
use bimetal_tensor::{Bindings, Buffer, ExecError};
use cubecl::bytes::Bytes;
use cubecl::client::Graph;
use cubecl::prelude::*;
use cubecl::server::Handle;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;

/// Recordings of a plan after which it is launched as ever: its memory does not come to rest.
const MOST_RECORDINGS: usize = 4;

/// What is known of a plan's runs.
pub(crate) struct Replay {
    /// Never, or not any more.
    never: bool,
    recordings: usize,
    /// The leaves of the last run, held so that another buffer is not taken for one of them.
    leaves: Vec<Buffer>,
    /// Which leaves are another buffer from run to run.
    changing: Vec<bool>,
    recording: Option<Recording>,
}

/// Launches on memory that stays.
struct Recording {
    graph: Graph,
    /// A recording is ordered against what its own thread submits.
    thread: ThreadId,
    leaves: Vec<Buffer>,
    slots: Vec<Buffer>,
    outputs: Vec<Buffer>,
    scalars: Handle,
    held: Held,
}

impl Replay {
    /// Nothing is known; `on_host` plans need the host within.
    pub(crate) fn new(on_host: bool) -> Replay {
        Replay {
            never: on_host,
            recordings: 0,
            leaves: Vec::new(),
            changing: Vec::new(),
            recording: None,
        }
    }

    /// Runs the plan from its recording, or while it is recorded. False: it has yet to be launched.
    pub(crate) fn run(
        &mut self,
        plan: &GpuPlan,
        b: &Bindings<'_>,
        scalars: &[u32],
    ) -> Result<bool, ExecError> {
        if self.never {
            return Ok(false);
        }
        if let Some(r) = &self.recording {
            if r.fits(plan, b, &self.changing) {
                r.run(plan, b, &self.changing, scalars)?;
                plan.device().replayed.fetch_add(1, Ordering::Relaxed);
                return Ok(true);
            }
            if r.thread != std::thread::current().id() {
                return Ok(false);
            }
        }
        // The first run compiles kernels, the second shows which leaves change.
        let second = self.leaves.len() == b.leaves.len() && !b.leaves.is_empty();
        let same = |i: usize| self.leaves.get(i).is_some_and(|l| is(l, &b.leaves[i]));
        let changing: Vec<bool> = (0..b.leaves.len())
            .map(|i| second && (self.changing.get(i) == Some(&true) || !same(i)))
            .collect();
        let seen = !self.changing.is_empty() || b.leaves.is_empty();
        self.leaves = b.leaves.to_vec();
        self.changing = changing;
        self.recording = None;
        if !(second && seen) {
            return Ok(false);
        }
        self.recordings += 1;
        self.never = self.recordings >= MOST_RECORDINGS;
        self.record(plan, b, scalars)
    }

    /// Runs the plan on memory that stays, and records it once more.
    fn record(
        &mut self,
        plan: &GpuPlan,
        b: &Bindings<'_>,
        scalars: &[u32],
    ) -> Result<bool, ExecError> {
        let fixed = |buffer: &Buffer| {
            let block = plan.device().block(buffer.bytes());
            let block = block.map_err(|e| plan.error(0, e))?;
            Ok::<_, ExecError>(Buffer::new(buffer.bytes(), Arc::new(block)))
        };
        let mut leaves = b.leaves.to_vec();
        for (leaf, _) in leaves.iter_mut().zip(&self.changing).filter(|(_, c)| **c) {
            *leaf = fixed(leaf)?;
        }
        let outputs = b.outputs.iter().map(fixed).collect::<Result<Vec<_>, _>>()?;
        let own = Bindings {
            leaves: &leaves,
            slots: b.slots,
            outputs: &outputs,
            scalars: b.scalars,
        };
        let cx = plan.context(&own, scalars).map_err(|e| plan.error(0, e))?;
        let client = &plan.device().client;
        if client.graph_prepare().is_err() {
            self.never = true;
            return Ok(false);
        }
        for (from, to) in b.leaves.iter().zip(&leaves) {
            copy(plan, from, to)?;
        }
        // This is the run that was asked for; the second time is recorded and not executed.
        plan.launch(&cx)
            .inspect_err(|_| _ = client.stop_capture())?;
        let recorded = client.start_capture().is_ok() && {
            // Launches are errors where they find no memory, of which the capture reports as well.
            let again = plan.launch(&cx);
            let graph = client.stop_capture();
            match (again, graph) {
                (Ok(()), Ok(graph)) => {
                    self.recording = Some(Recording {
                        graph,
                        thread: std::thread::current().id(),
                        leaves,
                        slots: b.slots.to_vec(),
                        outputs: outputs.clone(),
                        scalars: cx.scalars_handle(),
                        held: cx.into_held(),
                    });
                    true
                }
                _ => false,
            }
        };
        self.never |= !recorded;
        for (from, to) in outputs.iter().zip(b.outputs) {
            copy(plan, from, to)?;
        }
        Ok(true)
    }
}

impl Recording {
    /// Whether these are the buffers it was recorded on, but for those that are copied.
    fn fits(&self, plan: &GpuPlan, b: &Bindings<'_>, changing: &[bool]) -> bool {
        let all = |own: &[Buffer], theirs: &[Buffer]| {
            own.len() == theirs.len() && own.iter().zip(theirs).all(|(a, b)| is(a, b))
        };
        let leaves = self.leaves.iter().zip(b.leaves).zip(changing);
        let arena = match (plan.arena(), &self.held.arena) {
            (Ok(Some(now)), Some(then)) => Arc::ptr_eq(&now, then),
            (Ok(None), None) => true,
            _ => false,
        };
        self.thread == std::thread::current().id()
            && arena
            && all(&self.slots, b.slots)
            && self.leaves.len() == b.leaves.len()
            && leaves
                .into_iter()
                .all(|((own, theirs), changing)| *changing || is(own, theirs))
    }

    fn run(
        &self,
        plan: &GpuPlan,
        b: &Bindings<'_>,
        changing: &[bool],
        scalars: &[u32],
    ) -> Result<(), ExecError> {
        let client = &plan.device().client;
        for ((from, to), _) in b
            .leaves
            .iter()
            .zip(&self.leaves)
            .zip(changing)
            .filter(|(_, c)| **c)
        {
            copy(plan, from, to)?;
        }
        let bytes = bytemuck::cast_slice(scalars).to_vec();
        client.write(&self.scalars, Bytes::from_bytes_vec(bytes));
        // SAFETY: `held` and the buffers beside it keep all memory of the recording; plans of a device run one after the other, and this thread, whose stream it was recorded on, submits
        // the copies before and behind it.
        unsafe { self.graph.replay() }.map_err(|e| {
            let detail = format!("{}: a recorded plan did not start: {e}", plan.device().name);
            plan.error(0, plan.device().fail(detail))
        })?;
        for (from, to) in self.outputs.iter().zip(b.outputs) {
            copy(plan, from, to)?;
        }
        Ok(())
    }
}

/// Whether two handles are of the same memory.
fn is(a: &Buffer, b: &Buffer) -> bool {
    match (a.downcast::<Block>(), b.downcast::<Block>()) {
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}

#[cube(launch_unchecked)]
fn copy_kernel(from: &[u32], to: &mut [u32], words: u32) {
    if (ABSOLUTE_POS as u32) < words {
        to[ABSOLUTE_POS] = from[ABSOLUTE_POS];
    }
}

/// Units of a cube.
const UNITS: u32 = 256;

fn copy(plan: &GpuPlan, from: &Buffer, to: &Buffer) -> Result<(), ExecError> {
    if is(from, to) {
        return Ok(());
    }
    let find = |b| block("replay", b, from.bytes()).map_err(|e| plan.error(0, e.to_string()));
    let (a, b) = (find(from)?, find(to)?);
    let words = a.bytes.min(b.bytes) / 4;
    let device = plan.device();
    let units = UNITS.min(device.limits.max_units);
    // SAFETY: both have as many words, and units past the end stop.
    unsafe {
        copy_kernel::launch_unchecked(
            &device.client,
            device.grid(words.div_ceil(units as usize)),
            CubeDim::new_1d(units),
            BufferArg::from_raw_parts(a.handle.clone(), words),
            BufferArg::from_raw_parts(b.handle.clone(), words),
            words as u32,
        );
    }
    Ok(())
}
