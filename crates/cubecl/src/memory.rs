//! Device memory: buffers that count themselves, and the arena that all plans of a device share.
use bimetal_tensor::MemoryReport;
use cubecl::server::Handle;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are live and that were at most.
#[derive(Default)]
pub(crate) struct Counters {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl Counters {
    fn grow(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(live, Relaxed);
    }

    pub(crate) fn report(&self, reserved: usize) -> MemoryReport {
        MemoryReport {
            live: self.live.load(Relaxed),
            peak: self.peak.load(Relaxed),
            reserved,
            saved: 0,
        }
    }
}

/// A buffer of the front end.
pub(crate) struct Block {
    pub(crate) handle: Handle,
    pub(crate) bytes: usize,
    counters: Arc<Counters>,
}

impl Block {
    pub(crate) fn new(handle: Handle, bytes: usize, counters: &Arc<Counters>) -> Block {
        counters.grow(bytes);
        Block {
            handle,
            bytes,
            counters: counters.clone(),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.counters.live.fetch_sub(self.bytes, Relaxed);
    }
}

/// The memory of temporaries: one block as large as the largest plan wants. Plans run one after the other on the device's queue, so that they may share it.
#[derive(Default)]
pub(crate) struct Arena(Mutex<Option<Arc<Block>>>);

impl Arena {
    /// The block, if it has at least `bytes` bytes; otherwise what `alloc` gives takes its place.
    pub(crate) fn get<E>(
        &self,
        bytes: usize,
        alloc: impl FnOnce() -> Result<Block, E>,
    ) -> Result<Arc<Block>, E> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some(block) if block.bytes >= bytes => Ok(block.clone()),
            _ => {
                // The small one is given up first, so that the two are never held together.
                *slot = None;
                let block = Arc::new(alloc()?);
                *slot = Some(block.clone());
                Ok(block)
            }
        }
    }
}
