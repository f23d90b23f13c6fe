//! Reductions. 8- and 16-bit floats accumulate in f32 and round once; a mean divides before it rounds.
use super::axis_of;
use crate::graph::{ArgOp, AxisSet, Op, ReduceOp};
use crate::tensor::Inputs;
use crate::{DType, Error, Result, Shape, Tensor};

impl Tensor {
    /// The sum over `axes` (empty: all), which stay with size 1 if `keep`.
    #[track_caller]
    pub fn sum(&self, axes: &[isize], keep: bool) -> Tensor {
        self.reduce(ReduceOp::Sum, axes, keep)
    }

    /// The mean over `axes` (empty: all), which stay with size 1 if `keep`. Integers are an error.
    #[track_caller]
    pub fn mean(&self, axes: &[isize], keep: bool) -> Tensor {
        self.reduce(ReduceOp::Mean, axes, keep)
    }

    /// The product over `axes` (empty: all), which stay with size 1 if `keep`.
    #[track_caller]
    pub fn prod(&self, axes: &[isize], keep: bool) -> Tensor {
        self.reduce(ReduceOp::Prod, axes, keep)
    }

    /// The largest element over `axes` (empty: all), NaN if there is one. Equal elements share the gradient.
    #[track_caller]
    pub fn max(&self, axes: &[isize], keep: bool) -> Tensor {
        self.reduce(ReduceOp::Max, axes, keep)
    }

    /// The smallest element over `axes` (empty: all), NaN if there is one. Equal elements share the gradient.
    #[track_caller]
    pub fn min(&self, axes: &[isize], keep: bool) -> Tensor {
        self.reduce(ReduceOp::Min, axes, keep)
    }

    /// The sum of all elements, a scalar.
    #[track_caller]
    pub fn sum_all(&self) -> Tensor {
        self.sum(&[], false)
    }

    /// The mean of all elements, a scalar.
    #[track_caller]
    pub fn mean_all(&self) -> Tensor {
        self.mean(&[], false)
    }

    /// Whether all elements over `axes` (empty: all) are true (Bool).
    #[track_caller]
    pub fn all(&self, axes: &[isize], keep: bool) -> Tensor {
        self.reduce(ReduceOp::Min, axes, keep)
    }

    /// Whether any element over `axes` (empty: all) is true (Bool).
    #[track_caller]
    pub fn any(&self, axes: &[isize], keep: bool) -> Tensor {
        self.reduce(ReduceOp::Max, axes, keep)
    }

    /// The variance over `axes` (empty: all) with divisor `count - correction`; f32 inside for 8- and 16-bit floats, two passes.
    #[track_caller]
    pub fn var(&self, axes: &[isize], correction: usize, keep: bool) -> Tensor {
        Tensor::make(|| {
            let m = self.valid()?.meta();
            let wide = if m.dtype == DType::F64 {
                DType::F64
            } else {
                DType::F32
            };
            if !m.dtype.is_float() {
                return Err(Error::dtype(
                    "var",
                    &[m.dtype],
                    "expected floats; use `cast`",
                ));
            }
            let set = axis_set("var", axes, &m.shape)?;
            let n: usize = (0..m.shape.rank())
                .filter(|&i| set.contains(i))
                .map(|i| m.shape[i])
                .product();
            if n <= correction {
                return Err(Error::shape(
                    "var",
                    &[m.shape],
                    format!("{n} elements are too few for a correction of {correction}"),
                ));
            }
            let x = self.cast(wide);
            let d = &x - x.mean(axes, true);
            let s = d.square().mean(axes, keep);
            let s = if correction == 0 {
                s
            } else {
                s * (n as f64 / (n - correction) as f64)
            };
            Ok(s.cast(m.dtype))
        })
    }

    /// `log(sum(exp(x)))` over one axis without overflow.
    #[track_caller]
    pub fn logsumexp(&self, axis: isize, keep: bool) -> Tensor {
        Tensor::make(|| {
            let m = self.valid()?.meta();
            let wide = if m.dtype == DType::F64 {
                DType::F64
            } else {
                DType::F32
            };
            let x = self.cast(wide);
            let top = x.max(&[axis], true).detach();
            let top = top.is_finite().select(&top, 0.0);
            let s = (&x - &top).exp().sum(&[axis], true).log() + top;
            let s = if keep { s } else { s.squeeze(axis) };
            Ok(s.cast(m.dtype))
        })
    }

    /// The index (I32) of the first largest element along `axis`. Has no derivative.
    #[track_caller]
    pub fn argmax(&self, axis: isize, keep: bool) -> Tensor {
        self.arg(ArgOp::Max, axis, keep)
    }

    /// The index (I32) of the first smallest element along `axis`. Has no derivative.
    #[track_caller]
    pub fn argmin(&self, axis: isize, keep: bool) -> Tensor {
        self.arg(ArgOp::Min, axis, keep)
    }

    /// A reduction by its tag over `axes` (empty: all).
    #[track_caller]
    pub fn reduce(&self, op: ReduceOp, axes: &[isize], keep: bool) -> Tensor {
        let node = Op::Reduce {
            op,
            axes: AxisSet(0),
        };
        let name = node.name();
        Tensor::make(|| {
            let m = self.valid()?.meta();
            let extreme = matches!(op, ReduceOp::Max | ReduceOp::Min);
            if m.dtype == DType::Bool && !extreme {
                return Err(Error::dtype(
                    name,
                    &[m.dtype],
                    "expected numbers; use `cast`",
                ));
            }
            if op == ReduceOp::Mean && !m.dtype.is_float() {
                return Err(Error::dtype(
                    name,
                    &[m.dtype],
                    "expected floats; use `cast`",
                ));
            }
            let set = axis_set(name, axes, &m.shape)?;
            let mut out = m.shape;
            let mut n = 1;
            for i in 0..m.shape.rank() {
                if set.contains(i) {
                    n *= m.shape[i];
                    out = out.with(i, 1);
                }
            }
            if n == 0 && (extreme || op == ReduceOp::Mean) && out.numel() > 0 {
                return Err(Error::shape(
                    name,
                    &[m.shape],
                    "of no elements is not defined",
                ));
            }
            let t = Tensor::single(
                Op::Reduce { op, axes: set },
                Inputs::from_iter([self.clone()]),
                out,
                m.dtype,
            );
            Ok(if keep { t } else { t.drop_axes(set, &out) })
        })
    }

    #[track_caller]
    fn arg(&self, op: ArgOp, axis: isize, keep: bool) -> Tensor {
        let name = if op == ArgOp::Max { "argmax" } else { "argmin" };
        Tensor::make(|| {
            let m = self.valid()?.meta();
            let axis = axis_of(name, axis, &m.shape)?;
            if m.shape[axis] == 0 || m.shape[axis] > i32::MAX as usize {
                return Err(Error::shape(
                    name,
                    &[m.shape],
                    "the axis is empty or beyond I32",
                ));
            }
            let out = m.shape.with(axis, 1);
            let t = Tensor::single(
                Op::ArgReduce {
                    op,
                    axis: axis as u8,
                },
                Inputs::from_iter([self.clone()]),
                out,
                DType::I32,
            );
            Ok(if keep {
                t
            } else {
                t.reshape_to(out.without(axis))
            })
        })
    }

    fn drop_axes(&self, set: AxisSet, out: &Shape) -> Tensor {
        let mut s = *out;
        for i in (0..out.rank()).rev() {
            if set.contains(i) {
                s = s.without(i);
            }
        }
        self.reshape_to(s)
    }
}

#[track_caller]
fn axis_set(op: &'static str, axes: &[isize], shape: &Shape) -> Result<AxisSet> {
    if axes.is_empty() {
        return Ok(AxisSet(((1u16 << shape.rank()) - 1) as u8));
    }
    let mut set = 0u8;
    for &a in axes {
        let bit = 1 << axis_of(op, a, shape)?;
        if set & bit != 0 {
            return Err(Error::argument(
                op,
                format!("axis {a} is given twice in {axes:?}"),
            ));
        }
        set |= bit;
    }
    Ok(AxisSet(set))
}
