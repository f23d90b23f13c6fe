//! Gradients against central differences in f64.
use crate::cases::{Input, all};
use crate::conformance::{Report, inputs};
use crate::random::Gen;
use bimetal_autodiff::{grad, grad_optional};
use bimetal_tensor::{DType, Device, Result, Tensor};

/// The gradient of `f` at `x` by central differences: one array per input.
fn differences(
    f: &dyn Fn(&[Tensor]) -> Tensor,
    x: &[Tensor],
    which: usize,
    device: &Device,
) -> Result<Vec<f64>> {
    let base = x[which].to_f64_vec()?;
    let shape = x[which].shape()?;
    let at = |v: &[f64]| -> Result<f64> {
        let mut y = x.to_vec();
        y[which] = Tensor::from_slice(v, &shape, device);
        f(&y).item()
    };
    let h = 1e-5;
    (0..base.len())
        .map(|i| {
            let mut v = base.clone();
            v[i] = base[i] + h;
            let up = at(&v)?;
            v[i] = base[i] - h;
            Ok((up - at(&v)?) / (2.0 * h))
        })
        .collect()
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
    for (g, &w) in grads.iter().zip(which) {
        let got = g.to_f64_vec().map_err(text)?;
        let want = differences(f, x, w, device).map_err(text)?;
        let scale = want.iter().fold(1.0f64, |a, v| a.max(v.abs()));
        for (i, (a, b)) in got.iter().zip(&want).enumerate() {
            if a.is_nan() || (a - b).abs() > 2e-6 * scale {
                return Err(format!(
                    "input {w} element {i}: {a:e}, differences say {b:e}"
                ));
            }
        }
    }
    Ok(())
}

/// First and second derivatives of every differentiable case in f64.
pub fn run(device: &Device, seed: u64, rounds: usize, second: bool) -> Report {
    let mut r = Report::default();
    for (index, maker) in all().iter().enumerate() {
        for round in 0..rounds {
            let mut g = Gen::new(seed ^ ((index as u64) << 32) ^ round as u64);
            let case = maker(&mut g);
            if !case.differentiable {
                continue;
            }
            let x: Vec<Tensor> = inputs(&mut g, &case, DType::F64, false, device);
            let which: Vec<usize> = (0..x.len())
                .filter(|&i| matches!(case.inputs[i], Input::Float { .. } | Input::Wide { .. }))
                .collect();
            let weights: Vec<f64> = g.values(64, -1.0, 1.0);
            let loss = |x: &[Tensor]| -> Tensor {
                let outs = (case.build)(x);
                let mut total: Option<Tensor> = None;
                for o in outs.iter().filter(|o| o.dtype().is_float()) {
                    let n = o.numel().unwrap_or(0);
                    let w: Vec<f64> = (0..n).map(|i| weights[i % 64]).collect();
                    let w = Tensor::from_slice(&w, &[n], device);
                    let t = (o.reshape(&[-1]).cast(DType::F64) * w).sum_all();
                    total = Some(match total {
                        Some(s) => s + t,
                        None => t,
                    });
                }
                total.unwrap_or_else(|| Tensor::zeros(&[], DType::F64, device))
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
                    let mut s = Tensor::zeros(&[], DType::F64, device);
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
