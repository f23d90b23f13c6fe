//! The backward walk.
use crate::contribution::{Contribution, carrier, total};
use crate::rules;
use crate::segments::Segments;
use crate::walk::{Var, Walk, handle, key, passes, source, var};
use bimetal_tensor::{Error, ErrorKind, Result, Tensor};
use std::collections::{HashMap, HashSet};

/// The gradients of `wrt`, in the dtypes gradients travel in, from those of `outputs`; `None` where nothing arrives. What lies
/// behind the tensors of `border` is not looked at: they are taken as independent of each other.
pub(crate) fn run(
    outputs: &[&Tensor],
    cotangents: &[Tensor],
    wrt: &[&Tensor],
    border: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    let wanted: HashSet<Var> = wrt.iter().map(|t| var(t)).collect();
    let border: HashSet<Var> = border.iter().map(var).collect();
    let walk = Walk::new(outputs, &border);
    let live = Live::new(&walk, &wanted, &border);
    let mut segments = match walk.checkpoints {
        true => Segments::find(outputs, &border),
        false => Segments::none(),
    };

    let mut pending: HashMap<Var, Vec<Contribution>> = HashMap::new();
    for (t, g) in outputs.iter().zip(cotangents) {
        let t = source(t);
        if live.edge(t) {
            let g = Contribution::from(g.clone()).carried(t.dtype());
            pending.entry(handle(t)).or_default().push(g);
        }
    }

    let mut found: HashMap<Var, Tensor> = HashMap::new();
    for (i, node) in walk.nodes.iter().enumerate().rev() {
        let mut cots: Vec<Option<Tensor>> = vec![None; node.output_count()];
        for (out, cot) in cots.iter_mut().enumerate() {
            let v = (key(node), out);
            if border.contains(&v) {
                continue;
            }
            if let Some(list) = pending.remove(&v) {
                let shape = node.output(out).shape()?;
                let g = node.label().backward(|| total(list, shape))?;
                if wanted.contains(&v) {
                    found.insert(v, g.clone());
                }
                *cot = Some(g);
            }
        }
        let Some(first) = cots.iter().flatten().next() else {
            continue;
        };
        if !live.through[i] {
            continue;
        }
        let needs: Vec<bool> = (0..node.inputs().len())
            .map(|k| passes(node, k) && live.edge(source(&node.inputs()[k])))
            .collect();
        let forward = segments.forward(node, first);
        let grads = node.label().backward(|| -> Result<_> {
            let grads = rules::vjp(&forward, &cots, &needs)?;
            let carried = grads.into_iter().zip(node.inputs());
            Ok(carried
                .map(|(g, x)| g.map(|g| g.carried(x.dtype())))
                .collect::<Vec<_>>())
        })?;
        for ((g, x), need) in grads.into_iter().zip(node.inputs()).zip(&needs) {
            let Some(g) = g.filter(|_| *need) else {
                continue;
            };
            check(node, x, &g)?;
            pending.entry(var(x)).or_default().push(g);
        }
    }

    let mut result = Vec::with_capacity(wrt.len());
    for t in wrt {
        let v = var(t);
        if let Some(list) = pending.remove(&v) {
            let g = t.label().backward(|| total(list, source(t).shape()?))?;
            found.insert(v, g);
        }
        result.push(found.get(&v).cloned());
    }
    Ok(result)
}

/// Which nodes lie between the variables and the outputs.
struct Live<'w, 'a> {
    walk: &'w Walk<'a>,
    wanted: &'w HashSet<Var>,
    border: &'w HashSet<Var>,
    /// Whether a gradient that arrives at the node reaches a variable.
    through: Vec<bool>,
}

impl<'w, 'a> Live<'w, 'a> {
    fn new(walk: &'w Walk<'a>, wanted: &'w HashSet<Var>, border: &'w HashSet<Var>) -> Self {
        let mut live = Live {
            walk,
            wanted,
            border,
            through: vec![false; walk.nodes.len()],
        };
        for (i, node) in walk.nodes.iter().enumerate() {
            live.through[i] = (0..node.inputs().len())
                .any(|k| passes(node, k) && live.edge(source(&node.inputs()[k])));
        }
        live
    }

    /// Whether a gradient of this value is wanted, for itself or for what it was computed from.
    fn edge(&self, t: &Tensor) -> bool {
        let v = handle(t);
        t.dtype().is_float()
            && (self.wanted.contains(&v)
                || (!self.border.contains(&v) && self.walk.at(t).is_some_and(|i| self.through[i])))
    }
}

/// A derivative of another shape or dtype than its value would poison everything after it: say whose it was.
fn check(node: &Tensor, x: &Tensor, g: &Contribution) -> Result<()> {
    let t = g.tensor().check()?;
    let (mut have, want) = (t.shape()?, x.shape()?);
    if let Contribution::Range { axis, .. } = g {
        have = have.with(*axis, want[*axis]);
    }
    if have == want && t.dtype() == carrier(x.dtype()) {
        return Ok(());
    }
    Err(Error::at(
        node.op().name(),
        ErrorKind::Shape {
            detail: format!("the derivative must have the shape of its operand, {want}"),
            found: vec![have],
        },
        node.label().clone(),
    ))
}
