//! Finding the numbers that are not finite.
use bimetal_tensor::graph::{NodeId, Op};
use bimetal_tensor::{DType, Error, Label, Result, Shape, Tensor, eval};
use std::collections::HashSet;
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

/// The earliest operation below `tensors`, forward before backward, that made numbers that are not finite out of finite ones; `None` if all is finite, or if
/// what is not finite came in from outside. Only operations on the way to a tensor of `tensors` that is not finite count.
///
/// Evaluates every floating operation's result, all at once: for looking for the cause of a failure, not for every step. The graph must not read
/// state that has been replaced since it was built.
pub fn find_non_finite(tensors: &[&Tensor]) -> Result<Option<NonFinite>> {
    let named: Vec<(&str, &Tensor)> = tensors.iter().map(|t| ("", *t)).collect();
    let mut roots = Vec::new();
    for (_, t) in &named {
        if check_numerics(&[("", *t)])?.is_some() {
            roots.push((*t).clone());
        }
    }
    let nodes = below(&roots);
    let mut flags = Vec::new();
    for t in &nodes {
        for i in 0..t.output_count() {
            let out = t.output(i);
            if out.dtype().is_float() && out.device().is_some() {
                let ok = match out.numel()? {
                    0 => continue,
                    _ => out.is_finite().all(&[], false),
                };
                flags.push((out, ok));
            }
        }
    }
    eval(&flags.iter().map(|(_, ok)| ok).collect::<Vec<_>>())?;
    let mut bad: HashSet<(NodeId, usize)> = HashSet::new();
    for (t, ok) in &flags {
        if ok.item()? == 0.0 {
            bad.insert((t.id(), t.output_index()));
        }
    }
    for (t, _) in &flags {
        let here = bad.contains(&(t.id(), t.output_index()));
        let given = t.inputs().is_empty();
        let from_outside = t
            .inputs()
            .iter()
            .any(|x| bad.contains(&(x.id(), x.output_index())) || is_non_finite_number(x));
        if here && !given && !from_outside {
            let c = counts(t);
            eval(&c.iter().collect::<Vec<_>>())?;
            return report("", t, &c);
        }
    }
    Ok(None)
}

fn is_non_finite_number(t: &Tensor) -> bool {
    use bimetal_tensor::graph::Literal;
    matches!(t.op(), Op::Scalar(Literal::Value(v)) if !v.0.is_finite())
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
