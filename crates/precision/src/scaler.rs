//! Loss scaling: the state on the device, and the way from a loss to its gradients.
use crate::scale::positive;
use crate::{DynamicLossScale, Grads, LossScale, Scaled};
use bimetal_tensor::graph::IdSet;
use bimetal_tensor::{DType, Device, Error, Result, Slot, Tensor};
use std::borrow::Borrow;
use std::sync::Arc;

/// Multiplies losses by a scale that lives on the device. Cheap to clone; clones share the state.
///
/// One scaler belongs to one optimizer: each step of the optimizer updates the scale once, in the same transaction as the weights. A second
/// optimizer in the same loop gets a scaler of its own.
#[derive(Clone, Debug)]
pub struct LossScaler(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: LossScale,
    device: Device,
    state: Option<State>,
}

#[derive(Debug)]
struct State {
    scale: Slot,
    good_steps: Slot,
    overflows: Slot,
}

impl LossScaler {
    /// A scaler with its state on `device`. Settings that cannot work are an error.
    pub fn new(settings: LossScale, device: &Device) -> Result<LossScaler> {
        settings.check()?;
        let state = match settings {
            LossScale::Dynamic(d) => {
                let zero = Tensor::zeros(&[], DType::U32, device);
                let scale = Tensor::full(&[], d.initial as f64, DType::F32, device);
                Some(State {
                    scale: Slot::new("loss_scale/scale", &scale, device)?,
                    good_steps: Slot::new("loss_scale/good_steps", &zero, device)?,
                    overflows: Slot::new("loss_scale/overflows", &zero, device)?,
                })
            }
            _ => None,
        };
        Ok(LossScaler(Arc::new(Inner {
            settings,
            device: device.clone(),
            state,
        })))
    }

    /// The settings.
    pub fn settings(&self) -> LossScale {
        self.0.settings
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// What a checkpoint saves: scale, finite steps in a row, overflows in a row; nothing unless the scale is dynamic.
    pub fn state(&self) -> Vec<Slot> {
        self.0.state.as_ref().map_or(Vec::new(), |s| {
            vec![s.scale.clone(), s.good_steps.clone(), s.overflows.clone()]
        })
    }

    /// The present scale as an expression (f32 scalar); 1 if there is none.
    pub fn scale_tensor(&self) -> Tensor {
        match (&self.0.state, self.0.settings) {
            (Some(s), _) => s.scale.read(),
            (None, LossScale::Static(s)) => self.scalar(s as f64),
            (None, _) => self.scalar(1.0),
        }
    }

    /// The present scale. Waits for the device.
    pub fn current(&self) -> Result<f32> {
        Ok(self.scale_tensor().item()? as f32)
    }

    /// Sets the scale and forgets the steps counted. An error unless the scale is dynamic and `scale` lies within its limits.
    pub fn set(&self, scale: f32) -> Result<()> {
        let (Some(state), LossScale::Dynamic(d)) = (&self.0.state, self.0.settings) else {
            return Err(Error::argument(
                "loss_scale",
                "only a dynamic loss scale can be set; make a new scaler",
            ));
        };
        allowed(&d, scale)?;
        let zero = Tensor::zeros(&[], DType::U32, &self.0.device);
        bimetal_tensor::commit(
            &[],
            &[
                (&state.scale, &self.scalar(scale as f64)),
                (&state.good_steps, &zero),
                (&state.overflows, &zero),
            ],
        )
    }

    /// An error if the stored scale is not one these settings can hold: call it after the state was loaded from a file.
    pub fn check_state(&self) -> Result<()> {
        match self.0.settings {
            LossScale::Dynamic(d) => allowed(&d, self.current()?),
            _ => Ok(()),
        }
    }

    /// `loss` (a float scalar) times the scale, in f32 whatever the loss's dtype (f64 stays f64): a scale of 2^16 is infinite in f16.
    #[track_caller]
    pub fn scale(&self, loss: &Tensor) -> ScaledLoss {
        let loss = wide_scalar(loss);
        let scale = self.scale_tensor();
        let scaled = match self.0.settings {
            LossScale::None => loss.clone(),
            _ => &loss * scale.cast(loss.dtype()),
        };
        ScaledLoss {
            loss,
            scaled,
            scale,
            scaler: self.clone(),
        }
    }

    /// Gradients of `loss` for use *inside* a loss, such as a gradient penalty (Gulrajani et al. 2017): computed under the scale, so that they survive
    /// f16, but returned unscaled, in f32 and differentiable. The penalty is then part of a loss that is scaled as usual.
    #[track_caller]
    pub fn inner_grad(&self, loss: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let scaled = self.scale(loss);
        let grads = bimetal_autodiff::grad(&scaled.scaled, inputs)?;
        let inverse = scaled.scale.recip();
        Ok(grads
            .iter()
            .map(|g| match self.0.settings {
                LossScale::None => widen(g),
                _ => widen(g) * &inverse,
            })
            .collect())
    }

    /// The new state as expressions, given whether this step's gradients were all finite (Bool scalar); to be committed with the step, once.
    ///
    /// The new scale is one of `scale * backoff`, `scale` and `scale * growth`, never beyond the limits.
    pub fn update(&self, finite: &Tensor) -> Vec<(Slot, Tensor)> {
        let (Some(state), LossScale::Dynamic(d)) = (&self.0.state, self.0.settings) else {
            return Vec::new();
        };
        let (scale, good, bad) = (
            state.scale.read(),
            state.good_steps.read() + 1,
            state.overflows.read() + 1,
        );
        let (up, down) = (&scale * d.growth as f64, &scale * d.backoff as f64);
        let due = good.ge(d.growth_interval);
        let grown = due.logical_and(up.le(d.max)).select(&up, &scale);
        let backs_off = bad.ge(d.hysteresis).logical_and(down.ge(d.min));
        let backed = backs_off.select(&down, &scale);
        let nothing = Tensor::zeros(&[], DType::U32, &self.0.device);
        vec![
            (state.scale.clone(), finite.select(grown, backed)),
            (
                state.good_steps.clone(),
                finite.logical_and(due.logical_not()).select(good, &nothing),
            ),
            (state.overflows.clone(), finite.select(&nothing, bad)),
        ]
    }

    fn scalar(&self, value: f64) -> Tensor {
        Tensor::full(&[], value, DType::F32, &self.0.device)
    }

    pub(crate) fn scale_slot(&self) -> Option<Slot> {
        self.0.state.as_ref().map(|s| s.scale.clone())
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.settings == LossScale::None
    }

    pub(crate) fn same(&self, other: &LossScaler) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

fn allowed(d: &DynamicLossScale, scale: f32) -> Result<()> {
    positive("the scale", scale)?;
    if d.holds(scale) {
        return Ok(());
    }
    Err(Error::argument(
        "loss_scale",
        format!(
            "the scale {scale} is outside of {} to {}; set another or widen the limits",
            d.min, d.max
        ),
    ))
}

/// f16, bf16 and f8 as f32.
pub(crate) fn widen(t: &Tensor) -> Tensor {
    match t.dtype() {
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => t.cast(DType::F32),
        _ => t.clone(),
    }
}

#[track_caller]
fn wide_scalar(loss: &Tensor) -> Tensor {
    let Ok(shape) = loss.shape() else {
        return loss.clone();
    };
    if shape.rank() != 0 {
        return Tensor::invalid(Error::shape(
            "loss_scale",
            &[shape],
            "a loss is a scalar; reduce it with `mean_all` or `sum_all`",
        ));
    }
    if !loss.dtype().is_float() {
        return Tensor::invalid(Error::dtype(
            "loss_scale",
            &[loss.dtype()],
            "a loss is a float",
        ));
    }
    widen(loss)
}

/// A loss times its scale: what is to be differentiated.
///
/// Gradients of a loss that was not scaled do not compile:
///
/// ```compile_fail,E0599
/// # use bimetal_precision::{Grads, Scaled};
/// # use bimetal_tensor::{Result, Slot, Tensor};
/// fn wrong(loss: &Tensor, params: &[Slot]) -> Result<Grads<Scaled>> {
///     loss.grad(params)
/// }
/// ```
///
/// ```
/// # use bimetal_precision::{Grads, LossScaler, Scaled};
/// # use bimetal_tensor::{Result, Slot, Tensor};
/// fn right(loss: &Tensor, params: &[Slot], scaler: &LossScaler) -> Result<Grads<Scaled>> {
///     scaler.scale(loss).grad(params)
/// }
/// ```
///
/// Nor does a loss take the place of a scaled one:
///
/// ```compile_fail,E0308
/// # use bimetal_precision::ScaledLoss;
/// # use bimetal_tensor::Tensor;
/// fn differentiate(loss: ScaledLoss) {}
/// fn wrong(loss: Tensor) {
///     differentiate(loss);
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ScaledLoss {
    pub(crate) loss: Tensor,
    pub(crate) scaled: Tensor,
    pub(crate) scale: Tensor,
    pub(crate) scaler: LossScaler,
}

impl ScaledLoss {
    /// The loss itself, unscaled (f32, or f64).
    pub fn loss(&self) -> &Tensor {
        &self.loss
    }

    /// The loss times the scale (f32, or f64).
    pub fn scaled(&self) -> &Tensor {
        &self.scaled
    }

    /// The gradients of the scaled loss with respect to parameters. A parameter given twice (tied weights) counts once; one that the loss
    /// does not depend on has no gradient and is listed in [`Grads::missing`].
    ///
    /// A parameter in half precision has no f32 master, and its gradients would be unscaled in half precision: an error that names it, unless
    /// there is no scale.
    pub fn grad<P: Borrow<Slot>>(&self, params: &[P]) -> Result<Grads<Scaled>> {
        self.loss.check()?;
        let mut seen = IdSet::default();
        let slots: Vec<&Slot> = params
            .iter()
            .map(Borrow::borrow)
            .filter(|s| seen.insert(s.id()))
            .collect();
        if slots.is_empty() {
            return Err(Error::argument(
                "grad",
                "there are no parameters to differentiate by; are all of them frozen?",
            ));
        }
        let reads: Vec<Tensor> = slots.iter().map(|s| s.read()).collect();
        let grads =
            bimetal_autodiff::grad_optional(&self.scaled, &reads.iter().collect::<Vec<_>>())?;
        self.with_gradients(slots.into_iter().cloned().zip(grads).collect())
    }

    /// Gradients of the scaled loss that were computed in another way: for each parameter a tensor of its shape and, in f32 and f64, its dtype; `None` where the
    /// loss does not depend on it.
    pub fn with_gradients(&self, grads: Vec<(Slot, Option<Tensor>)>) -> Result<Grads<Scaled>> {
        self.loss.check()?;
        let mut present = Vec::with_capacity(grads.len());
        let mut missing = Vec::new();
        for (slot, grad) in grads {
            let half = !matches!(slot.dtype(), DType::F32 | DType::F64);
            if half && !self.scaler.is_none() {
                return Err(Error::dtype(
                    "unscale",
                    &[slot.dtype()],
                    format!(
                        "attempting to unscale half gradients: the parameter `{}` is {} without an f32 master; keep parameters in f32 (policy \
                         `mixed_float16` or `mixed_bfloat16`), or use no loss scale",
                        slot.name(),
                        slot.dtype()
                    ),
                ));
            }
            let Some(grad) = grad else {
                missing.push(slot);
                continue;
            };
            let shape = grad.shape()?;
            if shape != slot.shape() || !grad.dtype().is_float() {
                return Err(Error::shape(
                    "grad",
                    &[slot.shape(), shape],
                    format!(
                        "the gradient of `{}` must be a float tensor of the parameter's shape",
                        slot.name()
                    ),
                ));
            }
            present.push((slot, grad));
        }
        if present.is_empty() {
            let detail =
                "the loss depends on none of the parameters; is it built from another model, or detached?"
                    .to_string();
            let kind = bimetal_tensor::ErrorKind::Argument { detail };
            return Err(Error::at("grad", kind, self.loss.label().clone()));
        }
        Ok(Grads::new(self, present, missing))
    }
}
