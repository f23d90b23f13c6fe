//! What the tests share: values, and gradients by central differences in f64.
#![allow(dead_code)]
use bimetal_autodiff::grad;
use bimetal_tensor::{DType, Device, Tensor};
use std::sync::OnceLock;

pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(bimetal_cpu::cpu)
}

pub fn f64s(v: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(v, shape, device())
}

pub fn f32s(v: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(v, shape, device())
}

pub fn i32s(v: &[i32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(v, shape, device())
}

/// Numbers in (-1, 1) from a small generator.
pub fn noise(n: usize, seed: u64) -> Vec<f64> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

pub fn random(shape: &[usize], seed: u64) -> Tensor {
    f64s(&noise(shape.iter().product(), seed), shape)
}

pub fn values(t: &Tensor) -> Vec<f64> {
    t.to_f64_vec().unwrap()
}

/// A scalar that depends on every element with a weight of its own.
pub fn weigh(t: &Tensor) -> Tensor {
    let n = t.numel().unwrap();
    let w = f64s(&noise(n, 77), &[n]).cast(t.dtype());
    (t.reshape(&[-1]) * w).sum_all()
}

#[track_caller]
pub fn close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{got:?} against {want:?}");
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        let same = a == b || (a - b).abs() <= tolerance * (1.0 + b.abs());
        assert!(same, "element {i}: {a} against {b}\n{got:?}\n{want:?}");
    }
}

/// Compares the gradients of `f` at `x` with central differences, and those of their squares' sum too.
#[track_caller]
pub fn check(f: impl Fn(&[Tensor]) -> Tensor, x: &[Tensor]) {
    check_once(&f, x);
    let second = |x: &[Tensor]| {
        Tensor::build(|| {
            let gs = grad(&f(x), &x.iter().collect::<Vec<_>>())?;
            let parts = gs.iter().zip(2..).map(|(g, seed)| {
                let n = g.numel().unwrap();
                let w = f64s(&noise(n, seed), &[n]);
                (g.reshape(&[-1]) * w).sum_all() + g.square().sum_all()
            });
            // Constant gradients have no derivative: keep the sum dependent on every input.
            let zero = x.iter().map(|t| t.sum_all() * 0.0);
            Ok(parts.chain(zero).reduce(|a, b| a + b).unwrap())
        })
    };
    check_once(&second, x);
}

/// First derivatives only.
#[track_caller]
pub fn check_once(f: &dyn Fn(&[Tensor]) -> Tensor, x: &[Tensor]) {
    let all: Vec<&Tensor> = x.iter().collect();
    let loss = f(x);
    let gs = grad(&loss, &all).unwrap();
    for (i, g) in gs.iter().enumerate() {
        assert_eq!(g.dtype(), DType::F64);
        assert_eq!(g.shape().unwrap(), x[i].shape().unwrap());
        let base = values(&x[i]);
        let h = 1e-5;
        let at = |k: usize, d: f64| {
            let mut v = base.clone();
            v[k] += d;
            let mut y = x.to_vec();
            y[i] = f64s(&v, &x[i].shape().unwrap());
            f(&y).item().unwrap()
        };
        let want: Vec<f64> = (0..base.len())
            .map(|k| (at(k, h) - at(k, -h)) / (2.0 * h))
            .collect();
        close(&values(g), &want, 3e-6);
    }
}
