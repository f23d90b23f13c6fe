//! Embeddings.
use crate::{Ctx, Init, Layer, Linear, Param, Scope, Site};
use bimetal_tensor::{DType, Error, Tensor};

/// Rows of a table by index: I32 or I64 `[..]` to `[.., width]`. The table `weight` `[rows, width]` stays in the parameter dtype; rows are cast after they are
/// looked up, and their gradients are added in f32.
pub struct Embedding {
    site: Site,
    weight: Param,
    padding: Option<usize>,
}

/// What can be chosen about an [`Embedding`].
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingOptions {
    /// A row that starts as zeros and gets no gradient.
    pub padding_idx: Option<usize>,
    /// The table's initial values; standard normal unless chosen, as PyTorch.
    pub init: Init,
}

impl Default for EmbeddingOptions {
    fn default() -> EmbeddingOptions {
        EmbeddingOptions {
            padding_idx: None,
            init: Init::Normal {
                mean: 0.0,
                std: 1.0,
            },
        }
    }
}

impl Embedding {
    /// A table of `rows` rows, standard normal.
    #[track_caller]
    pub fn new(scope: &Scope, rows: usize, width: usize) -> Embedding {
        Embedding::with(scope, rows, width, EmbeddingOptions::default())
    }

    /// With options.
    #[track_caller]
    pub fn with(scope: &Scope, rows: usize, width: usize, options: EmbeddingOptions) -> Embedding {
        let mut site = scope.site();
        let weight = scope.param("weight", &[rows, width], options.init);
        match options.padding_idx {
            None => {}
            Some(p) if p >= rows => {
                let e = Error::argument(
                    "embedding",
                    format!("padding_idx {p} is not among the {rows} rows"),
                );
                site = site.broken(scope.store().mistake(e));
            }
            Some(p) => {
                let row = Tensor::arange(rows, scope.store().device()).unsqueeze(-1);
                let zeroed = row.eq(p as f64).select(0.0, weight.read());
                if let Err(e) = weight.set(&zeroed) {
                    site = site.broken(scope.store().mistake(e));
                }
            }
        }
        Embedding {
            site,
            weight,
            padding: options.padding_idx,
        }
    }

    /// The table `[rows, width]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The output projection `[.., width]` to `[.., rows]` on the same table (Press and Wolf 2017).
    #[track_caller]
    pub fn projection(&self, scope: &Scope) -> Linear {
        Linear::tied(scope, &self.weight)
    }
}

impl Layer for Embedding {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.site.run(cx, || {
            if !matches!(x.check()?.dtype(), DType::I32 | DType::I64) {
                return Err(Error::dtype(
                    "embedding",
                    &[x.dtype()],
                    "expected row numbers, I32 or I64",
                ));
            }
            let mut y = self.weight.read().take(x, 0);
            if let Some(p) = self.padding {
                let padding = x.eq(p as f64).unsqueeze(-1);
                y = padding.select(y.detach(), y);
            }
            Ok(self.site.output(&self.site.input(&y)))
        })
    }
}
