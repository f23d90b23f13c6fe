//! `bench`: what products reach on a device, with the percent of what its Tensor Cores could.
use crate::options::Options;
use bimetal_cuda::{CudaProperties, cuda_properties};
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::{DType, Device, Tensor};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;

/// The `bench` task.
pub fn run(mut options: Options) -> Result<(), String> {
    let file = options.value("--json")?.map(PathBuf::from);
    let backend = options.value("--backend")?.unwrap_or_else(|| "cuda".into());
    let (probe, quick) = (options.flag("--probe"), options.flag("--quick"));
    options.finish()?;
    let found = match backend.as_str() {
        "cuda" => cuda_properties(0).map_err(|e| e.to_string()),
        _ => Err(format!("this program measures CUDA, not {backend}")),
    };
    let properties = match found {
        Ok(p) => p,
        // Who asks whether there is a device is told; who wants numbers has none.
        Err(e) if probe => {
            println!("none: {e}");
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    println!(
        "device: {} (sm_{}, {} GiB)",
        properties.name,
        properties.sm,
        properties.memory >> 30
    );
    if probe {
        return Ok(());
    }
    let device = bimetal_cuda::cuda(0).map_err(|e| e.to_string())?;
    let gemm = gemm(&device, &properties, quick)?;
    let result = json!({
        "device": {
            "name": properties.name, "sm": properties.sm, "tensor_cores": properties.tensor_cores, "memory": properties.memory,
            "processors": properties.processors, "clock_khz": properties.clock_khz, "driver": properties.driver,
        },
        "gate": [], "gemm": gemm, "kernels": [], "steps": [],
    });
    match file {
        None => Ok(()),
        Some(file) => std::fs::write(&file, result.to_string())
            .map_err(|e| format!("{}: {e}", file.display())),
    }
}

/// Dense operations a clock of one multiprocessor by instructions of this kind, from NVIDIA's white papers of the architectures.
fn per_clock(sm: u32, kind: &str) -> f64 {
    let f16 = match sm {
        90.. => 4096.0,
        89 | 86 => 1024.0,
        80 => 2048.0,
        _ => 1024.0,
    };
    match kind {
        "f8" => 2.0 * f16,
        "tf32" => f16 / 2.0,
        "f32" => 256.0,
        _ => f16,
    }
}

fn gemm(device: &Device, p: &CudaProperties, quick: bool) -> Result<Vec<Value>, String> {
    let mut sizes = vec![[1024; 3], [2048; 3], [4096; 3], [8192; 3]];
    if !quick {
        // The layers of a transformer of width 768 with 8 sequences of 1024, its head, and a skinny one.
        sizes.extend([
            [16384; 3],
            [8192, 2304, 768],
            [8192, 3072, 768],
            [8192, 768, 3072],
            [8192, 50304, 768],
            [16, 4096, 4096],
        ]);
    }
    let kinds = [
        ("f16", DType::F16, MatmulPrecision::Exact),
        ("bf16", DType::BF16, MatmulPrecision::Exact),
        ("tf32", DType::F32, MatmulPrecision::Tf32),
        ("f8", DType::F8E4M3, MatmulPrecision::Exact),
        ("f32", DType::F32, MatmulPrecision::Exact),
    ];
    let mut rows = Vec::new();
    println!(
        "{:6} {:>22} {:>10} {:>9} {:>7}",
        "kind", "m x n x k", "ms", "TFLOP/s", "% peak"
    );
    for (kind, dtype, precision) in kinds {
        for [m, n, k] in &sizes {
            // Without matrix units the larger ones take seconds.
            if kind == "f32" && m * n * k > 1 << 36 {
                continue;
            }
            let seconds = product(device, dtype, precision, [*m, *n, *k])?;
            let flops = 2.0 * (*m as f64) * (*n as f64) * (*k as f64) / seconds;
            let peak = per_clock(p.sm, kind) * p.processors as f64 * p.clock_khz as f64 * 1e3;
            let percent = 100.0 * flops / peak;
            let shape = format!("{m}x{n}x{k}");
            println!(
                "{kind:6} {shape:>22} {:10.3} {:9.1} {percent:7.1}",
                seconds * 1e3,
                flops / 1e12
            );
            rows.push(json!({"kind": kind, "m": m, "n": n, "k": k, "seconds": seconds, "tflops": flops / 1e12, "percent_of_peak": percent}));
        }
    }
    Ok(rows)
}

/// Seconds of a product: the best of five, each of as many as fill some milliseconds.
fn product(
    device: &Device,
    dtype: DType,
    precision: MatmulPrecision,
    [m, n, k]: [usize; 3],
) -> Result<f64, String> {
    let text = |e: bimetal_tensor::Error| e.to_string();
    let make = |rows: usize, columns: usize, seed: u64| {
        let x = Tensor::randn(&[rows, columns], seed, device).cast(dtype);
        x.eval().map(|()| x).map_err(text)
    };
    let (a, b) = (make(m, k, 1)?, make(k, n, 2)?);
    let out = if dtype == DType::F32 {
        DType::F32
    } else {
        DType::F16
    };
    let run = |times: usize| {
        let start = Instant::now();
        for _ in 0..times {
            a.matmul_with(&b, precision, Some(out))
                .eval()
                .map_err(text)?;
        }
        device.sync().map_err(text)?;
        Ok::<f64, String>(start.elapsed().as_secs_f64() / times as f64)
    };
    run(2)?;
    let times = ((0.02 / run(1)?) as usize).clamp(1, 200);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        best = best.min(run(times)?);
    }
    Ok(best)
}
