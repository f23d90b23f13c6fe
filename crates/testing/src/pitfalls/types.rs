//! What the types make impossible.
//!
//! An inherent method wins over a trait's of the same name and receiver: where `Probe` answers, the type has no such method. That such code does not compile
//! is tested by the documentation of `Grads`, `ScaledLoss`, `Optimizer` and `Accumulator`.
use super::support::*;
use bimetal::layers::Ctx;
use bimetal::optim::{Accumulator, Optimizer, Sgd};
use bimetal::precision::{Grads, Policy, Scaled, ScaledLoss, Unscaled};
use bimetal::tensor::Slot;
use bimetal::{Device, Tensor};
use std::any::{Any, TypeId};

struct Missing;

trait Probe: Sized {
    fn clip_global_norm(self, _: f64) -> Missing {
        Missing
    }
    fn clip_value(self, _: f64) -> Missing {
        Missing
    }
    fn map(self, _: fn(&Slot, Tensor) -> Tensor) -> Missing {
        Missing
    }
    fn unscale(self) -> Missing {
        Missing
    }
    fn norm(&self) -> Missing {
        Missing
    }
    fn iter(&self) -> Missing {
        Missing
    }
    fn get(&self, _: &Slot) -> Missing {
        Missing
    }
    fn grad(&self, _: &[Slot]) -> Missing {
        Missing
    }
}

impl Probe for Grads<Scaled> {}
impl Probe for Grads<Unscaled> {}
impl Probe for Tensor {}
impl Probe for ScaledLoss {}

fn missing<T: Any>(_: T) -> bool {
    TypeId::of::<T>() == TypeId::of::<Missing>()
}

// keras#16552, #19244
pub fn pitfall_07_scaled_gradients_can_only_be_unscaled(device: &Device) {
    let store = store(device, Policy::float32(), &[("w", &[3.0])]);
    let (scaler, w) = (dynamic(device), slot(&store, "w"));
    let loss = w.read().square().sum_all();
    assert!(missing(loss.grad(std::slice::from_ref(&w))));
    let scaled_loss = scaler.scale(&loss);
    assert!(!missing(
        scaled_loss.grad(std::slice::from_ref(&w)).unwrap()
    ));
    let scaled: Grads<Scaled> = scaled_loss.grad(std::slice::from_ref(&w)).unwrap();
    let again = || scaled.clone();
    assert!(missing(again().clip_global_norm(1.0)));
    assert!(missing(again().clip_value(1.0)));
    assert!(missing(again().map(|_, g| g)));
    assert!(missing(scaled.norm()));
    assert!(missing(scaled.iter()));
    assert!(missing(scaled.get(&w)));
    let unscaled: Grads<Unscaled> = again().unscale();
    assert!(missing(unscaled.clone().unscale()));
    assert!(!missing(unscaled.norm()));
    assert_eq!(list(&unscaled.get(&w).unwrap()), [6.0]);
}

/// The type of a method's last argument.
fn takes<O, C, G: 'static, R>(_: fn(&mut O, C, G) -> R) -> TypeId {
    TypeId::of::<G>()
}

pub fn pitfall_07_steps_and_windows_take_one_kind_only(_: &Device) {
    let step = takes::<Sgd, Ctx, _, _>(<Sgd as Optimizer>::step);
    assert_eq!(step, TypeId::of::<Grads<Unscaled>>());
    let add = takes::<Accumulator, Ctx, _, _>(Accumulator::add);
    assert_eq!(add, TypeId::of::<Grads<Scaled>>());
}
