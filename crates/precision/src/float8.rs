//! Products in 8-bit floats with a scale per tensor.
//!
//! As in NVIDIA's Transformer Engine and Micikevicius et al. 2022, "FP8 Formats for Deep Learning": values go forward in `F8E4M3`, gradients go
//! back in `F8E5M2`. A tensor is multiplied by a scale that brings its largest magnitude (*amax*) to the end of the format's range, cast
//! (saturating), multiplied with f32 accumulation, and the product is divided by the scales before it is rounded.
use bimetal_tensor::graph::{CustomOp, IdSet, Op};
use bimetal_tensor::plan::Meta;
use bimetal_tensor::{CastMode, DType, Error, Result, Shape, Slot, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the scales of 8-bit products come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct F8Recipe {
    /// Which magnitudes a scale looks at.
    pub scaling: F8Scaling,
    /// Scales are `2^margin` smaller than what the magnitudes allow, so that values may grow before they saturate.
    pub margin: u32,
}

/// Which magnitudes a scale of an 8-bit tensor looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum F8Scaling {
    /// Those of earlier steps, so that a tensor is read once. A value above all of them saturates.
    Delayed {
        /// How many steps are remembered, at least 1.
        history: usize,
        /// Which of them counts.
        amax: AmaxOf,
    },
    /// That of the tensor itself, which is read once more for it.
    Current,
}

/// Which of the remembered largest magnitudes counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AmaxOf {
    /// The largest of all.
    History,
    /// The one of the step before.
    MostRecent,
}

/// Delayed scaling by the largest of 1024 steps, without margin: Transformer Engine's default.
impl Default for F8Recipe {
    fn default() -> F8Recipe {
        F8Recipe {
            scaling: F8Scaling::Delayed {
                history: 1024,
                amax: AmaxOf::History,
            },
            margin: 0,
        }
    }
}

impl F8Recipe {
    /// Scales by the tensors themselves, without margin.
    pub const fn current() -> F8Recipe {
        F8Recipe {
            scaling: F8Scaling::Current,
            margin: 0,
        }
    }

    /// An error if a history remembers nothing, or the margin is beyond what the formats can give.
    pub fn check(&self) -> Result<()> {
        if let F8Scaling::Delayed { history: 0, .. } = self.scaling {
            return Err(Error::argument(
                "f8_recipe",
                "a history of 0 steps remembers nothing; expected at least 1",
            ));
        }
        if self.margin > 16 {
            return Err(Error::argument(
                "f8_recipe",
                format!(
                    "a margin of {} leaves no values; expected a small power of two, 0 to 16",
                    self.margin
                ),
            ));
        }
        Ok(())
    }

    /// The number of steps remembered, if any.
    pub fn history(&self) -> Option<usize> {
        match self.scaling {
            F8Scaling::Delayed { history, .. } => Some(history),
            F8Scaling::Current => None,
        }
    }

    /// The scale (f32 scalar) of tensors of `format` whose largest magnitude is `amax` (f32 scalar): `largest / amax / 2^margin`.
    ///
    /// 1 if `amax` is 0 or not finite; always finite and positive, with a finite inverse.
    pub fn scale(&self, amax: &Tensor, format: DType) -> Tensor {
        let amax = amax.cast(DType::F32).detach();
        let usable = amax.gt(0.0).logical_and(amax.is_finite());
        let target = largest(format) / f64::from(1u32 << self.margin.min(16));
        // Of two scales beyond these limits the inverse would be subnormal.
        let limit = 2f64.powi(126);
        let scale = (target / amax).clamp(1.0 / limit, limit);
        usable.select(scale, 1.0)
    }

    /// The scale that a history `[steps]` of largest magnitudes, newest first, asks for.
    fn scale_of_history(&self, history: &Tensor, format: DType) -> Tensor {
        let amax = match self.scaling {
            F8Scaling::Delayed {
                amax: AmaxOf::MostRecent,
                ..
            } => history.narrow(0, 0, 1).reshape(&[]),
            _ => history.max(&[0], false),
        };
        self.scale(&amax, format)
    }

    fn bits(&self) -> Vec<u64> {
        let (kind, history) = match self.scaling {
            F8Scaling::Current => (0, 0),
            F8Scaling::Delayed { history, amax } => (1 + amax as u64, history as u64),
        };
        vec![kind, history, u64::from(self.margin)]
    }
}

/// The largest finite value of an 8-bit format.
fn largest(format: DType) -> f64 {
    match format {
        DType::F8E4M3 => 448.0,
        _ => 57344.0,
    }
}

/// The largest magnitude in `x` (f32 scalar, no gradient): NaN if there is one.
pub fn amax(x: &Tensor) -> Tensor {
    x.detach().abs().max(&[], false).cast(DType::F32)
}

/// A history `[steps]` after a step in which `amax` (f32 scalar) was seen: `amax` first, the oldest entry dropped. `pending` is what the same step has
/// made of the history before (another use of the layer, an earlier micro-batch): the step's entry is the larger of both. What is not finite
/// counts as 0, so that a history never forgets what finite values are like.
pub fn roll_amax(history: &Tensor, pending: Option<&Tensor>, amax: &Tensor) -> Tensor {
    Tensor::build(|| {
        let [steps] = history.dims()?;
        let amax = amax.cast(DType::F32);
        let mut newest = amax.is_finite().select(&amax, 0.0).reshape(&[1]);
        if let Some(pending) = pending {
            newest = newest.maximum(pending.narrow(0, 0, 1));
        }
        Ok(match steps {
            0 | 1 => newest,
            _ => Tensor::concat(&[&newest, &history.narrow(0, 0, steps - 1)], 0),
        })
    })
}

/// The histories of a product under delayed scaling, as they are in the graph: reads of slots, each f32 `[steps]`, newest first.
#[derive(Clone, Debug)]
pub struct F8Histories {
    /// Of the input.
    pub x: Tensor,
    /// Of the weight.
    pub weight: Tensor,
    /// Of the gradient of the result. It must be the read of a slot: [`crate::Grads::amax`] names it.
    pub grad: Tensor,
}

/// The product `x weight^T` in 8-bit floats: `x` `[.., inputs]`, `weight` `[outputs, inputs]`, the result `[.., outputs]` in `out`.
///
/// Both operands are scaled by `recipe`, cast to `F8E4M3` and multiplied with f32 accumulation; the product is divided by both scales and rounded once. Backward,
/// the gradient of the result is scaled and cast to `F8E5M2`, and both of its products take the 8-bit operands, which are all that is kept of the forward
/// pass. Gradients of `x` and `weight` arrive in their own dtypes. A value that is not finite becomes NaN, so that nothing hides it.
///
/// `histories` are needed by delayed scaling, and only by it. The result carries no update of them: give [`amax`] of the operands to
/// [`roll_amax`]; the largest magnitude of the gradient is in [`crate::Grads::amax`].
#[track_caller]
pub fn f8_linear(
    x: &Tensor,
    weight: &Tensor,
    recipe: F8Recipe,
    histories: Option<&F8Histories>,
    out: DType,
) -> Tensor {
    Tensor::build(|| {
        recipe.check()?;
        x.check()?;
        weight.check()?;
        let forward = |t: &Tensor, history: Option<&Tensor>| match history {
            Some(h) => recipe.scale_of_history(h, DType::F8E4M3),
            None => recipe.scale(&amax(t), DType::F8E4M3),
        };
        let histories = match (recipe.history(), histories) {
            (Some(_), None) => {
                return Err(Error::argument(
                    "f8_linear",
                    "delayed scaling needs the histories of the operands; give them, or use `F8Recipe::current()`",
                ));
            }
            (Some(_), given) => given,
            (None, _) => None,
        };
        let (sx, sw) = (
            forward(x, histories.map(|h| &h.x)),
            forward(weight, histories.map(|h| &h.weight)),
        );
        let mut inputs = vec![x, weight, &sx, &sw];
        inputs.extend(histories.map(|h| &h.grad));
        Ok(Tensor::custom(Arc::new(Linear { recipe, out }), &inputs))
    })
}

/// `x` times `scale` in `format`. Saturating would hide an infinity.
fn quantize(x: &Tensor, scale: &Tensor, format: DType) -> Tensor {
    let wide = x.cast(DType::F32);
    wide.is_finite()
        .select(&wide * scale, f64::NAN)
        .cast_with(format, CastMode::Saturating)
}

/// All axes but the last as one.
fn rows(t: &Tensor) -> Tensor {
    match t.rank() {
        Ok(2) => t.clone(),
        Ok(1) => t.unsqueeze(0),
        Ok(n) => t.flatten(0..=n as isize - 2),
        Err(e) => Tensor::invalid(e),
    }
}

fn like(t: &Tensor, shape: Shape) -> Tensor {
    let dims: Vec<isize> = shape.iter().map(|&d| d as isize).collect();
    t.reshape(&dims)
}

/// Inputs: x, weight, their scales, and the history of the gradient if there is one. Results: the product, x and weight in 8 bits.
struct Linear {
    recipe: F8Recipe,
    out: DType,
}

const LINEAR: &str = "f8_linear";
const GRADIENT: &str = "f8_gradient";
/// Whether there has ever been a gradient of 8-bit products: where there has not, no graph needs to be searched for them.
static MADE: AtomicBool = AtomicBool::new(false);

impl CustomOp for Linear {
    fn name(&self) -> &'static str {
        LINEAR
    }

    fn attributes(&self) -> Vec<u64> {
        let mut bits = self.recipe.bits();
        bits.push(self.out as u64);
        bits
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Vec<Meta>> {
        let (x, w) = (inputs[0], inputs[1]);
        if !x.dtype.is_float() || !w.dtype.is_float() || !self.out.is_float() {
            return Err(Error::dtype(
                LINEAR,
                &[x.dtype, w.dtype, self.out],
                "expected floats; use `cast`",
            ));
        }
        let rank = x.shape.rank();
        if rank == 0 || w.shape.rank() != 2 || x.shape[rank - 1] != w.shape[1] {
            return Err(Error::shape(
                LINEAR,
                &[x.shape, w.shape],
                "expected x [.., inputs] and weight [outputs, inputs]",
            ));
        }
        if let Some(h) = inputs.get(4)
            && (h.shape.rank() != 1 || h.shape[0] == 0)
        {
            return Err(Error::shape(
                LINEAR,
                &[h.shape],
                "expected a history [steps] of at least one step",
            ));
        }
        let f8 = DType::F8E4M3;
        let meta = |shape, dtype| Meta { shape, dtype };
        Ok(vec![
            meta(x.shape.with(rank - 1, w.shape[0]), self.out),
            meta(x.shape, f8),
            meta(w.shape, f8),
        ])
    }

    fn decompose(&self, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
        let [x, w, sx, sw] = [0, 1, 2, 3].map(|i| &inputs[i]);
        let (qx, qw) = (
            quantize(x, sx, DType::F8E4M3),
            quantize(w, sw, DType::F8E4M3),
        );
        let y = rows(&qx).matmul(&qw.t()) * sx.recip() * sw.recip();
        let y = Tensor::build(|| {
            let xs = x.shape()?;
            Ok(like(&y, xs.with(xs.rank() - 1, w.shape()?[0])))
        });
        Some(vec![y.cast(self.out), qx, qw])
    }

    fn vjp(
        &self,
        inputs: &[Tensor],
        outputs: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> Option<Vec<Option<Tensor>>> {
        let [x, w, sx, sw] = [0, 1, 2, 3].map(|i| &inputs[i]);
        let (qx, qw) = (&outputs[1], &outputs[2]);
        // Second derivatives reach the 8-bit operands: rounding counts as the identity.
        let through = |i: usize, s: &Tensor| grads[i].as_ref().map(|g| g.cast(DType::F32) * s);
        let (mut dx, mut dw) = (through(1, sx), through(2, sw));
        if let Some(dy) = &grads[0] {
            let mut operands = vec![dy];
            operands.extend(inputs.get(4));
            let recipe = self.recipe;
            MADE.store(true, Ordering::Relaxed);
            let q = Tensor::custom(Arc::new(Gradient { recipe }), &operands);
            let (dy, inverse) = (rows(&q.output(0)), q.output(1));
            let plus = |t: Tensor, more: Option<Tensor>| match more {
                Some(m) => Some(t + m),
                None => Some(t),
            };
            let back = dy.matmul(qw) * &inverse * sw.recip();
            let back = Tensor::build(|| Ok(like(&back, x.shape()?)));
            dx = plus(back, dx);
            dw = plus(dy.t().matmul(&rows(qx)) * &inverse * sx.recip(), dw);
        }
        let own = |g: Option<Tensor>, t: &Tensor| g.map(|g| g.cast(carrier(t.dtype())));
        let mut result = vec![own(dx, x), own(dw, w)];
        result.resize(inputs.len(), None);
        Some(result)
    }
}

/// The dtype in which a gradient of a value in `dtype` travels.
fn carrier(dtype: DType) -> DType {
    match dtype {
        DType::F8E4M3 | DType::F8E5M2 => DType::F32,
        d => d,
    }
}

/// A gradient on its way into 8-bit products. Inputs: the gradient, and its history under delayed scaling. Results: it in 8 bits, the inverse of
/// its scale, and its largest magnitude, for which nothing in the graph asks: [`observed`] finds it.
struct Gradient {
    recipe: F8Recipe,
}

impl CustomOp for Gradient {
    fn name(&self) -> &'static str {
        GRADIENT
    }

    fn attributes(&self) -> Vec<u64> {
        self.recipe.bits()
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Vec<Meta>> {
        let meta = |shape, dtype| Meta { shape, dtype };
        Ok(vec![
            meta(inputs[0].shape, DType::F8E5M2),
            meta(Shape::scalar(), DType::F32),
            meta(Shape::scalar(), DType::F32),
        ])
    }

    fn decompose(&self, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
        let seen = amax(&inputs[0]);
        let scale = match inputs.get(1) {
            Some(history) => self.recipe.scale_of_history(history, DType::F8E5M2),
            None => self.recipe.scale(&seen, DType::F8E5M2),
        };
        let q = quantize(&inputs[0], &scale, DType::F8E5M2);
        Some(vec![q, scale.recip(), seen])
    }

    fn vjp(
        &self,
        inputs: &[Tensor],
        outputs: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> Option<Vec<Option<Tensor>>> {
        // The scale is a constant, rounding counts as the identity.
        let g = grads[0]
            .as_ref()
            .map(|g| (g.cast(DType::F32) / &outputs[1]).cast(carrier(inputs[0].dtype())));
        let mut result = vec![g];
        result.resize(inputs.len(), None);
        Some(result)
    }
}

/// The largest magnitudes of gradients that went into 8-bit products on the way to `grads`, with the slot of each one's history. A slot comes as
/// often as its layer was used.
pub(crate) fn observed<'a>(grads: impl Iterator<Item = &'a Tensor>) -> Vec<(Slot, Tensor)> {
    let mut found = Vec::new();
    if !MADE.load(Ordering::Relaxed) {
        return found;
    }
    let mut seen = IdSet::default();
    let mut stack: Vec<&Tensor> = Vec::new();
    for root in grads {
        stack.push(root);
        while let Some(t) = stack.pop() {
            if !seen.insert(t.id()) {
                continue;
            }
            if let Op::Custom(op) = t.op()
                && op.name() == GRADIENT
                && let Some(slot) = t.inputs().get(1).and_then(Tensor::slot)
            {
                found.push((slot.clone(), t.output(2)));
            }
            stack.extend(t.inputs());
        }
    }
    found
}
