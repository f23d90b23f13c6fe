//! Gradients against central differences in f64. A device without f64 computes its gradients in f32; the differences are then those of the host's evaluation of the
//! same graph in f64.
use crate::cases::{Input, all};
use crate::conformance::{OUT_OF_TIME, Report, inputs, leaf};
use crate::exact::Leaves;
use crate::random::Gen;
use bimetal_autodiff::{grad, grad_optional};
use bimetal_tensor::{DType, Device, Result, Support, Tensor};

/// The step of the differences: the error is of the order of its square, and of f64's epsilon divided by it.
const STEP: f64 = 1e-5;

/// What a device computes derivatives in, and how far they may lie from the differences, as a share of the largest element. Wrong derivatives are off by a
/// share of the order of 1.
fn arithmetic(device: &Device) -> (DType, f64) {
    match device.info().support(DType::F64) {
        // An element adds up some hundred products, each rounded to f32.
        Support::No => (DType::F32, 1e-3),
        _ => (DType::F64, 2e-6),
    }
}

/// Central differences of a function of `base`, element by element.
fn central(base: &[f64], f: &dyn Fn(&[f64]) -> Result<f64>) -> Result<Vec<f64>> {
    let mut v = base.to_vec();
    (0..base.len())
        .map(|i| {
            v[i] = base[i] + STEP;
            let up = f(&v)?;
            v[i] = base[i] - STEP;
            let down = f(&v)?;
            v[i] = base[i];
            Ok((up - down) / (2.0 * STEP))
        })
        .collect()
}

/// The gradient of `f` at `x` by differences: of the device's own values in f64, or on a device without f64 of the same graph's on the host.
fn differences(
    f: &dyn Fn(&[Tensor]) -> Tensor,
    x: &[Tensor],
    which: usize,
    device: &Device,
) -> Result<Vec<f64>> {
    let base = x[which].to_f64_vec()?;
    if arithmetic(device).0 == DType::F32 {
        let y = f(x);
        let leaves = Leaves::of(&y)?;
        return central(&base, &|v| Ok(leaves.eval_with(&y, &x[which], v)?.data[0]));
    }
    let shape = x[which].shape()?;
    central(&base, &|v| {
        let mut y = x.to_vec();
        y[which] = Tensor::from_slice(v, &shape, device);
        f(&y).item()
    })
}

/// Whether the gradients of a scalar function agree with differences.
pub fn check(
    f: &dyn Fn(&[Tensor]) -> Tensor,
    x: &[Tensor],
    which: &[usize],
    device: &Device,
) -> Result<(), String> {
    let text = |e: bimetal_tensor::Error| e.to_string();
    let loss = f(x);
    let wrt: Vec<&Tensor> = which.iter().map(|&i| &x[i]).collect();
    let grads = grad(&loss, &wrt).map_err(text)?;
    bimetal_tensor::eval(&grads.iter().collect::<Vec<_>>()).map_err(text)?;
    let tolerance = arithmetic(device).1;
    for (g, &w) in grads.iter().zip(which) {
        let got = g.to_f64_vec().map_err(text)?;
        let want = differences(f, x, w, device).map_err(text)?;
        let scale = want.iter().fold(1.0f64, |a, v| a.max(v.abs()));
        for (i, (a, b)) in got.iter().zip(&want).enumerate() {
            if a.is_nan() || (a - b).abs() > tolerance * scale {
                return Err(format!(
                    "input {w} element {i}: {a:e}, differences say {b:e}"
                ));
            }
        }
    }
    Ok(())
}

/// First and second derivatives of every differentiable case, in f64 where the device has it.
pub fn run(device: &Device, seed: u64, rounds: usize, second: bool) -> Report {
    run_while(device, seed, rounds, second, &mut |_| true)
}

/// [`run`], an operation after the other for as long as `go_on` says so, which is shown what was found.
pub fn run_while(
    device: &Device,
    seed: u64,
    rounds: usize,
    second: bool,
    go_on: &mut dyn FnMut(&Report) -> bool,
) -> Report {
    let mut r = Report::default();
    let dtype = arithmetic(device).0;
    for (index, maker) in all().iter().enumerate() {
        if !go_on(&r) {
            *r.skipped.entry(OUT_OF_TIME.into()).or_default() += rounds;
            continue;
        }
        for round in 0..rounds {
            let mut g = Gen::new(seed ^ ((index as u64) << 32) ^ round as u64);
            let case = maker(&mut g);
            let beyond = dtype == DType::F32 && case.dtypes == [DType::F64];
            if !case.differentiable || beyond {
                continue;
            }
            let x: Vec<Tensor> = inputs(&mut g, &case, dtype, false, device);
            let which: Vec<usize> = (0..x.len())
                .filter(|&i| matches!(case.inputs[i], Input::Float { .. } | Input::Wide { .. }))
                .collect();
            let weights = g.values(64, -1.0, 1.0);
            let loss = |x: &[Tensor]| -> Tensor {
                let outs = (case.build)(x);
                let mut total: Option<Tensor> = None;
                for o in outs.iter().filter(|o| o.dtype().is_float()) {
                    let n = o.numel().unwrap_or(0);
                    let w: Vec<f64> = (0..n).map(|i| weights[i % 64]).collect();
                    let w = leaf(&w, &[n], dtype, device);
                    let t = (o.reshape(&[-1]).cast(dtype) * w).sum_all();
                    total = Some(match total {
                        Some(s) => s + t,
                        None => t,
                    });
                }
                total.unwrap_or_else(|| Tensor::zeros(&[], dtype, device))
            };
            r.checked += 1;
            let place = format!("{} seed {seed} case {index}.{round}", case.name);
            if let Err(e) = check(&loss, &x, &which, device) {
                r.failures.push(format!("{place}: {e}"));
                continue;
            }
            if !second {
                continue;
            }
            // The sum of squares of the gradient is a function whose gradient needs the second derivative.
            let penalty = |x: &[Tensor]| -> Tensor {
                let wrt: Vec<&Tensor> = which.iter().map(|&i| &x[i]).collect();
                Tensor::build(|| {
                    let gs = grad(&loss(x), &wrt)?;
                    let mut s = Tensor::zeros(&[], dtype, device);
                    for (k, g) in gs.iter().enumerate() {
                        s = s + g.square().sum_all() * (0.5 + k as f64);
                    }
                    Ok(s)
                })
            };
            let wrt: Vec<&Tensor> = which.iter().map(|&i| &x[i]).collect();
            let constant = match grad_optional(&penalty(&x), &wrt) {
                Ok(v) => v.iter().any(Option::is_none),
                Err(_) => false,
            };
            r.checked += 1;
            if constant {
                continue;
            }
            if let Err(e) = check(&penalty, &x, &which, device) {
                r.failures.push(format!("{place}, second derivative: {e}"));
            }
        }
    }
    r
}
