//! All workloads, by name and variant.
use crate::kernels::{self, Run};
use crate::models::{self, Model};
use crate::train::Training;
use bimetal::prelude::*;

/// A workload of the bench: one row for each dtype and number of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// `W1` to `W11`.
    pub name: &'static str,
    /// `train`, or what a kernel does and on which shape.
    pub variant: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Train(usize),
    Gemm(&'static str, [usize; 3]),
    Dropout(bool),
    Norm(bool),
    Loss,
    Update,
}

/// A workload made ready.
pub struct Case {
    /// What is timed.
    pub run: Run,
    /// The number of elements of all parameters, 0 for kernels.
    pub parameters: usize,
}

type Build = fn(&Scope) -> Result<Model>;
type Flops = fn() -> f64;

/// Name, network, and floating-point operations of the products in a step.
const TRAIN: [(&str, Build, Flops); 6] = [
    ("W1", models::w1, models::w1_flops),
    ("W2", models::w2, models::w2_flops),
    ("W3", models::w3, models::w3_flops),
    ("W4", models::w4, models::w4_flops),
    ("W5", models::w5, models::w5_flops),
    ("W6", models::w6, models::w6_flops),
];

/// Layout and `m, n, k` of the products of W7: squares, and those of the networks above.
const GEMM: [(&str, [usize; 3]); 19] = [
    ("NN", [64, 64, 64]),
    ("NN", [128, 128, 128]),
    ("NN", [256, 256, 256]),
    ("NN", [512, 512, 512]),
    ("NT", [512, 512, 512]),
    ("TN", [512, 512, 512]),
    ("NN", [1024, 1024, 1024]),
    ("NN", [2048, 2048, 2048]),
    ("NT", [128, 512, 784]),
    ("TN", [512, 784, 128]),
    ("NT", [128, 10, 512]),
    ("NT", [2048, 384, 128]),
    ("NT", [2048, 128, 512]),
    ("TN", [512, 128, 2048]),
    ("NT", [1024, 1024, 256]),
    ("NT", [7744, 64, 576]),
    ("NT", [128, 128, 32]),
    ("NN", [1, 1024, 1024]),
    ("NT", [1, 1024, 1024]),
];

const W8: [usize; 2] = [8192, 1024];
const W9: [usize; 2] = [4096, 1024];
const W10: [usize; 2] = [4096, 30522];

/// The names of all workloads, in order.
pub const NAMES: [&str; 11] = [
    "W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "W10", "W11",
];

/// All workloads.
pub fn all() -> Vec<Work> {
    let work = |name, variant: String, kind| Work {
        name,
        variant,
        kind,
    };
    let mut all = Vec::new();
    for (i, (name, ..)) in TRAIN.iter().enumerate() {
        all.push(work(name, "train".into(), Kind::Train(i)));
    }
    for (layout, [m, n, k]) in GEMM {
        let variant = format!("{layout} {m}x{n}x{k}");
        all.push(work("W7", variant, Kind::Gemm(layout, [m, n, k])));
    }
    let shaped = |what: &str, [rows, columns]: [usize; 2]| format!("{what} {rows}x{columns}");
    for (what, backward) in [("fwd", false), ("fwd+bwd", true)] {
        all.push(work("W8", shaped(what, W8), Kind::Dropout(backward)));
    }
    for (what, backward) in [("fwd", false), ("fwd+bwd", true)] {
        all.push(work("W9", shaped(what, W9), Kind::Norm(backward)));
    }
    all.push(work("W10", shaped("fwd+bwd", W10), Kind::Loss));
    let parameters: usize = kernels::w11_sizes().iter().sum();
    all.push(work("W11", format!("adamw {parameters}"), Kind::Update));
    all
}

/// The workload of that name and variant.
pub fn find(name: &str, variant: &str) -> Option<Work> {
    all()
        .into_iter()
        .find(|w| w.name == name && w.variant == variant)
}

impl Work {
    /// Whether this is a whole train step.
    pub fn trains(&self) -> bool {
        matches!(self.kind, Kind::Train(_))
    }

    /// Floating-point operations of its products; `None` where none is made.
    pub fn flops(&self) -> Option<f64> {
        match self.kind {
            Kind::Train(i) => Some(TRAIN[i].2()),
            Kind::Gemm(_, [m, n, k]) => Some(2.0 * (m * n * k) as f64),
            _ => None,
        }
    }

    /// Bytes that must pass through memory: operands and results of a kernel once each; of a train step 40 for each parameter (weight read twice,
    /// gradient written, Adam's 28) and each saved byte four times, as in the model of the peers' figures.
    pub fn bytes(&self, dtype: DType, parameters: usize, saved: usize) -> f64 {
        let size = dtype.size();
        let area = |[rows, columns]: [usize; 2]| (rows * columns * size) as f64;
        let passes = |backward| if backward { 5.0 } else { 2.0 };
        match self.kind {
            Kind::Train(_) => 40.0 * parameters as f64 + 4.0 * saved as f64,
            Kind::Gemm(_, [m, n, k]) => (size * (m * k + k * n + m * n)) as f64,
            Kind::Dropout(backward) => passes(backward) * area(W8),
            Kind::Norm(backward) => passes(backward) * area(W9),
            Kind::Loss => 3.0 * area(W10),
            Kind::Update => kernels::w11_sizes().iter().sum::<usize>() as f64 * (24 + size) as f64,
        }
    }

    /// As [`Work::bytes`], of a kernel; `None` for a train step, whose bytes depend on who runs it.
    pub(crate) fn kernel_bytes(&self, dtype: &str) -> Option<f64> {
        let dtype = crate::options::dtype(dtype).ok()?;
        (!self.trains()).then(|| self.bytes(dtype, 0, 0))
    }

    /// Makes the workload ready on a device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn build(&self, dtype: DType, device: &Device) -> Result<Case> {
        let kernel = |run| Case { run, parameters: 0 };
        Ok(match self.kind {
            Kind::Train(i) => {
                let mut training = Training::new(TRAIN[i].1, dtype, device)?;
                Case {
                    parameters: training.parameters(),
                    run: Box::new(move || training.step()),
                }
            }
            Kind::Gemm(layout, sizes) => kernel(kernels::gemm(layout, sizes, dtype, device)?),
            Kind::Dropout(b) => kernel(kernels::bias_gelu_dropout(W8, b, dtype, device)?),
            Kind::Norm(b) => kernel(kernels::layer_norm(W9, b, dtype, device)?),
            Kind::Loss => kernel(kernels::softmax_cross_entropy(W10, dtype, device)?),
            Kind::Update => kernel(kernels::adamw(&kernels::w11_sizes(), dtype, device)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_parameters_of_the_peers() {
        let device = bimetal::cpu();
        let counts = [669_706, 533_898, 272_474, 826_433, 11_072_258, 133_386];
        for ((name, build, _), count) in TRAIN.iter().zip(counts) {
            let training = Training::new(build, DType::F32, &device).unwrap();
            assert_eq!(training.parameters(), count, "{name}");
        }
        assert_eq!(kernels::w11_sizes().iter().sum::<usize>(), 25_000_000);
    }

    #[test]
    fn operations_are_those_that_a_counter_finds() {
        // PyTorch's FlopCounterMode on the same steps; W6 by hand, since the counter does not see its LSTM.
        let counted = [0.4108, 2.0031, 7.8078, 11.645, 21.2096, 2.098];
        for ((name, _, flops), giga) in TRAIN.iter().zip(counted) {
            let ours = flops() / 1e9;
            assert!((ours - giga).abs() < 1e-3 * giga, "{name}: {ours} {giga}");
        }
    }

    #[test]
    fn every_name_has_workloads_and_no_variant_is_double() {
        let all = all();
        for name in NAMES {
            assert!(all.iter().any(|w| w.name == name), "{name}");
        }
        for work in &all {
            assert_eq!(find(work.name, &work.variant).as_ref(), Some(work));
        }
    }
}
