//! Long sums of f32 values: short chains in lanes, which are added up in f64.

const LANES: usize = 64;
/// Values of a lane that are added in f32.
const CHAIN: usize = 16;

/// `N` sums of functions of pairs of values.
pub struct Sums<const N: usize> {
    short: [[f32; LANES]; N],
    long: [[f64; LANES]; N],
    steps: usize,
}

impl<const N: usize> Sums<N> {
    pub fn new() -> Sums<N> {
        Sums {
            short: [[0.0; LANES]; N],
            long: [[0.0; LANES]; N],
            steps: 0,
        }
    }

    /// Adds `f` of every pair.
    #[inline(always)]
    pub fn add(&mut self, a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> [f32; N]) {
        let (a, a_rest) = a.as_chunks::<LANES>();
        let (b, b_rest) = b.as_chunks::<LANES>();
        for (a, b) in a.chunks(CHAIN).zip(b.chunks(CHAIN)) {
            if self.steps + a.len() > CHAIN {
                self.flush();
            }
            self.steps += a.len();
            let mut short = self.short;
            for (a, b) in a.iter().zip(b) {
                for lane in 0..LANES {
                    let values = f(a[lane], b[lane]);
                    for (sum, value) in short.iter_mut().zip(values) {
                        sum[lane] += value;
                    }
                }
            }
            self.short = short;
        }
        if !a_rest.is_empty() {
            if self.steps == CHAIN {
                self.flush();
            }
            self.steps += 1;
            for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
                let values = f(*a, *b);
                for (sum, value) in self.short.iter_mut().zip(values) {
                    sum[lane] += value;
                }
            }
        }
    }

    #[inline(always)]
    fn flush(&mut self) {
        for (long, short) in self.long.iter_mut().zip(&mut self.short) {
            for (long, short) in long.iter_mut().zip(short) {
                *long += *short as f64;
                *short = 0.0;
            }
        }
        self.steps = 0;
    }

    /// The sums.
    #[inline(always)]
    pub fn totals(mut self) -> [f64; N] {
        self.flush();
        self.long.map(|mut lanes| {
            let mut width = LANES / 2;
            while width > 0 {
                let (low, high) = lanes.split_at_mut(width);
                for (a, b) in low.iter_mut().zip(high) {
                    *a += *b;
                }
                width /= 2;
            }
            lanes[0]
        })
    }
}
