//! Single kernels through the public API: `cargo bench -p bimetal-bench`. Sizes are small, for a look while one works on a kernel;
//! `cargo xtask bench` has the large ones.
use bimetal::prelude::*;
use bimetal_bench::{Run, bias_gelu_dropout, gemm, layer_norm, softmax_cross_entropy};
use criterion::{Criterion, Throughput};

const DTYPES: [(&str, DType); 3] = [
    ("f32", DType::F32),
    ("bf16", DType::BF16),
    ("f16", DType::F16),
];

fn measure(c: &mut Criterion, group: &str, work: Throughput, build: impl Fn(DType) -> Result<Run>) {
    let mut group = c.benchmark_group(group);
    group.throughput(work).sample_size(20);
    for (name, dtype) in DTYPES {
        let mut run = build(dtype).expect("a kernel that can be built");
        group.bench_function(name, |b| b.iter(|| run().expect("a kernel that runs")));
    }
}

/// A tensor of normal numbers, squared, scaled and shifted: one fused pass.
fn map(shape: [usize; 2], dtype: DType, device: &Device) -> Result<Run> {
    let x = Tensor::arange(shape[0] * shape[1], device).reshape(&[shape[0] as isize, -1]);
    let x = (x.cast(DType::F32) * 1e-6).cast(dtype).settle()?;
    Ok(Box::new(move || Ok(((&x * &x) * 0.5 + 1).eval()?)))
}

/// A sum over the last axis.
fn row_sum(shape: [usize; 2], dtype: DType, device: &Device) -> Result<Run> {
    let x = Tensor::ones(&shape, dtype, device).settle()?;
    Ok(Box::new(move || Ok(x.sum(&[-1], false).eval()?)))
}

fn kernels(c: &mut Criterion) {
    let device = bimetal::device("cpu", Some(1)).expect("one thread");
    let device = &device;
    for (layout, [m, n, k]) in [
        ("NN", [64, 64, 64]),
        ("NN", [256, 256, 256]),
        ("NT", [128, 512, 784]),
        ("TN", [512, 784, 128]),
        ("NT", [128, 10, 512]),
        ("NN", [1, 1024, 1024]),
    ] {
        let name = format!("gemm {layout} {m}x{n}x{k}");
        let flops = Throughput::Elements((2 * m * n * k) as u64);
        measure(c, &name, flops, |d| gemm(layout, [m, n, k], d, device));
    }
    let shape = [512, 1024];
    let elements = || Throughput::Elements((shape[0] * shape[1]) as u64);
    measure(c, "map", elements(), |d| map(shape, d, device));
    measure(c, "row sum", elements(), |d| row_sum(shape, d, device));
    measure(c, "bias gelu dropout", elements(), |d| {
        bias_gelu_dropout(shape, true, d, device)
    });
    measure(c, "layer norm", elements(), |d| {
        layer_norm(shape, true, d, device)
    });
    measure(c, "softmax cross-entropy", elements(), |d| {
        softmax_cross_entropy(shape, d, device)
    });
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    kernels(&mut c);
    c.final_summary();
}
