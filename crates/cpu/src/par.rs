//! Parallel loops of kernels. How a loop is cut never depends on the number of threads.
use rayon::prelude::*;
use std::cell::Cell;

thread_local! {
    static SERIAL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with all loops of this module serial, on the calling thread.
pub(crate) fn serial<R>(f: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            SERIAL.set(self.0);
        }
    }
    let _reset = Reset(SERIAL.replace(true));
    f()
}

/// Calls `f` with every number below `tasks`, each once, in any order and from any worker of the present pool.
pub(crate) fn for_each(tasks: usize, f: impl Fn(usize) + Sync) {
    if tasks <= 1 || SERIAL.get() {
        (0..tasks).for_each(&f);
    } else {
        (0..tasks).into_par_iter().with_max_len(1).for_each(&f);
    }
}

/// The number of pieces of at most `size` elements.
pub(crate) fn pieces(n: usize, size: usize) -> usize {
    n.div_ceil(size.max(1))
}

/// Piece number `i` of `0..n` in pieces of `size`.
pub(crate) fn piece(n: usize, size: usize, i: usize) -> std::ops::Range<usize> {
    (i * size).min(n)..((i + 1) * size).min(n)
}
