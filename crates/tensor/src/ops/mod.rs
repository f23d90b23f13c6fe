//! The builders of expressions: shapes and dtypes are inferred and checked here, as the node is made.
mod composite;
mod create;
mod elementwise;
mod index;
mod linalg;
mod operators;
mod reduce;
mod view;

pub(crate) use composite::infer_composite;

use crate::{Error, Label, Result, Shape, Tensor};

/// A non-negative axis from one that may count from the end.
#[track_caller]
pub(crate) fn axis_of(op: &'static str, axis: isize, shape: &Shape) -> Result<usize> {
    let rank = shape.rank() as isize;
    let a = if axis < 0 { axis + rank } else { axis };
    if (0..rank).contains(&a) {
        return Ok(a as usize);
    }
    Err(Error::shape(
        op,
        &[*shape],
        format!("axis {axis} does not exist in a tensor of {rank} axes"),
    ))
}

/// A shape from sizes, checked.
#[track_caller]
pub(crate) fn shape_of(op: &'static str, dims: &[usize]) -> Result<Shape> {
    let s = Shape::new(dims).ok_or_else(|| {
        Error::argument(
            op,
            format!(
                "a tensor has at most {} axes, {} were asked for",
                crate::shape::MAX_RANK,
                dims.len()
            ),
        )
    })?;
    match s.checked_numel() {
        Some(n) if n <= isize::MAX as usize / 8 => Ok(s),
        _ => Err(Error::argument(
            op,
            format!("the shape {s} has too many elements"),
        )),
    }
}

impl Tensor {
    /// Runs a fallible construction for the caller's line; an error becomes an invalid tensor.
    #[track_caller]
    pub(crate) fn make(f: impl FnOnce() -> Result<Tensor>) -> Tensor {
        Label::located(|| f().unwrap_or_else(Tensor::invalid))
    }
}
