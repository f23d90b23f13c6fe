//! Losses. Predictions and targets of any float dtype compute in f32 (f64 if either is f64), and so is the result.
use crate::wide;
use bimetal_tensor::{DType, Error, Label, Result, Shape, Tensor};

/// What becomes of the losses of single items.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// Their mean over all items that count, a scalar; 0 if none does.
    #[default]
    Mean,
    /// Their sum, a scalar.
    Sum,
    /// They are returned as they are.
    None,
}

/// What can be chosen about an element-wise loss.
#[derive(Clone, Debug, Default)]
pub struct LossOptions {
    /// Mean, sum or all.
    pub reduction: Reduction,
    /// Weights of items, Bool or float, whose shape is that of the predictions or their leading axes: `[n]` weighs the rows of a padded batch. Items of
    /// weight 0 do not count, even if they are not finite.
    pub weights: Option<Tensor>,
}

/// What can be chosen about [`cross_entropy_with`].
#[derive(Clone, Debug)]
pub struct CrossEntropyOptions {
    /// Items with this target do not count.
    pub ignore_index: i64,
    /// The share of the target that is spread evenly over all classes (Szegedy et al. 2016), in `[0, 1]`.
    pub label_smoothing: f64,
    /// Mean, sum or all.
    pub reduction: Reduction,
    /// Weights of items, Bool or float, whose shape is that of the targets or their leading axes. Items of weight 0 do not count.
    pub weights: Option<Tensor>,
}

impl Default for CrossEntropyOptions {
    fn default() -> CrossEntropyOptions {
        CrossEntropyOptions {
            ignore_index: -100,
            label_smoothing: 0.0,
            reduction: Reduction::Mean,
            weights: None,
        }
    }
}

/// The mean cross-entropy of logits `[.., classes]` with class indices `[..]` (I32 or I64); targets of -100 do not count.
#[track_caller]
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Tensor {
    cross_entropy_with(logits, targets, CrossEntropyOptions::default())
}

/// As [`cross_entropy`], with options. A weighted mean is divided by the sum of the weights that count.
#[track_caller]
pub fn cross_entropy_with(
    logits: &Tensor,
    targets: &Tensor,
    options: CrossEntropyOptions,
) -> Tensor {
    let run = || {
        let (found, items) = (logits.shape()?, targets.shape()?);
        if found.rank() == 0 || found[..found.rank() - 1] != items[..] {
            return Err(Error::shape(
                "cross_entropy",
                &[found, items],
                "expected logits [.., classes] and class indices [..]",
            ));
        }
        if found[found.rank() - 1] == 0 {
            return Err(Error::shape(
                "cross_entropy",
                &[found],
                "the logits have no classes: expected [.., classes] with at least one",
            ));
        }
        let ignore = options.ignore_index as f64;
        let inside = wide(logits.dtype());
        let mut targets = targets.clone();
        let mut weight = None;
        if let Some(w) = &options.weights {
            let w = leading("cross_entropy", w, &items, inside)?;
            targets = w.ne(0.0).select(&targets, ignore);
            weight = Some(w);
        }
        let counts = targets.ne(ignore).cast(inside);
        let weight = match weight {
            Some(w) => w * counts,
            None => counts,
        };
        let classes = found[found.rank() - 1] as isize;
        let rows = logits.reshape(&[-1, classes]).cross_entropy_rows(
            &targets.reshape(&[-1]),
            options.ignore_index,
            options.label_smoothing,
        );
        let all: Vec<isize> = items.iter().map(|&d| d as isize).collect();
        let rows = match options.weights {
            Some(_) => rows.reshape(&all) * &weight,
            None => rows.reshape(&all),
        };
        Ok(match options.reduction {
            Reduction::None => rows,
            Reduction::Sum => rows.sum_all(),
            Reduction::Mean => over(rows.sum_all(), weight.sum_all()),
        })
    };
    Label::located(|| run().unwrap_or_else(Tensor::invalid))
}

/// The mean squared error of predictions and targets of one shape.
#[track_caller]
pub fn mse(prediction: &Tensor, target: &Tensor) -> Tensor {
    mse_with(prediction, target, LossOptions::default())
}

/// As [`mse`], with options.
#[track_caller]
pub fn mse_with(prediction: &Tensor, target: &Tensor, options: LossOptions) -> Tensor {
    elementwise("mse", prediction, target, options, |p, t| (p - t).square())
}

/// The mean absolute error of predictions and targets of one shape.
#[track_caller]
pub fn l1(prediction: &Tensor, target: &Tensor) -> Tensor {
    l1_with(prediction, target, LossOptions::default())
}

/// As [`l1`], with options.
#[track_caller]
pub fn l1_with(prediction: &Tensor, target: &Tensor, options: LossOptions) -> Tensor {
    elementwise("l1", prediction, target, options, |p, t| (p - t).abs())
}

/// The mean Huber loss (Huber 1964): half the squared error up to `delta`, linear beyond, as PyTorch's `huber_loss`.
#[track_caller]
pub fn huber(prediction: &Tensor, target: &Tensor, delta: f64) -> Tensor {
    huber_with(prediction, target, delta, LossOptions::default())
}

/// As [`huber`], with options.
#[track_caller]
pub fn huber_with(
    prediction: &Tensor,
    target: &Tensor,
    delta: f64,
    options: LossOptions,
) -> Tensor {
    elementwise("huber", prediction, target, options, |p, t| {
        let d = p - t;
        // d^2 / 2 of the part up to delta, and the rest times delta.
        let near = d.clamp(-delta, delta);
        near.square() * 0.5 + (d - &near).abs() * delta
    })
}

/// The mean binary cross-entropy of logits with targets in `[0, 1]`, both of one shape; exact for logits of any size.
#[track_caller]
pub fn bce_with_logits(logits: &Tensor, target: &Tensor) -> Tensor {
    bce_with_logits_with(logits, target, LossOptions::default())
}

/// As [`bce_with_logits`], with options.
#[track_caller]
pub fn bce_with_logits_with(logits: &Tensor, target: &Tensor, options: LossOptions) -> Tensor {
    // -log sigmoid(x) = softplus(-x): neither term cancels, and both have sigmoids as gradients.
    elementwise("bce_with_logits", logits, target, options, |x, t| {
        &t * (-&x).softplus() + (1.0 - &t) * x.softplus()
    })
}

#[track_caller]
fn elementwise(
    op: &'static str,
    prediction: &Tensor,
    target: &Tensor,
    options: LossOptions,
    f: impl FnOnce(Tensor, Tensor) -> Tensor,
) -> Tensor {
    let run = || {
        let found = [prediction.shape()?, target.shape()?];
        if found[0] != found[1] {
            return Err(Error::shape(
                op,
                &found,
                "prediction and target must have one shape; use `reshape` or `broadcast_to`",
            ));
        }
        let inside = wide(DType::promote(prediction.dtype(), target.dtype()));
        let (p, t) = (prediction.cast(inside), target.cast(inside));
        let Some(w) = &options.weights else {
            let losses = f(p, t);
            return Ok(match options.reduction {
                Reduction::None => losses,
                Reduction::Sum => losses.sum_all(),
                Reduction::Mean => losses.mean_all(),
            });
        };
        let w = leading(op, w, &found[0], inside)?;
        // What does not count is taken out before the loss: behind it, 0 times the derivative of something not finite would be NaN.
        let counts = w.ne(0.0);
        let losses = f(counts.select(p, 0.0), counts.select(t, 0.0)) * &w;
        Ok(match options.reduction {
            Reduction::None => losses,
            Reduction::Sum => losses.sum_all(),
            Reduction::Mean => over(losses.sum_all(), w.sum_all()),
        })
    };
    Label::located(|| run().unwrap_or_else(Tensor::invalid))
}

/// Weights of the leading axes of `shape`, broadcast to it.
fn leading(op: &'static str, weights: &Tensor, shape: &Shape, dtype: DType) -> Result<Tensor> {
    let found = weights.shape()?;
    if found.rank() > shape.rank() || found[..] != shape[..found.rank()] {
        return Err(Error::shape(
            op,
            &[found, *shape],
            "the weights' shape must be that of the items or their leading axes",
        ));
    }
    let mut w = weights.cast(dtype);
    for _ in found.rank()..shape.rank() {
        w = w.unsqueeze(-1);
    }
    Ok(w.broadcast_to(shape))
}

/// A total over a count that is data; nothing that counts gives 0.
fn over(total: Tensor, count: Tensor) -> Tensor {
    total / count.eq(0.0).select(1.0, &count)
}
