//! Derivatives against central differences in f64, and the places where rules are easy to get wrong.
mod common;
use bimetal_autodiff::{grad, vjp};
use bimetal_tensor::graph::{Conv2d, MatmulPrecision, Op, Pool2d, Unary};
use bimetal_tensor::{DType, Slot, Tensor};
use common::*;

/// First and second derivatives of every operation on random shapes.
#[test]
fn every_operation_on_random_shapes() {
    bimetal_testing::gradcheck::run(device(), 11, 3, true).assert_clean();
}

#[test]
fn slices_with_steps() {
    for (start, step, count) in [
        (1, 1, 3),
        (0, 2, 3),
        (1, 3, 2),
        (5, -1, 6),
        (4, -1, 3),
        (5, -2, 3),
        (4, -3, 2),
        (2, -2, 1),
    ] {
        for axis in [0, 1] {
            check(
                |x| weigh(&x[0].slice_step(axis, start, step, count).square()),
                &[random(&[6, 6], 1)],
            );
        }
    }
}

#[test]
fn overlapping_disjoint_and_tiling_slices() {
    let x = random(&[3, 6], 1);
    check(
        |x| weigh(&(x[0].narrow(1, 0, 4) * x[0].narrow(1, 2, 4))),
        std::slice::from_ref(&x),
    );
    check(
        |x| weigh(&(x[0].narrow(1, 1, 2) * x[0].narrow(1, 4, 2))),
        std::slice::from_ref(&x),
    );
    check(
        |x| {
            let p = x[0].split(3, 1);
            let twice = x[0].split(3, 1);
            weigh(&(&p[0] * &p[1] + p[2].exp() * &twice[0])) + weigh(&x[0].narrow(0, 1, 2).sin())
        },
        std::slice::from_ref(&x),
    );
}

/// The gradient of a packed projection is joined, not padded and added.
#[test]
fn the_parts_of_a_split_are_joined_once() {
    let x = random(&[2, 6], 1);
    let p = x.split(3, 1);
    let g = grad(&weigh(&(&p[0] * &p[1] + &p[2])), &[&x]).unwrap();
    assert!(
        matches!(g[0].op(), Op::Concat { axis: 1 }),
        "{:?}",
        g[0].op()
    );
    assert_eq!(g[0].inputs().len(), 3);
    assert!(
        g[0].inputs()
            .iter()
            .all(|t| !matches!(t.op(), Op::Pad { .. }))
    );
}

#[test]
fn products_with_zeros() {
    let x = f64s(
        &[2.0, 3.0, 4.0, 0.0, 5.0, 6.0, 0.0, 7.0, 0.0, 1.5, -2.0, 0.5],
        &[4, 3],
    );
    let g = grad(&x.prod(&[1], false).sum_all(), &[&x]).unwrap();
    let want = [
        12.0, 8.0, 6.0, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.75, -3.0,
    ];
    assert_eq!(values(&g[0]), want);
    // Differences of a polynomial of degree 1 in each variable are exact at zeros too.
    check(|x| weigh(&x[0].prod(&[1], true)), std::slice::from_ref(&x));
    check(
        |x| weigh(&x[0].reshape(&[2, 2, 3]).prod(&[0, 2], false)),
        &[x],
    );
    let one = f64s(&[3.0, 0.0], &[2, 1]);
    check(|x| weigh(&x[0].prod(&[1], false)), &[one]);
}

#[test]
fn ties_share_the_gradient() {
    let x = f64s(&[1.0, 3.0, 3.0, 3.0, 0.0, 2.0], &[2, 3]);
    let g = grad(&x.max(&[1], false).sum_all(), &[&x]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.5, 0.5, 1.0, 0.0, 0.0]);
    let g = grad(&x.min(&[], false), &[&x]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let (a, b) = (f64s(&[1.0, 2.0, 3.0], &[3]), f64s(&[2.0, 2.0, 2.0], &[3]));
    let g = grad(&a.maximum(&b).sum_all(), &[&a, &b]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.5, 1.0]);
    assert_eq!(values(&g[1]), [1.0, 0.5, 0.0]);
    let g = grad(&a.minimum(&b).sum_all(), &[&a, &b]).unwrap();
    assert_eq!(values(&g[0]), [1.0, 0.5, 0.0]);
    // As PyTorch's clamp: a value on the limit keeps its gradient.
    let g = grad(&a.clamp(2.0, 2.5).sum_all(), &[&a]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 1.0, 0.0]);
}

#[test]
fn powers_at_zero() {
    let x = f64s(&[0.0, 2.0, -3.0], &[3]);
    let d = |t: Tensor| values(&grad(&t.sum_all(), &[&x]).unwrap()[0]);
    assert_eq!(d(x.pow(0.0)), [0.0, 0.0, 0.0]);
    assert_eq!(d(x.pow(1.0)), [1.0, 1.0, 1.0]);
    assert_eq!(d(x.pow(2.0)), [0.0, 4.0, -6.0]);
    assert_eq!(d(x.pow(3.0)), [0.0, 12.0, 27.0]);
    let (a, b) = (f64s(&[0.0, 0.0, 2.0], &[3]), f64s(&[0.0, 2.0, 0.0], &[3]));
    let g = grad(&a.pow(&b).sum_all(), &[&a, &b]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.0, 0.0]);
    close(&values(&g[1]), &[0.0, 0.0, 2f64.ln()], 1e-12);
    check(
        |x| weigh(&Tensor::scalar(1.7).pow(&x[0])),
        &[random(&[5], 3)],
    );
    check(
        |x| weigh(&(x[0].square() + 0.5).pow(&x[1])),
        &[random(&[5], 3), random(&[5], 4)],
    );
}

#[test]
fn remainders() {
    let (a, b) = (
        f64s(&[5.3, -5.3, 5.3, -5.3], &[4]),
        f64s(&[2.0, 2.0, -2.0, -2.0], &[4]),
    );
    check_once(&|x| weigh(&x[0].remainder(&x[1])), &[a, b]);
}

/// PyTorch: the derivative of a step function is zero, not an error.
#[test]
fn steps_have_derivative_zero() {
    let x = f64s(&[0.3, -1.7], &[2]);
    for u in [
        Unary::Floor,
        Unary::Ceil,
        Unary::Round,
        Unary::Trunc,
        Unary::Sign,
    ] {
        let g = grad(&x.unary(u).sum_all(), &[&x]).unwrap();
        assert_eq!(values(&g[0]), [0.0, 0.0]);
    }
    // Straight through: the value is rounded, the gradient is that of the identity.
    let y = &x + (x.round() - &x).detach();
    let g = grad(&y.square().sum_all(), &[&x]).unwrap();
    assert_eq!(values(&g[0]), [0.0, -4.0]);
}

#[test]
fn relu_takes_the_side_of_its_result() {
    let x = f64s(&[-1.0, 0.0, 2.0, f64::NAN], &[4]);
    let g = grad(&x.relu().sum_all(), &[&x]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn convolutions_of_second_order_and_their_gradients() {
    let conv = Conv2d {
        stride: [2, 1],
        padding: [1, 0, 1, 1],
        dilation: [1, 2],
        groups: 2,
    };
    let (x, w) = (random(&[2, 4, 5, 6], 1), random(&[4, 2, 3, 2], 2));
    check(
        |x| weigh(&x[0].conv2d(&x[1], conv).square()),
        &[x.clone(), w.clone()],
    );
    let g = x.conv2d(&w, conv);
    let shape = g.shape().unwrap();
    let g = random(&shape, 3);
    check(
        |x| {
            weigh(&Tensor::conv2d_grad_input(
                &x[0],
                &x[1],
                conv,
                &[2, 4, 5, 6],
            ))
        },
        &[w, g.clone()],
    );
    check(
        |x| {
            weigh(&Tensor::conv2d_grad_weight(
                &x[0],
                &x[1],
                conv,
                &[4, 2, 3, 2],
            ))
        },
        &[x, g],
    );
}

#[test]
fn pooling_gradients_are_linear() {
    let pool = Pool2d {
        kernel: [3, 2],
        stride: [2, 1],
        padding: [1, 1, 0, 1],
        count_include_pad: false,
    };
    let x = random(&[2, 2, 5, 4], 1);
    check(
        |x| weigh(&x[0].max_pool2d(pool).0.square()),
        std::slice::from_ref(&x),
    );
    check(|x| weigh(&x[0].avg_pool2d(pool).square()), &[x]);
}

/// A gradient of 16 bits is summed in f32 and rounded once: 4,000 times 1 is 4,000, and small parts do not get lost.
#[test]
fn many_contributions_to_a_half_value() {
    let x = f32s(&[1.0], &[1]).cast(DType::F16);
    let mut y = Tensor::zeros(&[1], DType::F32, device());
    for _ in 0..64 {
        y = y + (&x * 33.0).cast(DType::F32);
    }
    let (big, small) = (2048.0, 0.5);
    let y = y + (&x * big).cast(DType::F32);
    let y = (0..8).fold(y, |y, _| y + (&x * small).cast(DType::F32));
    let g = grad(&y.sum_all(), &[&x]).unwrap();
    assert_eq!(g[0].dtype(), DType::F16);
    assert_eq!(values(&g[0]), [64.0 * 33.0 + 2048.0 + 4.0]);
}

/// The gradient of a value has its dtype; the cast of a master passes it back to f32.
#[test]
fn gradients_have_the_dtype_of_their_value() {
    let w = f32s(&[0.5, -1.0, 2.0, 0.25], &[2, 2]);
    let x = f32s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).cast(DType::F16);
    let half = w.cast(DType::F16);
    let y = x.matmul(&half).relu().cast(DType::F32);
    let loss = y.square().mean_all();
    let g = grad(&loss, &[&w, &half, &x]).unwrap();
    assert_eq!(
        g.iter().map(Tensor::dtype).collect::<Vec<_>>(),
        [DType::F32, DType::F16, DType::F16]
    );
    // x w = [[4.5, -0.5], [9.5, -2]]; d = y / 2 where y > 0.
    assert_eq!(values(&g[0]), [2.25 + 14.25, 0.0, 4.5 + 19.0, 0.0]);
    assert_eq!(values(&g[2]), [1.125, 4.5, 2.375, 9.5]);
}

#[test]
fn products_with_a_chosen_result_dtype() {
    let a = f32s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let b = f32s(&[0.5, -1.0, 2.0, 0.25], &[2, 2]);
    for (d, out) in [
        (DType::F16, DType::F32),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F16),
        (DType::F8E4M3, DType::F32),
        (DType::F8E5M2, DType::BF16),
    ] {
        let (p, q) = (a.cast(d), b.cast(d));
        let y = p.matmul_with(&q, MatmulPrecision::Exact, Some(out));
        assert_eq!(y.dtype(), out);
        let g = grad(&(y.cast(DType::F32).sum_all()), &[&a, &b, &p]).unwrap();
        assert_eq!(values(&g[0]), [-0.5, 2.25, -0.5, 2.25], "{d} to {out}");
        assert_eq!(values(&g[1]), [4.0, 4.0, 6.0, 6.0], "{d} to {out}");
        assert_eq!(g[2].dtype(), d);
    }
}

/// A gradient that passes through an 8-bit cast keeps what 8 bits would lose.
#[test]
fn gradients_do_not_travel_in_eight_bits() {
    let x = f32s(&[1.0, 2.0], &[2]);
    let y = x.cast(DType::F8E4M3).cast(DType::F32) * f32s(&[1e-4, 1000.7], &[2]);
    let g = grad(&y.sum_all(), &[&x]).unwrap();
    assert_eq!(values(&g[0]), [1e-4f32 as f64, 1000.7f32 as f64]);
}

#[test]
fn empty_tensors() {
    let x = f64s(&[], &[0, 3]);
    let flat = x.reshape(&[-1]).sum_all();
    let g = grad(&(flat + x.prod(&[], false)), &[&x]).unwrap();
    assert_eq!(g[0].dims::<2>().unwrap(), [0, 3]);
    let y = f64s(&[1.0, 2.0], &[2]);
    let loss = y.narrow(0, 1, 0).sum_all() + y.sum_all();
    assert_eq!(values(&grad(&loss, &[&y]).unwrap()[0]), [1.0, 1.0]);
}

/// Every read of a slot is the same variable.
#[test]
fn reads_of_one_slot_are_one_variable() {
    let slot = Slot::new("w", &f64s(&[3.0], &[1]), device()).unwrap();
    let loss = (slot.read() * slot.read() + slot.read()).sum_all();
    let g = grad(&loss, &[&slot.read()]).unwrap();
    assert_eq!(values(&g[0]), [7.0]);
}

#[test]
fn variables_inside_of_the_graph() {
    let x = f64s(&[0.5, -0.25], &[2]);
    let h = x.exp();
    let y = h.square();
    let loss = (&y * &h).sum_all();
    let g = grad(&loss, &[&h, &x, &y, &loss]).unwrap();
    let hs = values(&h);
    close(
        &values(&g[0]),
        &[3.0 * hs[0].powi(2), 3.0 * hs[1].powi(2)],
        1e-12,
    );
    close(
        &values(&g[1]),
        &[3.0 * hs[0].powi(3), 3.0 * hs[1].powi(3)],
        1e-12,
    );
    close(&values(&g[2]), &hs, 1e-12);
    assert_eq!(values(&g[3]), [1.0]);
}

/// One tensor as several operands of a composite, at first, second and third order.
#[test]
fn composites_of_shared_operands() {
    use bimetal_tensor::graph::{AttentionSpec, Attr};
    let spec = AttentionSpec {
        scale: Attr(0.7),
        causal: true,
        key_mask: false,
        dropout: None,
    };
    let x = random(&[1, 2, 3, 2], 5);
    check(
        |x| weigh(&x[0].attention(&x[0], &x[0], None, None, spec)),
        &[x],
    );
    let third = |x: &[Tensor]| {
        Tensor::build(|| {
            let g = grad(&weigh(&x[0].softmax(-1).square()), &[&x[0]])?;
            Ok(weigh(&grad(&weigh(&g[0].sin()), &[&x[0]])?[0]))
        })
    };
    check_once(&third, &[random(&[2, 3], 6)]);
    let third = |x: &[Tensor]| {
        Tensor::build(|| {
            let y = x[0].layer_norm(&x[1], &x[2], 0.1).sin();
            let g = grad(&weigh(&y), &[&x[0], &x[1]])?;
            let g = grad(&(weigh(&g[0].sin()) + weigh(&g[1])), &[&x[0]])?;
            Ok(weigh(&g[0]))
        })
    };
    let beta = random(&[4], 9);
    let with_beta = move |x: &[Tensor]| third(&[x[0].clone(), x[1].clone(), beta.clone()]);
    check_once(&with_beta, &[random(&[3, 4], 7), random(&[4], 8)]);
}

#[test]
fn statistics_and_log_sum_exp_have_gradients_of_their_own() {
    use bimetal_tensor::graph::{AttentionSpec, Attr, Composite};
    let (x, g, b) = (random(&[4, 3], 1), random(&[3], 2), random(&[3], 3));
    check(
        |x| {
            let t = Tensor::composite(
                Composite::LayerNorm { eps: Attr(0.1) },
                &[&x[0], &x[1], &x[2]],
            );
            weigh(&t) + weigh(&t.output(1)) + weigh(&t.output(2).square())
        },
        &[x.clone(), g.clone(), b.clone()],
    );
    check(
        |x| {
            let (y, mean, var) = x[0].batch_norm(&x[1], &x[2], 0.1);
            weigh(&y.square()) + weigh(&mean.square()) + weigh(&var)
        },
        &[x.clone(), g, b],
    );
    let target = i32s(&[0, 2, 7, 1], &[4]);
    check(
        |x| {
            let t = x[0].cross_entropy_rows(&target, 7, 0.2);
            weigh(&t) + weigh(&t.output(1).square())
        },
        &[x],
    );
    let spec = AttentionSpec {
        scale: Attr(0.7),
        causal: false,
        key_mask: false,
        dropout: None,
    };
    check(
        |x| {
            let t = x[0].attention(&x[1], &x[2], None, None, spec);
            weigh(&t) + weigh(&t.output(1))
        },
        &[
            random(&[1, 2, 1, 2], 1),
            random(&[1, 3, 1, 2], 2),
            random(&[1, 3, 1, 2], 3),
        ],
    );
}

#[test]
fn vjp_of_several_outputs() {
    let x = f64s(&[1.0, 2.0], &[2]);
    let (a, b) = (x.square(), x.exp());
    let (ga, gb) = (f64s(&[1.0, 10.0], &[2]), f64s(&[0.5, 0.0], &[2]));
    let other = f64s(&[1.0], &[1]);
    let g = vjp(&[&a, &b], &[&ga, &gb], &[&x, &other]).unwrap();
    close(
        &values(g[0].as_ref().unwrap()),
        &[2.0 + 0.5 * 1f64.exp(), 40.0],
        1e-12,
    );
    assert!(g[1].is_none());
}

/// Gradient nodes say whose they are.
#[test]
fn gradient_nodes_carry_their_forward_label() {
    use bimetal_tensor::Label;
    let x = f64s(&[1.0, 2.0], &[2]);
    let y = Label::with_path("net.act".into(), || x.tanh());
    let g = grad(&y.sum_all(), &[&x]).unwrap();
    assert_eq!(g[0].label().path(), "net.act");
    assert!(g[0].label().is_backward());
    assert_eq!(g[0].label().location(), y.label().location());
}

/// What a kernel is computing cannot be read in another order by the same kernel.
#[test]
fn a_product_and_its_transpose_in_one_expression() {
    let x = f64s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let p = x.matmul(&f64s(&[1.0, 0.0, 1.0, 1.0], &[2, 2]));
    assert_eq!(values(&((p.t() + &p) * 2.0)), [12.0, 18.0, 18.0, 16.0]);
    let g = grad(&weigh(&(p.t() * &p).exp()), &[&x]).unwrap();
    assert!(values(&g[0]).iter().all(|v| v.is_finite()));
    let e = x.exp();
    let want: Vec<f64> = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)]
        .iter()
        .map(|(a, b): &(f64, f64)| a.exp() + b.exp())
        .collect();
    close(&values(&(&e + e.t())), &want, 1e-14);
}
