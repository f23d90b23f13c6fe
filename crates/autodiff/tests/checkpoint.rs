//! Recomputation changes no bit.
mod common;
use bimetal_autodiff::{checkpoint, checkpoint_many, grad};
use bimetal_tensor::graph::{Distribution, Op, RandomKey};
use bimetal_tensor::{DType, Slot, Tensor};
use common::*;
use std::collections::{BTreeSet, HashSet};

fn bits(t: &Tensor) -> Vec<u64> {
    values(t).iter().map(|v| v.to_bits()).collect()
}

/// Gradients of a function that may use checkpoints, as bits, with and without them.
fn same_bits(f: impl Fn(bool) -> (Tensor, Vec<Tensor>)) {
    let run = |on: bool| {
        let (loss, wrt) = f(on);
        let g = grad(&loss, &wrt.iter().collect::<Vec<_>>()).unwrap();
        let mut all = vec![bits(&loss)];
        all.extend(g.iter().map(bits));
        all
    };
    assert_eq!(run(false), run(true));
}

fn segment(on: bool, f: impl FnOnce(&[Tensor]) -> Vec<Tensor>, inputs: &[&Tensor]) -> Vec<Tensor> {
    match on {
        true => checkpoint_many(f, inputs),
        false => f(&inputs.iter().map(|t| (*t).clone()).collect::<Vec<_>>()),
    }
}

fn dropout(x: &Tensor, stream: u64, step: Option<&Tensor>) -> Tensor {
    let key = RandomKey::Value { stream, micro: 0 };
    let shape = x.shape().unwrap();
    let u = Tensor::random(Distribution::Uniform, &shape, key, step, device());
    u.ge(0.4).select(x * (1.0 / 0.6), 0.0)
}

/// All nodes behind some tensors.
fn nodes(roots: &[Tensor]) -> Vec<Tensor> {
    let mut seen = HashSet::new();
    let mut work = roots.to_vec();
    let mut all = Vec::new();
    while let Some(t) = work.pop() {
        if seen.insert(t.id()) {
            work.extend_from_slice(t.inputs());
            all.push(t);
        }
    }
    all
}

fn half(shape: &[usize], seed: u64) -> Tensor {
    random(shape, seed).cast(DType::F16)
}

#[test]
fn residual_blocks_in_half_precision() {
    for keyed in [false, true] {
        same_bits(|on| {
            let w: Vec<Slot> = (0..3)
                .map(|i| Slot::new("w", &random(&[8, 8], i).cast(DType::F32), device()).unwrap())
                .collect();
            let step = Tensor::full(&[], 3.0, DType::U32, device());
            let step = keyed.then_some(&step);
            let x = half(&[4, 8], 9);
            let mut h = x.clone();
            for (i, w) in w.iter().enumerate() {
                let inner = |t: &[Tensor]| {
                    let w16 = w.read().cast(DType::F16);
                    let y = t[0].matmul(&w16).gelu();
                    let y = dropout(&y, i as u64, step);
                    vec![(y.matmul(&w16) + &t[0] * &t[0]).tanh() + &t[0]]
                };
                h = segment(on, inner, &[&h]).remove(0);
            }
            let loss = h.cast(DType::F32).square().mean_all();
            let mut wrt = vec![x];
            wrt.extend(w.iter().map(Slot::read));
            (loss, wrt)
        });
    }
}

/// Several inputs of which one is computed from the other, several results of which the later is used first.
#[test]
fn many_inputs_and_results() {
    same_bits(|on| {
        let x = random(&[5], 1).cast(DType::F32);
        let z = x.exp() * 1.1;
        let r = segment(
            on,
            |t| {
                let a = (&t[0] * &t[1]).sin() * &t[0];
                let b = (&t[1] + &a).tanh() * &t[1] * &t[0];
                vec![a, b]
            },
            &[&x, &z],
        );
        let y = &r[1] * 0.3 + &x;
        let y = &y * &r[0] + &r[0] * &z + &y * &x + &z * 0.7;
        (y.sum_all(), vec![x, z])
    });
}

#[test]
fn nested_segments() {
    same_bits(|on| {
        let w = random(&[4, 4], 2).cast(DType::F32);
        let x = random(&[3, 4], 3).cast(DType::F32);
        let y = segment(
            on,
            |t| {
                let h = t[0].matmul(&w).sin();
                let inner = segment(
                    on,
                    |t| {
                        let h = dropout(&t[0].matmul(&w).exp(), 5, None);
                        let deep = segment(on, |t| vec![(t[0].tanh() * &w.sum_all()).sin()], &[&h]);
                        vec![&deep[0] * &h]
                    },
                    &[&h],
                );
                vec![&inner[0] * &h + &t[0]]
            },
            &[&x],
        );
        (y[0].square().sum_all(), vec![x, w])
    });
}

/// A tensor that the closure takes from outside without listing it is shared, not computed again, if it is used elsewhere too.
#[test]
fn captured_tensors() {
    same_bits(|on| {
        let x = random(&[6], 1).cast(DType::F32);
        let outer = x.exp();
        let mut h = x.clone();
        for _ in 0..2 {
            h = segment(on, |t| vec![(&t[0] * &outer).sin() + &t[0]], &[&h]).remove(0);
        }
        (h.sum_all(), vec![x, outer])
    });
    let x = random(&[6], 1);
    let outer = x.exp();
    let a = checkpoint(|t| (&t[0] * &outer).sin(), &[&x]);
    let b = checkpoint(|t| (&t[0] * &outer).cos(), &[&a]);
    let g = grad(&b.sum_all(), &[&x]).unwrap();
    let exps = nodes(&g)
        .iter()
        .filter(|t| matches!(t.op(), Op::Unary(bimetal_tensor::graph::Unary::Exp)))
        .count();
    assert_eq!(exps, 1);
}

/// The gradient's graph works on copies behind barriers, and keeps no value of the first pass but the segments' inputs.
#[test]
fn the_backward_pass_keeps_only_inputs() {
    let x = random(&[4], 1);
    let mut h = x.clone();
    let mut inner = Vec::new();
    let mut results = Vec::new();
    for _ in 0..3 {
        h = checkpoint(
            |t| {
                let a = t[0].exp();
                let b = dropout(&a.sin(), 1, None);
                inner.extend([a.id(), b.id(), b.inputs()[0].id()]);
                b.square()
            },
            &[&h],
        );
        results.push(h.clone());
    }
    let loss = h.sum_all();
    let g = grad(&loss, &[&x]).unwrap();
    // What a barrier does not hold is reached without the first pass.
    let mut seen = HashSet::new();
    let mut work = g.clone();
    while let Some(t) = work.pop() {
        assert!(!inner.contains(&t.id()), "kept {:?}", t.op());
        if seen.insert(t.id()) && !matches!(t.op(), Op::Barrier) {
            work.extend_from_slice(t.inputs());
        }
    }
    let numbers: BTreeSet<u32> = nodes(&g).iter().map(|t| t.label().segment()).collect();
    assert_eq!(numbers, BTreeSet::from([0, 1, 2, 3]));
}

/// Equal graphs get equal numbers; a second derivative counts on from the first.
#[test]
fn segment_numbers() {
    let make = || {
        let x = random(&[4], 1);
        let h = checkpoint(|t| t[0].exp().sin(), &[&x]);
        let h = checkpoint(|t| t[0].exp().cos(), &[&h]);
        (x, h.sum_all())
    };
    let numbers =
        |g: &[Tensor]| -> Vec<u32> { nodes(g).iter().map(|t| t.label().segment()).collect() };
    let first = |(x, loss): (Tensor, Tensor)| grad(&loss, &[&x]).unwrap();
    assert_eq!(numbers(&first(make())), numbers(&first(make())));
    let (x, loss) = make();
    let g = grad(&loss, &[&x]).unwrap();
    let second = grad(&g[0].square().sum_all(), &[&x]).unwrap();
    let used: BTreeSet<u32> = numbers(&second).into_iter().collect();
    assert!(
        used.contains(&1) && used.contains(&2) && *used.last().unwrap() > 2,
        "{used:?}"
    );
}

#[test]
fn second_derivatives() {
    let f = |x: &[Tensor]| {
        weigh(&checkpoint(
            |t| (t[0].exp() * &t[1]).sin() * t[0].softmax(-1),
            &[&x[0], &x[1]],
        ))
    };
    check(f, &[random(&[2, 3], 1), random(&[2, 3], 2)]);
}

/// A result that is an input, one that is a constant, no inputs at all, and variables inside.
#[test]
fn corner_cases() {
    let x = random(&[3], 1);
    let r = checkpoint_many(|t| vec![t[0].clone(), t[0].exp()], &[&x]);
    let g = grad(&(&r[0] * &r[1]).sum_all(), &[&x, &r[1]]).unwrap();
    let v = values(&x);
    close(
        &values(&g[0]),
        &v.iter().map(|v| (1.0 + v) * v.exp()).collect::<Vec<_>>(),
        1e-12,
    );
    assert_eq!(values(&g[1]), v);
    let y = checkpoint(|_| x.square(), &[]);
    let g = grad(&y.sum_all(), &[&x]).unwrap();
    close(
        &values(&g[0]),
        &v.iter().map(|v| 2.0 * v).collect::<Vec<_>>(),
        1e-12,
    );
    let mut calls = 0;
    let _ = checkpoint(
        |t| {
            calls += 1;
            t[0].exp()
        },
        &[&x],
    );
    assert_eq!(calls, 1);
    let bad = checkpoint(|t| &t[0] + f64s(&[1.0, 2.0], &[2]), &[&x]);
    assert_eq!(bad.check().unwrap_err().op(), "add");
    assert!(
        checkpoint_many(|t| vec![t[0].clone(); 256], &[&x])[0]
            .check()
            .is_err()
    );
}

/// What it is for: the backward pass keeps the segments' inputs alone.
#[test]
fn memory_falls() {
    let run = |on: bool| {
        let d = bimetal_cpu::cpu();
        let n = 64;
        let from = |seed| {
            let v: Vec<f32> = noise(n * n, seed).iter().map(|v| *v as f32).collect();
            Tensor::from_slice(&v, &[n, n], &d)
        };
        let (x, w) = (from(1), from(2) * 0.1);
        let mut h = x.clone();
        for _ in 0..12 {
            let block = |t: &[Tensor]| {
                let y = (0..4).fold(t[0].clone(), |y, _| y.matmul(&w).gelu().sin());
                vec![y + &t[0]]
            };
            h = segment(on, block, &[&h]).remove(0);
        }
        let g = grad(&h.square().mean_all(), &[&x]).unwrap().remove(0);
        g.eval().unwrap();
        (bits(&g), d.memory())
    };
    let ((a, kept), (b, again)) = (run(false), run(true));
    assert_eq!(a, b);
    // Without segments the scheduler already makes activations again, so only the products' results are left to save.
    assert!(again.peak * 2 < kept.peak, "{again:?} against {kept:?}");
    assert!(again.saved * 2 < kept.saved, "{again:?} against {kept:?}");
}
