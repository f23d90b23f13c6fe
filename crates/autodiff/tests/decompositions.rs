//! What composites decompose into.
mod common;
use bimetal_autodiff::grad;
use bimetal_tensor::graph::{
    AttentionSpec, Attr, Composite, DropoutSpec, OptimRule, RandomKey, decompose,
};
use bimetal_tensor::{DType, Tensor};
use common::*;

fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, device())
}

fn optim(rule: OptimRule, eps: f64, weight_decay: f64) -> Composite {
    Composite::OptimUpdate {
        rule,
        beta1: Attr(0.9),
        beta2: Attr(0.999),
        eps: Attr(eps),
        weight_decay: Attr(weight_decay),
    }
}

/// Every composite with operands of dtype `d` (wide ones of dtype `w`).
fn all(d: DType, w: DType) -> Vec<(Composite, Vec<Tensor>)> {
    use Composite::*;
    let x = |s: &[usize]| zeros(s, d);
    let f = |s: &[usize]| zeros(s, w);
    let index = zeros(&[4], DType::I64);
    let step = zeros(&[], DType::U32);
    let dropout = DropoutSpec {
        rate: Attr(0.5),
        key: RandomKey::Value {
            stream: 7,
            micro: 0,
        },
    };
    let spec = AttentionSpec {
        scale: Attr(0.5),
        causal: true,
        key_mask: true,
        dropout: Some(dropout),
    };
    let (ignore_index, label_smoothing) = (-100, Attr(0.1));
    let (q, k, mask) = (
        x(&[2, 5, 3, 4]),
        x(&[2, 6, 3, 4]),
        zeros(&[2, 6], DType::Bool),
    );
    let mut list = vec![
        (Softmax, vec![x(&[2, 3])]),
        (SoftmaxGrad, vec![x(&[2, 3]), x(&[2, 3])]),
        (LogSoftmax, vec![x(&[3])]),
        (LogSoftmaxGrad, vec![x(&[2, 0]), x(&[2, 0])]),
        (
            LayerNorm { eps: Attr(0.1) },
            vec![x(&[2, 3]), f(&[3]), f(&[3])],
        ),
        (
            LayerNormGrad,
            vec![x(&[3]), f(&[3]), f(&[1]), f(&[1]), x(&[3])],
        ),
        (
            BatchNorm { eps: Attr(0.1) },
            vec![x(&[2, 3, 4, 5]), f(&[3]), f(&[3])],
        ),
        (
            BatchNormGrad,
            vec![x(&[2, 3]), f(&[3]), f(&[3]), f(&[3]), x(&[2, 3])],
        ),
        (
            CrossEntropy {
                ignore_index,
                label_smoothing,
            },
            vec![x(&[4, 3]), index.clone()],
        ),
        (
            CrossEntropyGrad {
                ignore_index,
                label_smoothing,
            },
            vec![x(&[4, 3]), index, f(&[4]), f(&[4])],
        ),
        (
            Attention(spec),
            vec![q.clone(), k.clone(), k.clone(), mask.clone(), step.clone()],
        ),
        (
            AttentionGrad(spec),
            vec![
                q.clone(),
                k.clone(),
                k,
                q.clone(),
                f(&[2, 3, 5]),
                q,
                mask,
                step,
            ],
        ),
        (LstmCell, vec![x(&[2, 12]), f(&[2, 3])]),
        (
            LstmCellGrad,
            vec![x(&[2, 12]), f(&[2, 3]), f(&[2, 3]), x(&[2, 3]), f(&[2, 3])],
        ),
        (
            Lstm,
            vec![x(&[2, 5, 12]), x(&[12, 3]), x(&[2, 3]), f(&[2, 3])],
        ),
        (
            LstmGrad,
            vec![
                x(&[2, 5, 12]),
                x(&[12, 3]),
                f(&[2, 2, 3]),
                x(&[2, 5, 3]),
                f(&[2, 3]),
            ],
        ),
        (GradStats, vec![x(&[2]), f(&[0, 3]), x(&[])]),
        (ExponentHistogram { to: DType::F16 }, vec![x(&[2, 3])]),
        (ExponentHistogram { to: DType::BF16 }, vec![f(&[0, 3])]),
    ];
    let scalar = || zeros(&[], DType::F32);
    let head = || vec![zeros(&[], DType::Bool), scalar(), scalar(), scalar()];
    let rules = [
        (
            OptimRule::Sgd {
                momentum: false,
                nesterov: false,
            },
            2,
        ),
        (
            OptimRule::Sgd {
                momentum: true,
                nesterov: true,
            },
            3,
        ),
        (OptimRule::Adam { decoupled: true }, 4),
        (OptimRule::Adam { decoupled: false }, 4),
    ];
    for (rule, each) in rules {
        let mut inputs = head();
        inputs.extend((0..each).map(|_| f(&[2, 3])));
        inputs.extend((0..each).map(|_| f(&[])));
        list.push((optim(rule, 1e-8, 0.1), inputs));
    }
    list
}

#[test]
fn shapes_and_dtypes_are_those_of_the_composite() {
    for d in [
        DType::F8E5M2,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ] {
        let w = if d == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        for (c, inputs) in all(d, w) {
            let t = Tensor::composite(c, &inputs.iter().collect::<Vec<_>>());
            t.check().unwrap();
            let parts = decompose(&c, &inputs);
            assert_eq!(parts.len(), t.output_count(), "{c:?}");
            for (i, p) in parts.iter().enumerate() {
                let want = t.output(i);
                assert_eq!(p.shape().unwrap(), want.shape().unwrap(), "{c:?} {i}");
                assert_eq!(p.dtype(), want.dtype(), "{c:?} {i}");
            }
        }
    }
}

#[test]
fn operands_that_do_not_fit_give_as_many_invalid_results() {
    let parts = decompose(&Composite::LstmCell, &[zeros(&[2, 3], DType::F32)]);
    assert_eq!(parts.len(), 2);
    assert!(parts.iter().all(|t| t.check().is_err()));
}

fn update(c: Composite, apply: bool, step: f64, x: &[&Tensor]) -> Vec<Tensor> {
    let f = |v: f64| Tensor::full(&[], v, DType::F32, device());
    let mut inputs = vec![
        Tensor::full(&[], apply as u8 as f64, DType::Bool, device()),
        f(0.1),
        f(0.5),
        f(step),
    ];
    inputs.extend(x.iter().map(|t| (*t).clone()));
    decompose(&c, &inputs)
}

/// A skipped update leaves every bit as it was, signs of zero and all, whatever the gradient.
#[test]
fn a_skipped_update_changes_no_bit() {
    let w = f32s(&[1.0, -0.0, 3e-42, 5.0], &[4]);
    let g = f32s(&[f32::NAN, f32::INFINITY, 1.0, 0.0], &[4]);
    let (m, v) = (
        f32s(&[-0.0, 1.0, 2.0, 3.0], &[4]),
        f32s(&[0.0, 1.0, 2.0, 3.0], &[4]),
    );
    let bits = |t: &Tensor| -> Vec<u32> {
        t.to_vec::<f32>()
            .unwrap()
            .iter()
            .map(|v| v.to_bits())
            .collect()
    };
    for decoupled in [false, true] {
        let c = optim(OptimRule::Adam { decoupled }, 1e-8, 0.1);
        let out = update(c, false, 3.0, &[&w, &g, &m, &v]);
        for (new, old) in out.iter().zip([&w, &m, &v]) {
            assert_eq!(bits(new), bits(old));
        }
    }
    let c = optim(
        OptimRule::Sgd {
            momentum: true,
            nesterov: true,
        },
        0.0,
        0.1,
    );
    let out = update(c, false, 1.0, &[&w, &g, &m]);
    assert_eq!((bits(&out[0]), bits(&out[1])), (bits(&w), bits(&m)));
}

/// 0 / 0 never happens, not even with an epsilon that f32 rounds to zero.
#[test]
fn a_zero_gradient_makes_no_update() {
    let (w, z) = (f32s(&[1.0, 2.0], &[2]), f32s(&[0.0, 0.0], &[2]));
    for eps in [1e-8, 0.0, 1e-60] {
        let c = optim(OptimRule::Adam { decoupled: true }, eps, 0.0);
        let out = update(c, true, 1.0, &[&w, &z, &z, &z]);
        assert_eq!(values(&out[0]), [1.0, 2.0], "{eps}");
    }
}

/// The first step of Adam is lr times the sign, to the precision of f32: 1 - 0.999 must keep its digits.
#[test]
fn bias_correction_keeps_its_digits_in_f32() {
    let (w, z) = (f32s(&[0.0, 0.0], &[2]), f32s(&[0.0, 0.0], &[2]));
    let g = f32s(&[1e-3, -20.0], &[2]);
    let c = optim(OptimRule::Adam { decoupled: true }, 1e-12, 0.0);
    let out = values(&update(c, true, 1.0, &[&w, &g, &z, &z])[0]);
    let want = [-0.1f32 as f64, 0.1f32 as f64];
    for (a, b) in out.iter().zip(want) {
        assert!((a - b).abs() < 3e-7 * b.abs(), "{a} against {b}");
    }
}

#[test]
fn statistics_of_gradients() {
    let a = f32s(&[1.0, 2.0], &[2]);
    let half = f32s(&[60000.0, -60000.0], &[2]).cast(DType::F16);
    let inf = f32s(&[1.0, f32::INFINITY], &[2]);
    let nan = f32s(&[f32::NAN], &[]);
    let huge = f32s(&[1e30], &[1]);
    let run = |x: &[&Tensor]| -> (f64, f64, f64) {
        let x: Vec<Tensor> = x.iter().map(|t| (*t).clone()).collect();
        let t = decompose(&Composite::GradStats, &x);
        (
            t[0].item().unwrap(),
            t[1].item().unwrap(),
            t[2].item().unwrap(),
        )
    };
    // 60,000 is a number of f16; its square is not.
    assert_eq!(run(&[&a, &half]), (1.0, (5.0 + 7.2e9f32) as f64, -1.0));
    assert_eq!(run(&[&a, &nan, &inf]).0, 0.0);
    assert_eq!(run(&[&a, &nan, &inf]).2, 1.0);
    assert_eq!(run(&[&inf, &a]), (0.0, f64::INFINITY, 0.0));
    // Finite elements whose squares are not.
    assert_eq!(run(&[&huge]), (1.0, f64::INFINITY, -1.0));
}

/// Ignored rows may hold any index: nothing is read out of range, loss and gradient are zero.
#[test]
fn ignored_rows_are_not_looked_up() {
    let x = f64s(&noise(9, 1), &[3, 3]);
    let t = Tensor::from_slice(&[2i64, 1 << 40, 0], &[3], device());
    let c = Composite::CrossEntropy {
        ignore_index: 1 << 40,
        label_smoothing: Attr(0.0),
    };
    let loss = decompose(&c, &[x.clone(), t.clone()]);
    assert_eq!(values(&loss[0])[1], 0.0);
    let rows = x.cross_entropy_rows(&t, 1 << 40, 0.0);
    let g = values(&grad(&rows.sum_all(), &[&x]).unwrap()[0]);
    assert_eq!(&g[3..6], [0.0, 0.0, 0.0]);
    assert!(g[0] != 0.0 && (g[0] + g[1] + g[2]).abs() < 1e-12);
}

fn spec(causal: bool, rate: Option<f64>) -> AttentionSpec {
    AttentionSpec {
        scale: Attr(0.5),
        causal,
        key_mask: false,
        dropout: rate.map(|rate| DropoutSpec {
            rate: Attr(rate),
            key: RandomKey::Value {
                stream: 9,
                micro: 0,
            },
        }),
    }
}

/// A query that sees no key gives 0, and takes no part in gradients.
#[test]
fn rows_without_a_key() {
    let (q, k) = (random(&[1, 3, 1, 2], 1), random(&[1, 2, 1, 2], 2));
    // Three queries on two keys: the first sees none.
    let y = q.attention(&k, &k, None, None, spec(true, None));
    let parts = decompose(
        &Composite::Attention(spec(true, None)),
        &[q.clone(), k.clone(), k.clone()],
    );
    assert_eq!(values(&parts[0])[..2], [0.0, 0.0]);
    assert_eq!(values(&parts[1])[0], f64::NEG_INFINITY);
    let g = grad(&weigh(&y), &[&q, &k]).unwrap();
    assert_eq!(values(&g[0])[..2], [0.0, 0.0]);
    assert!(values(&g[1]).iter().all(|v| v.is_finite()));
    let mask = Tensor::from_slice(&[false, false], &[1, 2], device());
    let y = q.attention(&k, &k, Some(&mask), None, spec(false, None));
    assert_eq!(values(&y), [0.0; 6]);
    let g = grad(&weigh(&y), &[&q, &k]).unwrap();
    assert_eq!((values(&g[0]), values(&g[1])), (vec![0.0; 6], vec![0.0; 4]));
}

/// The gradient drops what the forward pass dropped; all of it at a step draws anew.
#[test]
fn dropout_of_probabilities() {
    let step = |n: f64| Tensor::full(&[], n, DType::U32, device());
    let one = step(1.0);
    check(
        |x| weigh(&x[0].attention(&x[1], &x[2], None, Some(&one), spec(true, Some(0.4)))),
        &[
            random(&[1, 4, 2, 2], 1),
            random(&[1, 4, 2, 2], 2),
            random(&[1, 4, 2, 2], 3),
        ],
    );
    let q = random(&[1, 16, 1, 2], 4);
    let ones = Tensor::ones(&[1, 16, 1, 2], DType::F64, device());
    let run =
        |n: f64| values(&q.attention(&q, &ones, None, Some(&step(n)), spec(false, Some(0.4))));
    assert_ne!(run(1.0), run(2.0));
    assert_eq!(run(1.0), run(1.0));
    // What is kept is scaled up: rows sum to 1 on average.
    let mean = (1..20).flat_map(|n| run(n as f64)).sum::<f64>() / (19.0 * 32.0);
    assert!((mean - 1.0).abs() < 0.08, "{mean}");
}
