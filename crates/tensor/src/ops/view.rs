//! Shapes: views, and joining and padding.
use super::elementwise::broadcast_shape;
use super::{axis_of, shape_of};
use crate::graph::{Axes, Op};
use crate::shape::MAX_RANK;
use crate::tensor::Inputs;
use crate::{Error, Result, Shape, Tensor};
use std::ops::{Bound, RangeBounds};

/// The most invalid parts that a failed `split` returns: a wrong number of parts must not become a huge allocation.
const MAX_PARTS: usize = 1024;

impl Tensor {
    fn view(&self, op: Op, shape: Shape) -> Tensor {
        Tensor::single(op, Inputs::from_iter([self.clone()]), shape, self.dtype())
    }

    /// The same elements under another shape; -1 (once) stands for what is left, 0 keeps the size at its place.
    #[track_caller]
    pub fn reshape(&self, dims: &[isize]) -> Tensor {
        Tensor::make(|| {
            let from = self.shape()?;
            let mut sizes = Vec::with_capacity(dims.len());
            let mut hole = None;
            for (i, &d) in dims.iter().enumerate() {
                sizes.push(match d {
                    -1 if hole.is_none() => {
                        hole = Some(i);
                        1
                    }
                    0 if i < from.rank() => from[i],
                    d if d > 0 => d as usize,
                    _ => {
                        return Err(Error::shape(
                            "reshape",
                            &[from],
                            format!(
                                "{dims:?} is no shape: sizes are positive, 0 keeps, -1 at most once"
                            ),
                        ));
                    }
                });
            }
            let known: usize = sizes.iter().product();
            if let Some(h) = hole {
                if known == 0 || from.numel() % known != 0 {
                    return Err(Error::shape(
                        "reshape",
                        &[from],
                        format!("{} elements do not fill {dims:?}", from.numel()),
                    ));
                }
                sizes[h] = from.numel() / known;
            }
            let to = shape_of("reshape", &sizes)?;
            if to.numel() != from.numel() {
                return Err(Error::shape(
                    "reshape",
                    &[from],
                    format!("{} elements do not fill {dims:?}", from.numel()),
                ));
            }
            Ok(self.reshape_to(to))
        })
    }

    /// Reshape to a shape known to have as many elements.
    #[track_caller]
    pub(crate) fn reshape_to(&self, to: Shape) -> Tensor {
        if self.error().is_some() || self.meta().shape == to {
            return self.clone();
        }
        self.view(Op::Reshape, to)
    }

    /// Joins a range of axes into one: `[2, 3, 4].flatten(1..)` has shape `[2, 12]`, `flatten(..)` has one axis.
    #[track_caller]
    pub fn flatten(&self, axes: impl RangeBounds<isize>) -> Tensor {
        let first = match axes.start_bound() {
            Bound::Included(&a) => a,
            Bound::Excluded(&a) => a + 1,
            Bound::Unbounded => 0,
        };
        let last = match axes.end_bound() {
            Bound::Included(&a) => a,
            Bound::Excluded(&a) => a - 1,
            Bound::Unbounded => -1,
        };
        Tensor::make(|| {
            let s = self.shape()?;
            if s.rank() == 0 {
                return Ok(self.reshape_to(shape_of("flatten", &[1])?));
            }
            let (a, b) = (
                axis_of("flatten", first, &s)?,
                axis_of("flatten", last, &s)?,
            );
            if a > b {
                return Err(Error::shape(
                    "flatten",
                    &[s],
                    format!("the range of axes {first} to {last} is empty"),
                ));
            }
            let mut d = s[..a].to_vec();
            d.push(s[a..=b].iter().product());
            d.extend_from_slice(&s[b + 1..]);
            Ok(self.reshape_to(shape_of("flatten", &d)?))
        })
    }

    /// Splits one axis into several; -1 (once) stands for what is left.
    #[track_caller]
    pub fn unflatten(&self, axis: isize, sizes: &[isize]) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let axis = axis_of("unflatten", axis, &s)?;
            let known: isize = sizes.iter().filter(|&&d| d != -1).product();
            let holes = sizes.iter().filter(|&&d| d == -1).count();
            let size = s[axis] as isize;
            let fits = match holes {
                0 => known == size,
                1 => known > 0 && size % known == 0,
                _ => false,
            };
            if !fits || sizes.iter().any(|&d| d < -1) {
                return Err(Error::shape(
                    "unflatten",
                    &[s],
                    format!("axis {axis} of size {size} does not split into {sizes:?}"),
                ));
            }
            let mut d = s[..axis].to_vec();
            d.extend(
                sizes
                    .iter()
                    .map(|&d| if d == -1 { size / known } else { d } as usize),
            );
            d.extend_from_slice(&s[axis + 1..]);
            Ok(self.reshape_to(shape_of("unflatten", &d)?))
        })
    }

    /// Removes an axis of size 1.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let axis = axis_of("squeeze", axis, &s)?;
            if s[axis] != 1 {
                return Err(Error::shape(
                    "squeeze",
                    &[s],
                    format!("axis {axis} has not size 1"),
                ));
            }
            Ok(self.reshape_to(s.without(axis)))
        })
    }

    /// Adds an axis of size 1 at `axis` of the result.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let rank = s.rank() as isize + 1;
            let a = if axis < 0 { axis + rank } else { axis };
            if !(0..rank).contains(&a) {
                return Err(Error::shape(
                    "unsqueeze",
                    &[s],
                    format!("axis {axis} does not exist in a result of {rank} axes"),
                ));
            }
            let mut d = s.to_vec();
            d.insert(a as usize, 1);
            Ok(self.reshape_to(shape_of("unsqueeze", &d)?))
        })
    }

    /// Axes in another order: axis `i` of the result is axis `axes[i]` of this tensor.
    #[track_caller]
    pub fn permute(&self, axes: &[isize]) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let mut map = [0u8; MAX_RANK];
            let mut seen = [false; MAX_RANK];
            if axes.len() != s.rank() {
                return Err(Error::shape(
                    "permute",
                    &[s],
                    format!("{axes:?} names {} axes", axes.len()),
                ));
            }
            let mut to = s;
            for (i, &a) in axes.iter().enumerate() {
                let a = axis_of("permute", a, &s)?;
                if std::mem::replace(&mut seen[a], true) {
                    return Err(Error::argument(
                        "permute",
                        format!("{axes:?} names an axis twice"),
                    ));
                }
                map[i] = a as u8;
                to = to.with(i, s[a]);
            }
            if (0..s.rank()).all(|i| map[i] as usize == i) {
                return Ok(self.clone());
            }
            Ok(self.view(Op::Permute(Axes { map }), to))
        })
    }

    /// Two axes exchanged.
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let (a, b) = (axis_of("transpose", a, &s)?, axis_of("transpose", b, &s)?);
            let mut axes: Vec<isize> = (0..s.rank() as isize).collect();
            axes.swap(a, b);
            Ok(self.permute(&axes))
        })
    }

    /// The last two axes exchanged.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        self.transpose(-2, -1)
    }

    /// Repeated along axes of size 1 or missing in front, to exactly `dims`.
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[usize]) -> Tensor {
        Tensor::make(|| {
            let (from, to) = (self.shape()?, shape_of("broadcast_to", dims)?);
            if from.broadcast(&to) != Some(to) {
                return Err(Error::shape(
                    "broadcast_to",
                    &[from],
                    format!("does not broadcast to {to}: sizes must be equal or 1"),
                ));
            }
            Ok(self.broadcast_to_shape(to))
        })
    }

    #[track_caller]
    pub(crate) fn broadcast_to_shape(&self, to: Shape) -> Tensor {
        if self.error().is_some() || self.meta().shape == to {
            return self.clone();
        }
        self.view(Op::Broadcast, to)
    }

    /// Elements `start`, `start + step`, ... `count` of them along `axis`; a negative step walks backwards.
    #[track_caller]
    pub fn slice_step(&self, axis: isize, start: usize, step: isize, count: usize) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let axis = axis_of("slice", axis, &s)?;
            let last = start as isize + (count.max(1) as isize - 1) * step;
            let fits = count == 0 || (start < s[axis] && last >= 0 && (last as usize) < s[axis]);
            if step == 0 || !fits {
                return Err(Error::shape(
                    "slice",
                    &[s],
                    format!(
                        "{count} elements from {start} in steps of {step} leave axis {axis} of size {}",
                        s[axis]
                    ),
                ));
            }
            if start == 0 && step == 1 && count == s[axis] {
                return Ok(self.clone());
            }
            let start = if count == 0 { 0 } else { start };
            Ok(self.view(
                Op::Slice {
                    axis: axis as u8,
                    start,
                    step,
                },
                s.with(axis, count),
            ))
        })
    }

    /// `count` elements from `start` along `axis`.
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, count: usize) -> Tensor {
        self.slice_step(axis, start, 1, count)
    }

    /// The element at `index` along `axis`, which disappears.
    #[track_caller]
    pub fn index(&self, axis: isize, index: usize) -> Tensor {
        self.narrow(axis, index, 1).squeeze(axis)
    }

    /// Reversed along `axis`.
    #[track_caller]
    pub fn flip(&self, axis: isize) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let n = s[axis_of("flip", axis, &s)?];
            Ok(self.slice_step(axis, n.saturating_sub(1), -1, n))
        })
    }

    /// `n` equal parts along `axis`. If the size is no multiple of `n`, all parts (at most 1024 of them then) are invalid.
    #[track_caller]
    pub fn split(&self, n: usize, axis: isize) -> Vec<Tensor> {
        let parts = || -> Result<Vec<Tensor>> {
            let s = self.shape()?;
            let size = s[axis_of("split", axis, &s)?];
            if n == 0 || !size.is_multiple_of(n) {
                return Err(Error::shape(
                    "split",
                    &[s],
                    format!("axis {axis} of size {size} does not split into {n} equal parts"),
                ));
            }
            let each = size / n;
            Ok((0..n).map(|i| self.narrow(axis, i * each, each)).collect())
        };
        crate::Label::located(|| {
            parts().unwrap_or_else(|e| vec![Tensor::invalid(e); n.clamp(1, MAX_PARTS)])
        })
    }

    /// Zeros (false) added before and after along `axis`.
    #[track_caller]
    pub fn pad(&self, axis: isize, before: usize, after: usize) -> Tensor {
        Tensor::make(|| {
            let s = self.shape()?;
            let a = axis_of("pad", axis, &s)?;
            if before == 0 && after == 0 {
                return Ok(self.clone());
            }
            let mut to = s.to_vec();
            // A size that does not fit is too large for a tensor in any case.
            to[a] = to[a].saturating_add(before).saturating_add(after);
            let to = shape_of("pad", &to)?;
            let op = Op::Pad {
                axis: a as u8,
                before,
                after,
            };
            Ok(Tensor::single(
                op,
                Inputs::from_iter([self.clone()]),
                to,
                self.dtype(),
            ))
        })
    }

    /// Tensors joined along `axis`: equal in dtype and all other sizes.
    #[track_caller]
    pub fn concat(tensors: &[&Tensor], axis: isize) -> Tensor {
        Tensor::make(|| {
            let Some(first) = tensors.first() else {
                return Err(Error::argument("concat", "no tensors were given"));
            };
            let s = first.shape()?;
            let a = axis_of("concat", axis, &s)?;
            let mut total = 0;
            for t in tensors {
                let r = t.shape()?;
                if t.dtype() != first.dtype() {
                    return Err(Error::dtype(
                        "concat",
                        &tensors.iter().map(|t| t.dtype()).collect::<Vec<_>>(),
                        "dtypes must be equal; use `cast`",
                    ));
                }
                if r.rank() != s.rank() || r.with(a, s[a]) != s {
                    return Err(Error::shape(
                        "concat",
                        &tensors.iter().map(|t| t.meta().shape).collect::<Vec<_>>(),
                        format!("all sizes but that of axis {a} must be equal"),
                    ));
                }
                total += r[a];
            }
            if tensors.len() == 1 {
                return Ok((*first).clone());
            }
            Ok(Tensor::single(
                Op::Concat { axis: a as u8 },
                tensors.iter().map(|t| (*t).clone()).collect(),
                s.with(a, total),
                first.dtype(),
            ))
        })
    }

    /// Tensors of one shape along a new axis.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: isize) -> Tensor {
        crate::Label::located(|| {
            let wide: Vec<Tensor> = tensors.iter().map(|t| t.unsqueeze(axis)).collect();
            Tensor::concat(&wide.iter().collect::<Vec<_>>(), axis)
        })
    }

    /// This tensor summed over the axes along which it was broadcast from `shape`: the adjoint of broadcasting.
    #[track_caller]
    pub fn sum_to(&self, shape: &[usize]) -> Tensor {
        Tensor::make(|| {
            let (from, to) = (self.shape()?, shape_of("sum_to", shape)?);
            if from == to {
                return Ok(self.clone());
            }
            if to.broadcast(&from) != Some(from) {
                return Err(Error::shape(
                    "sum_to",
                    &[from, to],
                    "the second does not broadcast to the first",
                ));
            }
            let lead = from.rank() - to.rank();
            let axes: Vec<isize> = (0..from.rank())
                .filter(|&i| i < lead || (to[i - lead] == 1 && from[i] != 1))
                .map(|i| i as isize)
                .collect();
            let s = if axes.is_empty() {
                self.clone()
            } else {
                self.sum(&axes, true)
            };
            Ok(s.reshape_to(to))
        })
    }

    /// The shape to which all tensors broadcast together.
    pub fn broadcast_shape(tensors: &[&Tensor]) -> Result<Shape> {
        for t in tensors {
            t.valid()?;
        }
        broadcast_shape("broadcast", tensors)
    }
}
