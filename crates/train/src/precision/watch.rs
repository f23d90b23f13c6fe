//! What a step's own plan computes beside the step: exponent histograms of a layer's values, gradients and updates.

use std::collections::HashMap;

use bimetal_autodiff::grad_optional;
use bimetal_precision::{Grads, Scaled, ScaledLoss};
use bimetal_tensor::graph::{Binary, Op};
use bimetal_tensor::{DType, Slot, Tensor};

use super::graph::{Found, Shadow, is_low, layers};
use super::values::Raw;
use crate::Result;

/// The kinds of values, in the order of a report's columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Activation,
    ActivationGrad,
    WeightGrad,
}

/// What is known of a layer before anything is computed.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub path: String,
    pub outside: bool,
    pub op: &'static str,
    pub param: Option<DType>,
    pub parameters: u64,
    pub compute: DType,
    pub output: DType,
}

/// One tensor that is looked at.
struct Asked {
    row: usize,
    /// `None`: inside of the layer.
    kind: Option<Kind>,
    /// The operation and its line, of values inside of a layer.
    place: String,
    dtype: DType,
    /// The values without rounding, or the values themselves.
    values: Tensors,
    /// The values themselves, where `values` are others.
    real: Option<Tensors>,
}

struct Update {
    row: usize,
    ratio: Tensors,
    /// F32 `[2]`: squared norms of change and weight.
    squares: Tensor,
    /// I32 `[2]`: elements with a gradient, and those of them that did not change.
    counts: Tensor,
}

type Tensors = [Tensor; 3];

/// Tensors that a step is to compute, and what they mean.
pub(crate) struct Watch {
    rows: Vec<Row>,
    by_path: HashMap<String, usize>,
    asked: Vec<Asked>,
    updates: Vec<Update>,
    grads: Vec<(Slot, Tensor)>,
}

/// What was read of one tensor.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub dtype: DType,
    pub raw: Raw,
    /// Whether all real values were finite.
    pub finite: bool,
}

/// What was read of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub row: Row,
    /// By [`Kind`].
    pub looks: [Vec<Look>; 3],
    /// Values inside of the layer, with the operation that made them.
    pub inner: Vec<(String, Look)>,
    /// Relative changes, squared norms of change and weight, counts.
    pub updates: Vec<(Raw, [f64; 2], [u64; 2])>,
}

impl Watch {
    /// The gradients of `scaled` with respect to `params`, and a watch over the layers in its graph. With `shadow` values are those of a pass in f32, which is
    /// computed beside the real one.
    pub fn differentiate(
        scaled: &ScaledLoss,
        params: &[Slot],
        shadow: bool,
    ) -> Result<(Watch, Grads<Scaled>)> {
        let mut watch = Watch {
            rows: Vec::new(),
            by_path: HashMap::new(),
            asked: Vec::new(),
            updates: Vec::new(),
            grads: Vec::new(),
        };
        let found = layers(scaled.loss());
        let shadow = shadow.then(|| Shadow::new(scaled.scaled()));
        let outputs: Vec<(usize, Tensor)> = found
            .iter()
            .map(|layer| (watch.row(layer), layer))
            .flat_map(|(row, layer)| layer.outputs.iter().map(move |t| (row, t.clone())))
            .collect();
        let results = |root: &Tensor, wide: Option<&Shadow>| {
            let reads: Vec<Tensor> = params.iter().map(Slot::read).collect();
            let of = |t: &Tensor| wide.map_or_else(|| t.clone(), |s| s.of(t));
            let outputs: Vec<Tensor> = outputs.iter().map(|(_, t)| of(t)).collect();
            let all: Vec<&Tensor> = reads.iter().chain(&outputs).collect();
            // A value that reaches the loss only through what has no derivative must not end the report.
            grad_optional(root, &all).or_else(|_| -> bimetal_tensor::Result<Vec<Option<Tensor>>> {
                let mut grads = grad_optional(root, &reads.iter().collect::<Vec<_>>())?;
                grads.resize(all.len(), None);
                Ok(grads)
            })
        };
        let real = results(scaled.scaled(), None)?;
        let wide = match &shadow {
            Some(s) => Some(results(&s.of(scaled.scaled()), Some(s))?),
            None => None,
        };
        let wide_grad = |i: usize| wide.as_ref().and_then(|w| w[i].clone());

        for (layer, row) in found.iter().zip(0..) {
            for t in &layer.outputs {
                watch.ask(
                    row,
                    Some(Kind::Activation),
                    t,
                    t.dtype(),
                    shadow.as_ref().map(|s| s.of(t)),
                );
            }
            if let Some(s) = &shadow {
                for t in &layer.inner {
                    watch.ask(row, None, t, t.dtype(), Some(s.of(t)));
                }
            }
        }
        for (i, (row, t)) in outputs.iter().enumerate() {
            if let Some(g) = &real[params.len() + i] {
                let wide = wide_grad(params.len() + i);
                watch.ask(*row, Some(Kind::ActivationGrad), g, t.dtype(), wide);
            }
        }
        for (i, slot) in params.iter().enumerate() {
            let row = watch.parameter_row(slot);
            if let Some(g) = &real[i] {
                watch.ask(row, Some(Kind::WeightGrad), g, rounded_to(g), wide_grad(i));
                watch.grads.push((slot.clone(), g.clone()));
            }
        }
        let gradients = params.iter().cloned().zip(real).collect();
        Ok((watch, scaled.with_gradients(gradients)?))
    }

    fn row(&mut self, layer: &Found) -> usize {
        let row = Row {
            path: layer.path.clone(),
            outside: layer.outside,
            op: layer.op,
            param: None,
            parameters: 0,
            compute: layer.compute,
            output: layer.output,
        };
        self.by_path.insert(row.path.clone(), self.rows.len());
        self.rows.push(row);
        self.rows.len() - 1
    }

    /// The row of the layer that owns a parameter.
    fn parameter_row(&mut self, slot: &Slot) -> usize {
        let path = slot
            .name()
            .rsplit_once('.')
            .map_or(slot.name(), |(layer, _)| layer);
        let at = match self.by_path.get(path) {
            Some(at) => *at,
            None => {
                self.by_path.insert(path.to_string(), self.rows.len());
                self.rows.push(Row {
                    path: path.to_string(),
                    outside: false,
                    op: "parameters",
                    param: None,
                    parameters: 0,
                    compute: slot.dtype(),
                    output: slot.dtype(),
                });
                self.rows.len() - 1
            }
        };
        self.rows[at].param = Some(slot.dtype());
        self.rows[at].parameters += slot.shape().numel() as u64;
        at
    }

    fn ask(&mut self, row: usize, kind: Option<Kind>, t: &Tensor, to: DType, wide: Option<Tensor>) {
        let real = histogram(t, to);
        let line = t.label().location();
        let (values, real) = match wide {
            Some(wide) => (histogram(&wide, to), Some(real)),
            None => (real, None),
        };
        self.asked.push(Asked {
            row,
            kind,
            place: format!("{} at {}:{}", t.op().name(), line.file(), line.line()),
            dtype: to,
            values,
            real,
        });
    }

    /// The gradients that a step will take, where they are others than those of the batch that was looked at.
    pub fn updated_by(&mut self, grads: &[(Slot, Tensor)]) {
        self.grads = grads.to_vec();
    }

    /// Looks at what a step is about to write: how much it changes the parameters.
    pub fn updates(&mut self, writes: &[(Slot, Tensor)]) -> Vec<Tensor> {
        let mut wanted = Vec::new();
        for (slot, grad) in std::mem::take(&mut self.grads) {
            let Some((_, new)) = writes.iter().find(|(s, _)| s.id() == slot.id()) else {
                continue;
            };
            let row = self.parameter_row_of(&slot);
            let (old, new) = (slot.read().cast(DType::F32), new.cast(DType::F32));
            let (change, is_zero) = (&new - &old, old.eq(0.0));
            let ratio = is_zero.select(0.0, &change / is_zero.select(1.0, &old));
            let squares = [&change, &old].map(|t| t.square().sum_all());
            let moved = grad.ne(0.0);
            let lost = moved.logical_and(new.eq(&old));
            let counts = [moved, lost].map(|t| t.cast(DType::I32).sum_all());
            let update = Update {
                row,
                ratio: histogram(&ratio, DType::F32),
                squares: Tensor::stack(&squares.each_ref(), 0),
                counts: Tensor::stack(&counts.each_ref(), 0),
            };
            wanted.extend(update.ratio.iter().cloned());
            wanted.extend([update.squares.clone(), update.counts.clone()]);
            self.updates.push(update);
        }
        wanted
    }

    fn parameter_row_of(&self, slot: &Slot) -> usize {
        let path = slot
            .name()
            .rsplit_once('.')
            .map_or(slot.name(), |(layer, _)| layer);
        self.by_path.get(path).copied().unwrap_or_default()
    }

    /// What the step is to compute.
    pub fn tensors(&self) -> Vec<Tensor> {
        let asked = self.asked.iter();
        asked
            .flat_map(|a| a.values.iter().chain(a.real.iter().flatten()))
            .cloned()
            .collect()
    }

    /// The computed values without the graph behind them.
    pub fn settle(mut self) -> Result<Watch> {
        let settle = |all: &mut Tensors| -> Result<()> {
            for t in all {
                *t = t.settle()?;
            }
            Ok(())
        };
        for asked in &mut self.asked {
            settle(&mut asked.values)?;
            asked.real.as_mut().map_or(Ok(()), settle)?;
        }
        for update in &mut self.updates {
            settle(&mut update.ratio)?;
            update.squares = update.squares.settle()?;
            update.counts = update.counts.settle()?;
        }
        self.grads.clear();
        Ok(self)
    }

    /// Waits for the step and reads what it computed.
    pub fn read(&self) -> Result<Vec<Seen>> {
        let empty = |row| Seen {
            row,
            looks: Default::default(),
            inner: Vec::new(),
            updates: Vec::new(),
        };
        let mut seen: Vec<Seen> = self.rows.iter().cloned().map(empty).collect();
        for asked in &self.asked {
            let raw = read(&asked.values)?;
            let finite = match &asked.real {
                Some(real) => read(real)?.not_finite() == 0,
                None => raw.not_finite() == 0,
            };
            let look = Look {
                dtype: asked.dtype,
                raw,
                finite,
            };
            let layer = &mut seen[asked.row];
            match asked.kind {
                Some(kind) => layer.looks[kind as usize].push(look),
                None => layer.inner.push((asked.place.clone(), look)),
            }
        }
        for update in &self.updates {
            let [change, weight] = pair(update.squares.to_f64_vec()?);
            let counts = pair(update.counts.to_f64_vec()?).map(|n| n as u64);
            let raw = read(&update.ratio)?;
            seen[update.row]
                .updates
                .push((raw, [change, weight], counts));
        }
        Ok(seen)
    }
}

fn pair(v: Vec<f64>) -> [f64; 2] {
    [0, 1].map(|i| v.get(i).copied().unwrap_or_default())
}

fn histogram(t: &Tensor, to: DType) -> Tensors {
    let (counts, lost, moments) = t.exponent_histogram(to);
    [counts, lost, moments]
}

fn read(t: &Tensors) -> Result<Raw> {
    let (lost, moments) = (t[1].to_vec::<i32>()?, t[2].to_f64_vec()?);
    Ok(Raw {
        counts: t[0].to_vec::<i32>()?,
        lost: [0, 1, 2].map(|i| lost.get(i).map_or(0, |n| *n as u64)),
        moments: [0, 1, 2, 3, 4].map(|i| moments.get(i).copied().unwrap_or_default()),
    })
}

/// The dtype with the fewest bits through which a gradient went last: that of a master in f32 comes out of a cast.
fn rounded_to(gradient: &Tensor) -> DType {
    let t = gradient;
    match t.op() {
        Op::Cast(_) if t.inputs()[0].dtype().is_float() => {
            let before = rounded_to(&t.inputs()[0]);
            match before.size() < t.dtype().size() {
                true => before,
                false => t.dtype(),
            }
        }
        // Of a parameter that is used in several places.
        Op::Binary(Binary::Add) => {
            let mut parts = t.inputs().iter().map(rounded_to);
            parts.find(|d| is_low(*d)).unwrap_or(t.dtype())
        }
        _ => t.dtype(),
    }
}
