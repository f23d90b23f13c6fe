//! Composites: rows, attention, recurrence, the optimizer's update.
use super::{F32, Maker, case, float};
use crate::cases::Input;
use bimetal_tensor::graph::{AttentionSpec, Attr, Composite};
use bimetal_tensor::{DType, Tensor};

/// Appends their makers.
pub(super) fn add(v: &mut Vec<Maker>) {
    v.push(Box::new(|g| {
        let s = vec![1 + g.below(4), 2 + g.below(20)];
        let a = g.below(2) as isize;
        let mut c = case("softmax", vec![float(&s, -5.0, 5.0)], move |x| {
            vec![x[0].softmax(a), x[0].log_softmax(a)]
        });
        c.scale = 3.0;
        c.ulps = 2.0;
        c
    }));
    v.push(Box::new(|g| {
        let d = 2 + g.below(20);
        let s = vec![1 + g.below(4), 1 + g.below(4), d];
        let wide = |s: &[usize]| Input::Wide {
            shape: s.to_vec(),
            range: (-1.0, 1.0),
        };
        let mut c = case(
            "layer_norm",
            vec![float(&s, -2.0, 2.0), wide(&[d]), wide(&[d])],
            |x| vec![x[0].layer_norm(&x[1], &x[2], 1e-5)],
        );
        c.scale = 60.0;
        c.ulps = 2.0;
        c
    }));
    v.push(Box::new(|g| {
        let ch = 1 + g.below(4);
        let s = vec![2 + g.below(3), ch, 2 + g.below(3), 2];
        let wide = |s: &[usize]| Input::Wide {
            shape: s.to_vec(),
            range: (-1.0, 1.0),
        };
        let mut c = case(
            "batch_norm",
            vec![float(&s, -2.0, 2.0), wide(&[ch]), wide(&[ch])],
            |x| {
                let (y, mean, var) = x[0].batch_norm(&x[1], &x[2], 1e-3);
                vec![y, mean, var]
            },
        );
        c.scale = 60.0;
        c.ulps = 2.0;
        c
    }));
    v.push(Box::new(|g| {
        let (n, k) = (1 + g.below(6), 2 + g.below(12));
        let smooth = if g.chance(0.5) { 0.1 } else { 0.0 };
        let ignore = if g.chance(0.5) { 1 } else { -100 };
        let mut c = case(
            "cross_entropy",
            vec![
                float(&[n, k], -4.0, 4.0),
                Input::Index {
                    shape: vec![n],
                    below: k,
                },
            ],
            move |x| vec![x[0].cross_entropy_rows(&x[1], ignore, smooth)],
        );
        c.scale = 12.0;
        c.ulps = 2.0;
        c
    }));
    v.push(Box::new(|g| {
        let (b, h, tq, tk, d) = (
            1 + g.below(2),
            1 + g.below(2),
            1 + g.below(6),
            1 + g.below(6),
            1 + g.below(5),
        );
        let spec = AttentionSpec {
            scale: Attr(1.0 / (d as f64).sqrt()),
            causal: g.chance(0.5),
            key_mask: false,
            dropout: None,
        };
        let masked = g.chance(0.5);
        let mut c = case(
            "attention",
            vec![
                float(&[b, tq, h, d], -2.0, 2.0),
                float(&[b, tk, h, d], -2.0, 2.0),
                float(&[b, tk, h, d], -2.0, 2.0),
                Input::Bool { shape: vec![b, tk] },
            ],
            move |x| vec![x[0].attention(&x[1], &x[2], masked.then_some(&x[3]), None, spec)],
        );
        c.scale = 10.0;
        c.ulps = 4.0;
        c
    }));
    v.push(Box::new(|g| {
        let (b, h) = (1 + g.below(4), 1 + g.below(5));
        let mut c = case(
            "lstm_cell",
            vec![
                float(&[b, 4 * h], -2.0, 2.0),
                Input::Wide {
                    shape: vec![b, h],
                    range: (-1.0, 1.0),
                },
            ],
            |x| {
                let (h, c) = x[0].lstm_cell(&x[1]);
                vec![h, c]
            },
        );
        c.scale = 2.0;
        c.ulps = 2.0;
        c
    }));
    v.push(Box::new(|g| {
        let (b, t, h) = (1 + g.below(3), 1 + g.below(6), 1 + g.below(5));
        let mut c = case(
            "lstm",
            vec![
                float(&[b, t, 4 * h], -2.0, 2.0),
                float(&[4 * h, h], -0.5, 0.5),
                float(&[b, h], -1.0, 1.0),
                Input::Wide {
                    shape: vec![b, h],
                    range: (-1.0, 1.0),
                },
            ],
            |x| {
                let (y, c) = x[0].lstm(&x[1], &x[2], &x[3]);
                vec![y, c]
            },
        );
        c.scale = 8.0;
        c.ulps = 4.0;
        // Narrower gates are rounded at every step: one that rounds the other way is worth more than one rounding of the result. The
        // kernel's own tests bound that.
        c.dtypes = &[DType::F32];
        c
    }));
    v.push(Box::new(|g| {
        let s = g.shape(2, 40);
        let mut c = case(
            "grad_stats",
            vec![float(&s, -3.0, 3.0), float(&s[1..], -3.0, 3.0)],
            |x| {
                let (f, s, i) = Tensor::grad_stats(&[&x[0], &x[1]]);
                vec![f, s, i]
            },
        );
        c.scale = 9.0 * 1700.0;
        c.ulps = 2.0;
        c.dtypes = &[DType::F32, DType::F16];
        c.differentiable = false;
        c
    }));
    v.push(Box::new(|g| {
        let s = vec![1 + g.below(4), 2 + g.below(30)];
        let fast = g.chance(0.5);
        let mut c = case(
            "optim_update",
            vec![
                float(&s, -1.0, 1.0),
                float(&s, -1.0, 1.0),
                float(&s, -0.1, 0.1),
                float(&s, 0.01, 0.1),
            ],
            move |x| {
                use bimetal_tensor::graph::OptimRule;
                let Some(d) = x[0].device() else {
                    return Vec::new();
                };
                let f = |v: f64| Tensor::full(&[], v, DType::F32, d);
                let apply = Tensor::full(&[], 1.0, DType::Bool, d);
                let c = |rule, b1, b2| Composite::OptimUpdate {
                    rule,
                    beta1: Attr(b1),
                    beta2: Attr(b2),
                    eps: Attr(1e-8),
                    weight_decay: Attr(0.01),
                };
                let (lr, k, t) = (f(1e-2), f(0.5), f(3.0));
                let adam = Tensor::composite(
                    c(OptimRule::Adam { decoupled: fast }, 0.9, 0.999),
                    &[&apply, &lr, &k, &t, &x[0], &x[1], &x[2], &x[3]],
                );
                let sgd = Tensor::composite(
                    c(
                        OptimRule::Sgd {
                            momentum: true,
                            nesterov: fast,
                        },
                        0.9,
                        0.0,
                    ),
                    &[&apply, &lr, &k, &t, &x[0], &x[1], &x[2]],
                );
                vec![
                    adam.output(0),
                    adam.output(1),
                    adam.output(2),
                    sgd.output(0),
                    sgd.output(1),
                ]
            },
        );
        c.dtypes = F32;
        c.ulps = 8.0;
        c.scale = 0.5;
        c.differentiable = false;
        c
    }));
}
