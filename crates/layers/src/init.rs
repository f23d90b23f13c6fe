//! Initial values of parameters.
use bimetal_tensor::graph::{Distribution, RandomKey};
use bimetal_tensor::{Device, Error, Result, Tensor};

/// How a parameter is filled when it is registered. Random values are drawn in f32 with a key of the store's seed and the parameter's path:
/// neither the order of registration nor other layers enter, and models of other dtypes start from the same numbers.
///
/// The fan of a weight `[out, in, ..]` is PyTorch's: `in` or `out` times the sizes of all further axes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Init {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// One number.
    Constant(f64),
    /// Uniform in `[low, high)`.
    Uniform {
        /// The smallest value.
        low: f64,
        /// The end of the range.
        high: f64,
    },
    /// Normal.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// Normal, drawn again beyond two standard deviations.
    TruncatedNormal {
        /// The mean.
        mean: f64,
        /// The standard deviation before values are cut off.
        std: f64,
    },
    /// Uniform with bound `gain sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio 2010).
    XavierUniform {
        /// 1 for layers without activation or with tanh.
        gain: f64,
    },
    /// Normal with standard deviation `gain sqrt(2 / (fan_in + fan_out))` (Glorot and Bengio 2010).
    XavierNormal {
        /// 1 for layers without activation or with tanh.
        gain: f64,
    },
    /// Uniform with bound `sqrt(6 / ((1 + slope^2) fan_in))` (He et al. 2015).
    KaimingUniform {
        /// The slope of the activation after the layer on its negative side: 0 for ReLU.
        slope: f64,
    },
    /// Normal with standard deviation `sqrt(2 / ((1 + slope^2) fan_in))` (He et al. 2015).
    KaimingNormal {
        /// The slope of the activation after the layer on its negative side: 0 for ReLU.
        slope: f64,
    },
}

/// Draws of a truncated normal before a value is cut to the bound, which happens to one in a hundred million.
const DRAWS: u32 = 6;

impl Init {
    /// Uniform in plus or minus `bound`.
    pub fn symmetric(bound: f64) -> Init {
        Init::Uniform {
            low: -bound,
            high: bound,
        }
    }

    /// PyTorch's default for linear and convolution weights: uniform with bound `1 / sqrt(fan_in)`.
    pub fn torch_default() -> Init {
        Init::KaimingUniform { slope: 5f64.sqrt() }
    }

    /// The values (f32), in the random stream `stream`.
    #[track_caller]
    pub(crate) fn draw(&self, shape: &[usize], stream: u64, device: &Device) -> Tensor {
        let made = self.resolve(shape);
        let draw = |distribution, micro| {
            let key = RandomKey::Value { stream, micro };
            Tensor::random(distribution, shape, key, None, device)
        };
        let fill = |value| Tensor::full(shape, value, bimetal_tensor::DType::F32, device);
        match made {
            Err(e) => Tensor::invalid(e),
            Ok(Init::Zeros) => fill(0.0),
            Ok(Init::Ones) => fill(1.0),
            Ok(Init::Constant(value)) => fill(value),
            Ok(Init::Uniform { low, high }) => draw(Distribution::Uniform, 0) * (high - low) + low,
            Ok(Init::Normal { mean, std }) => draw(Distribution::Normal, 0) * std + mean,
            Ok(Init::TruncatedNormal { mean, std }) => {
                let mut z = draw(Distribution::Normal, DRAWS - 1).clamp(-2.0, 2.0);
                for micro in (0..DRAWS - 1).rev() {
                    let other = draw(Distribution::Normal, micro);
                    z = other.abs().le(2.0).select(&other, &z);
                }
                z * std + mean
            }
            // `resolve` leaves nothing else.
            Ok(_) => fill(f64::NAN),
        }
    }

    /// The same without fans.
    #[track_caller]
    fn resolve(&self, shape: &[usize]) -> Result<Init> {
        let normal = |std| Init::Normal { mean: 0.0, std };
        let made = match *self {
            Init::XavierUniform { gain } => {
                let (fan_in, fan_out) = fans(shape)?;
                Init::symmetric(gain * (6.0 / (fan_in + fan_out)).sqrt())
            }
            Init::XavierNormal { gain } => {
                let (fan_in, fan_out) = fans(shape)?;
                normal(gain * (2.0 / (fan_in + fan_out)).sqrt())
            }
            Init::KaimingUniform { slope } => {
                Init::symmetric((6.0 / ((1.0 + slope * slope) * fans(shape)?.0)).sqrt())
            }
            Init::KaimingNormal { slope } => {
                normal((2.0 / ((1.0 + slope * slope) * fans(shape)?.0)).sqrt())
            }
            other => other,
        };
        let ok = match made {
            Init::Uniform { low, high } => low <= high && (high - low).is_finite(),
            Init::Normal { mean, std } | Init::TruncatedNormal { mean, std } => {
                std >= 0.0 && std.is_finite() && mean.is_finite()
            }
            _ => true,
        };
        if ok {
            return Ok(made);
        }
        Err(Error::argument(
            "init",
            format!(
                "{self:?} is no distribution: expected finite numbers, low <= high and std >= 0"
            ),
        ))
    }
}

/// Inputs of an output and outputs of an input, at least 1.
#[track_caller]
fn fans(shape: &[usize]) -> Result<(f64, f64)> {
    let [out, inputs, rest @ ..] = shape else {
        return Err(Error::argument(
            "init",
            format!(
                "a shape {shape:?} has no fan: expected a weight [out, in, ..]; use another initializer"
            ),
        ));
    };
    let field: usize = rest.iter().product();
    let fan = |n: &usize| (n * field).max(1) as f64;
    Ok((fan(inputs), fan(out)))
}
