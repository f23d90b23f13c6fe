//! Aligned scratch memory that each thread keeps and reuses.
use std::cell::RefCell;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Blocks a thread keeps, and the largest size kept.
const KEPT: usize = 4;
const KEPT_BYTES: usize = 4 << 20;

/// A 64-byte aligned block of initialised memory with unspecified contents.
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    /// At least `bytes` bytes. Blocks are taken out of the thread's list, never borrowed in place: a worker that waits may
    /// pick up another task.
    pub(crate) fn new(bytes: usize) -> Scratch {
        let lines = bytes.div_ceil(64).max(1);
        let kept = FREE.try_with(|f| f.borrow_mut().pop()).ok().flatten();
        let mut v = kept.unwrap_or_default();
        if v.len() < lines {
            v.resize(lines, Line([0; 64]));
        }
        Scratch(v)
    }

    /// The first byte.
    pub(crate) fn ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let v = std::mem::take(&mut self.0);
        if v.len() * 64 <= KEPT_BYTES {
            // A thread that is being torn down has no list any more.
            let _ = FREE.try_with(|f| {
                let mut f = f.borrow_mut();
                if f.len() < KEPT {
                    f.push(v);
                }
            });
        }
    }
}
