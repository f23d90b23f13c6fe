//! Finding the numbers that are not finite.
use bimetal_tensor::graph::{Literal, Op};
use bimetal_tensor::{DType, Error, Label, Result, Shape, Slot, Tensor, eval};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// A tensor with elements that are not finite.
#[derive(Clone, Debug)]
pub struct NonFinite {
    /// The name it was given, or empty.
    pub name: String,
    /// The operation that computed it.
    pub op: &'static str,
    /// Which of the operation's results it is.
    pub output: usize,
    /// Layer path, source line, and whether it belongs to the backward pass.
    pub label: Label,
    /// The dtype.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
    /// The number of NaNs.
    pub nan: usize,
    /// The number of elements that are plus infinity.
    pub plus_inf: usize,
    /// The number of elements that are minus infinity.
    pub minus_inf: usize,
}

impl NonFinite {
    /// The path of the layer, such as `decoder.7.mlp.down`; empty outside of layers.
    pub fn path(&self) -> &str {
        self.label.path()
    }

    /// As an error.
    pub fn into_error(self) -> Error {
        let detail = self.text();
        Error::at(
            self.op,
            bimetal_tensor::ErrorKind::Other { detail },
            self.label,
        )
    }

    fn text(&self) -> String {
        let name = if self.name.is_empty() {
            String::new()
        } else {
            format!("`{}`, ", self.name)
        };
        format!(
            "{name}output {} ({} {:?}) is not finite: {} NaN, {} +Inf, {} -Inf of {} elements",
            self.output,
            self.dtype,
            self.shape,
            self.nan,
            self.plus_inf,
            self.minus_inf,
            self.shape.numel()
        )
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (at {})", self.op, self.text(), self.label)
    }
}

/// Evaluates named tensors in one plan and returns the first, in the order given, that has elements that are not finite; `None` if there is
/// none. Integer and Bool tensors are always finite.
///
/// ```no_run
/// # use bimetal_precision::check_numerics;
/// # use bimetal_tensor::{Result, Tensor};
/// # fn f(logits: &Tensor, loss: &Tensor) -> Result<()> {
/// if let Some(bad) = check_numerics(&[("logits", logits), ("loss", loss)])? {
///     return Err(bad.into_error());
/// }
/// # Ok(())
/// # }
/// ```
pub fn check_numerics(tensors: &[(&str, &Tensor)]) -> Result<Option<NonFinite>> {
    let mut counted = Vec::with_capacity(tensors.len());
    for (name, t) in tensors {
        if t.check()?.dtype().is_float() {
            counted.push((*name, *t, counts(t)));
        }
    }
    let all: Vec<&Tensor> = counted
        .iter()
        .flat_map(|(_, t, c)| std::iter::once(*t).chain(c))
        .collect();
    if all.is_empty() {
        return Ok(None);
    }
    eval(&all)?;
    for (name, t, c) in &counted {
        let found = report(name, t, c)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The cause of what is not finite in `tensors`: the earliest operation below them, forward before backward, that made NaN where no operand had one, or infinity
/// of finite operands. If there is none, what is not finite came in from outside, and the first such leaf (a batch, a parameter) is returned; `None` if all
/// tensors are finite.
///
/// Only operations count from which numbers that are not finite reach one of `tensors`; infinite numbers in the code, such as those of masks, do not.
///
/// Evaluates every floating operation's result, all at once: for looking for the cause of a failure, not for every step. The graph must not read
/// state that has been replaced since it was built.
pub fn find_non_finite(tensors: &[&Tensor]) -> Result<Option<NonFinite>> {
    let mut roots = Vec::new();
    for t in tensors {
        if check_numerics(&[("", *t)])?.is_some() {
            roots.push((*t).clone());
        }
    }
    if roots.is_empty() {
        return Ok(None);
    }
    let mut flags = Vec::new();
    for node in &below(&roots) {
        for i in 0..node.output_count() {
            let out = node.output(i);
            if out.dtype().is_float() && out.device().is_some() && out.numel()? > 0 {
                let finite = out.is_finite().all(&[], false);
                let nan = out.is_nan().any(&[], false);
                flags.push((out, finite, nan));
            }
        }
    }
    let wanted: Vec<&Tensor> = flags.iter().flat_map(|(_, f, n)| [f, n]).collect();
    eval(&wanted)?;
    let mut states = HashMap::new();
    for (t, finite, nan) in &flags {
        let state = match (finite.item()? != 0.0, nan.item()? != 0.0) {
            (true, _) => State::Finite,
            (false, false) => State::Infinite,
            (false, true) => State::Nan,
        };
        states.insert((t.id(), t.output_index()), state);
    }
    let state = |t: &Tensor| {
        let known = states.get(&(t.id(), t.output_index())).copied();
        known.unwrap_or_else(|| number(t))
    };
    let cause = |t: &Tensor| {
        let given = t.inputs().iter().map(state).max();
        given.is_some_and(|worst| state(t) > worst)
    };
    let leaf = |t: &Tensor| t.inputs().is_empty() && state(t) != State::Finite;
    // Only what is not finite all the way up to a root: what a mask or a branch stops is no cause.
    let mut guilty = HashSet::new();
    while let Some(t) = roots.pop() {
        if state(&t) != State::Finite && guilty.insert((t.id(), t.output_index())) {
            roots.extend(t.inputs().iter().cloned());
        }
    }
    let tensors = || {
        let all = flags.iter().map(|(t, ..)| t);
        all.filter(|t| guilty.contains(&(t.id(), t.output_index())))
    };
    let found = tensors()
        .find(|t| cause(t))
        .or_else(|| tensors().find(|t| leaf(t)));
    let Some(t) = found else {
        return Ok(None);
    };
    let c = counts(t);
    eval(&c.each_ref())?;
    report(t.slot().map_or("", Slot::name), t, &c)
}

/// How far from finite.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Finite,
    Infinite,
    Nan,
}

/// The state of what is no tensor on the device: a number in the code.
fn number(t: &Tensor) -> State {
    match t.op() {
        Op::Scalar(Literal::Value(v)) if v.0.is_nan() => State::Nan,
        Op::Scalar(Literal::Value(v)) if v.0.is_infinite() => State::Infinite,
        _ => State::Finite,
    }
}

/// The nodes below `roots`, inputs before those that use them, forward before backward among the ready ones.
fn below(roots: &[Tensor]) -> Vec<Tensor> {
    let mut seen = HashSet::new();
    let mut order = Vec::new();
    // An explicit stack: a graph may be deeper than the thread's stack.
    let mut work: Vec<(Tensor, bool)> = roots.iter().map(|t| (t.clone(), false)).collect();
    while let Some((t, done)) = work.pop() {
        if done {
            order.push(t);
            continue;
        }
        if !seen.insert(t.id()) {
            continue;
        }
        let inputs: Vec<Tensor> = t.inputs().to_vec();
        work.push((t, true));
        work.extend(inputs.into_iter().rev().map(|x| (x, false)));
    }
    // Stable: within each pass inputs stay before users, and nothing in a forward pass uses a backward one.
    order.sort_by_key(|t| t.label().is_backward());
    order
}

fn counts(t: &Tensor) -> [Tensor; 3] {
    let count = |b: Tensor| b.cast(DType::I32).sum_all();
    [
        count(t.is_nan()),
        count(t.eq(f64::INFINITY)),
        count(t.eq(f64::NEG_INFINITY)),
    ]
}

fn report(name: &str, t: &Tensor, counts: &[Tensor; 3]) -> Result<Option<NonFinite>> {
    let mut n = [0usize; 3];
    for (n, c) in n.iter_mut().zip(counts) {
        *n = c.item()? as usize;
    }
    if n == [0; 3] {
        return Ok(None);
    }
    Ok(Some(NonFinite {
        name: name.to_string(),
        op: t.op().name(),
        output: t.output_index(),
        label: t.label().clone(),
        dtype: t.dtype(),
        shape: t.shape()?,
        nan: n[0],
        plus_inf: n[1],
        minus_inf: n[2],
    }))
}
