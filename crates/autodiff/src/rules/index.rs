//! Gathering and its adjoints, running sums, sorting.
use super::{Grads, Node, none};
use bimetal_tensor::graph::Op;
use bimetal_tensor::{Result, Tensor};

pub(super) fn index(n: &Node<'_>, g: &Tensor) -> Result<Grads> {
    let size = |axis: u8| n.x(0).shape().map(|s| s[axis as usize]);
    Ok(match n.t.op() {
        Op::Take { axis } => {
            let size = size(*axis)?;
            n.each(|_| Some(g.take_grad(n.x(1), *axis as usize, size)))
        }
        Op::TakeGrad { axis } => n.each(|_| Some(g.take(n.x(0), *axis as isize))),
        Op::GatherAlong { axis } => {
            let size = size(*axis)?;
            n.each(|_| Some(g.scatter_add(n.x(1), *axis as isize, size)))
        }
        Op::ScatterAlong { axis } => n.each(|_| Some(g.gather(n.x(0), *axis as isize))),
        Op::CumSum { axis, reverse } => n.each(|_| Some(g.cumsum(*axis as isize, !reverse))),
        Op::Sort { .. } => {
            let shape = n.x(0).shape()?;
            let last = shape.rank() - 1;
            let order: Tensor = n.t.output(1);
            n.each(|_| Some(g.scatter_add(&order, -1, shape[last])))
        }
        _ => return Err(none(n.t)),
    })
}
