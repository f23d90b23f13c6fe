//! Parallel loops of kernels. Where a cut shows in the result, it never depends on the number of threads.
use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;
use std::cell::Cell;

thread_local! {
    static SERIAL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with all loops of this module serial, on the calling thread.
pub fn serial<R>(f: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            SERIAL.set(self.0);
        }
    }
    let _reset = Reset(SERIAL.replace(true));
    f()
}

/// The threads that a loop started here is spread over.
pub fn threads() -> usize {
    match SERIAL.get() {
        true => 1,
        false => rayon::current_num_threads(),
    }
}

/// Calls `f` with every number below `tasks`, each once, in any order and from any worker of the present pool.
pub fn for_each(tasks: usize, f: impl Fn(usize) + Sync) {
    if tasks <= 1 || SERIAL.get() {
        (0..tasks).for_each(&f);
    } else {
        (0..tasks).into_par_iter().with_max_len(1).for_each(&f);
    }
}

/// Calls `f` with every item and its number, in any order and from any worker of the present pool.
pub fn items<I: IndexedParallelIterator>(items: I, f: impl Fn(usize, I::Item) + Sync + Send) {
    if items.len() <= 1 || SERIAL.get() {
        items.enumerate().with_producer(InOrder(f));
    } else {
        items.enumerate().for_each(|(i, item)| f(i, item));
    }
}

/// Takes the items of a parallel iterator one after the other.
struct InOrder<F>(F);

impl<T, F: Fn(usize, T)> ProducerCallback<(usize, T)> for InOrder<F> {
    type Output = ();
    fn callback<P: Producer<Item = (usize, T)>>(self, producer: P) {
        for (i, item) in producer.into_iter() {
            (self.0)(i, item);
        }
    }
}

/// The number of pieces of at most `size` elements.
pub fn pieces(n: usize, size: usize) -> usize {
    n.div_ceil(size.max(1))
}

/// Piece number `i` of `0..n` in pieces of `size`.
pub fn piece(n: usize, size: usize, i: usize) -> std::ops::Range<usize> {
    (i * size).min(n)..((i + 1) * size).min(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn serial_loops_stay_on_the_thread() {
        let me = std::thread::current().id();
        let mut data = vec![0u32; 1000];
        serial(|| {
            for_each(10, |_| assert_eq!(std::thread::current().id(), me));
            items(data.par_chunks_mut(7), |i, part| {
                assert_eq!(std::thread::current().id(), me);
                part.fill(i as u32);
            });
        });
        assert!(data.iter().enumerate().all(|(i, v)| *v == i as u32 / 7));
    }

    #[test]
    fn every_task_runs_once() {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(3)
            .build()
            .unwrap();
        let seen = Mutex::new(vec![0; 100]);
        pool.install(|| for_each(100, |t| seen.lock().unwrap()[t] += 1));
        assert!(seen.lock().unwrap().iter().all(|n| *n == 1));
        assert_eq!((pieces(10, 3), piece(10, 3, 3)), (4, 9..10));
    }
}
