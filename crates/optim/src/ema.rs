//! Averages of the weights over the steps.
use crate::engine::master;
use bimetal_tensor::{DType, Device, Error, Result, Slot, Tensor, commit};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An exponential moving average of the weights (Polyak and Juditsky 1992): after each applied step `average += (1 - decay) * (weight - average)`.
///
/// The first applied step sets the average to the weights, as Keras' `use_ema` and PyTorch's `AveragedModel` do; [`Ema::warmup`] is TensorFlow's other
/// way to begin. Averages are f32 whatever the dtype of the weights (f64 of f64): with a decay of 0.999 a half-precision one would never move. They are kept by the
/// optimizer ([`crate::AdamW::ema`]), updated in the plan of its step, saved with its state, and used by [`Averages::with`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ema {
    decay: f64,
    warmup: bool,
}

impl Ema {
    /// With a decay in `[0, 1)`, such as 0.999: the average reaches back about `1 / (1 - decay)` steps. Another decay is an error when training starts.
    pub fn new(decay: f64) -> Ema {
        Ema {
            decay,
            warmup: false,
        }
    }

    /// Begins at the initial weights, with the decay `min(decay, (1 + t) / (10 + t))` at the `t`-th update, from 1: `tf.train.ExponentialMovingAverage` with `num_updates`,
    /// and torch-ema.
    pub fn warmup(self) -> Ema {
        Ema {
            warmup: true,
            ..self
        }
    }

    fn check(&self) -> Result<()> {
        if (0.0..1.0).contains(&self.decay) {
            return Ok(());
        }
        Err(Error::argument(
            "ema",
            format!(
                "the decay is {}; expected a number from 0 to below 1, such as 0.999",
                self.decay
            ),
        ))
    }
}

/// [`Ema::new`].
impl From<f64> for Ema {
    fn from(decay: f64) -> Ema {
        Ema::new(decay)
    }
}

/// The averages that an optimizer keeps of the weights it trains.
#[derive(Debug)]
pub struct Averages {
    settings: Ema,
    /// Weights and their averages.
    pairs: Vec<(Slot, Slot)>,
    /// The number of updates (U32 scalar).
    updates: Slot,
    /// The weights, while averages are in their place.
    kept: Mutex<Option<Vec<Slot>>>,
}

impl Averages {
    /// Settings that cannot work are an error.
    pub(crate) fn new(settings: Ema, device: &Device) -> Result<Averages> {
        settings.check()?;
        let zero = Tensor::zeros(&[], DType::U32, device);
        Ok(Averages {
            settings,
            pairs: Vec::new(),
            updates: Slot::new("optim/ema_updates", &zero, device)?,
            kept: Mutex::default(),
        })
    }

    pub(crate) fn add(&mut self, weight: &Slot) -> Result<()> {
        let value = weight.read().cast(master(weight.dtype()));
        let name = format!("optim/{}/ema", weight.name());
        let average = Slot::new(name, &value, weight.device())?;
        self.pairs.push((weight.clone(), average));
        Ok(())
    }

    pub(crate) fn state(&self) -> impl Iterator<Item = &Slot> {
        std::iter::once(&self.updates).chain(self.pairs.iter().map(|(_, average)| average))
    }

    /// The settings.
    pub fn settings(&self) -> Ema {
        self.settings
    }

    /// The average of a weight; `None` if none is kept of it.
    pub fn of(&self, weight: &Slot) -> Option<&Slot> {
        let mut pairs = self.pairs.iter();
        pairs
            .find(|(w, _)| w.id() == weight.id())
            .map(|(_, average)| average)
    }

    /// What a step writes beside the new weights `writes`, if `apply` (Bool scalar).
    pub(crate) fn update(
        &self,
        apply: &Tensor,
        writes: &[(Slot, Tensor)],
    ) -> Result<Vec<(Slot, Tensor)>> {
        if self.kept().is_some() {
            return Err(Error::argument(
                "step",
                "the averages are in the weights' place; call `swap_out` before the next step",
            ));
        }
        let before = self.updates.read();
        let count = before.cast(DType::F32);
        let least = 1.0 - self.settings.decay;
        // 1 - (1 + t) / (10 + t) is 9 / (10 + t), without the cancellation.
        let share = (9.0 / (&count + 11)).maximum(least);
        let first = count.eq(0.0);
        let written: HashMap<u64, &Tensor> = writes.iter().map(|(s, t)| (s.id(), t)).collect();
        let mut new = Vec::with_capacity(self.pairs.len() + 1);
        for (weight, average) in &self.pairs {
            let weight = match written.get(&weight.id()) {
                Some(&new) => new.cast(average.dtype()),
                None => weight.read().cast(average.dtype()),
            };
            let old = average.read();
            let step = &weight - &old;
            let moved = match self.settings.warmup {
                true => &old + step * &share,
                false => first.select(&weight, &old + step * least),
            };
            new.push((average.clone(), apply.select(moved, &old)));
        }
        let count = &before + apply.cast(DType::U32);
        new.push((self.updates.clone(), count));
        Ok(new)
    }

    /// Runs `f` with the averages in the weights' place, for instance an evaluation, and puts the weights back to the last bit, also if `f` panics.
    ///
    /// ```no_run
    /// # use bimetal_optim::{AdamW, Optimizer};
    /// # fn f(optimizer: AdamW, evaluate: impl Fn() -> f64) -> bimetal_tensor::Result<()> {
    /// let loss = optimizer.averages()?.with(|| evaluate())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: a device failure; averages that are in the weights' place already.
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        struct Back<'a>(&'a Averages);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                let _ = self.0.swap_out();
            }
        }
        self.swap_in()?;
        let back = Back(self);
        let result = f();
        std::mem::forget(back);
        self.swap_out()?;
        Ok(result)
    }

    /// Puts the averages in the weights' place, rounded to the weights' dtype; the weights are kept on the device. A step is an error until [`Averages::swap_out`].
    ///
    /// Errors: a device failure; averages that are in the weights' place already.
    pub fn swap_in(&self) -> Result<()> {
        let mut kept = self.kept();
        if kept.is_some() {
            return Err(Error::argument(
                "swap_in",
                "the averages are in the weights' place already; call `swap_out` first",
            ));
        }
        let mut weights = Vec::with_capacity(self.pairs.len());
        for (weight, _) in &self.pairs {
            weights.push(Slot::new(weight.name(), &weight.read(), weight.device())?);
        }
        write(self.pairs.iter().map(|(weight, average)| (weight, average)))?;
        *kept = Some(weights);
        Ok(())
    }

    /// Puts the weights back; nothing happens if they are there.
    ///
    /// Errors: a device failure.
    pub fn swap_out(&self) -> Result<()> {
        let mut kept = self.kept();
        if let Some(weights) = kept.as_ref() {
            write(self.pairs.iter().map(|(weight, _)| weight).zip(weights))?;
        }
        *kept = None;
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Option<Vec<Slot>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets slots to the values of others, all in one commit.
fn write<'a>(pairs: impl Iterator<Item = (&'a Slot, &'a Slot)>) -> Result<()> {
    let values: Vec<(&Slot, Tensor)> = pairs
        .map(|(to, from)| (to, from.read().cast(to.dtype())))
        .collect();
    let writes: Vec<(&Slot, &Tensor)> = values.iter().map(|(slot, t)| (*slot, t)).collect();
    commit(&[], &writes)
}
