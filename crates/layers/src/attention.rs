//! Multi-head attention.
use crate::dropout::check_rate;
use crate::float8::Product;
use crate::{Ctx, Init, Layer, Linear, LinearOptions, Param, Scope, Site};
use bimetal_tensor::graph::{AttentionSpec, Attr, DropoutSpec};
use bimetal_tensor::{Error, Result, Tensor};

/// Multi-head attention (Vaswani et al. 2017): `[batch, time, width]` to the same; softmax in f32. Parameters: `in_proj_weight` `[3 width, width]` with the projections to
/// queries, keys and values one below the other, `in_proj_bias` `[3 width]`, `out_proj.weight` `[width, width]`, `out_proj.bias` `[width]`.
///
/// [`Layer::forward`] is self-attention without a mask; [`MultiHeadAttention::attend`] takes a memory and a mask.
pub struct MultiHeadAttention {
    site: Site,
    weight: Param,
    bias: Option<Param>,
    product: Product,
    out: Linear,
    width: usize,
    heads: usize,
    options: MultiHeadAttentionOptions,
}

/// What can be chosen about [`MultiHeadAttention`].
#[derive(Clone, Copy, Debug)]
pub struct MultiHeadAttentionOptions {
    /// Whether a query sees earlier keys only: query `i` of `tq` sees keys up to `i + tk - tq`.
    pub causal: bool,
    /// The probability with which training drops an attention weight.
    pub dropout: f64,
    /// Whether projections have biases.
    pub bias: bool,
    /// Initial values of the packed projection.
    pub in_init: Init,
    /// Initial values of the output projection's weight.
    pub out_init: Init,
}

impl Default for MultiHeadAttentionOptions {
    fn default() -> MultiHeadAttentionOptions {
        MultiHeadAttentionOptions {
            causal: false,
            dropout: 0.0,
            bias: true,
            in_init: Init::XavierUniform { gain: 1.0 },
            out_init: Init::torch_default(),
        }
    }
}

impl MultiHeadAttention {
    /// With biases, not causal, without dropout.
    #[track_caller]
    pub fn new(scope: &Scope, width: usize, heads: usize) -> MultiHeadAttention {
        MultiHeadAttention::with(scope, width, heads, MultiHeadAttentionOptions::default())
    }

    /// With options. `heads` must divide `width`. Biases start as 0; other initial values are PyTorch's unless chosen.
    #[track_caller]
    pub fn with(
        scope: &Scope,
        width: usize,
        heads: usize,
        options: MultiHeadAttentionOptions,
    ) -> MultiHeadAttention {
        let mut site = scope.site();
        if heads == 0 || !width.is_multiple_of(heads) {
            let detail = format!("a width of {width} does not split into {heads} equal heads");
            let e = Error::argument("multi_head_attention", detail);
            site = site.broken(scope.store().mistake(e));
        }
        if let Err(e) = check_rate(options.dropout) {
            site = site.broken(scope.store().mistake(e));
        }
        let out = LinearOptions {
            bias: options.bias,
            weight_init: options.out_init,
            bias_init: Some(Init::Zeros),
        };
        MultiHeadAttention {
            site,
            weight: scope.param("in_proj_weight", &[3 * width, width], options.in_init),
            bias: match options.bias {
                true => Some(scope.param("in_proj_bias", &[3 * width], Init::Zeros)),
                false => None,
            },
            product: Product::new(scope, "in_proj"),
            out: Linear::with(&scope.at("out_proj"), width, width, out),
            width,
            heads,
            options,
        }
    }

    /// Attention of `x` `[batch, tq, width]` on `memory` `[batch, tk, width]` (`None`: on itself). `key_mask` `[batch, tk]` (Bool) is true where a key takes part; a
    /// query that sees none gives the output projection's bias.
    #[track_caller]
    pub fn attend(
        &self,
        x: &Tensor,
        memory: Option<&Tensor>,
        key_mask: Option<&Tensor>,
        cx: &Ctx,
    ) -> Tensor {
        self.site.run(cx, || {
            let mixed = self.mix(x, memory, key_mask, cx)?;
            Ok(self.site.output(&self.out.forward(&mixed, cx)))
        })
    }

    /// All but the output projection.
    fn mix(
        &self,
        x: &Tensor,
        memory: Option<&Tensor>,
        key_mask: Option<&Tensor>,
        cx: &Ctx,
    ) -> Result<Tensor> {
        self.check(x)?;
        let x = self.site.input(x);
        let parts = match memory {
            None => self.project(&x, 0, 3, cx)?.split(3, -1),
            Some(memory) => {
                self.check(memory)?;
                let memory = self.site.input(memory);
                let mut parts = vec![self.project(&x, 0, 1, cx)?];
                parts.extend(self.project(&memory, 1, 2, cx)?.split(2, -1));
                parts
            }
        };
        let heads = |i: usize| parts[i].unflatten(-1, &[self.heads as isize, -1]);
        let (dropout, step) = self.dropout(cx);
        let spec = AttentionSpec {
            scale: Attr(1.0 / ((self.width / self.heads) as f64).sqrt()),
            causal: self.options.causal,
            key_mask: key_mask.is_some(),
            dropout,
        };
        let y = heads(0).attention(&heads(1), &heads(2), key_mask, step.as_ref(), spec);
        Ok(y.flatten(2..=3))
    }

    /// `count` of the three packed projections, from number `first`: `[b, t, width]` to `[b, t, count width]`.
    fn project(&self, x: &Tensor, first: usize, count: usize, cx: &Ctx) -> Result<Tensor> {
        let rows = |t: Tensor| t.narrow(0, first * self.width, count * self.width);
        let weight = rows(self.weight.read());
        let y = self.product.of(&self.site, x, &self.weight, weight, cx)?;
        Ok(match &self.bias {
            Some(bias) => y + rows(bias.compute()),
            None => y,
        })
    }

    fn dropout(&self, cx: &Ctx) -> (Option<DropoutSpec>, Option<Tensor>) {
        if !cx.training() || self.options.dropout == 0.0 {
            return (None, None);
        }
        let spec = DropoutSpec {
            rate: Attr(self.options.dropout),
            key: cx.random_key(),
        };
        (Some(spec), Some(cx.step()))
    }

    fn check(&self, x: &Tensor) -> Result<()> {
        let found = x.shape()?;
        if found.rank() == 3 && found[2] == self.width {
            return Ok(());
        }
        Err(Error::shape(
            "multi_head_attention",
            &[found],
            format!(
                "expected [batch, time, {w}]: the layer was built with width {w} at {}",
                self.site.built(),
                w = self.width
            ),
        ))
    }
}

impl Layer for MultiHeadAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.attend(x, None, None, cx)
    }
}
