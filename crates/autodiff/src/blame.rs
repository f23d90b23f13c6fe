//! Why there is no gradient.
use crate::walk::{Var, Walk, handle, passes, source, var};
use bimetal_tensor::graph::Op;
use bimetal_tensor::{Error, ErrorKind, Tensor};
use std::collections::HashSet;

/// Why nothing arrives at a variable.
pub(crate) enum Why {
    /// The outputs do not depend on it.
    Independent,
    /// All ways lead through this tensor, which has no derivative.
    Blocked(Tensor),
}

/// Looks for the first node on the way from `v` at which derivatives end.
pub(crate) fn why(outputs: &[&Tensor], v: &Tensor) -> Why {
    let wanted: Var = var(v);
    let walk = Walk::new(outputs, &HashSet::new());
    if walk.at(source(v)).is_none() {
        return Why::Independent;
    }
    let mut depends = vec![false; walk.nodes.len()];
    let mut smooth = vec![false; walk.nodes.len()];
    for (i, node) in walk.nodes.iter().enumerate() {
        let mut stuck = None;
        for (k, x) in node.inputs().iter().enumerate() {
            let x = source(x);
            if matches!(node.op(), Op::Barrier) && !passes(node, k) {
                continue;
            }
            let here = handle(x) == wanted;
            let from = walk.at(x);
            if !here && !from.is_some_and(|j| depends[j]) {
                continue;
            }
            depends[i] = true;
            smooth[i] |= passes(node, k) && (here || from.is_some_and(|j| smooth[j]));
            if !x.dtype().is_float() {
                // The culprit is what made an index or a flag of it.
                stuck = Some(x);
            }
        }
        smooth[i] &= (0..node.output_count()).any(|o| node.output(o).dtype().is_float());
        if depends[i] && !smooth[i] {
            return Why::Blocked(stuck.unwrap_or(node).clone());
        }
    }
    Why::Independent
}

/// The error of a variable without gradient.
pub(crate) fn no_gradient(v: &Tensor, why: &Why) -> Error {
    let name = describe(v);
    match why {
        Why::Independent => Error::at(
            "grad",
            ErrorKind::NoGradient {
                detail: format!(
                    "the loss does not depend on {name}; remove it from the list, or use `grad_optional`"
                ),
            },
            v.label().clone(),
        ),
        Why::Blocked(t) => Error::at(
            t.op().name(),
            ErrorKind::NoGradient {
                detail: match t.op() {
                    Op::Detach => format!(
                        "the loss depends on {name} only through `detach`, which stops gradients"
                    ),
                    op => format!(
                        "the loss depends on {name} only through `{}` ({}), which has no derivative; use a \
                         differentiable expression, or `detach` if no gradient is meant to pass",
                        op.name(),
                        t.dtype()
                    ),
                },
            },
            t.label().clone(),
        ),
    }
}

/// How a variable is called in an error.
pub(crate) fn describe(v: &Tensor) -> String {
    match v.slot() {
        Some(s) => format!("`{}`", s.name()),
        None => format!("the `{}` built at {}", v.op().name(), v.label()),
    }
}
