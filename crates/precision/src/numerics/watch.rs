//! What a step's own plan looks at.
use super::Level;
use bimetal_tensor::graph::{Binary, Op, ReduceOp, Unary};
use bimetal_tensor::{DType, Result, Tensor};
use std::collections::HashSet;

/// The nodes below `roots`, forward before backward; in each of the two inputs come before those that use them.
pub(super) fn below(roots: &[Tensor]) -> Vec<Tensor> {
    let mut order = topological(roots);
    order.sort_by_key(|t| t.label().is_backward());
    order
}

/// The nodes below `roots`, inputs before those that use them.
pub(super) fn topological(roots: &[Tensor]) -> Vec<Tensor> {
    let mut seen = HashSet::new();
    let mut order = Vec::new();
    // An explicit stack: a graph may be deeper than the thread's stack.
    let mut work: Vec<(&Tensor, usize)> = roots.iter().rev().map(|t| (t, 0)).collect();
    while let Some((t, next)) = work.pop() {
        if next == 0 && !seen.insert(t.id()) {
            continue;
        }
        match t.inputs().get(next) {
            Some(input) => {
                work.push((t, next + 1));
                work.push((input, 0));
            }
            None => order.push(t.clone()),
        }
    }
    order
}

/// The tensors below `roots` that are worth a check, forward before backward: at [`Level::Op`] all, at [`Level::Layer`] those that one layer hands to another, to the
/// loss, or to the gradients of another. Where an operation only passes numbers on, what it was given is looked at in its place: it is there in any case, and one
/// check serves all that pass it on.
pub(super) fn watched(roots: &[Tensor], level: Level) -> Result<Vec<Tensor>> {
    let order = below(roots);
    let mut wanted = HashSet::new();
    let mut work: Vec<Tensor> = Vec::new();
    for node in &order {
        match level {
            Level::Off | Level::Step => {}
            Level::Layer => {
                // What is computed between layers shows in the results of the next one.
                let layer = |x: &&Tensor| {
                    let label = x.label();
                    // What is computed again has been looked at the first time.
                    let again = label.segment() != 0 && !label.is_backward();
                    !label.path().is_empty() && !again && !same_layer(node, x)
                };
                let others = node.inputs().iter().filter(layer);
                work.extend(others.cloned());
            }
            Level::Op => work.extend((0..node.output_count()).map(|i| node.output(i))),
        }
    }
    if level >= Level::Layer {
        work.extend(roots.first().cloned());
    }
    let mut seen = HashSet::new();
    while let Some(t) = work.pop() {
        if !t.dtype().is_float() || !seen.insert((t.id(), t.output_index())) {
            continue;
        }
        match passed_on(&t) {
            Some(inputs) => work.extend(inputs.iter().cloned()),
            None if t.inputs().is_empty() || t.numel()? == 0 => {}
            None => {
                wanted.insert((t.id(), t.output_index()));
            }
        }
    }
    let outputs = |t: &Tensor| {
        let t = t.clone();
        (0..t.output_count()).map(move |i| t.output(i))
    };
    let all = order.iter().flat_map(outputs);
    Ok(all
        .filter(|t| wanted.contains(&(t.id(), t.output_index())))
        .collect())
}

fn same_layer(a: &Tensor, b: &Tensor) -> bool {
    let (a, b) = (a.label(), b.label());
    a.is_backward() == b.is_backward() && a.path() == b.path()
}

/// The inputs of an operation whose result is finite if they are.
fn passed_on(t: &Tensor) -> Option<&[Tensor]> {
    let inputs = t.inputs();
    let passes = match t.op() {
        Op::Cast(_) => inputs.first().is_some_and(|x| holds(t.dtype(), x.dtype())),
        Op::Unary(u) => matches!(
            u,
            Unary::Neg
                | Unary::Abs
                | Unary::Sign
                | Unary::Relu
                | Unary::Floor
                | Unary::Ceil
                | Unary::Round
                | Unary::Trunc
        ),
        Op::Binary(b) => matches!(b, Binary::Max | Binary::Min),
        Op::Reduce { op, .. } => matches!(op, ReduceOp::Max | ReduceOp::Min),
        Op::Select
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Take { .. }
        | Op::GatherAlong { .. }
        | Op::Sort { .. }
        | Op::MaxPool2d(_)
        | Op::Checkpoint { .. }
        | Op::Barrier => true,
        op => op.is_view(),
    };
    passes.then_some(inputs)
}

/// Whether every finite number of `from` is one of `to`.
fn holds(to: DType, from: DType) -> bool {
    let exponents = |d| match d {
        DType::F8E4M3 => 4,
        DType::F8E5M2 | DType::F16 => 5,
        DType::BF16 | DType::F32 => 8,
        DType::F64 => 11,
        _ => 99,
    };
    // f32 to bf16 may round up to infinity.
    exponents(from) <= exponents(to) && from.size() <= to.size() && from.is_float()
}

/// The number of the first of `tensors` that is not finite (I32 scalar), their count if all are.
pub(super) fn first_bad(tensors: &[Tensor]) -> Option<Tensor> {
    let device = tensors.first()?.device()?;
    // Each check is built where its tensor was built, so that it is computed while the numbers are at hand.
    let check = |t: &Tensor| t.label().inherit(|| Tensor::grad_stats(&[t]).0);
    let finite: Vec<Tensor> = tensors.iter().map(check).collect();
    let finite = Tensor::stack(&finite.iter().collect::<Vec<_>>(), 0);
    let numbers = Tensor::arange(tensors.len(), device);
    Some(finite.select(tensors.len() as i32, numbers).min(&[], false))
}
