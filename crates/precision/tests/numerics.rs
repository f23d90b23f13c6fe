//! The search for numbers that are not finite, and what a device has.
use bimetal_autodiff::grad;
use bimetal_precision::{Policy, check_numerics, find_non_finite, precision_support, warn_if_slow};
use bimetal_tensor::{DType, Device, PathGuard, Slot, Support, Tensor};

fn vector(data: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(data, &[data.len()], device)
}

#[test]
fn the_first_bad_tensor_is_reported_with_its_facts() {
    let device = bimetal_cpu::cpu();
    let _layer = PathGuard::push("decoder.3.mlp".into());
    let x = vector(&[0.0, 1.0, -1.0, 4.0], &device);
    let fine = x.exp();
    let bad = (x.log() * 2.0).cast(DType::F16);
    let worse = 1.0 / (&x - &x);
    let found = check_numerics(&[("fine", &fine), ("bad", &bad), ("worse", &worse)])
        .unwrap()
        .unwrap();
    assert_eq!(found.name, "bad");
    assert_eq!((found.op, found.output), ("cast", 0));
    assert_eq!(found.path(), "decoder.3.mlp");
    assert_eq!(found.dtype, DType::F16);
    assert_eq!(&found.shape[..], [4]);
    assert_eq!((found.nan, found.plus_inf, found.minus_inf), (1, 0, 1));
    let text = found.into_error().to_string();
    for part in [
        "cast",
        "`bad`",
        "float16",
        "1 NaN, 0 +Inf, 1 -Inf",
        "decoder.3.mlp",
        "numerics.rs",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let found = check_numerics(&[("worse", &worse)]).unwrap().unwrap();
    assert_eq!((found.nan, found.plus_inf, found.minus_inf), (0, 4, 0));
}

#[test]
fn finite_tensors_and_integers_are_fine() {
    let device = bimetal_cpu::cpu();
    let x = vector(&[f32::MAX, f32::MIN, 1e-45, -0.0], &device);
    let i = Tensor::from_slice(&[i32::MAX], &[1], &device);
    assert!(check_numerics(&[("x", &x), ("i", &i)]).unwrap().is_none());
    assert!(check_numerics(&[]).unwrap().is_none());
    let e = check_numerics(&[("bad", &x.reshape(&[3]))]).unwrap_err();
    assert!(e.to_string().contains("reshape"), "{e}");
}

#[test]
fn the_operation_that_made_it_is_found_not_those_that_passed_it_on() {
    let device = bimetal_cpu::cpu();
    let x = vector(&[4.0, 0.0, 1.0], &device);
    let inner = {
        let _layer = PathGuard::push("block.1".into());
        (&x - 1.0).log()
    };
    let loss = {
        let _layer = PathGuard::push("head".into());
        (inner.exp() * 3.0).sum_all() + inner.square().mean_all()
    };
    let found = find_non_finite(&[&loss]).unwrap().unwrap();
    assert_eq!((found.op, found.path()), ("log", "block.1"));
    assert_eq!((found.nan, found.minus_inf), (1, 1));
    assert!(!found.label.is_backward());
}

#[test]
fn a_failure_of_the_backward_pass_is_found_there() {
    let device = bimetal_cpu::cpu();
    let x = vector(&[4.0, 0.0], &device);
    let loss = {
        let _layer = PathGuard::push("norm".into());
        x.sqrt().sum_all()
    };
    let g = grad(&loss, &[&x]).unwrap().remove(0);
    let found = find_non_finite(&[&loss, &g]).unwrap().unwrap();
    assert_eq!(found.path(), "norm");
    assert!(found.label.is_backward());
    assert_eq!((found.nan, found.plus_inf), (0, 1));
}

#[test]
fn masks_and_branches_without_effect_do_not_count() {
    let device = bimetal_cpu::cpu();
    let x = vector(&[1.0, 2.0, 3.0], &device);
    // A mask of -inf before a softmax is not a failure; log of 0 behind it is one.
    let mask = x.gt(1.5);
    let p = mask.select(&x, f64::NEG_INFINITY).softmax(-1);
    assert!(find_non_finite(&[&p]).unwrap().is_none());
    let log = p.log();
    let found = find_non_finite(&[&log]).unwrap().unwrap();
    assert_eq!(found.op, "log");
    // The logarithm of a negative number that a branch leaves out is not the cause; the division is.
    let safe = mask.select((&x - 1.5).log(), 0.0);
    let found = find_non_finite(&[&(safe / (&x - 2.0))]).unwrap().unwrap();
    assert_eq!((found.op, found.plus_inf + found.minus_inf), ("div", 1));
}

#[test]
fn infinities_that_cancel_are_the_cause_of_their_nan() {
    let device = bimetal_cpu::cpu();
    // All keys masked: the infinities come from a mask, the NaN from the difference.
    let x = vector(&[1.0, 2.0], &device);
    let scores = x.gt(5.0).select(&x, f64::NEG_INFINITY);
    let shifted = &scores - scores.max(&[], false);
    let found = find_non_finite(&[&(shifted.exp() * 2.0)]).unwrap().unwrap();
    assert_eq!((found.op, found.nan), ("sub", 2));
}

#[test]
fn what_came_in_from_outside_is_named() {
    let device = bimetal_cpu::cpu();
    let batch = vector(&[1.0, f32::NAN, f32::INFINITY], &device);
    let w = Slot::new("head.weight", &vector(&[1.0], &device), &device).unwrap();
    let found = find_non_finite(&[&(&batch * w.read())]).unwrap().unwrap();
    assert_eq!((found.op, found.nan, found.plus_inf), ("data", 1, 1));
    w.set(&vector(&[f32::INFINITY], &device)).unwrap();
    let found = find_non_finite(&[&(w.read() * 2.0).square()])
        .unwrap()
        .unwrap();
    assert_eq!((found.op, &found.name[..]), ("read", "head.weight"));
}

#[test]
fn the_one_operation_that_overflows_is_found_among_many() {
    let device = bimetal_cpu::cpu();
    let mut x = vector(&[1.0], &device);
    for i in 0..300 {
        let _layer = PathGuard::push(format!("layer.{i}").into());
        x = x * 2.0;
    }
    let found = find_non_finite(&[&x]).unwrap().unwrap();
    // 2^128 is the first power that f32 does not hold.
    assert_eq!((found.op, found.path()), ("mul", "layer.127"));
}

#[test]
fn a_device_tells_its_dtypes() {
    let device = bimetal_cpu::cpu();
    let support = precision_support(&device);
    assert_eq!(support.kind, "cpu");
    assert_eq!(support.support(DType::F32), Support::Native);
    assert_eq!(support.dtypes.len(), 11);
    assert!(!support.is_slow(DType::F32));
    assert!(!support.is_slow(DType::I32));
    let text = support.to_string();
    assert!(
        text.contains("float32") && text.contains("in hardware"),
        "{text}"
    );
}

#[test]
fn a_slow_policy_gets_a_warning_and_a_fast_one_none() {
    let device = bimetal_cpu::cpu();
    let support = precision_support(&device);
    assert_eq!(warn_if_slow(&device, &Policy::float32()), None);
    let warning = warn_if_slow(&device, &Policy::mixed_float16());
    assert_eq!(warning.is_some(), support.is_slow(DType::F16));
    if let Some(text) = warning {
        assert!(
            text.contains("`mixed_float16`") && text.contains("in float16"),
            "{text}"
        );
        assert!(text.contains("in hardware it has float32"), "{text}");
    }
}
