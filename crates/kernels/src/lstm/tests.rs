use super::*;
use crate::rows::{Rows, RowsMut};
use crate::testutil::{Data, Rng};
use bimetal_dtype::DType;

/// The inputs of a sequence and gradients that arrive, exact in their dtype.
struct Case {
    sizes: Sizes,
    dtype: DType,
    gates: Vec<f64>,
    weight: Vec<f64>,
    h: Vec<f64>,
    c: Vec<f64>,
    dy: Vec<f64>,
    dc: Vec<f64>,
}

type Field = fn(&mut Case) -> &mut Vec<f64>;

/// y, the last c, and the gradients of gates, h and c.
struct Results {
    y: Vec<f64>,
    c: Vec<f64>,
    dgates: Vec<f64>,
    dh: Vec<f64>,
    dc: Vec<f64>,
}

impl Case {
    fn new(dtype: DType, [batch, time, hidden, every]: [usize; 4]) -> Case {
        let mut rng = Rng(7);
        let mut draw = |n: usize, dtype: DType| {
            Data::new(
                dtype,
                &(0..n).map(|_| rng.normal() * 0.7).collect::<Vec<_>>(),
            )
        };
        let f = DType::F32;
        let mut values = |n, dtype| f64s(&draw(n, dtype));
        Case {
            sizes: Sizes {
                batch,
                time,
                hidden,
                every,
            },
            dtype,
            gates: values(batch * time * 4 * hidden, dtype),
            weight: values(4 * hidden * hidden, f)
                .iter()
                .map(|w| (w / (hidden as f64).sqrt()) as f32 as f64)
                .collect(),
            h: values(batch * hidden, dtype),
            c: values(batch * hidden, f),
            dy: values(batch * time * hidden, dtype),
            dc: values(batch * hidden, f),
        }
    }

    fn run(&self) -> Results {
        let Sizes {
            batch,
            time,
            hidden: n,
            ..
        } = self.sizes;
        let d = self.dtype;
        let zeros = |count: usize| Data::new(d, &vec![0.0; count]);
        let f32s = |v: &[f64]| v.iter().map(|v| *v as f32).collect::<Vec<_>>();
        let (gx, h) = (Data::new(d, &self.gates), Data::new(d, &self.h));
        let (weight, c) = (f32s(&self.weight), f32s(&self.c));
        let (mut y, mut gates) = (zeros(batch * time * n), zeros(batch * time * 4 * n));
        let (mut last, mut cells) = (
            vec![0.0; batch * n],
            vec![0.0; batch * self.sizes.kept() * n],
        );
        let start = Start {
            gates: Rows::new(d, gx.bytes(), 4 * n).unwrap(),
            weight: &weight,
            h: Rows::new(d, h.bytes(), n).unwrap(),
            c: &c,
        };
        let out = Outputs {
            y: RowsMut::new(d, bytes_mut(&mut y), n).unwrap(),
            c: &mut last,
            gates: RowsMut::new(d, bytes_mut(&mut gates), 4 * n).unwrap(),
            cells: &mut cells,
        };
        lstm(self.sizes, start, out);
        let dy = Data::new(d, &self.dy);
        let dc = f32s(&self.dc);
        let (mut dgates, mut dh) = (zeros(batch * time * 4 * n), zeros(batch * n));
        let mut dc0 = vec![0.0; batch * n];
        let saved = Saved {
            gates: Rows::new(d, gates.bytes(), 4 * n).unwrap(),
            weight: &weight,
            cells: &cells,
            dy: Rows::new(d, dy.bytes(), n).unwrap(),
            dc: &dc,
        };
        let grads = Grads {
            gates: RowsMut::new(d, bytes_mut(&mut dgates), 4 * n).unwrap(),
            h: RowsMut::new(d, bytes_mut(&mut dh), n).unwrap(),
            c: &mut dc0,
        };
        lstm_grad(self.sizes, saved, grads);
        let wide = |v: &[f32]| v.iter().map(|v| *v as f64).collect();
        Results {
            y: f64s(&y),
            c: wide(&last),
            dgates: f64s(&dgates),
            dh: f64s(&dh),
            dc: wide(&dc0),
        }
    }

    /// y and the last c of row `b`, in f64 throughout.
    fn formula(&self, b: usize) -> (Vec<f64>, Vec<f64>) {
        let Sizes {
            time, hidden: n, ..
        } = self.sizes;
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (mut h, mut c) = (self.h[b * n..][..n].to_vec(), self.c[b * n..][..n].to_vec());
        let mut y = Vec::new();
        for t in 0..time {
            let gate = |j: usize| {
                let product: f64 = (0..n).map(|k| h[k] * self.weight[j * n + k]).sum();
                self.gates[(b * time + t) * 4 * n + j] + product
            };
            let x: Vec<f64> = (0..4 * n).map(gate).collect();
            for u in 0..n {
                c[u] = sigmoid(x[n + u]) * c[u] + sigmoid(x[u]) * x[2 * n + u].tanh();
                h[u] = sigmoid(x[3 * n + u]) * c[u].tanh();
            }
            y.extend_from_slice(&h);
        }
        (y, c)
    }

    /// The scalar whose gradients [`lstm_grad`] gives, as far as row `b` has a part in it.
    fn loss(&self, b: usize) -> f64 {
        let (y, c) = self.formula(b);
        let dot = |a: &[f64], g: &[f64]| a.iter().zip(g).map(|(a, g)| a * g).sum::<f64>();
        dot(&y, &self.dy[b * y.len()..][..y.len()]) + dot(&c, &self.dc[b * c.len()..][..c.len()])
    }
}

fn f64s(d: &Data) -> Vec<f64> {
    (0..d.len()).map(|i| d.get(i)).collect()
}

const SIZES: [[usize; 4]; 4] = [[3, 6, 5, 4], [35, 5, 17, 2], [2, 1, 33, 4], [1, 9, 16, 3]];

#[test]
fn forward_is_the_formula() {
    for (dtype, bound) in [(DType::F32, 2e-6), (DType::BF16, 3e-2)] {
        for sizes in SIZES {
            let case = Case::new(dtype, sizes);
            let found = case.run();
            let (row, n) = (sizes[1] * sizes[2], sizes[2]);
            for b in 0..sizes[0] {
                let (y, c) = case.formula(b);
                let near = |a: &[f64], b: &[f64]| {
                    a.iter()
                        .zip(b)
                        .all(|(a, b)| (a - b).abs() <= bound * (1.0 + b.abs()))
                };
                assert!(
                    near(&found.y[b * row..][..row], &y),
                    "{dtype:?} {sizes:?} {b}"
                );
                assert!(near(&found.c[b * n..][..n], &c), "{dtype:?} {sizes:?} {b}");
            }
        }
    }
}

#[test]
fn gradients_are_differences_of_the_formula() {
    for (dtype, bound) in [(DType::F32, 2e-5), (DType::BF16, 6e-2)] {
        for sizes in SIZES {
            let mut case = Case::new(dtype, sizes);
            let found = case.run();
            let n = sizes[2];
            let fields: [(Field, &[f64], usize); 3] = [
                (|c| &mut c.gates, &found.dgates, 4 * n * sizes[1]),
                (|c| &mut c.h, &found.dh, n),
                (|c| &mut c.c, &found.dc, n),
            ];
            for (field, grad, row) in fields {
                for i in (0..grad.len()).step_by(1 + grad.len() / 300) {
                    let step = 1e-5;
                    let mut side = |by: f64| {
                        field(&mut case)[i] += by;
                        let loss = case.loss(i / row);
                        field(&mut case)[i] -= by;
                        loss
                    };
                    let want = (side(step) - side(-step)) / (2.0 * step);
                    assert!(
                        (grad[i] - want).abs() <= bound * (1.0 + want.abs()),
                        "{dtype:?} {sizes:?} {i}: {} {want}",
                        grad[i]
                    );
                }
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let case = Case::new(DType::F32, [70, 3, 9, 2]);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        let r = pool.install(|| case.run());
        [r.y, r.c, r.dgates, r.dh, r.dc].concat()
    };
    let bits = |v: Vec<f64>| v.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(run(1)), bits(run(3)));
}

fn bytes_mut(d: &mut Data) -> &mut [u8] {
    let len = d.bytes().len();
    // SAFETY: the data owns these bytes.
    unsafe { std::slice::from_raw_parts_mut(d.ptr_mut(), len) }
}
