//! Reductions.
use super::{Grads, Node, lift, reshape_to};
use crate::contribution::zeros;
use bimetal_tensor::graph::{AxisSet, ReduceOp};
use bimetal_tensor::{Result, Shape, Tensor};

pub(super) fn reduce(n: &Node<'_>, op: ReduceOp, axes: AxisSet, g: &Tensor) -> Result<Grads> {
    let x = n.x(0);
    let shape = x.shape()?;
    let over: Vec<usize> = (0..shape.rank()).filter(|&i| axes.contains(i)).collect();
    let count: usize = over.iter().map(|&i| shape[i]).product();
    let d = match op {
        ReduceOp::Sum => g.broadcast_to(&shape),
        ReduceOp::Mean => (g / count as f64).broadcast_to(&shape),
        ReduceOp::Prod if shape.numel() == 0 => zeros(g, shape),
        ReduceOp::Prod => lift(g) * others(&lift(x), &over)?,
        ReduceOp::Max | ReduceOp::Min => {
            let hit = x.eq(n.y());
            let g = lift(g);
            let axes: Vec<isize> = over.iter().map(|&i| i as isize).collect();
            let ties = match axes.is_empty() {
                true => hit.cast(g.dtype()),
                false => hit.cast(g.dtype()).sum(&axes, true),
            };
            hit.select(g / ties, 0.0)
        }
    };
    Ok(vec![Some(d.into())])
}

/// The product of all other elements over `axes`: right where elements are zero, and so are its derivatives.
fn others(x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    let shape = x.shape()?;
    let mut order: Vec<isize> = (0..shape.rank() as isize)
        .filter(|i| !axes.contains(&(*i as usize)))
        .collect();
    let kept: usize = order.iter().map(|&i| shape[i as usize]).product();
    order.extend(axes.iter().map(|&i| i as isize));
    let count = shape.numel() / kept;
    let moved = x.permute(&order);
    let flat = moved.reshape(&[kept as isize, count as isize]);
    let product = before(&flat)? * before(&flat.flip(-1))?.flip(-1);
    let mut inverse = vec![0isize; order.len()];
    for (i, &axis) in order.iter().enumerate() {
        inverse[axis as usize] = i as isize;
    }
    Ok(reshape_to(&product, moved.shape()?).permute(&inverse))
}

/// The product of all elements before each, along the last axis of `[m, n]` (Hillis and Steele 1986).
fn before(x: &Tensor) -> Result<Tensor> {
    let [m, n] = x.dims()?;
    let shift = |x: &Tensor, by: usize| -> Result<Tensor> {
        let ones = zeros(x, Shape::new(&[m, by]).unwrap_or(Shape::scalar())).ones_like();
        Ok(Tensor::concat(&[&ones, &x.narrow(-1, 0, n - by)], -1))
    };
    let mut p = shift(x, 1)?;
    let mut by = 1;
    while by < n {
        p = &p * shift(&p, by)?;
        by *= 2;
    }
    Ok(p)
}
