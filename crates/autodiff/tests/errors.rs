//! Missing derivatives are errors that name the culprit, never silent zeros.
mod common;
use bimetal_autodiff::{grad, grad_optional, vjp};
use bimetal_tensor::{DType, ErrorKind, Slot, Tensor};
use common::*;

fn message(loss: &Tensor, wrt: &Tensor) -> String {
    let e = grad(loss, &[wrt]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::NoGradient { .. }), "{e}");
    e.to_string()
}

#[test]
fn an_independent_variable_is_named() {
    let (x, y) = (f64s(&[1.0], &[1]), f64s(&[2.0], &[1]));
    let loss = x.square().sum_all();
    let m = message(&loss, &y);
    assert!(
        m.contains("does not depend") && m.contains("common/mod.rs"),
        "{m}"
    );
    let slot = Slot::new("net.head.bias", &y, device()).unwrap();
    let m = message(&loss, &slot.read());
    assert!(m.contains("`net.head.bias`"), "{m}");
    let g = grad_optional(&loss, &[&y, &x]).unwrap();
    assert!(g[0].is_none());
    assert_eq!(values(g[1].as_ref().unwrap()), [2.0]);
}

/// The loss depends on the first output of a node only.
#[test]
fn another_output_of_the_same_node_is_independent() {
    let x = f64s(&[1.0, 2.0, 3.0, 4.0], &[1, 4]);
    let (h, c) = x.lstm_cell(&f64s(&[0.5], &[1, 1]));
    assert!(message(&h.sum_all(), &c).contains("does not depend"));
}

#[test]
fn operations_without_derivative_are_named() {
    let x = f64s(&[1.0, -2.0, 3.0], &[3]);
    let table = f64s(&[1.0, 2.0, 3.0], &[3]);
    let cases: Vec<(&str, Tensor)> = vec![
        ("argmax", table.take(&x.argmax(0, false), 0)),
        ("gt", x.gt(0.0).select(&table, 1.0).sum_all()),
        ("cast", x.cast(DType::I32).cast(DType::F64).sum_all()),
        ("cast", x.cast(DType::Bool).cast(DType::F64).sum_all()),
        ("is_finite", x.is_finite().select(&table, 1.0).sum_all()),
        ("sort", table.gather(&x.sort(false).1, 0).sum_all()),
        ("eq", x.eq(&table).cast(DType::F64).sum_all()),
        ("maximum", x.gt(0.0).any(&[], false).cast(DType::F64)),
    ];
    for (op, loss) in &cases {
        let m = message(loss, &x);
        let culprit = if *op == "maximum" { "gt" } else { op };
        assert!(
            m.contains(&format!("only through `{culprit}`")),
            "{op}: {m}"
        );
        // The other function does not keep silent either.
        assert!(grad_optional(loss, &[&x]).is_err(), "{op}");
    }
    let mixed = x.gt(0.0).select(&x, 0.0).sum_all();
    assert_eq!(values(&grad(&mixed, &[&x]).unwrap()[0]), [1.0, 0.0, 1.0]);
}

#[test]
fn detach_cuts() {
    let x = f64s(&[2.0], &[1]);
    let loss = (x.detach() * 3.0).sum_all();
    assert!(message(&loss, &x).contains("`detach`"));
    assert!(grad_optional(&loss, &[&x]).unwrap()[0].is_none());
    let loss = (x.detach() * &x).sum_all();
    assert_eq!(values(&grad(&loss, &[&x]).unwrap()[0]), [2.0]);
}

/// On which side of a kink a value lies does not change with it: the second derivative of a rectifier is zero, as in PyTorch.
#[test]
fn masks_of_derivatives_are_flat() {
    let (x, w) = (
        f64s(&[1.0, -2.0], &[1, 2]),
        f64s(&[0.5, 1.0, -1.0, 2.0], &[2, 2]),
    );
    let b = f64s(&[0.1, 0.2], &[2]);
    let y = (x.matmul(&w) + &b).relu().sum_all();
    let gx = grad(&y, &[&x]).unwrap();
    let penalty = gx[0].square().sum_all();
    let g = grad(&penalty, &[&b, &w]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.0]);
    // Only the first unit is on: the penalty is the squared length of its weights.
    assert_eq!(values(&g[1]), [1.0, 0.0, -2.0, 0.0]);
    let g = grad_optional(&penalty, &[&b]).unwrap();
    assert_eq!(values(g[0].as_ref().unwrap()), [0.0, 0.0]);
    // A rectifier by hand, and the places of a sort.
    let gx = grad(&x.gt(0.0).select(&x * 3.0, 0.0).sum_all(), &[&x]).unwrap();
    let g = grad(&gx[0].square().sum_all(), &[&x]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.0]);
    let gx = grad(&weigh(&x.sort(true).0), &[&x]).unwrap();
    let g = grad(&gx[0].square().sum_all(), &[&x]).unwrap();
    assert_eq!(values(&g[0]), [0.0, 0.0]);
}

#[test]
fn losses_that_are_none() {
    let x = f64s(&[1.0, 2.0], &[2]);
    let e = grad(&x.square(), &[&x]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Shape { .. }), "{e}");
    assert!(e.to_string().contains("mean_all"), "{e}");
    let e = grad(&x.argmax(0, false), &[&x]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::DType { .. }), "{e}");
    assert!(grad(&Tensor::scalar(1.0), &[&x]).is_err());
    let loss = x.sum_all();
    let e = grad(&loss, &[&i32s(&[1], &[1])]).unwrap_err();
    assert!(e.to_string().contains("int32"), "{e}");
    assert!(grad(&(loss * 2.0), &[&Tensor::scalar(2.0)]).is_err());
}

/// The first mistake in the graph is what is reported.
#[test]
fn an_invalid_loss_reports_its_first_error() {
    let (x, y) = (f64s(&[1.0, 2.0], &[2]), f64s(&[1.0, 2.0, 3.0], &[3]));
    let loss = (&x + &y).exp().sum_all();
    let e = grad(&loss, &[&x]).unwrap_err();
    assert_eq!(e.op(), "add");
    assert_eq!(
        grad(&x.sum_all(), &[&(x.clone() + y)]).unwrap_err().op(),
        "add"
    );
}

#[test]
fn cotangents_must_fit() {
    let x = f64s(&[1.0, 2.0], &[2]);
    let y = x.exp();
    assert!(vjp(&[&y], &[], &[&x]).is_err());
    let e = vjp(&[&y], &[&f64s(&[1.0], &[1])], &[&x]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Shape { .. }), "{e}");
    let e = vjp(&[&y], &[&f32s(&[1.0, 1.0], &[2])], &[&x]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::DType { .. }), "{e}");
}
