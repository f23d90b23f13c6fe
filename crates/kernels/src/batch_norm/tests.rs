//! Against the definition in f64.

use super::*;
use crate::testutil::{Data, Rng, on_threads};

const PLANES: [Planes; 4] = [
    Planes {
        batch: 3,
        channels: 5,
        plane: 64,
    },
    Planes {
        batch: 2,
        channels: 3,
        plane: 1500,
    },
    Planes {
        batch: 40,
        channels: 2,
        plane: 49,
    },
    Planes {
        batch: 7,
        channels: 1,
        plane: 1,
    },
];
const EPS: f64 = 1e-5;

struct Case {
    planes: Planes,
    x: Data,
    dy: Data,
    gamma: Vec<f32>,
    beta: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng, planes: Planes, dtype: DType, shift: f64) -> Case {
        let n = planes.count() * planes.channels;
        let mut draw =
            |n: usize, shift: f64| -> Vec<f64> { (0..n).map(|_| rng.normal() + shift).collect() };
        let narrow = |v: Vec<f64>| v.into_iter().map(|v| v as f32).collect();
        Case {
            planes,
            x: Data::new(dtype, &draw(n, shift)),
            dy: Data::new(dtype, &draw(n, 0.0)),
            gamma: narrow(draw(planes.channels, 1.0)),
            beta: narrow(draw(planes.channels, 0.0)),
        }
    }

    fn source(data: &Data) -> Source {
        Source {
            ptr: data.ptr(),
            dtype: data.dtype,
        }
    }

    /// y, statistics, dx, dgamma and dbeta.
    fn run(&self) -> (Data, [Vec<f32>; 3], Data, [Vec<f32>; 2]) {
        let (n, c) = (self.x.values().len(), self.planes.channels);
        let dtype = self.x.dtype;
        let mut y = Data::new(dtype, &vec![f64::NAN; n]);
        let mut dx = Data::new(dtype, &vec![f64::NAN; n]);
        let [mut a, mut b, mut v] = [0; 3].map(|_| vec![0.0; c]);
        let [mut dgamma, mut dbeta] = [0; 2].map(|_| vec![0.0; c]);
        // SAFETY: all arrays have these sizes and outlive the calls.
        unsafe {
            batch_norm(
                &self.planes,
                Case::source(&self.x),
                &self.gamma,
                &self.beta,
                EPS,
                Target {
                    ptr: y.ptr_mut(),
                    dtype,
                },
                [&mut a, &mut b, &mut v],
            );
            batch_norm_grad(
                &self.planes,
                Case::source(&self.x),
                Case::source(&self.dy),
                &self.gamma,
                [&a, &b],
                Target {
                    ptr: dx.ptr_mut(),
                    dtype,
                },
                [&mut dgamma, &mut dbeta],
            );
        }
        (y, [a, b, v], dx, [dgamma, dbeta])
    }

    /// Elements of a channel.
    fn channel(&self, c: usize) -> Vec<usize> {
        let mut all = Vec::new();
        self.planes.runs(c, |at, n| all.extend(at..at + n));
        all
    }
}

fn close(what: &str, got: f64, want: f64, bound: f64) {
    assert!((got - want).abs() <= bound, "{what}: {got} {want}");
}

#[test]
fn agrees_with_the_definition() {
    let mut rng = Rng(21);
    for planes in PLANES {
        for (dtype, eps) in [(DType::F32, 1e-5), (DType::BF16, 1e-2), (DType::F16, 2e-3)] {
            let case = Case::new(&mut rng, planes, dtype, 3.0);
            let (y, [means, rstds, variances], dx, [dgammas, dbetas]) = case.run();
            let (xs, dys) = (case.x.values(), case.dy.values());
            for c in 0..planes.channels {
                let at = case.channel(c);
                let mean_of = |f: &dyn Fn(usize) -> f64| {
                    at.iter().map(|i| f(*i)).sum::<f64>() / at.len() as f64
                };
                let mean = mean_of(&|i| xs[i]);
                let variance = mean_of(&|i| (xs[i] - mean).powi(2));
                let rstd = 1.0 / (variance + EPS).sqrt();
                close("mean", means[c] as f64, mean, 1e-6);
                close("variance", variances[c] as f64, variance, 1e-6 * variance);
                close("rstd", rstds[c] as f64, rstd, 1e-6 * rstd);
                let (gamma, beta) = (case.gamma[c] as f64, case.beta[c] as f64);
                let n = |i: usize| (xs[i] - mean) * rstd;
                let (dbeta, dgamma) = (mean_of(&|i| dys[i]), mean_of(&|i| dys[i] * n(i)));
                let count = at.len() as f64;
                let size = mean_of(&|i| dys[i].abs()) * count;
                close("dbeta", dbetas[c] as f64, dbeta * count, 1e-6 * size);
                close("dgamma", dgammas[c] as f64, dgamma * count, 3e-6 * size);
                for i in at.iter().copied() {
                    let want = n(i) * gamma + beta;
                    close("y", y.get(i), want, eps * (1.0 + want.abs()));
                    let want = (dys[i] - dbeta - n(i) * dgamma) * rstd * gamma;
                    close("dx", dx.get(i), want, eps * (1.0 + want.abs()));
                }
            }
        }
    }
}

#[test]
fn equal_values_have_no_variance() {
    let mut rng = Rng(22);
    let mut case = Case::new(&mut rng, PLANES[1], DType::F32, 0.0);
    case.x = Data::new(DType::F32, &vec![1e4 + 0.1; case.x.values().len()]);
    let (y, [_, _, variances], ..) = case.run();
    assert!(variances.iter().all(|v| *v < 1e-6), "{variances:?}");
    let beta = case.beta[0] as f64;
    close("y", y.get(0), beta, 0.2);
}

#[test]
fn same_bits_for_any_number_of_threads() {
    let mut rng = Rng(23);
    for planes in PLANES {
        let case = Case::new(&mut rng, planes, DType::F32, 1.0);
        let run = |threads| on_threads(threads, || case.run());
        let (one, three) = (run(1), run(3));
        assert_eq!(one.0.bytes(), three.0.bytes());
        assert_eq!(one.1, three.1);
        assert_eq!(one.2.bytes(), three.2.bytes());
        assert_eq!(one.3, three.3);
    }
}
