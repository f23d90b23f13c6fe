//! Infinite numbers of masks are no culprits, not even beside a real one.
use bimetal::precision::{Level, NonFinite};
use bimetal::prelude::*;
use bimetal::tensor::PathGuard;
use bimetal::tensor::graph::{AttentionSpec, Attr};
use bimetal_cpu::CpuBackend;

fn vector(data: &[f32], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(data, shape, device)
}

/// The cause of the skipped step of `loss`, made of a parameter `[2, 4, 1, 3]` and of a factor that drives it out of range.
fn cause(dtype: DType, loss: impl Fn(&Tensor, &Device) -> Tensor) -> Option<NonFinite> {
    let device = Device::new(CpuBackend::new(Some(1)));
    let w: Vec<f32> = (0..24).map(|i| (i as f32 - 11.5) / 12.0).collect();
    let w = Slot::new("w", &vector(&w, &[2, 4, 1, 3], &device), &device).unwrap();
    let store = ParamStore::new(&device, Policy::float32());
    let scaler = LossScaler::new(LossScale::Static(16.0), &device).unwrap();
    let loss = loss(&w.read().cast(dtype), &device);
    let grads = scaler.scale(&loss).grad(&[w]).unwrap();
    let grads = grads.check_numerics(Level::Step).unscale();
    let step = Sgd::new(0.1).step(store.train(), grads).unwrap();
    match step.outcome().unwrap() {
        StepOutcome::Applied => None,
        StepOutcome::Skipped { culprit } => Some(*culprit.unwrap().cause.unwrap()),
    }
}

fn spec() -> AttentionSpec {
    AttentionSpec {
        scale: Attr(1.0),
        causal: false,
        key_mask: true,
        dropout: None,
    }
}

/// Overflows in f16 if `bad`.
fn planted(x: &Tensor, bad: bool) -> Tensor {
    let _layer = PathGuard::push("plant".into());
    let factor = if bad { 40_000.0 } else { 0.5 };
    (x.square() + 4.0) * factor
}

#[test]
fn sequences_without_a_single_key() {
    for bad in [false, true] {
        let found = cause(DType::F16, |w, device| {
            // Nobody may be looked at in the second sequence: the logarithm of its sum is minus infinity.
            let keys: Vec<bool> = (0..8).map(|i| i < 4).collect();
            let mask = Tensor::from_slice(&keys, &[2, 4], device);
            let y = w.attention(&(w * 2.0), w, Some(&mask), None, spec());
            planted(&y, bad).cast(DType::F32).square().mean_all()
        });
        assert_eq!(found.is_some(), bad, "{found:?}");
        if let Some(found) = found {
            assert_eq!((found.path(), found.op), ("plant", "mul"), "{found}");
        }
    }
}

#[test]
fn a_mask_that_is_added_in_half_precision() {
    for bad in [false, true] {
        let found = cause(DType::F16, |w, device| {
            let x = w.reshape(&[6, 4]);
            let hidden: Vec<f32> = (0..24)
                .map(|i| if i % 4 == 3 { 1.0 } else { 0.0 })
                .collect();
            // -1e9 is minus infinity in f16.
            let mask = (vector(&hidden, &[6, 4], device) * -1e9).cast(DType::F16);
            let p = (&x + &mask).softmax(-1);
            planted(&(p * x), bad).cast(DType::F32).square().mean_all()
        });
        assert_eq!(found.is_some(), bad, "{found:?}");
        if let Some(found) = found {
            assert_eq!((found.path(), found.op), ("plant", "mul"), "{found}");
        }
    }
}

#[test]
fn a_position_that_a_branch_leaves_out() {
    // The logarithm of a negative number is left out, its derivative too; but 0 times infinity is not 0.
    let left_out =
        |w: &Tensor, x: &Tensor| w.gt(0.0).select(x.log(), 0.0).cast(DType::F32).mean_all();
    assert_eq!(cause(DType::F32, |w, _| left_out(w, w)), None);
    let found = cause(DType::F32, |w, _| {
        left_out(w, &(w * w.gt(0.0).cast(DType::F32)))
    })
    .unwrap();
    assert!(found.label.is_backward(), "{found}");
    assert!(found.inputs.iter().all(|i| i.non_finite == 0), "{found}");
    // Beside a real culprit the position still does not count.
    let found = cause(DType::F16, |w, _| {
        let fine = w.gt(0.0).select((w * -1.0).exp().log(), 0.0);
        let masked = w.gt(0.0).select(1.0 / w.relu(), 0.0).detach();
        planted(&(fine + masked), true)
            .cast(DType::F32)
            .square()
            .mean_all()
    });
    assert_eq!(found.unwrap().path(), "plant");
}
