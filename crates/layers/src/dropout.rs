//! Dropout.
use crate::{Ctx, Layer, Scope, Site};
use bimetal_tensor::graph::Distribution;
use bimetal_tensor::{Error, Result, Tensor};

/// Sets elements to 0 with a probability and divides the others by what is left of 1 (Srivastava et al. 2014), in training only. Works in the dtype of its
/// input. The mask depends on seed, path, step and micro-batch, so that a resumed training draws the same ones.
pub struct Dropout {
    site: Site,
    rate: f64,
}

impl Dropout {
    /// Drops with probability `rate`, in `[0, 1)`.
    #[track_caller]
    pub fn new(scope: &Scope, rate: f64) -> Dropout {
        let mut site = scope.site();
        if let Err(e) = check_rate(rate) {
            site = site.broken(scope.store().mistake(e));
        }
        Dropout { site, rate }
    }
}

impl Layer for Dropout {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.site.run(cx, || drop_elements(x, self.rate, cx))
    }
}

#[track_caller]
pub(crate) fn check_rate(rate: f64) -> Result<()> {
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(Error::argument(
        "dropout",
        format!("the probability {rate} is not in [0, 1)"),
    ))
}

/// Dropout in the stream of the layer that runs.
#[track_caller]
pub(crate) fn drop_elements(x: &Tensor, rate: f64, cx: &Ctx) -> Result<Tensor> {
    if !cx.training() || rate == 0.0 {
        return Ok(x.clone());
    }
    let shape = x.shape()?;
    let (key, step) = (cx.random_key(), cx.step());
    let device = cx.store().device();
    let draw = Tensor::random(Distribution::Uniform, &shape, key, Some(&step), device);
    // A dropped element's gradient is 0 even if the element is not finite.
    Ok(draw.ge(rate).select(x * (1.0 / (1.0 - rate)), 0.0))
}
