//! Fully connected layers.
use crate::float8::Product;
use crate::{Ctx, Init, Layer, Param, Scope, Site};
use bimetal_tensor::{Error, Tensor};

/// `x weight^T + bias`: `[.., inputs]` to `[.., outputs]`. Parameters: `weight` `[outputs, inputs]`, `bias` `[outputs]`. The product is 8-bit where the policy
/// says so (`mixed_float8`), unless the weight is tied.
pub struct Linear {
    site: Site,
    weight: Param,
    bias: Option<Param>,
    product: Product,
}

/// What can be chosen about a [`Linear`] layer.
#[derive(Clone, Copy, Debug)]
pub struct LinearOptions {
    /// Whether there is a bias.
    pub bias: bool,
    /// The weight's initial values.
    pub weight_init: Init,
    /// The bias's initial values; `None`: uniform in plus or minus `1 / sqrt(inputs)`, as PyTorch.
    pub bias_init: Option<Init>,
}

impl Default for LinearOptions {
    fn default() -> LinearOptions {
        LinearOptions {
            bias: true,
            weight_init: Init::torch_default(),
            bias_init: None,
        }
    }
}

impl Linear {
    /// With bias, and PyTorch's initial values.
    #[track_caller]
    pub fn new(scope: &Scope, inputs: usize, outputs: usize) -> Linear {
        Linear::with(scope, inputs, outputs, LinearOptions::default())
    }

    /// With options.
    #[track_caller]
    pub fn with(scope: &Scope, inputs: usize, outputs: usize, options: LinearOptions) -> Linear {
        let weight = scope.param("weight", &[outputs, inputs], options.weight_init);
        let bound = 1.0 / (inputs.max(1) as f64).sqrt();
        let init = options.bias_init.unwrap_or(Init::symmetric(bound));
        let bias = match options.bias {
            true => Some(scope.param("bias", &[outputs], init)),
            false => None,
        };
        Linear {
            site: scope.site(),
            weight,
            bias,
            product: Product::new(scope, ""),
        }
    }

    /// Without bias, on a weight `[outputs, inputs]` that belongs to another layer: an output projection on the table of an
    /// [`crate::Embedding`].
    #[track_caller]
    pub fn tied(scope: &Scope, weight: &Param) -> Linear {
        Linear {
            site: scope.site(),
            weight: scope.tied("weight", weight),
            bias: None,
            product: Product::Plain,
        }
    }

    /// The weight `[outputs, inputs]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The bias `[outputs]`.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }
}

impl Layer for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.site.run(cx, || {
            let (found, weight) = (x.shape()?, self.weight.read());
            let [_, inputs] = weight.dims()?;
            if found.last() != Some(&inputs) {
                return Err(Error::shape(
                    "linear",
                    &[found],
                    format!(
                        "expected [.., {inputs}]: the layer was built with {inputs} inputs at {}",
                        self.site.built()
                    ),
                ));
            }
            let x = self.site.input(x);
            let rows = if found.rank() == 1 { x.unsqueeze(0) } else { x };
            let mut y = self
                .product
                .of(&self.site, &rows, &self.weight, weight, cx)?;
            if let Some(bias) = &self.bias {
                y = y + bias.compute();
            }
            let y = if found.rank() == 1 { y.squeeze(0) } else { y };
            Ok(self.site.output(&y))
        })
    }
}
