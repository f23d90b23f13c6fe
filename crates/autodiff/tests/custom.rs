//! Operations of a user's crate: one with a derivative of its own, one with a decomposition alone, one with neither.
mod common;
use bimetal_autodiff::grad;
use bimetal_tensor::graph::CustomOp;
use bimetal_tensor::plan::Meta;
use bimetal_tensor::{ErrorKind, Result, Tensor};
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `x sigmoid(beta x)` with a derivative of its own.
struct Swish {
    beta: f64,
    calls: AtomicUsize,
}

impl CustomOp for Swish {
    fn name(&self) -> &'static str {
        "swish"
    }
    fn attributes(&self) -> Vec<u64> {
        vec![self.beta.to_bits()]
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Vec<Meta>> {
        Ok(vec![inputs[0]])
    }
    fn decompose(&self, x: &[Tensor]) -> Option<Vec<Tensor>> {
        Some(vec![&x[0] * (&x[0] * self.beta).sigmoid()])
    }
    fn vjp(&self, x: &[Tensor], y: &[Tensor], g: &[Option<Tensor>]) -> Option<Vec<Option<Tensor>>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let s = (&x[0] * self.beta).sigmoid();
        let d = &s + &y[0] * (1.0 - &s) * self.beta;
        Some(vec![g[0].as_ref().map(|g| g * d)])
    }
}

/// Sum and difference, defined by their decomposition.
struct Butterfly;

impl CustomOp for Butterfly {
    fn name(&self) -> &'static str {
        "butterfly"
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Vec<Meta>> {
        Ok(vec![inputs[0], inputs[0]])
    }
    fn decompose(&self, x: &[Tensor]) -> Option<Vec<Tensor>> {
        Some(vec![(&x[0] + &x[1]).exp(), &x[0] - &x[1]])
    }
}

/// Only a host kernel, which nobody can differentiate.
struct Opaque;

impl CustomOp for Opaque {
    fn name(&self) -> &'static str {
        "opaque"
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Vec<Meta>> {
        Ok(vec![inputs[0]])
    }
    fn decompose(&self, _: &[Tensor]) -> Option<Vec<Tensor>> {
        None
    }
}

#[test]
fn a_derivative_of_its_own() {
    let op = Arc::new(Swish {
        beta: 1.3,
        calls: AtomicUsize::new(0),
    });
    let f = |x: &[Tensor]| weigh(&Tensor::custom(op.clone(), &[&x[0]]));
    check(f, &[random(&[5], 1)]);
    assert!(op.calls.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_decomposition_alone() {
    let f = |x: &[Tensor]| {
        let t = Tensor::custom(Arc::new(Butterfly), &[&x[0], &x[1]]);
        weigh(&(t.output(0) * t.output(1).sin()))
    };
    check(f, &[random(&[5], 1), random(&[5], 2)]);
    // One variable as both operands: 2 exp(2 x).
    let x = random(&[3], 3);
    let t = Tensor::custom(Arc::new(Butterfly), &[&x, &x]);
    let g = grad(&t.sum_all(), &[&x]).unwrap();
    let want: Vec<f64> = values(&x).iter().map(|v| 2.0 * (2.0 * v).exp()).collect();
    close(&values(&g[0]), &want, 1e-12);
}

#[test]
fn neither() {
    let x = random(&[3], 3);
    let loss = Tensor::custom(Arc::new(Opaque), &[&x]).sum_all();
    let e = grad(&loss, &[&x]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::NoGradient { .. }), "{e}");
    assert!(e.to_string().contains("`opaque`"), "{e}");
}
