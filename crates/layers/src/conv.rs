//! Convolutions.
use crate::size::clip;
use crate::{Ctx, Init, Layer, Param, Scope, Site, Size2d};
use bimetal_tensor::{Error, Result, Tensor, graph};

/// A two-dimensional convolution (cross-correlation): `[n, inputs, h, w]` to `[n, outputs, h', w']`. Parameters: `weight` `[outputs, inputs / groups, kh, kw]`,
/// `bias` `[outputs]`.
pub struct Conv2d {
    site: Site,
    weight: Param,
    bias: Option<Param>,
    inputs: usize,
    kernel: Size2d,
    options: Conv2dOptions,
}

/// Zeros around the input of a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Padding {
    /// None.
    Valid,
    /// So many that the output has the size of the input divided by the stride, rounded up; an odd one goes to bottom and right.
    Same,
    /// As many at top and bottom, and as many left and right.
    Zeros(Size2d),
}

impl From<usize> for Padding {
    fn from(n: usize) -> Padding {
        Padding::Zeros(n.into())
    }
}

/// What can be chosen about a [`Conv2d`] layer.
#[derive(Clone, Copy, Debug)]
pub struct Conv2dOptions {
    /// The step.
    pub stride: Size2d,
    /// Zeros around the input.
    pub padding: Padding,
    /// The distance between taps of the kernel.
    pub dilation: Size2d,
    /// Channels fall into so many groups that do not see each other.
    pub groups: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// The weight's initial values.
    pub weight_init: Init,
}

impl Default for Conv2dOptions {
    fn default() -> Conv2dOptions {
        Conv2dOptions {
            stride: 1.into(),
            padding: Padding::Valid,
            dilation: 1.into(),
            groups: 1,
            bias: true,
            weight_init: Init::torch_default(),
        }
    }
}

impl Conv2d {
    /// With stride 1, no padding, a bias, and PyTorch's initial values.
    #[track_caller]
    pub fn new(scope: &Scope, inputs: usize, outputs: usize, kernel: impl Into<Size2d>) -> Conv2d {
        Conv2d::with(scope, inputs, outputs, kernel, Conv2dOptions::default())
    }

    /// With options.
    #[track_caller]
    pub fn with(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        kernel: impl Into<Size2d>,
        options: Conv2dOptions,
    ) -> Conv2d {
        let (kernel, groups) = (kernel.into(), options.groups);
        let mut site = scope.site();
        if groups == 0 || !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let e = Error::argument(
                "conv2d",
                format!(
                    "{inputs} inputs and {outputs} outputs do not fall into {groups} equal groups"
                ),
            );
            site = site.broken(scope.store().mistake(e));
        }
        let each = inputs / groups.max(1);
        let shape = [outputs, each, kernel.height, kernel.width];
        let weight = scope.param("weight", &shape, options.weight_init);
        let fan = (each * kernel.height * kernel.width).max(1) as f64;
        let bias = match options.bias {
            true => Some(scope.param("bias", &[outputs], Init::symmetric(1.0 / fan.sqrt()))),
            false => None,
        };
        Conv2d {
            site,
            weight,
            bias,
            inputs,
            kernel,
            options,
        }
    }

    /// The weight `[outputs, inputs / groups, kh, kw]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The bias `[outputs]`.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }

    fn attributes(&self, height: usize, width: usize) -> graph::Conv2d {
        let Conv2dOptions {
            stride, dilation, ..
        } = self.options;
        let same = |size: usize, kernel: usize, stride: usize, dilation: usize| {
            let out = size.div_ceil(stride.max(1));
            let reach = out.saturating_sub(1) * stride + dilation * kernel.saturating_sub(1) + 1;
            let total = reach.saturating_sub(size);
            [total / 2, total - total / 2]
        };
        let [[top, bottom], [left, right]] = match self.options.padding {
            Padding::Valid => [[0; 2]; 2],
            Padding::Zeros(p) => [[p.height; 2], [p.width; 2]],
            Padding::Same => [
                same(height, self.kernel.height, stride.height, dilation.height),
                same(width, self.kernel.width, stride.width, dilation.width),
            ],
        };
        graph::Conv2d {
            stride: stride.attr(),
            padding: [top, bottom, left, right].map(clip),
            dilation: dilation.attr(),
            groups: clip(self.options.groups),
        }
    }

    #[track_caller]
    fn check(&self, x: &Tensor) -> Result<(usize, usize)> {
        let found = x.shape()?;
        match found[..] {
            [_, c, h, w] if c == self.inputs => Ok((h, w)),
            _ => Err(Error::shape(
                "conv2d",
                &[found],
                format!(
                    "expected [n, {c}, h, w]: the layer was built with {c} input channels at {}",
                    self.site.built(),
                    c = self.inputs
                ),
            )),
        }
    }
}

impl Layer for Conv2d {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.site.run(cx, || {
            let (h, w) = self.check(x)?;
            let conv = self.attributes(h, w);
            let mut y = self.site.input(x).conv2d(&self.weight.compute(), conv);
            if let Some(bias) = &self.bias {
                y = y + bias.compute().reshape(&[-1, 1, 1]);
            }
            Ok(self.site.output(&y))
        })
    }
}
