//! What the user writes: from a batch to a loss and metrics.

use std::cell::OnceCell;
use std::ops::Deref;

use bimetal_data::Batch;
use bimetal_layers::Ctx;
use bimetal_tensor::{DType, Device, Error, ErrorKind, Result, Tensor};

/// A training task: how a batch becomes a loss and metrics.
///
/// Closures `Fn(&TensorBatch, &Ctx) -> Output` are tasks. Nothing is computed in it: it builds expressions.
///
/// ```
/// use bimetal_layers::{Ctx, Layer, Linear, cross_entropy};
/// use bimetal_train::{Output, Task, TensorBatch};
///
/// /// Classification with images and class indices as a batch's two arrays.
/// struct Classify(Linear);
///
/// impl Task for Classify {
///     fn training_step(&self, batch: &TensorBatch, cx: &Ctx) -> Output {
///         let logits = self.0.forward(&batch[0], cx);
///         Output::new(cross_entropy(&logits, &batch[1])).accuracy(&logits, &batch[1])
///     }
/// }
/// ```
pub trait Task {
    /// The loss and metrics of one batch in training.
    fn training_step(&self, batch: &TensorBatch, cx: &Ctx) -> Output;

    /// The same in evaluation, where dropout is off and BatchNorm uses its statistics: what `cx` says. By default the
    /// training step with that `cx`.
    fn validation_step(&self, batch: &TensorBatch, cx: &Ctx) -> Output {
        self.training_step(batch, cx)
    }
}

impl<F: Fn(&TensorBatch, &Ctx) -> Output> Task for F {
    fn training_step(&self, batch: &TensorBatch, cx: &Ctx) -> Output {
        self(batch, cx)
    }
}

/// A batch on the device: its arrays are `batch[0]`, `batch[1]`, ..., each `[rows, ...]`.
#[derive(Debug)]
pub struct TensorBatch {
    tensors: Vec<Tensor>,
    rows: usize,
    valid: usize,
    device: Device,
    mask: OnceCell<Tensor>,
}

impl TensorBatch {
    /// Copies a batch's arrays to the device; dtypes stay as they are.
    pub fn upload(batch: &Batch, device: &Device) -> TensorBatch {
        let upload =
            |a: &bimetal_data::Array| Tensor::from_bytes(a.bytes(), a.shape(), a.dtype(), device);
        TensorBatch {
            tensors: batch.arrays.iter().map(upload).collect(),
            rows: batch.size,
            valid: batch.valid,
            device: device.clone(),
            mask: OnceCell::new(),
        }
    }

    /// Rows of each array, padding included.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that are samples; the others, at the end, are padding.
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// Bool `[rows]`: true for samples, false for padding. Losses and metrics given per row are masked without it.
    pub fn mask(&self) -> &Tensor {
        self.mask.get_or_init(|| {
            let mask: Vec<bool> = (0..self.rows).map(|row| row < self.valid).collect();
            Tensor::from_slice(&mask, &[self.rows], &self.device)
        })
    }
}

impl Deref for TensorBatch {
    type Target = [Tensor];
    fn deref(&self) -> &[Tensor] {
        &self.tensors
    }
}

/// Loss and metrics of a batch.
///
/// A value is a scalar, which counts as the mean over the batch's samples, or `[rows, ...]`, one number an item: then
/// the mean is taken here, in f32, over the rows that are not padding. Over batches, means are weighted by their items.
#[derive(Clone, Debug)]
#[must_use]
pub struct Output {
    pub(super) loss: Value,
    pub(super) metrics: Vec<(String, Value)>,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Items(Tensor),
    Sum { sum: Tensor, count: Tensor },
}

impl Output {
    /// A loss: a scalar or `[rows, ...]`.
    pub fn new(loss: Tensor) -> Output {
        Output {
            loss: Value::Items(loss),
            metrics: Vec::new(),
        }
    }

    /// A loss that is `sum / count`, both scalars: where items have weights or some are ignored.
    pub fn weighted(sum: Tensor, count: Tensor) -> Output {
        Output {
            loss: Value::Sum { sum, count },
            metrics: Vec::new(),
        }
    }

    /// Adds a metric: a scalar or `[rows, ...]`, of any dtype. A name that is taken, `loss` among them, is an error of the step.
    #[track_caller]
    pub fn metric(self, name: impl Into<String>, value: Tensor) -> Output {
        self.with(name.into(), Value::Items(value))
    }

    /// Adds a metric that is `sum / count`, both scalars, over all batches. A name that is taken is an error as above.
    #[track_caller]
    pub fn metric_sum(self, name: impl Into<String>, sum: Tensor, count: Tensor) -> Output {
        self.with(name.into(), Value::Sum { sum, count })
    }

    /// Two numbers of one name would be added up to one that means nothing.
    #[track_caller]
    fn with(mut self, name: String, value: Value) -> Output {
        if name == "loss" || self.metrics.iter().any(|(taken, _)| *taken == name) {
            let detail = format!("the name `{name}` is taken; give the metric another one");
            self.loss = Value::Items(Tensor::invalid(Error::argument("metric", detail)));
            return self;
        }
        self.metrics.push((name, value));
        self
    }

    /// Adds the metric `accuracy`: how often the largest of `logits` `[rows, .., classes]` stands at the index that
    /// `targets` `[rows, ..]` names.
    #[track_caller]
    pub fn accuracy(self, logits: &Tensor, targets: &Tensor) -> Output {
        let best = logits.argmax(-1, false);
        let hits = match (best.shape(), targets.shape()) {
            // They would broadcast, to pairs that nobody meant.
            (Ok(found), Ok(expected)) if found != expected => {
                let shapes = logits.shape().into_iter().chain([expected]);
                let detail = "expected logits [.., classes] and class indices [..]";
                let shapes: Vec<_> = shapes.collect();
                Tensor::invalid(Error::shape("accuracy", &shapes, detail))
            }
            _ => best.eq(targets.cast(DType::I32)),
        };
        self.metric("accuracy", hits)
    }
}

/// A value in the numbers that its mean over many batches needs: the sum is `value * factor`.
pub(super) struct Reduced {
    pub value: Tensor,
    pub factor: f64,
    pub count: Count,
}

pub(super) enum Count {
    Known(f64),
    Of(Tensor),
}

impl Value {
    /// The mean over the batch, which is differentiated, and what it weighs.
    pub fn mean(&self, what: &str, batch: &TensorBatch) -> (Tensor, Count) {
        let items = match self {
            Value::Sum { sum, count } => {
                let count = wide(count);
                return (wide(sum) / &count, Count::Of(count));
            }
            Value::Items(items) => items,
        };
        match counted(what, items, batch) {
            Err(error) => (Tensor::invalid(error), Count::Known(0.0)),
            Ok(Counted::Mean(mean)) => (mean, Count::Known(batch.valid as f64)),
            Ok(Counted::Items(items, count)) => (items.sum_all() / count, Count::Known(count)),
        }
    }

    /// The sum over the batch and the number of items.
    pub fn sum(&self, what: &str, batch: &TensorBatch) -> Reduced {
        let reduced = |value, factor, count| Reduced {
            value,
            factor,
            count,
        };
        let valid = batch.valid as f64;
        match self {
            Value::Sum { sum, count } => reduced(wide(sum), 1.0, Count::Of(wide(count))),
            Value::Items(items) => match counted(what, items, batch) {
                Err(error) => reduced(Tensor::invalid(error), 1.0, Count::Known(0.0)),
                Ok(Counted::Mean(mean)) => reduced(mean, valid, Count::Known(valid)),
                Ok(Counted::Items(items, count)) => {
                    reduced(items.sum_all(), 1.0, Count::Known(count))
                }
            },
        }
    }

    /// Whether padding counts in it: a scalar that was made without looking at the mask.
    pub fn counts_padding(&self, batch: &TensorBatch) -> bool {
        let scalar = matches!(self, Value::Items(t) if t.rank().is_ok_and(|rank| rank == 0));
        scalar && batch.valid < batch.rows && batch.mask.get().is_none()
    }
}

enum Counted {
    Mean(Tensor),
    /// One number an item, 0 for padding, and the number of items that are not padding.
    Items(Tensor, f64),
}

fn counted(what: &str, items: &Tensor, batch: &TensorBatch) -> Result<Counted> {
    let shape = items.shape()?;
    let Some(&rows) = shape.first() else {
        return Ok(Counted::Mean(wide(items)));
    };
    if rows != batch.rows {
        let detail = format!(
            "expected the {what} as a scalar or with one row for each of the {} rows of the batch; reduce it with `mean_all`",
            batch.rows
        );
        let kind = ErrorKind::Shape {
            detail,
            found: vec![shape],
        };
        // Where the value was built: this file tells the user nothing.
        return Err(Error::at("output", kind, items.label().clone()));
    }
    let count = batch.valid * shape[1..].iter().product::<usize>();
    let mut items = wide(items);
    if batch.valid < rows {
        let mut column = vec![1isize; shape.rank()];
        column[0] = -1;
        // Selected, not multiplied: what padding gives may be NaN.
        items = batch.mask().reshape(&column).select(&items, 0.0);
    }
    Ok(Counted::Items(items, count as f64))
}

/// As f32; f64 stays.
pub(super) fn wide(t: &Tensor) -> Tensor {
    match t.dtype() {
        DType::F32 | DType::F64 => t.clone(),
        _ => t.cast(DType::F32),
    }
}
