//! Products: TFLOP/s, and percent of what the matrix units could.
use super::results::Results;
use super::timing::{Effort, seconds};
use super::{Plan, percent, text};
use crate::device::Target;
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::{DType, Device, Support, Tensor};
use serde_json::json;

/// What is multiplied, and how.
const KINDS: [(&str, DType, MatmulPrecision); 5] = [
    ("f16", DType::F16, MatmulPrecision::Exact),
    ("bf16", DType::BF16, MatmulPrecision::Exact),
    ("tf32", DType::F32, MatmulPrecision::Tf32),
    ("f8", DType::F8E4M3, MatmulPrecision::Exact),
    ("f32", DType::F32, MatmulPrecision::Exact),
];

/// `[m, n, k]`.
fn sizes(plan: &Plan) -> Vec<[usize; 3]> {
    if plan.tiny {
        return vec![[64; 3], [16, 48, 32]];
    }
    let mut sizes = vec![[1024; 3], [2048; 3], [4096; 3], [8192; 3]];
    if !plan.quick {
        // The layers of a transformer of width 768 with 8 sequences of 1024, its head, and skinny ones.
        sizes.extend([
            [16384; 3],
            [8192, 2304, 768],
            [8192, 3072, 768],
            [8192, 768, 3072],
            [8192, 50304, 768],
            [768, 3072, 8192],
            [16, 4096, 4096],
            [1, 4096, 4096],
        ]);
    }
    sizes
}

/// All products.
pub fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), String> {
    let device = target.open()?;
    println!(
        "\n{:6} {:>22} {:>10} {:>9} {:>7}",
        "kind", "m x n x k", "ms", "TFLOP/s", "% peak"
    );
    for (kind, dtype, precision) in KINDS {
        if dtype.size() == 1 && device.info().support(dtype) != Support::Native {
            println!("{kind:6} the device has none");
            continue;
        }
        for [m, n, k] in sizes(plan) {
            // Without matrix units the larger ones take seconds.
            if plan.is_over() || kind == "f32" && m * n * k > 1 << 36 {
                continue;
            }
            let shape = format!("{m}x{n}x{k}");
            let mut row = json!({"kind": kind, "m": m, "n": n, "k": k});
            match product(&device, dtype, precision, [m, n, k], plan) {
                Err(e) => {
                    println!("{kind:6} {shape:>22} {e}");
                    row["error"] = json!(e);
                }
                Ok(seconds) => {
                    let rate = 2.0 * (m as f64) * (n as f64) * (k as f64) / seconds;
                    let share = target.peak(kind).map(|p| rate / p);
                    println!(
                        "{kind:6} {shape:>22} {:10.3} {:9.2} {:>7}",
                        seconds * 1e3,
                        rate / 1e12,
                        percent(share)
                    );
                    row["seconds"] = json!(seconds);
                    row["tflops"] = json!(rate / 1e12);
                    row["percent_of_peak"] = json!(share.map(|s| 100.0 * s));
                }
            }
            results.add("gemm", row)?;
        }
    }
    Ok(())
}

fn product(
    device: &Device,
    dtype: DType,
    precision: MatmulPrecision,
    [m, n, k]: [usize; 3],
    plan: &Plan,
) -> Result<f64, String> {
    let make = |rows: usize, columns: usize, seed: u64| {
        let x = Tensor::randn(&[rows, columns], seed, device).cast(dtype);
        x.eval().map(|()| x).map_err(text)
    };
    let (a, b) = (make(m, k, 1)?, make(k, n, 2)?);
    let out = match dtype {
        DType::F32 | DType::BF16 => dtype,
        _ => DType::F16,
    };
    let effort = if plan.tiny {
        Effort::TINY
    } else {
        Effort::FULL
    };
    seconds(device, effort, &mut || {
        a.matmul_with(&b, precision, Some(out)).eval().map_err(text)
    })
}
