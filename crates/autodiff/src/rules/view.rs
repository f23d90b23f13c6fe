//! Views, joining and padding.
use super::{Grads, Node, linalg, none, reshape_to};
use crate::contribution::{Contribution, zeros};
use bimetal_tensor::graph::Op;
use bimetal_tensor::{Result, Tensor};

pub(super) fn view(n: &Node<'_>, g: &Tensor) -> Result<Grads> {
    let shape = n.x(0).shape()?;
    let d: Contribution = match n.t.op() {
        Op::Reshape => reshape_to(g, shape).into(),
        Op::Permute(axes) => {
            let mut inverse = vec![0isize; shape.rank()];
            for i in 0..shape.rank() {
                inverse[axes.map[i] as usize] = i as isize;
            }
            match linalg::transposed_product(g, &inverse) {
                Some(product) => product.into(),
                None => g.permute(&inverse).into(),
            }
        }
        Op::Broadcast => g.sum_to(&shape).into(),
        Op::Slice { axis, start, step } => slice(n, *axis as usize, *start, *step, g)?,
        Op::Pad { axis, before, .. } => {
            let axis = *axis as usize;
            g.narrow(axis as isize, *before, shape[axis]).into()
        }
        Op::Concat { axis } => {
            let axis = *axis as usize;
            let mut start = 0;
            let mut grads = Grads::new();
            for (x, need) in n.t.inputs().iter().zip(n.needs) {
                let count = x.shape()?[axis];
                grads.push(need.then(|| g.narrow(axis as isize, start, count).into()));
                start += count;
            }
            return Ok(grads);
        }
        _ => return Err(none(n.t)),
    };
    Ok(vec![Some(d)])
}

fn slice(n: &Node<'_>, axis: usize, start: usize, step: isize, g: &Tensor) -> Result<Contribution> {
    let shape = n.x(0).shape()?;
    let (count, a) = (g.shape()?[axis], axis as isize);
    let range = |start: usize, part: Tensor| Contribution::Range { axis, start, part };
    Ok(match (count, step) {
        (0, _) => zeros(g, shape).into(),
        (1, _) | (_, 1) => range(start, g.clone()),
        (_, -1) => range(start + 1 - count, g.flip(a)),
        _ => {
            let Some(device) = g.device() else {
                return Err(none(n.t));
            };
            let index = Tensor::arange(count, device) * step as f64 + start as f64;
            g.take_grad(&index, axis, shape[axis]).into()
        }
    })
}
