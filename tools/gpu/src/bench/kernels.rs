//! Kernels that move memory: GB/s, and percent of what a copy of this device reaches; attention in TFLOP/s.
use super::results::Results;
use super::timing::{Effort, seconds};
use super::{Plan, percent, text};
use crate::device::Target;
use bimetal::autodiff::vjp;
use bimetal::prelude::*;
use bimetal::tensor::graph::{AttentionSpec, Attr};
use bimetal_bench as bench;
use serde_json::{Value, json};

/// Something to measure.
struct Work {
    name: String,
    dtype: DType,
    run: bench::Run,
    /// Bytes of operands and results, each once, or operations.
    amount: Amount,
}

#[derive(Clone, Copy)]
enum Amount {
    Bytes(f64),
    Flops(f64),
}

/// All kernels.
pub fn run(target: &Target, plan: &Plan, results: &mut Results) -> Result<(), String> {
    let device = target.open()?;
    let effort = if plan.tiny {
        Effort::TINY
    } else {
        Effort::FULL
    };
    println!(
        "\n{:34} {:6} {:>10} {:>9} {:>9} {:>7}",
        "kernel", "dtype", "ms", "GB/s", "TFLOP/s", "%"
    );
    let mut copy = None;
    for make in works(plan) {
        if plan.is_over() {
            break;
        }
        let (name, dtype) = (make.0, make.1);
        let found = (make.2)(&device).map_err(text).and_then(|mut work| {
            let s = seconds(&device, effort, &mut || (work.run)().map_err(text))?;
            Ok((work, s))
        });
        let mut row = json!({"kernel": name, "dtype": dtype.to_string()});
        match found {
            Err(e) => {
                println!("{name:34} {dtype:6} {e}");
                row["error"] = json!(e);
            }
            Ok((work, s)) => row = measured(work, s, &mut copy, target),
        }
        results.add("kernels", row)?;
    }
    Ok(())
}

fn measured(work: Work, s: f64, copy: &mut Option<f64>, target: &Target) -> Value {
    let mut row = json!({"kernel": work.name, "dtype": work.dtype.to_string(), "seconds": s});
    let (mut gigabytes, mut teraflops) = ("-".to_string(), "-".to_string());
    let share = match work.amount {
        Amount::Bytes(bytes) => {
            let rate = bytes / s;
            gigabytes = format!("{:.1}", rate / 1e9);
            row["gbs"] = json!(rate / 1e9);
            // The first one is the copy.
            let share = rate / *copy.get_or_insert(rate);
            row["percent_of_copy"] = json!(100.0 * share);
            Some(share)
        }
        Amount::Flops(flops) => {
            let rate = flops / s;
            teraflops = format!("{:.2}", rate / 1e12);
            row["tflops"] = json!(rate / 1e12);
            let share = target.peak(&work.dtype.to_string()).map(|p| rate / p);
            row["percent_of_peak"] = json!(share.map(|s| 100.0 * s));
            share
        }
    };
    println!(
        "{:34} {:6} {:10.3} {gigabytes:>9} {teraflops:>9} {:>7}",
        work.name,
        work.dtype.to_string(),
        s * 1e3,
        percent(share)
    );
    row
}

type Make = Box<dyn Fn(&Device) -> Result<Work>>;
type Build = Box<dyn Fn(&Device) -> Result<bench::Run>>;

/// What is measured under this name.
fn work(name: &str, dtype: DType, amount: Amount, run: Build) -> (String, DType, Make) {
    let label = name.to_string();
    let make: Make = Box::new(move |device| {
        Ok(Work {
            name: label.clone(),
            dtype,
            run: run(device)?,
            amount,
        })
    });
    (name.to_string(), dtype, make)
}

/// Names, dtypes, and what makes the work; nothing of it is on the device before.
fn works(plan: &Plan) -> Vec<(String, DType, Make)> {
    let pick = |full: usize, tiny: usize| if plan.tiny { tiny } else { full };
    let mut all: Vec<(String, DType, Make)> = Vec::new();
    let mut add = |name: &str, dtype, amount, run: Build| all.push(work(name, dtype, amount, run));
    let elements = pick(64 << 20, 4096);
    add(
        "copy",
        DType::F32,
        Amount::Bytes(8.0 * elements as f64),
        Box::new(move |device| {
            let x = Tensor::ones(&[elements], DType::F32, device).settle()?;
            Ok(Box::new(move || Ok((&x * 2.0).eval()?)))
        }),
    );
    let parameters = if plan.tiny {
        vec![1000, 10]
    } else {
        bench::w11_sizes().repeat(4)
    };
    let count: usize = parameters.iter().sum();
    add(
        "adamw",
        DType::F32,
        // Weight, gradient and two moments are read, all but the gradient written.
        Amount::Bytes(28.0 * count as f64),
        Box::new(move |device| bench::adamw(&parameters, DType::F32, device)),
    );
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let size = dtype.size() as f64;
        let [rows, columns] = [pick(16384, 32), pick(1024, 64)];
        let n = (rows * columns) as f64;
        for backward in [false, true] {
            let name = format!(
                "layer_norm{} {rows}x{columns}",
                if backward { " fwd+bwd" } else { "" }
            );
            // Backward the input and the gradient are read, and a gradient is written.
            let passes = if backward { 5.0 } else { 2.0 };
            add(
                &name,
                dtype,
                Amount::Bytes(passes * n * size),
                Box::new(move |device| bench::layer_norm([rows, columns], backward, dtype, device)),
            );
        }
        let [rows, columns] = [pick(8192, 16), pick(50257, 100)];
        add(
            &format!("cross_entropy fwd+bwd {rows}x{columns}"),
            dtype,
            Amount::Bytes(3.0 * (rows * columns) as f64 * size),
            Box::new(move |device| bench::softmax_cross_entropy([rows, columns], dtype, device)),
        );
        let [rows, columns] = [pick(8192, 32), pick(3072, 64)];
        add(
            &format!("bias_gelu_dropout fwd {rows}x{columns}"),
            dtype,
            Amount::Bytes(2.0 * (rows * columns) as f64 * size),
            Box::new(move |device| bench::bias_gelu_dropout([rows, columns], false, dtype, device)),
        );
    }
    let [b, t, h, d] = [pick(8, 1), pick(1024, 32), pick(12, 2), pick(64, 16)];
    for dtype in [DType::BF16, DType::F16] {
        for backward in [false, true] {
            let name = format!(
                "causal attention{} {b}x{t}x{h}x{d}",
                if backward { " fwd+bwd" } else { "" }
            );
            // Two products of half a square forward, five backward.
            let products = if backward { 7.0 } else { 2.0 };
            let flops = products * 2.0 * (b * h * t * t * d) as f64 / 2.0;
            add(
                &name,
                dtype,
                Amount::Flops(flops),
                Box::new(move |device| attention([b, t, h, d], backward, dtype, device)),
            );
        }
    }
    all
}

fn attention(
    shape: [usize; 4],
    backward: bool,
    dtype: DType,
    device: &Device,
) -> Result<bench::Run> {
    let make = |seed| {
        let x = Tensor::randn(&shape, seed, device).cast(dtype);
        Ok::<_, Error>(x.settle()?)
    };
    let (q, k, v, dy) = (make(1)?, make(2)?, make(3)?, make(4)?);
    let spec = AttentionSpec {
        scale: Attr((shape[3] as f64).sqrt().recip()),
        causal: true,
        key_mask: false,
        dropout: None,
    };
    Ok(Box::new(move || {
        let y = q.attention(&k, &v, None, None, spec);
        let mut wanted = vec![y.clone()];
        if backward {
            wanted.extend(vjp(&[&y], &[&dy], &[&q, &k, &v])?.into_iter().flatten());
        }
        Ok(eval(&wanted.iter().collect::<Vec<_>>())?)
    }))
}
