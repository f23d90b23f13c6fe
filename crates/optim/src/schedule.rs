//! Learning rates as functions of the number of applied steps.
use bimetal_tensor::{Error, Result, Tensor};
use std::f64::consts::PI;

/// A learning rate as a graph expression of the number of steps applied so far, so that a step never waits for the host, and a skipped step does not move it.
///
/// A number is a schedule, too: a constant one, which [`crate::Optimizer::set_lr`] can change.
pub trait Schedule: Send + Sync {
    /// The learning rate (f32 scalar) of the step that follows `applied` (f32 scalar) applied ones: 0 at the first step.
    fn lr(&self, applied: &Tensor) -> Tensor;

    /// An error that names the first setting that cannot work: rates must be finite and not negative.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The rate if it is one the host may change.
    fn constant(&self) -> Option<f64> {
        None
    }
}

impl Schedule for f64 {
    fn lr(&self, _: &Tensor) -> Tensor {
        Tensor::scalar(*self)
    }

    fn check(&self) -> Result<()> {
        rate("the learning rate", *self)
    }

    fn constant(&self) -> Option<f64> {
        Some(*self)
    }
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn lr(&self, applied: &Tensor) -> Tensor {
        (**self).lr(applied)
    }

    fn check(&self) -> Result<()> {
        (**self).check()
    }

    fn constant(&self) -> Option<f64> {
        (**self).constant()
    }
}

/// A learning rate must be finite and not negative.
pub(crate) fn rate(what: &str, lr: f64) -> Result<()> {
    if lr >= 0.0 && (lr as f32).is_finite() {
        return Ok(());
    }
    Err(Error::setting(
        "lr",
        format!("{what} is {lr}; expected a finite number that is not negative, such as 1e-3"),
    ))
}

fn length(what: &str, steps: u32) -> Result<()> {
    if steps > 0 {
        return Ok(());
    }
    Err(Error::setting(
        "lr",
        format!("{what} is 0 steps; expected at least one"),
    ))
}

/// From 0 to 1 over `steps`, then 1.
fn progress(applied: &Tensor, steps: u32) -> Tensor {
    (applied / steps as f64).minimum(1.0)
}

/// Half a cosine from one rate to another (Loshchilov and Hutter 2017, without restarts; PyTorch's `CosineAnnealingLR`), then constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cosine {
    /// The first rate.
    pub from: f64,
    /// The last rate.
    pub to: f64,
    /// The number of steps from the first to the last.
    pub steps: u32,
}

impl Schedule for Cosine {
    fn lr(&self, applied: &Tensor) -> Tensor {
        let share = ((progress(applied, self.steps) * PI).cos() + 1) * 0.5;
        share * (self.from - self.to) + self.to
    }

    fn check(&self) -> Result<()> {
        rate("the first rate of the cosine", self.from)?;
        rate("the last rate of the cosine", self.to)?;
        length("the cosine", self.steps)
    }
}

/// A straight line from one rate to another, then constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearDecay {
    /// The first rate.
    pub from: f64,
    /// The last rate.
    pub to: f64,
    /// The number of steps from the first to the last.
    pub steps: u32,
}

impl Schedule for LinearDecay {
    fn lr(&self, applied: &Tensor) -> Tensor {
        progress(applied, self.steps) * (self.to - self.from) + self.from
    }

    fn check(&self) -> Result<()> {
        rate("the first rate of the line", self.from)?;
        rate("the last rate of the line", self.to)?;
        length("the line", self.steps)
    }
}

/// `initial * factor^floor(applied / every)`: PyTorch's `StepLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepDecay {
    /// The first rate.
    pub initial: f64,
    /// What the rate is multiplied by at each stair.
    pub factor: f64,
    /// The number of steps between two stairs.
    pub every: u32,
}

impl Schedule for StepDecay {
    fn lr(&self, applied: &Tensor) -> Tensor {
        let stairs = (applied / self.every as f64).floor();
        power(self.factor, &stairs) * self.initial
    }

    fn check(&self) -> Result<()> {
        rate("the first rate", self.initial)?;
        factor(self.factor)?;
        length("the time between two stairs", self.every)
    }
}

/// `initial * factor^(applied / every)`, smoothly: Keras' `ExponentialDecay`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponential {
    /// The first rate.
    pub initial: f64,
    /// What the rate has been multiplied by after `every` steps.
    pub factor: f64,
    /// The number of steps that `factor` refers to.
    pub every: u32,
}

impl Schedule for Exponential {
    fn lr(&self, applied: &Tensor) -> Tensor {
        power(self.factor, &(applied / self.every as f64)) * self.initial
    }

    fn check(&self) -> Result<()> {
        rate("the first rate", self.initial)?;
        factor(self.factor)?;
        length("the time of one factor", self.every)
    }
}

fn factor(f: f64) -> Result<()> {
    if f > 0.0 && f.is_finite() {
        return Ok(());
    }
    Err(Error::setting(
        "lr",
        format!("the factor is {f}; expected a positive finite number, such as 0.1"),
    ))
}

fn power(base: f64, exponent: &Tensor) -> Tensor {
    (exponent * base.ln()).exp()
}

/// A linear rise in front of another schedule, whose first step is the one after the rise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup<S> {
    steps: u32,
    reaches_peak: bool,
    then: S,
}

impl<S: Schedule> Warmup<S> {
    /// Step `t` of `steps` has the share `(t + 1) / (steps + 1)` of `then`'s first rate: the first step does something, and the first step after the rise is
    /// the first with the full rate.
    pub fn new(steps: u32, then: S) -> Warmup<S> {
        Warmup {
            steps,
            reaches_peak: false,
            then,
        }
    }

    /// Step `t` of `steps` has the share `(t + 1) / steps` of `then`'s first rate: the last step of the rise has the full rate already.
    pub fn reaching_peak(steps: u32, then: S) -> Warmup<S> {
        Warmup {
            steps,
            reaches_peak: true,
            then,
        }
    }
}

impl<S: Schedule> Schedule for Warmup<S> {
    fn lr(&self, applied: &Tensor) -> Tensor {
        if self.steps == 0 {
            return self.then.lr(applied);
        }
        let whole = self.steps as f64 + if self.reaches_peak { 0.0 } else { 1.0 };
        let share = ((applied + 1) / whole).minimum(1.0);
        let after = (applied - self.steps as f64).maximum(0.0);
        self.then.lr(&after) * share
    }

    fn check(&self) -> Result<()> {
        self.then.check()
    }
}

/// nanoGPT's schedule: a linear rise over `warmup` steps, then half a cosine from `peak` to `floor`, which is reached after `total` steps in all.
pub fn warmup_cosine(peak: f64, floor: f64, warmup: u32, total: u32) -> Warmup<Cosine> {
    let cosine = Cosine {
        from: peak,
        to: floor,
        steps: total.saturating_sub(warmup),
    };
    Warmup::new(warmup, cosine)
}
