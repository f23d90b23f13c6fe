//! Prints throughput: `cargo test -p bimetal-cpu --release gemm_speed -- --ignored --nocapture`.

use super::*;
use crate::testutil::{Data, on_threads};
use std::time::Instant;

/// GFLOP/s on one thread: the best of several short runs, since the machine may be shared.
fn rate(m: usize, n: usize, k: usize, names: &str, dtype: DType, level: Level) -> f64 {
    let a = Data::new(dtype, &vec![0.5; m * k]);
    let b = Data::new(dtype, &vec![0.25; k * n]);
    let mut c = Data::new(dtype, &vec![0.0; m * n]);
    let operand = |data: &Data, rows: usize, cols: usize, turned: bool| {
        let (row_stride, col_stride) = if turned { (1, rows) } else { (cols, 1) };
        Operand {
            ptr: data.ptr(),
            dtype,
            round_to: None,
            row_stride: row_stride as isize,
            col_stride: col_stride as isize,
            offsets: &[0],
        }
    };
    let a = operand(&a, m, k, names.starts_with('T'));
    let b = operand(&b, k, n, names.ends_with('T'));
    let out = Dense::new(c.ptr_mut(), dtype, m, n);
    on_threads(1, move || {
        let mut best = 0.0f64;
        for _ in 0..20 {
            let start = Instant::now();
            // SAFETY: the buffers have these sizes and outlive the call.
            unsafe { gemm_at(level, m, n, k, a, b, Output::Dense(out)) };
            best = best.max(2e-9 * (m * n * k) as f64 / start.elapsed().as_secs_f64());
        }
        best
    })
}

#[test]
#[ignore = "prints, asserts nothing"]
fn gemm_speed() {
    let shapes = [
        ("NN", 64, 64, 64),
        ("NN", 512, 512, 512),
        ("NN", 1024, 1024, 1024),
        ("NT", 128, 512, 784),
        ("TN", 512, 784, 128),
        ("NT", 2048, 512, 128),
        ("TN", 64, 576, 7744),
        ("NT", 128, 10, 512),
        ("NN", 1, 1024, 1024),
    ];
    for (names, m, n, k) in shapes {
        print!("{:20}", format!("{names} {m}x{n}x{k}"));
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for &level in Level::available() {
                print!(
                    " {dtype:?} {level} {:6.1}",
                    rate(m, n, k, names, dtype, level)
                );
            }
        }
        println!(" GFLOP/s");
    }
}
