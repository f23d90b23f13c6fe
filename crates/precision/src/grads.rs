//! Gradients with their scale in their type.
use crate::float8;
use crate::scaler::widen;
use crate::{Checks, Halt, Level, LossScaler, ScaledLoss};
use bimetal_tensor::{DType, Error, Result, Slot, Tensor};
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
}

/// Whether gradients still carry the loss scale: [`Scaled`] or [`Unscaled`].
pub trait Scaling: sealed::Sealed {}

/// Gradients of the scaled loss.
#[derive(Clone, Copy, Debug)]
pub struct Scaled;

/// Gradients of the loss itself.
#[derive(Clone, Copy, Debug)]
pub struct Unscaled;

impl sealed::Sealed for Scaled {}
impl sealed::Sealed for Unscaled {}
impl Scaling for Scaled {}
impl Scaling for Unscaled {}

/// Gradients of parameters. `Grads<Scaled>` can only be unscaled or accumulated; clipping, looking at and stepping with gradients is for
/// `Grads<Unscaled>`.
///
/// Inside, the gradients stay as they were computed and one f32 scalar is carried along, by which the optimizer's kernel multiplies: unscaling and clipping
/// cost no pass over memory. Whether all are finite, and their norm, comes from one pass over the gradients.
///
/// Clipping before unscaling does not compile:
///
/// ```compile_fail,E0599
/// # use bimetal_precision::{Grads, Scaled};
/// fn wrong(grads: Grads<Scaled>) {
///     let _ = grads.clip_global_norm(1.0);
/// }
/// ```
///
/// ```
/// # use bimetal_precision::{Grads, Scaled, Unscaled};
/// fn right(grads: Grads<Scaled>) -> Grads<Unscaled> {
///     grads.unscale().clip_global_norm(1.0)
/// }
/// ```
///
/// Nor does unscaling twice:
///
/// ```compile_fail,E0599
/// # use bimetal_precision::{Grads, Scaled};
/// fn wrong(grads: Grads<Scaled>) {
///     let _ = grads.unscale().unscale();
/// }
/// ```
///
/// Nor stepping with scaled gradients, or logging their norm:
///
/// ```compile_fail,E0308
/// # use bimetal_precision::{Grads, Scaled, Unscaled};
/// fn step(grads: Grads<Unscaled>) {}
/// fn wrong(grads: Grads<Scaled>) {
///     step(grads);
/// }
/// ```
///
/// ```compile_fail,E0599
/// # use bimetal_precision::{Grads, Scaled};
/// fn wrong(grads: Grads<Scaled>) {
///     let _ = grads.norm();
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "gradients do nothing until an optimizer steps with them"]
pub struct Grads<S: Scaling> {
    scaler: LossScaler,
    loss: Tensor,
    scale: Tensor,
    grads: Vec<(Slot, Tensor)>,
    missing: Vec<Slot>,
    /// Gradients times this are the unscaled, clipped ones; f32 scalar, `None` for 1.
    factor: Option<Tensor>,
    finite: Tensor,
    sum_of_squares: Tensor,
    first_bad: Tensor,
    /// The norm before the first clipping.
    norm: Option<Tensor>,
    amax: Vec<(Slot, Tensor)>,
    /// What the raw gradients are gradients of.
    scaled_loss: Tensor,
    checks: Option<Checks>,
    halt: Option<Halt>,
    state: PhantomData<S>,
}

impl<S: Scaling> Grads<S> {
    /// The unscaled loss (f32, or f64).
    pub fn loss(&self) -> &Tensor {
        &self.loss
    }

    /// The scale these gradients were computed with (f32 scalar).
    pub fn scale(&self) -> &Tensor {
        &self.scale
    }

    /// The scaler they came from.
    pub fn scaler(&self) -> &LossScaler {
        &self.scaler
    }

    /// Whether all gradients are finite (Bool scalar), decided on the scaled gradients.
    pub fn finite(&self) -> &Tensor {
        &self.finite
    }

    /// The number, in the order of [`Grads::slots`], of the first parameter whose gradient is not finite (I32 scalar, -1 if none).
    pub fn first_bad(&self) -> &Tensor {
        &self.first_bad
    }

    /// The parameters that have a gradient, in the order in which they were asked for.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = &Slot> {
        self.grads.iter().map(|(s, _)| s)
    }

    /// The parameters asked for on which the loss does not depend: they have no gradient.
    pub fn missing(&self) -> &[Slot] {
        &self.missing
    }

    /// The gradients as they were computed, still scaled: for accumulation and for reduction over ranks, not for looking at.
    pub fn raw(&self) -> &[(Slot, Tensor)] {
        &self.grads
    }

    /// The largest magnitudes (f32 scalars, still scaled) of the gradients that went into 8-bit products with delayed scaling, each with the slot of
    /// its history. A slot comes as often as its layer was used. An optimizer's step and an accumulation window hand them to the context.
    pub fn amax(&self) -> &[(Slot, Tensor)] {
        &self.amax
    }

    /// The checks that were asked for.
    pub fn checks(&self) -> Option<&Checks> {
        self.checks.as_ref()
    }

    /// With checks that were made elsewhere: those of the micro-batches these gradients are the mean of.
    pub fn with_checks(self, checks: Option<Checks>) -> Grads<S> {
        Grads { checks, ..self }
    }

    /// The word that stops steps, if there is one.
    pub fn halt(&self) -> Option<&Halt> {
        self.halt.as_ref()
    }

    /// The step with these gradients changes nothing if `halt` is set, and sets it if it is skipped.
    pub fn halting(self, halt: &Halt) -> Grads<S> {
        Grads {
            halt: Some(halt.clone()),
            ..self
        }
    }

    /// With largest magnitudes that were brought together elsewhere.
    pub(crate) fn with_amax(self, amax: Vec<(Slot, Tensor)>) -> Grads<S> {
        Grads { amax, ..self }
    }

    fn rebuild<T: Scaling>(self, grads: Vec<(Slot, Tensor)>) -> Grads<T> {
        let tensors: Vec<&Tensor> = grads.iter().map(|(_, g)| g).collect();
        let (finite, sum_of_squares, first_bad) = Tensor::grad_stats(&tensors);
        Grads {
            grads,
            finite,
            sum_of_squares,
            first_bad,
            ..self.retype()
        }
    }

    fn retype<T: Scaling>(self) -> Grads<T> {
        Grads {
            scaler: self.scaler,
            loss: self.loss,
            scale: self.scale,
            grads: self.grads,
            missing: self.missing,
            factor: self.factor,
            finite: self.finite,
            sum_of_squares: self.sum_of_squares,
            first_bad: self.first_bad,
            norm: self.norm,
            amax: self.amax,
            scaled_loss: self.scaled_loss,
            checks: self.checks,
            halt: self.halt,
            state: PhantomData,
        }
    }
}

impl Grads<Scaled> {
    pub(crate) fn new(
        loss: &ScaledLoss,
        grads: Vec<(Slot, Tensor)>,
        missing: Vec<Slot>,
    ) -> Grads<Scaled> {
        let tensors: Vec<&Tensor> = grads.iter().map(|(_, g)| g).collect();
        let (finite, sum_of_squares, first_bad) = Tensor::grad_stats(&tensors);
        let amax = float8::observed(tensors.into_iter());
        Grads {
            scaler: loss.scaler.clone(),
            loss: loss.loss.clone(),
            scale: loss.scale.clone(),
            grads,
            missing,
            factor: None,
            finite,
            sum_of_squares,
            first_bad,
            norm: None,
            amax,
            scaled_loss: loss.scaled.clone(),
            checks: None,
            halt: None,
            state: PhantomData,
        }
    }

    /// Has the step find out who is to blame if it is skipped, as closely as `level` says: the outcome then names operation, layer, source line and the ranges of
    /// what went in. Keeps the graph and the batch alive as long as the step's handle.
    ///
    /// ```no_run
    /// # use bimetal_precision::{Grads, Level, LossScaler, Unscaled};
    /// # use bimetal_tensor::{Result, Slot, Tensor};
    /// # fn f(scaler: &LossScaler, loss: &Tensor, params: &[Slot]) -> Result<Grads<Unscaled>> {
    /// Ok(scaler.scale(loss).grad(params)?.check_numerics(Level::Layer).unscale())
    /// # }
    /// ```
    pub fn check_numerics(self, level: Level) -> Grads<Scaled> {
        let mut roots = vec![self.scaled_loss.clone()];
        roots.extend(self.grads.iter().map(|(_, g)| g.clone()));
        // A graph with a mistake in it is an error of the step.
        let checks = Checks::new(roots, self.scaler.scale_slot(), level);
        Grads {
            checks: checks.ok().flatten(),
            ..self
        }
    }

    /// Divides by the scale, in f32.
    pub fn unscale(self) -> Grads<Unscaled> {
        let inverse = (!self.scaler.is_none()).then(|| self.scale.recip());
        let factor = product(self.factor.clone(), inverse);
        Grads {
            factor,
            ..self.retype()
        }
    }

    /// Where these gradients come from, without the graph behind them: for sums over micro-batches and ranks.
    pub fn origin(&self) -> Origin {
        Origin {
            scaler: self.scaler.clone(),
            scale: self.scale.clone(),
            slots: self.slots().cloned().collect(),
            missing: self.missing.clone(),
        }
    }
}

/// The parameters, the scaler and the scale of a set of gradients: what sums over micro-batches or ranks have in common with their summands.
#[derive(Clone, Debug)]
pub struct Origin {
    scaler: LossScaler,
    scale: Tensor,
    slots: Vec<Slot>,
    missing: Vec<Slot>,
}

impl Origin {
    /// Whether `grads` have the same parameters in the same order, and the same scaler.
    pub fn fits(&self, grads: &Grads<Scaled>) -> bool {
        self.scaler.same(&grads.scaler)
            && self.slots.len() == grads.grads.len()
            && self
                .slots
                .iter()
                .zip(grads.slots())
                .all(|(a, b)| a.id() == b.id())
    }

    /// The mean over `count` micro-batches from sums of losses and of scaled gradients (in the order of the parameters). Dividing costs no pass.
    pub fn mean(&self, loss: &Tensor, sums: Vec<Tensor>, count: u32) -> Result<Grads<Scaled>> {
        if sums.len() != self.slots.len() || count == 0 {
            return Err(Error::argument(
                "accumulate",
                format!(
                    "{} sums over {count} micro-batches for {} gradients",
                    sums.len(),
                    self.slots.len()
                ),
            ));
        }
        let share =
            (count > 1).then(|| Tensor::ones(&[], DType::F32, self.scaler.device()) / count as f64);
        let summed = ScaledLoss {
            loss: loss / count as f64,
            scaled: loss.clone(),
            scale: self.scale.clone(),
            scaler: self.scaler.clone(),
        };
        let grads = self.slots.iter().cloned().zip(sums).collect();
        Ok(Grads {
            factor: share,
            ..Grads::new(&summed, grads, self.missing.clone())
        })
    }
}

impl Grads<Unscaled> {
    /// The global norm (2-norm over all elements of all gradients, f32 scalar) of the gradients as they are now, accumulated in f32. A norm beyond 1.8e19 times the
    /// scale is infinite.
    pub fn norm(&self) -> Tensor {
        let root = self.sum_of_squares.sqrt();
        match &self.factor {
            Some(f) => root * f,
            None => root,
        }
    }

    /// The norm before the first clipping, as PyTorch's `clip_grad_norm_` returns it.
    pub fn norm_before_clipping(&self) -> Tensor {
        self.norm.clone().unwrap_or_else(|| self.norm())
    }

    /// Multiplies all gradients by `min(1, max_norm / (norm + 1e-6))` (Pascanu et al. 2013; the 1e-6 is PyTorch's). A norm that overflows f32 counts as a gradient
    /// that is not finite. A `max_norm` that is not positive is an error at the step.
    #[track_caller]
    pub fn clip_global_norm(self, max_norm: f64) -> Grads<Unscaled> {
        let norm = if max_norm > 0.0 && max_norm.is_finite() {
            self.norm()
        } else {
            Tensor::invalid(Error::argument(
                "clip_global_norm",
                format!("max_norm is {max_norm}; expected a positive finite number, such as 1.0"),
            ))
        };
        let coefficient = (max_norm / (&norm + 1e-6)).minimum(1.0);
        Grads {
            finite: self.finite.logical_and(norm.is_finite()),
            norm: Some(self.norm_before_clipping()),
            factor: product(self.factor.clone(), Some(coefficient)),
            ..self
        }
    }

    /// Limits every element to `[-limit, limit]`.
    #[track_caller]
    pub fn clip_value(self, limit: f64) -> Grads<Unscaled> {
        if !(limit > 0.0 && limit.is_finite()) {
            let e = Error::argument(
                "clip_value",
                format!("the limit is {limit}; expected a positive finite number"),
            );
            return Grads {
                finite: Tensor::invalid(e),
                ..self
            };
        }
        self.map(|_, g| g.clamp(-limit, limit))
    }

    /// Each gradient replaced by what `f` makes of the unscaled one (f32, or f64). A step whose gradients were not finite before stays one that is skipped.
    pub fn map(self, mut f: impl FnMut(&Slot, Tensor) -> Tensor) -> Grads<Unscaled> {
        let (finite, first_bad) = (self.finite.clone(), self.first_bad.clone());
        let mapped = self
            .iter()
            .map(|(s, g)| (s.clone(), f(s, g)))
            .collect::<Vec<_>>();
        let new: Grads<Unscaled> = self.rebuild(mapped);
        Grads {
            first_bad: first_bad.ge(0).select(&first_bad, &new.first_bad),
            finite: finite.logical_and(&new.finite),
            factor: None,
            ..new
        }
    }

    /// The parameters with their gradients, really unscaled and clipped (f32, or f64).
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Slot, Tensor)> {
        self.grads.iter().map(|(s, g)| (s, self.apply_factor(g)))
    }

    /// The unscaled gradient of one parameter (f32, or f64); `None` if there is none.
    pub fn get(&self, slot: &Slot) -> Option<Tensor> {
        self.grads
            .iter()
            .find(|(s, _)| s.id() == slot.id())
            .map(|(_, g)| self.apply_factor(g))
    }

    /// The factor by which the raw gradients have still to be multiplied (f32 scalar).
    pub fn factor(&self) -> Tensor {
        self.factor
            .clone()
            .unwrap_or_else(|| Tensor::ones(&[], DType::F32, self.scaler.device()))
    }

    fn apply_factor(&self, grad: &Tensor) -> Tensor {
        match &self.factor {
            Some(f) => widen(grad) * f,
            None => widen(grad),
        }
    }
}

fn product(a: Option<Tensor>, b: Option<Tensor>) -> Option<Tensor> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a * b),
        (a, b) => a.or(b),
    }
}
