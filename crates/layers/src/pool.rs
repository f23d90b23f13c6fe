//! Pooling. These layers have no parameters and no policy: they work in the dtype of their input.
use crate::{Ctx, Layer, Size2d};
use bimetal_tensor::{Tensor, graph};

/// What can be chosen about pooling.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// The step; `None`: windows side by side.
    pub stride: Option<Size2d>,
    /// Padding on each side: minus infinity for a maximum, zeros for a mean.
    pub padding: Size2d,
    /// Whether padding counts in a mean.
    pub count_include_pad: bool,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            stride: None,
            padding: 0.into(),
            count_include_pad: true,
        }
    }
}

fn attributes(kernel: Size2d, options: PoolOptions) -> graph::Pool2d {
    let [vertical, horizontal] = options.padding.attr();
    graph::Pool2d {
        kernel: kernel.attr(),
        stride: options.stride.unwrap_or(kernel).attr(),
        padding: [vertical, vertical, horizontal, horizontal],
        count_include_pad: options.count_include_pad,
    }
}

/// The largest element of each window of `[n, c, h, w]`; the gradient goes to the first of equals.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d(graph::Pool2d);

impl MaxPool2d {
    /// Windows side by side.
    pub fn new(kernel: impl Into<Size2d>) -> MaxPool2d {
        MaxPool2d::with(kernel, PoolOptions::default())
    }

    /// With options.
    pub fn with(kernel: impl Into<Size2d>, options: PoolOptions) -> MaxPool2d {
        MaxPool2d(attributes(kernel.into(), options))
    }
}

impl Layer for MaxPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor, _cx: &Ctx) -> Tensor {
        x.max_pool2d(self.0).0
    }
}

/// The mean of each window of `[n, c, h, w]`; accumulates in f32.
#[derive(Clone, Copy, Debug)]
pub struct AvgPool2d(graph::Pool2d);

impl AvgPool2d {
    /// Windows side by side.
    pub fn new(kernel: impl Into<Size2d>) -> AvgPool2d {
        AvgPool2d::with(kernel, PoolOptions::default())
    }

    /// With options.
    pub fn with(kernel: impl Into<Size2d>, options: PoolOptions) -> AvgPool2d {
        AvgPool2d(attributes(kernel.into(), options))
    }
}

impl Layer for AvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor, _cx: &Ctx) -> Tensor {
        x.avg_pool2d(self.0)
    }
}

/// The mean of each channel: `[n, c, h, w]` to `[n, c]`; accumulates in f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalAvgPool2d;

impl Layer for GlobalAvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor, _cx: &Ctx) -> Tensor {
        x.mean(&[2, 3], false)
    }
}
