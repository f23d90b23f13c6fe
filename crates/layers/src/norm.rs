//! Normalisation. Parameters and statistics are f32 (f64 where parameters are) and so is what is computed inside, whatever the policy says; only the
//! result has the policy's output dtype.
use crate::{Ctx, Init, Layer, Param, Scope, Site, wide};
use bimetal_tensor::{DType, Error, Result, Tensor};

/// An input of a norm: not rounded to the compute dtype, since the norm computes in f32 anyway.
#[track_caller]
fn input(site: &Site, x: &Tensor) -> Result<Tensor> {
    let d = x.check()?.dtype();
    if !d.is_float() {
        return Err(Error::dtype("norm", &[d], "expected floats; use `cast`"));
    }
    Ok(if site.policy().compute == DType::F64 {
        x.cast(DType::F64)
    } else {
        x.clone()
    })
}

/// Normalisation of each row over the last axes (Ba et al. 2016), in `[.., shape]`. Parameters: `weight` and `bias` of that shape.
pub struct LayerNorm {
    site: Site,
    weight: Param,
    bias: Option<Param>,
    eps: f64,
}

/// What can be chosen about a [`LayerNorm`].
#[derive(Clone, Copy, Debug)]
pub struct LayerNormOptions {
    /// Added to the variance.
    pub eps: f64,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Default for LayerNormOptions {
    fn default() -> LayerNormOptions {
        LayerNormOptions {
            eps: 1e-5,
            bias: true,
        }
    }
}

impl LayerNorm {
    /// Over the last axis, of size `width`, with bias and eps 1e-5.
    #[track_caller]
    pub fn new(scope: &Scope, width: usize) -> LayerNorm {
        LayerNorm::with(scope, &[width], LayerNormOptions::default())
    }

    /// Over the last axes, of sizes `shape`, with options.
    #[track_caller]
    pub fn with(scope: &Scope, shape: &[usize], options: LayerNormOptions) -> LayerNorm {
        let dtype = wide(scope.policy_here().param);
        let mut site = scope.site();
        if shape.is_empty() || shape.contains(&0) {
            let e = Error::argument(
                "layer_norm",
                format!("{shape:?} is no shape to normalise over: expected sizes of at least 1"),
            );
            site = site.broken(scope.store().mistake(e));
        }
        LayerNorm {
            site,
            weight: scope.param_as("weight", shape, Init::Ones, dtype),
            bias: match options.bias {
                true => Some(scope.param_as("bias", shape, Init::Zeros, dtype)),
                false => None,
            },
            eps: options.eps,
        }
    }
}

impl Layer for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.site.run(cx, || {
            let (found, over) = (x.shape()?, self.weight.shape());
            if found.rank() < over.rank() || found[found.rank() - over.rank()..] != over[..] {
                return Err(Error::shape(
                    "layer_norm",
                    &[found],
                    format!(
                        "expected the last axes to be {over}, as the layer was built at {}",
                        self.site.built()
                    ),
                ));
            }
            let x = input(&self.site, x)?;
            let flat = |t: Tensor| t.flatten(-(over.rank() as isize)..=-1);
            let inside = wide(x.dtype());
            let weight = flat(self.weight.read()).cast(inside);
            let bias = match &self.bias {
                Some(bias) => flat(bias.read()).cast(inside),
                None => weight.zeros_like(),
            };
            let y = flat(x).layer_norm(&weight, &bias, self.eps);
            let full: Vec<isize> = found.iter().map(|&d| d as isize).collect();
            let y = if over.rank() > 1 { y.reshape(&full) } else { y };
            Ok(self.site.output(&y))
        })
    }
}

/// Normalisation of each channel over batch and space (Ioffe and Szegedy 2015), in `[n, channels, h, w]`, also in `[n, channels]` and other numbers of axes behind.
/// Parameters: `weight` and `bias` `[channels]`; buffers: `running_mean` and `running_var` `[channels]`.
///
/// Training uses the batch's mean and biased variance, and moves the running statistics by `momentum` towards the mean and the unbiased variance, as
/// PyTorch does; the move is a pending update that a skipped step drops. Evaluation uses the running statistics.
pub struct BatchNorm2d {
    site: Site,
    weight: Param,
    bias: Param,
    mean: Param,
    var: Param,
    options: BatchNormOptions,
}

/// What can be chosen about a [`BatchNorm2d`].
#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions {
    /// Added to the variance.
    pub eps: f64,
    /// The share of the batch in the new running statistics (PyTorch's meaning; Keras's is 1 minus this).
    pub momentum: f64,
}

impl Default for BatchNormOptions {
    fn default() -> BatchNormOptions {
        BatchNormOptions {
            eps: 1e-5,
            momentum: 0.1,
        }
    }
}

impl BatchNorm2d {
    /// With eps 1e-5 and momentum 0.1.
    #[track_caller]
    pub fn new(scope: &Scope, channels: usize) -> BatchNorm2d {
        BatchNorm2d::with(scope, channels, BatchNormOptions::default())
    }

    /// With options.
    #[track_caller]
    pub fn with(scope: &Scope, channels: usize, options: BatchNormOptions) -> BatchNorm2d {
        let dtype = wide(scope.policy_here().param);
        BatchNorm2d {
            site: scope.site(),
            weight: scope.param_as("weight", &[channels], Init::Ones, dtype),
            bias: scope.param_as("bias", &[channels], Init::Zeros, dtype),
            mean: scope.buffer("running_mean", &[channels], 0.0),
            var: scope.buffer("running_var", &[channels], 1.0),
            options,
        }
    }

    /// The running mean `[channels]`.
    pub fn running_mean(&self) -> &Param {
        &self.mean
    }

    /// The running variance `[channels]`.
    pub fn running_var(&self) -> &Param {
        &self.var
    }

    fn with_batch(&self, x: &Tensor, cx: &Ctx) -> Result<Tensor> {
        let (found, inside) = (x.shape()?, wide(x.dtype()));
        let count = found.numel() / found[1].max(1);
        if count < 2 {
            return Err(Error::shape(
                "batch_norm",
                &[found],
                "training needs at least 2 values per channel: the variance of one is 0; use a larger batch",
            ));
        }
        let (weight, bias) = (
            self.weight.read().cast(inside),
            self.bias.read().cast(inside),
        );
        let (y, mean, var) = x.batch_norm(&weight, &bias, self.options.eps);
        let unbiased = var * (count as f64 / (count - 1) as f64);
        let m = self.options.momentum;
        for (param, batch) in [(&self.mean, mean), (&self.var, unbiased)] {
            let slot = param.slot()?;
            let moved = cx.state(slot) * (1.0 - m) + batch.cast(slot.dtype()) * m;
            cx.update(slot, moved);
        }
        Ok(y)
    }

    fn with_running(&self, x: &Tensor) -> Result<Tensor> {
        let (rank, inside) = (x.rank()?, wide(x.dtype()));
        let mut per_channel = vec![1isize; rank - 1];
        per_channel[0] = -1;
        let read = |p: &Param| p.read().cast(inside);
        let scale = read(&self.weight) * (read(&self.var) + self.options.eps).rsqrt();
        let shape = |t: Tensor| t.reshape(&per_channel);
        let centred = x.cast(inside) - shape(read(&self.mean));
        let y = centred * shape(scale) + shape(read(&self.bias));
        Ok(y)
    }
}

impl Layer for BatchNorm2d {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.site.run(cx, || {
            let (found, channels) = (x.shape()?, self.weight.shape()[..].first().copied());
            if found.rank() < 2 || Some(found[1]) != channels {
                return Err(Error::shape(
                    "batch_norm",
                    &[found],
                    format!(
                        "expected [n, {c}, ..]: the layer was built with {c} channels at {}",
                        self.site.built(),
                        c = channels.unwrap_or(0)
                    ),
                ));
            }
            let x = input(&self.site, x)?;
            let y = match cx.training() {
                true => self.with_batch(&x, cx)?,
                false => self.with_running(&x)?,
            };
            Ok(self.site.output(&y))
        })
    }
}
