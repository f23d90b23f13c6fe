//! How the loss is scaled: the settings and their checks. The state lives in [`crate::LossScaler`].
use bimetal_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// How the loss is multiplied before differentiation, so that gradients do not vanish in f16.
///
/// Parses from `none`, `dynamic` and a number (static).
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub enum LossScale {
    /// Not at all: f32, bf16 and f64.
    #[default]
    None,
    /// By a fixed number.
    Static(f32),
    /// By a number that finds itself.
    Dynamic(DynamicLossScale),
}

impl LossScale {
    /// [`LossScale::Dynamic`] with the usual settings.
    pub fn dynamic() -> LossScale {
        LossScale::Dynamic(DynamicLossScale::default())
    }

    /// An error that names the first setting that cannot work.
    pub fn check(&self) -> Result<()> {
        match self {
            LossScale::None => Ok(()),
            LossScale::Static(s) => positive("the static scale", *s),
            LossScale::Dynamic(d) => d.check(),
        }
    }
}

impl std::str::FromStr for LossScale {
    type Err = Error;

    fn from_str(s: &str) -> Result<LossScale> {
        let scale = match s {
            "none" => LossScale::None,
            "dynamic" => LossScale::dynamic(),
            s => LossScale::Static(s.parse().map_err(|_| {
                Error::setting(
                    "loss_scale",
                    format!("unknown loss scale `{s}`; use `none`, `dynamic` or a positive number"),
                )
            })?),
        };
        scale.check()?;
        Ok(scale)
    }
}

/// Settings of dynamic loss scaling (Micikevicius et al. 2018, section 3.2; the numbers are those of Keras' `LossScaleOptimizer`,
/// but capped).
///
/// After each step the scale is one of `scale * backoff`, `scale` and `scale * growth`; a change that would leave `[min, max]`
/// does not happen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DynamicLossScale {
    /// The first scale; 2^15 by default.
    pub initial: f32,
    /// The number of finite steps in a row after which the scale grows; 2,000 by default.
    pub growth_interval: u32,
    /// The factor of growth; 2 by default.
    pub growth: f32,
    /// The factor after an overflow; 0.5 by default.
    pub backoff: f32,
    /// The number of overflows in a row from which on each makes the scale back off; 1 by default.
    pub hysteresis: u32,
    /// The smallest scale; 1 by default. Huge losses need a smaller one.
    pub min: f32,
    /// The largest scale; 2^24 by default.
    pub max: f32,
}

impl Default for DynamicLossScale {
    fn default() -> DynamicLossScale {
        DynamicLossScale {
            initial: 32768.0,
            growth_interval: 2000,
            growth: 2.0,
            backoff: 0.5,
            hysteresis: 1,
            min: 1.0,
            max: 16_777_216.0,
        }
    }
}

impl DynamicLossScale {
    /// An error that names the first setting that cannot work.
    pub fn check(&self) -> Result<()> {
        let d = self;
        positive("the initial scale", d.initial)?;
        positive("the smallest scale", d.min)?;
        positive("the largest scale", d.max)?;
        let bad = |what: String| Err(Error::setting("loss_scale", what));
        if !(d.min <= d.initial && d.initial <= d.max) {
            return bad(format!(
                "the initial scale {} is outside of {} to {}; move it or the limits",
                d.initial, d.min, d.max
            ));
        }
        if !(d.growth > 1.0 && d.growth.is_finite()) {
            return bad(format!(
                "growth is {}; expected a finite number above 1",
                d.growth
            ));
        }
        if !(d.backoff > 0.0 && d.backoff < 1.0) {
            return bad(format!(
                "backoff is {}; expected a number between 0 and 1",
                d.backoff
            ));
        }
        if d.growth_interval == 0 {
            return bad("growth_interval is 0; expected at least one step".into());
        }
        if d.hysteresis == 0 {
            return bad("hysteresis is 0; expected at least one overflow".into());
        }
        Ok(())
    }

    /// Whether `scale` is one that these settings can hold.
    pub(crate) fn holds(&self, scale: f32) -> bool {
        scale >= self.min && scale <= self.max
    }
}

/// A scale must be a normal number whose reciprocal is one too: gradients are multiplied by it.
pub(crate) fn positive(what: &str, scale: f32) -> Result<()> {
    if scale > 0.0 && scale.is_normal() && scale.recip().is_normal() {
        return Ok(());
    }
    Err(Error::setting(
        "loss_scale",
        format!("{what} is {scale}; expected a positive finite number, such as 32768"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_keras_with_a_cap() {
        let d = DynamicLossScale::default();
        assert_eq!((d.initial, d.growth_interval), (32768.0, 2000));
        assert_eq!((d.growth, d.backoff, d.hysteresis), (2.0, 0.5, 1));
        assert_eq!((d.min, d.max), (1.0, (1u32 << 24) as f32));
        d.check().unwrap();
    }

    #[test]
    fn scales_that_cannot_work_are_refused_with_their_name() {
        for s in [
            0.0,
            -0.0,
            -8.0,
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1e-45,
            f32::MAX,
        ] {
            let e = LossScale::Static(s).check().unwrap_err().to_string();
            assert!(e.contains("the static scale is"), "{e}");
            let d = DynamicLossScale::default();
            for (bad, name) in [
                (DynamicLossScale { initial: s, ..d }, "initial"),
                (DynamicLossScale { min: s, ..d }, "smallest"),
                (DynamicLossScale { max: s, ..d }, "largest"),
            ] {
                let e = LossScale::Dynamic(bad).check().unwrap_err().to_string();
                assert!(e.contains(name), "{e}");
            }
        }
    }

    #[test]
    fn other_settings_that_cannot_work_are_refused() {
        let d = DynamicLossScale::default();
        for (bad, name) in [
            (DynamicLossScale { growth: 1.0, ..d }, "growth is 1"),
            (
                DynamicLossScale {
                    growth: f32::NAN,
                    ..d
                },
                "growth is NaN",
            ),
            (
                DynamicLossScale {
                    growth: f32::INFINITY,
                    ..d
                },
                "growth is inf",
            ),
            (DynamicLossScale { backoff: 0.0, ..d }, "backoff is 0"),
            (DynamicLossScale { backoff: 1.0, ..d }, "backoff is 1"),
            (
                DynamicLossScale {
                    backoff: f32::NAN,
                    ..d
                },
                "backoff is NaN",
            ),
            (
                DynamicLossScale {
                    growth_interval: 0,
                    ..d
                },
                "growth_interval",
            ),
            (DynamicLossScale { hysteresis: 0, ..d }, "hysteresis"),
            (
                DynamicLossScale { max: 16384.0, ..d },
                "outside of 1 to 16384",
            ),
            (DynamicLossScale { min: 65536.0, ..d }, "outside of 65536"),
        ] {
            let e = bad.check().unwrap_err().to_string();
            assert!(e.contains(name), "{e}");
        }
    }

    // tensorflow#38357: huge losses need a scale below 1.
    #[test]
    fn pitfall_05_the_smallest_scale_may_be_below_one() {
        let d = DynamicLossScale {
            initial: 1.0,
            min: 1.0 / 1024.0,
            ..Default::default()
        };
        d.check().unwrap();
    }

    #[test]
    fn parses_from_text() {
        assert_eq!("none".parse::<LossScale>().unwrap(), LossScale::None);
        assert_eq!(
            "dynamic".parse::<LossScale>().unwrap(),
            LossScale::dynamic()
        );
        assert_eq!(
            "1024".parse::<LossScale>().unwrap(),
            LossScale::Static(1024.0)
        );
        for bad in ["", "auto", "-1", "0", "NaN", "inf"] {
            let e = bad.parse::<LossScale>().unwrap_err().to_string();
            assert!(e.contains("positive"), "{bad}: {e}");
        }
    }
}
