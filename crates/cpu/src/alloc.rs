//! Device memory: 64-byte aligned blocks in size classes, kept for reuse up to a cap, and counted exactly.
//!
//! Fresh pages of the operating system cost more than most kernels spend on them, so freed blocks go to a free list
//! of their class first. Large blocks ask for huge pages: a kernel that streams through them waits less for addresses, and
//! prefetching does not stop at every 4 KiB.
use bimetal_tensor::MemoryReport;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every block: a cache line, and the widest vector register.
pub(crate) const ALIGN: usize = 64;

/// Hands out blocks and keeps freed ones.
pub(crate) struct Allocator {
    cap: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: HashMap<usize, Vec<Free>>,
    cached: usize,
    live: usize,
    arena: usize,
    peak: usize,
    reserved: usize,
}

/// Memory that nobody uses.
struct Free(NonNull<u8>);
// SAFETY: the memory is owned by the list and not tied to a thread.
unsafe impl Send for Free {}

/// What a block is counted as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A buffer.
    Buffer,
    /// Memory of intermediate results.
    Arena,
}

/// An aligned block of memory that goes back to its allocator when dropped.
///
/// It has interior mutability: whoever runs a plan holds, by the front end's gate, exclusive access to the buffers the
/// plan writes and shared access to those it reads.
pub(crate) struct Block {
    ptr: NonNull<u8>,
    bytes: usize,
    class: usize,
    usage: Use,
    home: Arc<Allocator>,
}

// SAFETY: the block owns its memory; access through the pointer is ordered by the front end's gate.
unsafe impl Send for Block {}
// SAFETY: as above; shared references give out no more than the address.
unsafe impl Sync for Block {}

/// The size that is really allocated for `bytes`: at most an eighth more than asked for, beyond 512 bytes.
fn class(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(1);
    let step = if bytes <= 512 {
        ALIGN
    } else {
        (bytes.checked_next_power_of_two()? / 16).max(ALIGN)
    };
    let class = bytes.checked_next_multiple_of(step)?;
    Layout::from_size_align(class, HUGE).ok()?;
    Some(class)
}

/// Blocks from this size are aligned to it and ask for pages of it.
const HUGE: usize = 2 << 20;

fn layout(class: usize) -> Layout {
    let align = if class >= HUGE { HUGE } else { ALIGN };
    // `class` came from `class()`, which checked it.
    Layout::from_size_align(class, align).unwrap_or(Layout::new::<u64>())
}

/// Fresh memory of a class.
fn fresh(class: usize) -> Option<NonNull<u8>> {
    // SAFETY: the size is not zero.
    let ptr = NonNull::new(unsafe { alloc(layout(class)) })?;
    if class >= HUGE {
        ask_for_huge_pages(ptr, class / HUGE * HUGE);
    }
    Some(ptr)
}

#[cfg(target_os = "linux")]
fn ask_for_huge_pages(ptr: NonNull<u8>, bytes: usize) {
    use std::ffi::{c_int, c_void};
    const MADV_HUGEPAGE: c_int = 14;
    unsafe extern "C" {
        fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int;
    }
    // SAFETY: whole pages of a block just allocated; the advice changes no contents. A system that does not take it says so.
    let _ = unsafe { madvise(ptr.as_ptr().cast(), bytes, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: NonNull<u8>, _: usize) {}

impl Allocator {
    /// An allocator that keeps at most `cap` bytes of freed blocks.
    pub(crate) fn new(cap: usize) -> Arc<Allocator> {
        Arc::new(Allocator {
            cap,
            state: Mutex::new(State::default()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of at least `bytes` bytes with undefined contents, or `None` if there is no memory.
    pub(crate) fn take(self: &Arc<Allocator>, bytes: usize, usage: Use) -> Option<Block> {
        let class = class(bytes)?;
        let mut s = self.state();
        let kept = s.free.get_mut(&class).and_then(Vec::pop);
        let ptr = match kept {
            Some(Free(ptr)) => {
                s.cached -= class;
                ptr
            }
            None => {
                let ptr = fresh(class).or_else(|| {
                    s.release(0);
                    fresh(class)
                })?;
                s.reserved += class;
                ptr
            }
        };
        match usage {
            Use::Buffer => s.live += bytes,
            Use::Arena => s.arena += bytes,
        }
        s.peak = s.peak.max(s.live + s.arena);
        drop(s);
        Some(Block {
            ptr,
            bytes,
            class,
            usage,
            home: self.clone(),
        })
    }

    /// Present use of memory.
    pub(crate) fn report(&self) -> MemoryReport {
        let s = self.state();
        MemoryReport {
            live: s.live,
            peak: s.peak,
            reserved: s.reserved,
            saved: 0,
        }
    }
}

impl State {
    /// Gives cached blocks back to the system until at most `keep` bytes are cached.
    fn release(&mut self, keep: usize) {
        while self.cached > keep {
            let Some((&class, _)) = self
                .free
                .iter()
                .filter(|(_, v)| !v.is_empty())
                .max_by_key(|(c, _)| **c)
            else {
                return;
            };
            let Some(Free(ptr)) = self.free.get_mut(&class).and_then(Vec::pop) else {
                return;
            };
            // SAFETY: the block was allocated with this layout and is in nobody's hands.
            unsafe { dealloc(ptr.as_ptr(), layout(class)) };
            self.cached -= class;
            self.reserved -= class;
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.release(0);
    }
}

impl Block {
    /// The first byte.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The size asked for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut s = self.home.state();
        match self.usage {
            Use::Buffer => s.live -= self.bytes,
            Use::Arena => s.arena -= self.bytes,
        }
        s.free.entry(self.class).or_default().push(Free(self.ptr));
        s.cached += self.class;
        s.release(self.home.cap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_reused_and_capped() {
        let a = Allocator::new(4096);
        let x = a.take(1000, Use::Buffer).unwrap();
        let y = a.take(3000, Use::Arena).unwrap();
        assert_eq!(x.ptr() as usize % ALIGN, 0);
        assert_eq!(a.report().live, 1000);
        assert_eq!(a.report().peak, 4000);
        let p = x.ptr();
        drop(x);
        assert_eq!(a.report().live, 0);
        let z = a.take(1010, Use::Buffer).unwrap();
        assert_eq!(z.ptr(), p, "a freed block of the class is used again");
        drop((y, z));
        assert_eq!(a.report().peak, 4010);
        assert!(a.report().reserved <= 4096, "{:?}", a.report());
        let big = a.take(1 << 20, Use::Buffer).unwrap();
        drop(big);
        assert!(
            a.report().reserved <= 4096,
            "beyond the cap nothing is kept"
        );
        assert!(a.take(usize::MAX - 3, Use::Buffer).is_none());
    }

    #[test]
    fn classes_waste_at_most_an_eighth() {
        for n in (1..100_000).step_by(37) {
            let c = class(n).unwrap();
            assert!(c >= n && c.is_multiple_of(ALIGN));
            assert!(n <= 512 || c - n <= n / 8 + 64, "{n} {c}");
        }
        assert_eq!(class(0), Some(64));
    }
}
