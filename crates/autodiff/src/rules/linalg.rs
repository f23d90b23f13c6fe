//! Matrix products, convolution and pooling: all of them linear in each operand.
use super::{Grads, Node, none};
use crate::contribution::carrier;
use bimetal_tensor::graph::{MatmulPrecision, Op};
use bimetal_tensor::{Result, Shape, Tensor};

pub(super) fn matmul(n: &Node<'_>, precision: MatmulPrecision, g: &Tensor) -> Grads {
    let (a, b) = (n.x(0), n.x(1));
    // A 16-bit product whose result was asked for in f32 is differentiated as the 16-bit product, widened: matrix units
    // multiply 16-bit operands.
    let half = a.dtype().is_half() && a.dtype() == b.dtype();
    let g = if half { g.cast(a.dtype()) } else { g.clone() };
    n.each(|i| {
        let out = Some(carrier(n.x(i).dtype()));
        Some(match i {
            0 => g.matmul_with(&b.t(), precision, out),
            _ => a.t().matmul_with(&g, precision, out),
        })
    })
}

/// The transpose of a gradient that is itself a product, as the product of the transposed factors in the other order: a weight's gradient is computed
/// as the weight lies, and not copied.
pub(super) fn transposed_product(g: &Tensor, axes: &[isize]) -> Option<Tensor> {
    let (Op::Matmul(precision), [a, b], [1, 0]) = (g.op(), g.inputs(), axes) else {
        return None;
    };
    let matrix = |t: &Tensor| t.rank().is_ok_and(|r| r == 2);
    // Two exchanges cancel.
    let turned = |t: &Tensor| match (t.op(), t.inputs()) {
        (Op::Permute(axes), [inner]) if axes.map[..2] == [1, 0] => inner.clone(),
        _ => t.t(),
    };
    (matrix(a) && matrix(b)).then(|| turned(b).matmul_with(&turned(a), *precision, Some(g.dtype())))
}

pub(super) fn window(n: &Node<'_>, g: &Tensor) -> Result<Grads> {
    let shape = |i: usize| n.x(i).shape();
    Ok(match n.t.op() {
        Op::Conv2d(c) => {
            let (xs, ws) = (shape(0)?, shape(1)?);
            n.each(|i| {
                Some(match i {
                    0 => Tensor::conv2d_grad_input(n.x(1), g, *c, &xs),
                    _ => Tensor::conv2d_grad_weight(n.x(0), g, *c, &ws),
                })
            })
        }
        // The adjoint in the input, applied to an output gradient: its own adjoint is the convolution.
        Op::Conv2dGradInput(c) => {
            let ws = shape(0)?;
            n.each(|i| {
                Some(match i {
                    0 => Tensor::conv2d_grad_weight(g, n.x(1), *c, &ws),
                    _ => g.conv2d(n.x(0), *c),
                })
            })
        }
        Op::Conv2dGradWeight(c) => {
            let xs = shape(0)?;
            n.each(|i| {
                Some(match i {
                    0 => Tensor::conv2d_grad_input(g, n.x(1), *c, &xs),
                    _ => n.x(0).conv2d(g, *c),
                })
            })
        }
        Op::MaxPool2d(p) => {
            let xs = shape(0)?;
            n.each(|_| Some(Tensor::max_pool2d_grad(&n.t.output(1), g, *p, &xs)))
        }
        Op::MaxPool2dGrad(_) => {
            let (rows, cells) = (shape(0)?, g.shape()?);
            n.each(|i| (i == 1).then(|| planes(n.x(0), rows, g, cells)))
        }
        Op::AvgPool2d(p) => {
            let xs = shape(0)?;
            n.each(|_| Some(Tensor::avg_pool2d_grad(g, *p, &xs)))
        }
        Op::AvgPool2dGrad(p) => n.each(|_| Some(g.avg_pool2d(*p))),
        _ => return Err(none(n.t)),
    })
}

/// Elements of the planes `[n, c, h, w]` at the indices `[n, c, oh, ow]` into each plane.
fn planes(index: &Tensor, want: Shape, values: &Tensor, have: Shape) -> Tensor {
    if want.numel() == 0 || have.numel() == 0 {
        return crate::contribution::zeros(values, want);
    }
    let flat = |t: &Tensor| t.flatten(2..=3);
    super::reshape_to(&flat(values).gather(&flat(index), 2), want)
}
