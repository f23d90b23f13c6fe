//! What every layer keeps about itself.
use crate::Ctx;
use bimetal_precision::Policy;
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::{DType, Error, Label, Result, Tensor};
use std::panic::Location;
use std::sync::Arc;

/// Where a layer stands and how it computes: its path, its policy, and the source line that built it. Layers of a user's own take one from
/// [`crate::Scope::site`] and run their forward pass in it.
#[derive(Clone)]
pub struct Site {
    path: Arc<str>,
    policy: Policy,
    precision: MatmulPrecision,
    built: &'static Location<'static>,
    error: Option<Error>,
}

impl Site {
    #[track_caller]
    pub(crate) fn new(
        path: Arc<str>,
        policy: Policy,
        precision: MatmulPrecision,
        error: Option<Error>,
    ) -> Site {
        Site {
            path,
            policy,
            precision,
            built: Location::caller(),
            error,
        }
    }

    /// This site of a layer that cannot be used, because of a mistake in how it was built.
    pub(crate) fn broken(mut self, error: Error) -> Site {
        self.error.get_or_insert(error);
        self
    }

    /// The layer's path.
    pub fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// The layer's policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// How the layer multiplies f32 operands.
    pub fn matmul_precision(&self) -> MatmulPrecision {
        self.precision
    }

    /// The matrix product, in the layer's precision if the operands are f32; see [`Tensor::matmul`].
    #[track_caller]
    pub fn matmul(&self, a: &Tensor, b: &Tensor) -> Tensor {
        a.matmul_with(b, self.precision, None)
    }

    /// The source line that built the layer.
    pub fn built(&self) -> &'static Location<'static> {
        self.built
    }

    /// Builds the layer's result in `f`: errors inside name this layer, and the source line that called.
    #[track_caller]
    pub fn run(&self, cx: &Ctx, f: impl FnOnce() -> Result<Tensor>) -> Tensor {
        self.within(cx, f).unwrap_or_else(Tensor::invalid)
    }

    /// As [`Site::run`], for layers with several results.
    #[track_caller]
    pub fn within<R>(&self, cx: &Ctx, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let _path = cx.at(&self.path);
        match &self.error {
            Some(e) => Err(e.clone()),
            None => Label::located(f),
        }
    }

    /// An input as the layer computes with it: floats in [`Policy::compute_dtype`], everything else as it is.
    #[track_caller]
    pub fn input(&self, x: &Tensor) -> Tensor {
        as_float(x, self.policy.compute_dtype())
    }

    /// A result as the layer returns it: floats in the output dtype, everything else as it is.
    #[track_caller]
    pub fn output(&self, y: &Tensor) -> Tensor {
        as_float(y, self.policy.output)
    }
}

#[track_caller]
fn as_float(x: &Tensor, dtype: DType) -> Tensor {
    if x.dtype().is_float() {
        x.cast(dtype)
    } else {
        x.clone()
    }
}
