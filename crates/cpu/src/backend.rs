//! The device: threads, memory, and compiling plans.
use crate::alloc::{Allocator, Block, Use};
use crate::exec;
use bimetal_kernels::simd::{SimdLevel, simd_level};
use bimetal_tensor::graph::Composite;
use bimetal_tensor::plan::{MAX_BUFFERS, MAX_INSTRUCTIONS, Meta, Plan};
use bimetal_tensor::{
    Backend, Buffer, DType, Device, DeviceInfo, Error, Executable, MemoryReport, Result, Support,
};
use std::sync::{Arc, Mutex, PoisonError};

/// A CPU device with as many threads as `BIMETAL_THREADS` or `RAYON_NUM_THREADS` say, or else as the machine has cores.
pub fn cpu() -> Device {
    Device::new(CpuBackend::new(None))
}

/// The most threads of a device: results do not depend on their number, and a mistyped one must not bring the machine down.
const MAX_THREADS: usize = 1024;

/// The CPU backend: every kernel on a pool of threads of its own.
pub struct CpuBackend {
    info: DeviceInfo,
    shared: Arc<Shared>,
}

/// What compiled plans keep of their device.
pub(crate) struct Shared {
    /// `None` runs everything on the calling thread.
    pub(crate) pool: Option<rayon::ThreadPool>,
    pub(crate) memory: Arc<Allocator>,
    /// The arena while no plan runs.
    arena: Mutex<Option<Block>>,
}

impl CpuBackend {
    /// A backend with `threads` threads; `None` takes `BIMETAL_THREADS`, else `RAYON_NUM_THREADS`, else all cores; never more
    /// than 1024. Results do not depend on the number of threads. Up to `BIMETAL_CACHE_MB` MiB (1024) of freed memory are kept for reuse.
    pub fn new(threads: Option<usize>) -> CpuBackend {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut threads = threads
            .or_else(|| number("BIMETAL_THREADS"))
            .or_else(|| number("RAYON_NUM_THREADS"))
            .filter(|n| *n > 0)
            .unwrap_or_else(cores)
            .min(MAX_THREADS);
        let mut pool = None;
        if threads > 1 {
            // Without threads of its own (a system limit) the device still works.
            pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("bimetal-cpu-{i}"))
                .build()
                .ok();
            if pool.is_none() {
                threads = 1;
            }
        }
        let cap = number("BIMETAL_CACHE_MB").unwrap_or(1024) << 20;
        CpuBackend {
            info: info(threads),
            shared: Arc::new(Shared {
                pool,
                memory: Allocator::new(cap),
                arena: Mutex::new(None),
            }),
        }
    }
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.trim().parse().ok()
}

fn info(threads: usize) -> DeviceInfo {
    let support = |d: DType| match d {
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => Support::Emulated,
        _ => Support::Native,
    };
    DeviceInfo {
        name: processor().unwrap_or_else(|| "cpu".into()),
        kind: "cpu",
        architecture: architecture(),
        dtypes: DType::ALL.iter().map(|d| (*d, support(*d))).collect(),
        matrix_units: Vec::new(),
        units: threads,
        max_instructions: MAX_INSTRUCTIONS,
        max_buffers: MAX_BUFFERS,
    }
}

/// The processor's model name, where the system tells it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// The instruction set in use, on which the bits of results depend.
fn architecture() -> String {
    match (simd_level(), std::env::consts::ARCH) {
        (SimdLevel::Portable, arch) => arch.replace('_', "-"),
        (level, arch) => format!("{}-{level}", arch.replace('_', "-")),
    }
}

impl Shared {
    /// The device's arena, or a fresh one if another run has it, of at least `bytes` bytes.
    pub(crate) fn arena(&self, bytes: usize) -> Option<Block> {
        let kept = self.slot().take();
        match kept {
            Some(a) if a.bytes() >= bytes => Some(a),
            // The small one is freed first so that the two are never held together.
            old => {
                drop(old);
                self.memory.take(bytes, Use::Arena)
            }
        }
    }

    /// Puts an arena back; the largest is kept.
    pub(crate) fn put_arena(&self, arena: Block) {
        let mut slot = self.slot();
        let keep = match slot.take() {
            Some(other) if other.bytes() > arena.bytes() => other,
            _ => arena,
        };
        *slot = Some(keep);
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Block>> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` with the device's threads.
    pub(crate) fn install<R: Send>(&self, serial: bool, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) if !serial => pool.install(f),
            _ => bimetal_kernels::par::serial(f),
        }
    }
}

impl Backend for CpuBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn native(&self, composite: &Composite, inputs: &[Meta]) -> bool {
        exec::native(composite, inputs)
    }

    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        match self.shared.memory.take(bytes, Use::Buffer) {
            Some(block) => Ok(Buffer::new(bytes, Arc::new(block))),
            None => Err(out_of_memory("alloc", bytes)),
        }
    }

    fn memory(&self) -> MemoryReport {
        self.shared.memory.report()
    }

    fn upload(&self, dst: &Buffer, src: &[u8]) -> Result<()> {
        let block = block("upload", dst, src.len())?;
        // SAFETY: the block holds at least `src.len()` bytes, and the front end lets nobody else use it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), block.ptr(), src.len()) };
        Ok(())
    }

    fn download(&self, src: &Buffer, dst: &mut [u8]) -> Result<()> {
        let block = block("download", src, dst.len())?;
        // SAFETY: the block holds at least `dst.len()` bytes that were written before, and nobody writes them meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(block.ptr(), dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    fn compile(&self, plan: &Arc<Plan>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(exec::CpuPlan::new(plan, &self.shared)?))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

fn out_of_memory(op: &'static str, bytes: usize) -> Error {
    Error::device(
        op,
        format!(
            "the system has no {bytes} bytes of memory left; use a smaller batch or free other tensors"
        ),
    )
}

fn block<'a>(op: &'static str, buffer: &'a Buffer, bytes: usize) -> Result<&'a Block> {
    let block = buffer
        .downcast::<Block>()
        .ok_or_else(|| Error::device(op, "the buffer belongs to another backend than `cpu`"))?;
    if bytes > block.bytes() {
        return Err(Error::device(
            op,
            format!(
                "{bytes} bytes do not fit in a buffer of {} bytes",
                block.bytes()
            ),
        ));
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_up_and_come_down() {
        let b = CpuBackend::new(Some(1));
        let buf = b.alloc(5).unwrap();
        b.upload(&buf, &[1, 2, 3, 4, 5]).unwrap();
        let mut out = [0; 5];
        b.download(&buf, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5]);
        assert_eq!(b.memory().live, 5);
        let e = b.upload(&buf, &[0; 6]).unwrap_err().to_string();
        assert!(e.contains("6 bytes do not fit"), "{e}");
        drop(buf);
        assert_eq!(b.memory().live, 0);
        assert_eq!(b.memory().peak, 5);
    }

    #[test]
    fn the_device_describes_itself() {
        let b = CpuBackend::new(Some(3));
        assert_eq!(b.info().units, 3);
        assert_eq!(b.info().support(DType::F32), Support::Native);
        assert_eq!(b.info().support(DType::BF16), Support::Emulated);
        assert_eq!(CpuBackend::new(Some(1)).info().units, 1);
    }
}
