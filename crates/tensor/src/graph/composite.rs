//! Composites: operations with a contract of their own (f32 inside, rounded once at the end) and a
//! mandatory decomposition into the other operations (see `decompose`). A backend may run them natively.
use super::{Attr, RandomKey};
use crate::DType;

/// [`Composite::Lstm`] keeps the cell state of one step in so many; its gradient computes the others again.
pub const LSTM_KEPT: usize = 4;

/// Dropout inside a composite.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DropoutSpec {
    /// The probability of dropping an element, in [0, 1).
    pub rate: Attr,
    /// The random stream; the applied step is an extra last input (U32 scalar).
    pub key: RandomKey,
}

/// Attributes of scaled dot-product attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttentionSpec {
    /// Factor on the scores before softmax.
    pub scale: Attr,
    /// Query `i` sees keys up to `i + tk - tq`.
    pub causal: bool,
    /// Whether an input `[batch, tk]` (Bool, true: attend) follows the others.
    pub key_mask: bool,
    /// Dropout on the probabilities.
    pub dropout: Option<DropoutSpec>,
}

/// The rule of an optimizer's update.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OptimRule {
    /// Stochastic gradient descent as PyTorch's `SGD`. One moment per parameter if `momentum`, else none.
    Sgd {
        /// Momentum buffers exist.
        momentum: bool,
        /// Nesterov's form.
        nesterov: bool,
    },
    /// Adam (Kingma and Ba 2015) with L2 decay in the gradient, or decoupled (AdamW, Loshchilov and Hutter 2019).
    Adam {
        /// Decay applies to the weight, not to the gradient.
        decoupled: bool,
    },
}

impl OptimRule {
    /// The number of moment tensors per parameter.
    pub fn moments(self) -> usize {
        match self {
            OptimRule::Sgd { momentum, .. } => momentum as usize,
            OptimRule::Adam { .. } => 2,
        }
    }
}

/// An operation that is defined by its decomposition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Composite {
    /// Softmax over the last axis: x.
    Softmax,
    /// Gradient: y, dy.
    SoftmaxGrad,
    /// Logarithm of softmax over the last axis: x.
    LogSoftmax,
    /// Gradient: y, dy.
    LogSoftmaxGrad,
    /// Normalisation over the last axis: x, gamma, beta (`[d]`) gives y, mean, rstd (f32, last axis 1).
    LayerNorm {
        /// Added to the variance.
        eps: Attr,
    },
    /// Gradient: x, gamma, mean, rstd, dy gives dx, dgamma, dbeta (gamma's dtype).
    LayerNormGrad,
    /// Normalisation over all axes but 1 of `[n, c, ..]`: x, gamma, beta (`[c]`) gives y, mean, rstd, var (f32
    /// `[c]`; var is the biased variance).
    BatchNorm {
        /// Added to the variance.
        eps: Attr,
    },
    /// Gradient: x, gamma, mean, rstd, dy gives dx, dgamma, dbeta (gamma's dtype).
    BatchNormGrad,
    /// Cross-entropy of logits `[n, c]` with class indices `[n]`: loss per row and log-sum-exp per row, f32 `[n]`
    /// (f64 for f64 logits).
    CrossEntropy {
        /// Rows with this target have loss 0 and no gradient.
        ignore_index: i64,
        /// The share of the target spread evenly over all classes.
        label_smoothing: Attr,
    },
    /// Gradient: logits, target, log-sum-exp, dloss gives dlogits.
    CrossEntropyGrad {
        /// As in `CrossEntropy`.
        ignore_index: i64,
        /// As in `CrossEntropy`.
        label_smoothing: Attr,
    },
    /// Attention: q `[b, tq, h, d]`, k, v `[b, tk, h, d]`, key mask?, step? gives y (as q) and log-sum-exp `[b, h, tq]` f32.
    /// A row without any visible key gives 0.
    Attention(AttentionSpec),
    /// Gradient: q, k, v, y, lse, dy, key mask?, step? gives dq, dk, dv.
    AttentionGrad(AttentionSpec),
    /// One LSTM step: gates `[b, 4h]` (order i, f, g, o before activation), c `[b, h]` f32 gives h (gates' dtype) and
    /// the new c (f32).
    LstmCell,
    /// Gradient: gates, c, c', dh, dc' gives dgates, dc.
    LstmCellGrad,
    /// A whole sequence: gates `[b, t, 4h]` without the recurrent part, recurrent weights `[4h, h]`, h `[b, h]` (gates' dtype) and c `[b, h]`
    /// f32 give y `[b, t, h]` and the last c; and for the gradient the gates `[b, t, 4h]` before activation and the cell state before every
    /// [`LSTM_KEPT`]th step, f32 `[b, ceil(t / LSTM_KEPT), h]`.
    Lstm,
    /// Gradient: gates before activation, weights, kept cell states, dy, dc of the last c gives dgates, dh, dc of the first.
    LstmGrad,
    /// All-finite flag (Bool scalar), sum of squares (f32 scalar), number of the first operand that is not finite
    /// (I32, -1 if none) of many tensors.
    GradStats,
    /// Where the elements of one tensor lie, looked at in f32: counts by sign and exponent (I32 `[2, EXPONENT_BINS]`; zeros and NaN with the
    /// positive numbers), how many finite ones rounding to `to` would make zero, subnormal and infinite (I32 `[3]`; zeros are in none), and of
    /// the finite ones minimum, maximum, sum, sum of magnitudes and sum of squares (F32 `[5]`; infinity and minus infinity are the extremes of nothing).
    ExponentHistogram {
        /// The dtype whose limits count.
        to: DType,
    },
    /// An optimizer's update of many parameters at once, skipped as a whole unless `apply`.
    /// Inputs: apply (Bool), lr, factor on the gradients (both f32), the count of applied steps *including* this one (f32),
    /// then per parameter: weight, gradient, moments. Outputs per parameter: weight, moments. All f32 (or f64 alike).
    OptimUpdate {
        /// The rule.
        rule: OptimRule,
        /// Momentum (SGD) or beta1 (Adam).
        beta1: Attr,
        /// beta2 (Adam); dampening (SGD).
        beta2: Attr,
        /// Added to the denominator.
        eps: Attr,
        /// The decay per unit of learning rate.
        weight_decay: Attr,
    },
}

impl Composite {
    /// Whether it is attention or its gradient, whose first three operands or results need not be dense.
    pub(crate) fn is_attention(&self) -> bool {
        matches!(self, Composite::Attention(_) | Composite::AttentionGrad(_))
    }

    /// The operation's name.
    pub fn name(&self) -> &'static str {
        use Composite::*;
        match self {
            Softmax => "softmax",
            SoftmaxGrad => "softmax_grad",
            LogSoftmax => "log_softmax",
            LogSoftmaxGrad => "log_softmax_grad",
            LayerNorm { .. } => "layer_norm",
            LayerNormGrad => "layer_norm_grad",
            BatchNorm { .. } => "batch_norm",
            BatchNormGrad => "batch_norm_grad",
            CrossEntropy { .. } => "cross_entropy",
            CrossEntropyGrad { .. } => "cross_entropy_grad",
            Attention(_) => "attention",
            AttentionGrad(_) => "attention_grad",
            LstmCell => "lstm_cell",
            LstmCellGrad => "lstm_cell_grad",
            Lstm => "lstm",
            LstmGrad => "lstm_grad",
            GradStats => "grad_stats",
            ExponentHistogram { .. } => "exponent_histogram",
            OptimUpdate { .. } => "optim_update",
        }
    }
}
