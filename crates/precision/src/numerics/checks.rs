//! The checks of one step.
use super::replay::afresh;
use super::watch::{first_bad, watched};
use super::{Level, NonFinite, find_non_finite};
use bimetal_tensor::{DType, Result, Slot, Tensor};
use std::sync::Arc;

/// What a step checks beside its gradients, and what is needed to compute it again: made by [`Grads::check_numerics`](crate::Grads::check_numerics), kept by the step's
/// handle.
#[derive(Clone, Debug)]
pub struct Checks {
    /// What the step's own plan looks at, and the number (I32 scalar) of the first that is not finite.
    watched: Arc<[NonFinite]>,
    first_bad: Option<Tensor>,
    /// The scaled loss and the scaled gradients of each micro-batch. They share operands with the step's, but are not evaluated themselves, so that no value
    /// is kept alive.
    roots: Vec<Arc<[Tensor]>>,
    /// The state of the loss scale, which a skipped step does change.
    scale: Option<Slot>,
}

impl Checks {
    /// Of one pass; `None` at [`Level::Off`].
    pub(crate) fn new(
        roots: Vec<Tensor>,
        scale: Option<Slot>,
        level: Level,
    ) -> Result<Option<Checks>> {
        if level == Level::Off {
            return Ok(None);
        }
        let tensors = watched(&roots, level)?;
        let places: Vec<NonFinite> = tensors
            .iter()
            .map(NonFinite::place)
            .collect::<Result<_>>()?;
        let again = roots.iter().map(|t| t.with_inputs(t.inputs()));
        Ok(Some(Checks {
            watched: places.into(),
            first_bad: first_bad(&tensors),
            roots: vec![again.collect()],
            scale,
        }))
    }

    /// The number of the first tensor that the step's plan found not to be finite (I32 scalar); any other number if there is none. `None` if the plan
    /// checks nothing but gradients. To be evaluated with the step, before everything else, so that what is looked at need not be kept for it.
    pub fn first_bad(&self) -> Option<&Tensor> {
        self.first_bad.as_ref()
    }

    /// The tensor with the number that [`Checks::first_bad`] gave.
    pub fn place(&self, first_bad: usize) -> Option<&NonFinite> {
        self.watched.get(first_bad)
    }

    /// The same checks without the graph behind the evaluated number.
    pub fn settle(self) -> Result<Checks> {
        let first_bad = self.first_bad.as_ref().map(Tensor::settle).transpose()?;
        Ok(Checks { first_bad, ..self })
    }

    /// The checks of the micro-batches of a window as those of one step.
    pub fn join(parts: impl IntoIterator<Item = Checks>) -> Option<Checks> {
        let mut parts = parts.into_iter();
        let mut all = parts.next()?;
        let mut places = all.watched.to_vec();
        for part in parts {
            let count = places.len();
            let later = part.first_bad.map(|b| b + count as i32);
            all.first_bad = match (all.first_bad, later) {
                (Some(a), Some(b)) => Some(a.lt(count as i32).select(&a, b)),
                (a, b) => a.or(b),
            };
            places.extend(part.watched.iter().cloned());
            all.roots.extend(part.roots);
        }
        all.watched = places.into();
        Some(all)
    }

    /// Computes the step again from the state as it is now, with the loss scale it had, and finds the cause of what was not finite; `None` if all is finite now. Only
    /// meaningful as long as nothing has changed the state since: after a skipped step.
    pub fn replay(&self, scale: f32) -> Result<Option<NonFinite>> {
        for roots in &self.roots {
            let value = self.scale.as_ref().map(|slot| {
                let value = Tensor::full(&[], f64::from(scale), DType::F32, slot.device());
                (slot, value)
            });
            let again = afresh(roots, value.as_ref().map(|(s, v)| (*s, v)));
            let found = find_non_finite(&again.iter().collect::<Vec<_>>())?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}
