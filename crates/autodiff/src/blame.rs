//! Why there is no gradient.
use crate::walk::{Var, Walk, handle, passes, source, var};
use bimetal_tensor::graph::{IdSet, Op};
use bimetal_tensor::{Error, ErrorKind, Tensor};

/// Why nothing arrives at a variable.
pub(crate) enum Why {
    /// The outputs do not depend on it.
    Independent,
    /// They depend on it through masks of other derivatives alone: on which side of a kink a value lies. That derivative is zero.
    Flat,
    /// All ways end at this tensor, which has no derivative.
    Blocked(Tensor),
}

/// Looks for the nodes at which the derivatives by `v` end.
pub(crate) fn why(outputs: &[&Tensor], v: &Tensor) -> Why {
    let wanted: Var = var(v);
    let walk = Walk::new(outputs, &IdSet::default());
    if walk.number(source(v)).is_none() {
        return Why::Independent;
    }
    // Where a derivative by `v` would still come from, and what made an index or a flag of it.
    let mut smooth = vec![false; walk.nodes.len()];
    let mut made: Vec<Option<&Tensor>> = vec![None; walk.nodes.len()];
    let (mut flat, mut cut) = (false, None);
    for &i in &walk.order {
        let node = walk.nodes[i];
        let float = (0..node.output_count()).any(|o| node.output(o).dtype().is_float());
        for (k, x) in node.inputs().iter().enumerate() {
            let x = source(x);
            if matches!(node.op(), Op::Barrier) && k + 1 == node.inputs().len() {
                continue;
            }
            let from = walk.operand(i, k);
            let index = !x.dtype().is_float();
            let end = match from.and_then(|j| made[j]) {
                Some(cause) if index => cause,
                // The second result of a sort or a pooling.
                _ if index && from.is_some_and(|j| smooth[j]) => x,
                _ if handle(x) != wanted && !from.is_some_and(|j| smooth[j]) => continue,
                _ if !float => {
                    made[i] = Some(node);
                    continue;
                }
                _ if passes(node, k) => {
                    smooth[i] = true;
                    continue;
                }
                _ => node,
            };
            if !float {
                made[i] = Some(end);
            } else if node.label().is_backward() {
                flat = true;
            } else if matches!(end.op(), Op::Detach) {
                cut = Some(end.clone());
            } else {
                return Why::Blocked(end.clone());
            }
        }
    }
    match cut {
        _ if flat => Why::Flat,
        Some(t) => Why::Blocked(t),
        None => Why::Independent,
    }
}

/// The error of a variable without gradient.
pub(crate) fn no_gradient(v: &Tensor, why: &Why) -> Error {
    let name = describe(v);
    match why {
        Why::Independent | Why::Flat => Error::at(
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
