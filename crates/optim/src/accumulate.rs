//! Gradients of several micro-batches as one step.
use bimetal_layers::Ctx;
use bimetal_precision::{Checks, Grads, Origin, Scaled};
use bimetal_tensor::{Error, Result, Slot, Tensor, eval};

/// Collects the gradients of several micro-batches and hands out their mean: one step on a batch too large for the memory.
///
/// The sums are taken as a balanced tree over the micro-batches' numbers, so that rounding grows with the logarithm of their count and does not depend on anything
/// else. The loss scale does not change inside of a window, because only a step changes it. A micro-batch that is not finite makes the whole window one that is
/// skipped. Statistics of layers go on from micro-batch to micro-batch and are kept or dropped with the step.
///
/// ```no_run
/// # use bimetal_layers::{Ctx, ParamStore};
/// # use bimetal_optim::{Accumulator, Optimizer};
/// # use bimetal_precision::LossScaler;
/// # use bimetal_tensor::{Result, Tensor};
/// # fn step(store: &ParamStore, scaler: &LossScaler, optimizer: &mut dyn Optimizer, batches: &[Tensor], loss: impl Fn(&Tensor, &Ctx) -> Tensor) -> Result<()> {
/// let mut window = Accumulator::new();
/// for batch in batches {
///     let cx = window.context(store.train());
///     let loss = loss(batch, &cx);
///     window.add(cx, scaler.scale(&loss).grad(&store.trainable_slots()?)?)?;
/// }
/// let (cx, grads) = window.finish(store.train())?;
/// let _ = optimizer.step(cx, grads.unscale().clip_global_norm(1.0))?;
/// # Ok(())
/// # }
/// ```
///
/// Gradients that have been unscaled, by whatever scale, cannot be added up:
///
/// ```compile_fail,E0308
/// # use bimetal_layers::Ctx;
/// # use bimetal_optim::Accumulator;
/// # use bimetal_precision::{Grads, Unscaled};
/// fn wrong(window: &mut Accumulator, cx: Ctx, grads: Grads<Unscaled>) {
///     let _ = window.add(cx, grads);
/// }
/// ```
#[derive(Default)]
pub struct Accumulator {
    /// Entry `k` is the sum over `2^k` micro-batches, if bit `k` of `count` is set; the loss comes last.
    levels: Vec<Option<Vec<Tensor>>>,
    count: u32,
    updates: Vec<(Slot, Tensor)>,
    origin: Option<Origin>,
    checks: Vec<Checks>,
}

impl Accumulator {
    /// An empty window.
    pub fn new() -> Accumulator {
        Accumulator::default()
    }

    /// The number of micro-batches in the window.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The context for the forward pass of the next micro-batch: its random numbers are its own, and statistics go on from where the one before left them.
    pub fn context(&self, cx: Ctx) -> Ctx {
        cx.with_micro(self.count).with_updates(self.updates.clone())
    }

    /// Computes the gradients of one micro-batch and adds them. `cx` is the context of its forward pass, from [`Accumulator::context`].
    pub fn add(&mut self, cx: Ctx, grads: Grads<Scaled>) -> Result<()> {
        self.add_with(cx, grads, &[])
    }

    /// [`Accumulator::add`], with tensors to be computed by the same plan, such as metrics, which keep their values.
    ///
    /// Micro-batches must have gradients for the same parameters, from the same scaler. After an error the window is as before.
    pub fn add_with(&mut self, cx: Ctx, grads: Grads<Scaled>, also: &[&Tensor]) -> Result<()> {
        if cx.micro() != self.count {
            return Err(Error::argument(
                "accumulate",
                format!(
                    "the context is that of micro-batch {}, the window waits for number {}; make it with `Accumulator::context`",
                    cx.micro(),
                    self.count
                ),
            ));
        }
        if self.origin.as_ref().is_some_and(|l| !l.fits(&grads)) {
            return Err(Error::argument(
                "accumulate",
                "the micro-batches of a window must have gradients for the same parameters, from the same scaler",
            ));
        }
        let mut sums: Vec<Tensor> = grads.raw().iter().map(|(_, g)| g.clone()).collect();
        sums.push(grads.loss().clone());
        let full = self.count.trailing_ones() as usize;
        for level in self.levels.iter().take(full).flatten() {
            sums = add(level, &sums);
        }
        for (history, amax) in grads.amax() {
            cx.record_amax(history, amax);
        }
        let updates = cx.into_updates();
        let first_checked = grads.checks().and_then(Checks::first_bad);
        let all: Vec<&Tensor> = first_checked
            .into_iter()
            .chain(&sums)
            .chain(updates.iter().map(|(_, t)| t))
            .chain(also.iter().copied())
            .collect();
        eval(&all)?;
        let sums = settled(&sums)?;
        self.updates = updates
            .into_iter()
            .map(|(s, t)| Ok((s, t.settle()?)))
            .collect::<Result<_>>()?;
        for level in self.levels.iter_mut().take(full) {
            *level = None;
        }
        if self.levels.len() <= full {
            self.levels.push(None);
        }
        self.levels[full] = Some(sums);
        self.count += 1;
        self.origin = Some(grads.origin());
        if let Some(checks) = grads.checks() {
            self.checks.push(checks.clone().settle()?);
        }
        Ok(())
    }

    /// The mean over the window, and `cx` with the statistics' updates; the window is empty afterwards. An empty window is an error.
    pub fn finish(&mut self, cx: Ctx) -> Result<(Ctx, Grads<Scaled>)> {
        let window = std::mem::take(self);
        let mut sums: Option<Vec<Tensor>> = None;
        for level in window.levels.into_iter().flatten() {
            sums = Some(match sums {
                Some(low) => add(&level, &low),
                None => level,
            });
        }
        let (Some(origin), Some(mut sums)) = (window.origin, sums) else {
            return Err(Error::argument(
                "accumulate",
                "the window is empty: add at least one micro-batch",
            ));
        };
        let Some(loss) = sums.pop() else {
            return Err(Error::argument("accumulate", "the window has no loss"));
        };
        let grads = origin
            .mean(&loss, sums, window.count)?
            .with_checks(Checks::join(window.checks));
        Ok((cx.with_updates(window.updates), grads))
    }
}

fn add(a: &[Tensor], b: &[Tensor]) -> Vec<Tensor> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn settled(tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    tensors.iter().map(Tensor::settle).collect()
}
