//! The product of a linear layer, in the compute dtype or in 8-bit floats.
use crate::{Ctx, Param, Scope, Site};
use bimetal_precision::{F8Histories, F8Recipe, amax, f8_linear};
use bimetal_tensor::{Result, Tensor};

/// How a layer multiplies by a weight `[outputs, inputs]`.
pub(crate) enum Product {
    /// In the compute dtype.
    Plain,
    /// In 8-bit floats.
    F8 {
        recipe: F8Recipe,
        /// Largest magnitudes of the input, the weight, and the gradient of the result, under delayed scaling.
        histories: Option<[Param; 3]>,
    },
}

impl Product {
    /// As the policy of `scope` says. Histories are named after the layer's path and `name`.
    #[track_caller]
    pub fn new(scope: &Scope, name: &str) -> Product {
        let Some(recipe) = scope.f8_recipe() else {
            return Product::Plain;
        };
        let place = match name {
            "" => scope.clone(),
            name => scope.at(name),
        };
        let history = |steps| ["x", "weight", "grad"].map(|of| place.history(of, steps));
        let histories = recipe.history().map(history);
        Product::F8 { recipe, histories }
    }

    /// `x weight^T`, where `weight` is `param` or some rows of it, as it is stored. Training notes the largest magnitudes.
    #[track_caller]
    pub fn of(
        &self,
        site: &Site,
        x: &Tensor,
        param: &Param,
        weight: Tensor,
        cx: &Ctx,
    ) -> Result<Tensor> {
        let Product::F8 { recipe, histories } = self else {
            return Ok(site.matmul(x, &weight.cast(param.compute_dtype()).t()));
        };
        let read = match histories {
            None => None,
            Some([hx, hw, hg]) => {
                if cx.training() {
                    cx.record_amax(hx.slot()?, &amax(x));
                    cx.record_amax(hw.slot()?, &amax(&weight));
                }
                Some(F8Histories {
                    x: hx.read(),
                    weight: hw.read(),
                    grad: hg.read(),
                })
            }
        };
        Ok(f8_linear(
            x,
            &weight,
            *recipe,
            read.as_ref(),
            param.compute_dtype(),
        ))
    }
}
