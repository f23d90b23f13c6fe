//! Aligned scratch memory that each thread keeps and reuses.
//!
//! Fresh pages of the operating system cost more than packing into them. A thread that waits inside
//! a parallel loop may pick up a task that needs scratch too, so buffers are taken out of the
//! thread's list and put back, never borrowed in place.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

const ALIGN: usize = 64;
/// Buffers that one thread keeps.
const KEPT: usize = 12;
/// Larger buffers go back to the allocator at once.
const KEPT_BYTES: usize = 64 << 20;

/// A 64-byte aligned block of memory with unspecified content.
pub struct Scratch {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the block is owned and has no ties to the thread that made it.
unsafe impl Send for Scratch {}
// SAFETY: shared references give out no more than the address.
unsafe impl Sync for Scratch {}

thread_local! {
    static FREE: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// The memory of a [`Scratch`] that waits for its next use.
struct Block(NonNull<u8>, usize);

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `Scratch::take` allocated it with this layout.
        unsafe { dealloc(self.0.as_ptr(), layout(self.1)) }
    }
}

fn layout(bytes: usize) -> Layout {
    // Rounded sizes are far from `isize::MAX` for any block that can exist.
    Layout::from_size_align(bytes, ALIGN).unwrap_or(Layout::new::<[u64; 8]>())
}

impl Scratch {
    /// Memory for `len` values of `T`.
    pub fn take<T>(len: usize) -> Scratch {
        let bytes = (len * size_of::<T>()).max(1).next_multiple_of(4096);
        let kept = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            let best = (0..free.len())
                .filter(|&i| free[i].1 >= bytes)
                .min_by_key(|&i| free[i].1)?;
            Some(free.swap_remove(best))
        });
        if let Ok(Some(block)) = kept {
            let scratch = Scratch {
                ptr: block.0,
                bytes: block.1,
            };
            std::mem::forget(block);
            return scratch;
        }
        let layout = layout(bytes);
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc(layout) };
        let Some(ptr) = NonNull::new(ptr) else {
            handle_alloc_error(layout)
        };
        Scratch { ptr, bytes }
    }

    /// Memory for `len` f32 values, all 0.
    pub fn zeros(len: usize) -> Scratch {
        let scratch = Scratch::take::<f32>(len);
        // SAFETY: it has room for these; zero bits are the number 0.
        unsafe { std::ptr::write_bytes(scratch.ptr::<f32>(), 0, len) };
        scratch
    }

    /// The start of the block.
    pub fn ptr<T>(&self) -> *mut T {
        self.ptr.as_ptr().cast()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let block = Block(self.ptr, self.bytes);
        if self.bytes > KEPT_BYTES {
            return;
        }
        // A thread that is being torn down has no list any more: the block is freed.
        let _ = FREE.try_with(move |free| {
            let mut free = free.borrow_mut();
            free.push(block);
            if free.len() > KEPT {
                let smallest = (0..free.len()).min_by_key(|&i| free[i].1);
                if let Some(i) = smallest {
                    free.swap_remove(i);
                }
            }
        });
    }
}

/// A pointer that tasks write disjoint parts behind.
#[derive(Clone, Copy)]
pub struct Dst<T>(pub *mut T);
// SAFETY: who writes behind it has to keep to that.
unsafe impl<T> Send for Dst<T> {}
// SAFETY: who writes behind it has to keep to that.
unsafe impl<T> Sync for Dst<T> {}

impl<T> Dst<T> {
    /// The address `offset` values on.
    pub fn at(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_reused() {
        let a = Scratch::take::<f32>(5000);
        let p = a.ptr::<f32>();
        assert_eq!(p as usize % ALIGN, 0);
        let b = Scratch::take::<f32>(5000);
        assert_ne!(p, b.ptr::<f32>());
        drop(a);
        assert_eq!(Scratch::take::<f32>(100).ptr::<f32>(), p);
    }
}
