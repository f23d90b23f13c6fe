//! What this machine can do: multiply-adds, and memory traffic.
use crate::clock::thread_ms;
use pulp::{Arch, Simd, WithSimd};
use std::hint::black_box;
use std::sync::Barrier;

/// The limits of a machine at a number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// f32 multiply-adds from registers, 2 operations each, in 10^9 operations per second.
    pub gflops: f64,
    /// Traffic with memory, in 10^9 bytes per second: the better of a triad (12 bytes an element) and an update sweep (28 bytes).
    pub gbs: f64,
}

/// Measures the limits with `threads` threads at once; `quick` gives a first impression only.
///
/// Rates are per CPU time of each thread, summed: what other processes take away does not count. Two threads that did not
/// overlap in time did not share the memory either, so that on a loaded machine the traffic of several threads is an upper bound.
pub fn measure(threads: usize, quick: bool) -> Limits {
    let (tries, elements) = if quick { (1, 1 << 20) } else { (5, 1 << 25) };
    let turns = if quick { 1 << 16 } else { 1 << 22 };
    let gflops = best(tries, threads, || {
        move || Arch::new().dispatch(Chains(turns))
    });
    let each = elements / threads.max(1);
    let triad = best(tries, threads, || {
        let (mut a, b, c) = (vec![1f32; each], vec![2f32; each], vec![3f32; each]);
        move || {
            Arch::new().dispatch(|| triad(&mut a, &b, &c));
            black_box(&a);
            12.0 * each as f64
        }
    });
    let sweep = best(tries, threads, || {
        let mut state = [vec![1f32; each], vec![2f32; each], vec![3f32; each]];
        let grad = vec![0.5f32; each];
        move || {
            let [p, m, v] = &mut state;
            Arch::new().dispatch(|| sweep(p, m, v, &grad));
            black_box(&state);
            28.0 * each as f64
        }
    });
    Limits {
        gflops,
        gbs: triad.max(sweep),
    }
}

/// The best rate of `tries`, in 10^9 per second; what `make` makes does the work on each thread and says how much it was.
fn best<W: FnMut() -> f64>(tries: usize, threads: usize, make: impl Fn() -> W + Sync) -> f64 {
    let barrier = Barrier::new(threads.max(1));
    let rates: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let one = || {
            let mut work = make();
            work();
            (0..tries)
                .map(|_| {
                    barrier.wait();
                    let start = thread_ms();
                    let done = work();
                    done / (thread_ms() - start).max(1e-6) / 1e6
                })
                .collect()
        };
        let started: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(one)).collect();
        started.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    let sum = |i: usize| rates.iter().map(|r| r[i]).sum::<f64>();
    (0..tries).map(sum).fold(0.0, f64::max)
}

/// Independent chains of multiply-adds, enough to fill the pipelines, few enough for 16 registers.
struct Chains(usize);
const CHAINS: usize = 12;

impl WithSimd for Chains {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let (factor, term) = (simd.splat_f32s(0.999), simd.splat_f32s(black_box(0.001)));
        let mut sums = [term; CHAINS];
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(*sum, factor, term);
            }
        }
        let total = sums.iter().map(|s| simd.reduce_sum_f32s(*s)).sum::<f32>();
        black_box(total);
        let lanes = size_of::<S::f32s>() / size_of::<f32>();
        2.0 * (self.0 * CHAINS * lanes) as f64
    }
}

#[inline(always)]
fn triad(a: &mut [f32], b: &[f32], c: &[f32]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + 0.5 * c;
    }
}

/// The traffic of Adam's update with little of its arithmetic.
#[inline(always)]
fn sweep(p: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32]) {
    for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(grad) {
        *m += 0.1 * (g - *m);
        *v += 0.001 * (g * g - *v);
        *p -= 1e-3 * *m + 1e-6 * *v;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_can_do_something() {
        let limits = super::measure(2, true);
        assert!(limits.gflops > 0.1 && limits.gbs > 0.01, "{limits:?}");
    }
}
