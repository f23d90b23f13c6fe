//! The derivative of every operation: from a node and the gradients of its results to those of its operands.
mod composite;
mod elementwise;
mod index;
mod linalg;
mod reduce;
mod view;

use crate::contribution::Contribution;
use bimetal_tensor::graph::{Attr, Literal, Op};
use bimetal_tensor::{DType, Error, ErrorKind, Result, Shape, Tensor};

/// The gradients of a node's operands; `None` where none is needed or none flows.
type Grads = Vec<Option<Contribution>>;

/// A node with what has arrived at it.
struct Node<'a> {
    /// The node, or its copy in a recomputed segment.
    t: &'a Tensor,
    /// The gradients of its results.
    cots: &'a [Option<Tensor>],
    /// Which operands need a gradient.
    needs: &'a [bool],
}

impl Node<'_> {
    fn x(&self, i: usize) -> &Tensor {
        &self.t.inputs()[i]
    }

    fn y(&self) -> Tensor {
        self.t.output(0)
    }

    /// The gradients of operands, of which only the needed are built.
    fn each(&self, f: impl Fn(usize) -> Option<Tensor>) -> Grads {
        let build = |(i, need): (usize, &bool)| match need {
            true => f(i).map(Contribution::from),
            false => None,
        };
        self.needs.iter().enumerate().map(build).collect()
    }
}

/// The gradients of the operands of node `t` from those of its results. Formulas of several steps compute in f32 for 8- and 16-bit floats;
/// the caller rounds once.
pub(crate) fn vjp(t: &Tensor, cots: &[Option<Tensor>], needs: &[bool]) -> Result<Grads> {
    let n = Node { t, cots, needs };
    match t.op() {
        Op::Composite(c) => return composite::composite(&n, c),
        Op::Custom(c) => return composite::custom(&n, c),
        Op::Barrier => {
            let mut grads: Grads = cots.iter().map(|g| g.clone().map(Into::into)).collect();
            grads.push(None);
            return Ok(grads);
        }
        _ => {}
    }
    // Second results of the others are indices.
    let Some(g) = &cots[0] else {
        return Ok(needs.iter().map(|_| None).collect());
    };
    match t.op() {
        Op::Unary(op) => elementwise::unary(&n, *op, g),
        Op::Binary(op) => elementwise::binary(&n, *op, g),
        Op::Select => Ok(n.each(|i| match i {
            1 => Some(n.x(0).select(g, 0.0)),
            2 => Some(n.x(0).select(0.0, g)),
            _ => None,
        })),
        Op::Fma => Ok(n.each(|i| match i {
            0 => Some(g * n.x(1)),
            1 => Some(g * n.x(0)),
            _ => Some(g.clone()),
        })),
        Op::Cast(_) => Ok(n.each(|_| Some(g.clone()))),
        // Rounding counts as the identity.
        Op::CastStochastic => Ok(n.each(|i| (i == 0).then(|| g.clone()))),
        Op::Reshape
        | Op::Permute(_)
        | Op::Broadcast
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. } => view::view(&n, g),
        Op::Reduce { op, axes } => reduce::reduce(&n, *op, *axes, g),
        Op::Matmul(p) => Ok(linalg::matmul(&n, *p, g)),
        Op::Conv2d(_)
        | Op::Conv2dGradInput(_)
        | Op::Conv2dGradWeight(_)
        | Op::MaxPool2d(_)
        | Op::MaxPool2dGrad(_)
        | Op::AvgPool2d(_)
        | Op::AvgPool2dGrad(_) => linalg::window(&n, g),
        Op::Take { .. }
        | Op::TakeGrad { .. }
        | Op::GatherAlong { .. }
        | Op::ScatterAlong { .. }
        | Op::CumSum { .. }
        | Op::Sort { .. } => index::index(&n, g),
        // The sum over ranks is its own adjoint.
        Op::AllReduce { .. } => Ok(n.each(|_| Some(t.with_inputs(std::slice::from_ref(g))))),
        _ => Err(none(t)),
    }
}

/// That an operation has no derivative.
fn none(t: &Tensor) -> Error {
    Error::at(
        t.op().name(),
        ErrorKind::NoGradient {
            detail: format!(
                "`{}` has no derivative; use `detach` if no gradient is meant to pass",
                t.op().name()
            ),
        },
        t.label().clone(),
    )
}

/// The value of a bare number.
fn literal(t: &Tensor) -> Option<f64> {
    match t.op() {
        Op::Scalar(Literal::Value(Attr(v))) => Some(*v),
        _ => None,
    }
}

/// The dtype formulas of several steps compute in.
fn wide(d: DType) -> DType {
    match d {
        DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 => DType::F32,
        d => d,
    }
}

/// The operand in the dtype formulas of several steps compute in.
fn lift(t: &Tensor) -> Tensor {
    match literal(t) {
        Some(_) => t.clone(),
        None => t.cast(wide(t.dtype())),
    }
}

/// The same elements under another shape, which may be empty.
fn reshape_to(t: &Tensor, shape: Shape) -> Tensor {
    if shape.numel() == 0 {
        return crate::contribution::zeros(t, shape);
    }
    let dims: Vec<isize> = shape.iter().map(|&d| d as isize).collect();
    t.reshape(&dims)
}
