//! Gathering by index and its adjoints, running sums, sorting. Indices are I32 (I64 is accepted); an index out of range is an
//! error when the value is computed.
use super::{axis_of, shape_of};
use crate::graph::Op;
use crate::plan::Meta;
use crate::tensor::{Inputs, Outs};
use crate::{DType, Error, Label, Result, Tensor};

impl Tensor {
    #[track_caller]
    fn check_index(&self, op: &'static str) -> Result<()> {
        let d = self.valid()?.dtype();
        if matches!(d, DType::I32 | DType::I64) {
            return Ok(());
        }
        Err(Error::dtype(op, &[d], "indices must be I32 or I64"))
    }

    /// Elements by index along `axis`, as NumPy's `take`: the index's axes replace the axis. An embedding look-up is
    /// `table.take(&tokens, 0)`.
    #[track_caller]
    pub fn take(&self, index: &Tensor, axis: isize) -> Tensor {
        Tensor::make(|| {
            index.check_index("take")?;
            let (s, i) = (self.shape()?, index.shape()?);
            let axis = axis_of("take", axis, &s)?;
            let mut d = s[..axis].to_vec();
            d.extend_from_slice(&i);
            d.extend_from_slice(&s[axis + 1..]);
            Ok(Tensor::single(
                Op::Take { axis: axis as u8 },
                Inputs::from_iter([self.clone(), index.clone()]),
                shape_of("take", &d)?,
                self.dtype(),
            ))
        })
    }

    /// The adjoint of [`Tensor::take`]: adds `self` (the update) at `index` along `axis` into zeros whose axis has size
    /// `size`; f32 accumulation, one rounding.
    #[track_caller]
    pub fn take_grad(&self, index: &Tensor, axis: usize, size: usize) -> Tensor {
        Tensor::make(|| {
            index.check_index("take_grad")?;
            let (u, i) = (self.shape()?, index.shape()?);
            if u.rank() < axis + i.rank() || u[axis..axis + i.rank()] != i[..] {
                return Err(Error::shape(
                    "take_grad",
                    &[u, i],
                    "the update's axes do not match the index",
                ));
            }
            let mut d = u[..axis].to_vec();
            d.push(size);
            d.extend_from_slice(&u[axis + i.rank()..]);
            Ok(Tensor::single(
                Op::TakeGrad { axis: axis as u8 },
                Inputs::from_iter([index.clone(), self.clone()]),
                shape_of("take_grad", &d)?,
                self.dtype(),
            ))
        })
    }

    /// `out[i][j] = self[index[i][j]][j]` along `axis` (PyTorch's `gather`, NumPy's `take_along_axis`): shapes are equal but
    /// for the axis.
    #[track_caller]
    pub fn gather(&self, index: &Tensor, axis: isize) -> Tensor {
        Tensor::make(|| {
            index.check_index("gather")?;
            let (s, i) = (self.shape()?, index.shape()?);
            let axis = axis_of("gather", axis, &s)?;
            if i.rank() != s.rank() || i.with(axis, s[axis]) != s {
                return Err(Error::shape(
                    "gather",
                    &[s, i],
                    format!("the index's shape must equal the tensor's but for axis {axis}"),
                ));
            }
            Ok(Tensor::single(
                Op::GatherAlong { axis: axis as u8 },
                Inputs::from_iter([self.clone(), index.clone()]),
                i,
                self.dtype(),
            ))
        })
    }

    /// The adjoint of [`Tensor::gather`]: adds `self` (the update) at `index` along `axis` into zeros whose axis has size `size`;
    /// f32 accumulation, one rounding.
    #[track_caller]
    pub fn scatter_add(&self, index: &Tensor, axis: isize, size: usize) -> Tensor {
        Tensor::make(|| {
            index.check_index("scatter_add")?;
            let (u, i) = (self.shape()?, index.shape()?);
            let axis = axis_of("scatter_add", axis, &u)?;
            if u != i {
                return Err(Error::shape(
                    "scatter_add",
                    &[u, i],
                    "update and index must have one shape",
                ));
            }
            Ok(Tensor::single(
                Op::ScatterAlong { axis: axis as u8 },
                Inputs::from_iter([index.clone(), self.clone()]),
                shape_of("scatter_add", &u.with(axis, size))?,
                self.dtype(),
            ))
        })
    }

    /// The running sum along `axis`, from the end if `reverse`; 8- and 16-bit floats accumulate in f32.
    #[track_caller]
    pub fn cumsum(&self, axis: isize, reverse: bool) -> Tensor {
        Tensor::make(|| {
            let m = self.valid()?.meta();
            let axis = axis_of("cumsum", axis, &m.shape)?;
            if m.dtype == DType::Bool {
                return Err(Error::dtype(
                    "cumsum",
                    &[m.dtype],
                    "expected numbers; use `cast`",
                ));
            }
            Ok(Tensor::single(
                Op::CumSum {
                    axis: axis as u8,
                    reverse,
                },
                Inputs::from_iter([self.clone()]),
                m.shape,
                m.dtype,
            ))
        })
    }

    /// The last axis in stable order, NaN last (first if descending): values and I32 indices.
    #[track_caller]
    pub fn sort(&self, descending: bool) -> (Tensor, Tensor) {
        let t = Tensor::make(|| {
            let s = self.shape()?;
            self.sort_node(descending, s[axis_of("sort", -1, &s)?])
        });
        (t.output(0), t.output(1))
    }

    /// The `k` largest elements of the last axis, largest first: values and I32 indices.
    #[track_caller]
    pub fn topk(&self, k: usize) -> (Tensor, Tensor) {
        let t = Tensor::make(|| self.sort_node(true, k));
        (t.output(0), t.output(1))
    }

    #[track_caller]
    fn sort_node(&self, descending: bool, k: usize) -> Result<Tensor> {
        let m = self.valid()?.meta();
        let axis = axis_of("sort", -1, &m.shape)?;
        if k > m.shape[axis] || m.shape[axis] > i32::MAX as usize {
            return Err(Error::shape(
                "sort",
                &[m.shape],
                format!(
                    "{k} elements were asked for of an axis of size {}",
                    m.shape[axis]
                ),
            ));
        }
        let shape = m.shape.with(axis, k);
        let outs = Outs::from_iter([
            Meta {
                shape,
                dtype: m.dtype,
            },
            Meta {
                shape,
                dtype: DType::I32,
            },
        ]);
        Ok(Tensor::node(
            Op::Sort { descending },
            Inputs::from_iter([self.clone()]),
            outs,
            Label::current(),
        ))
    }

    /// 1 at the class index along a new last axis of size `classes`, 0 elsewhere; an index out of range gives a row of zeros.
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Tensor {
        Tensor::make(|| {
            self.check_index("one_hot")?;
            let mut d = self.shape()?.to_vec();
            d.push(classes);
            let full = shape_of("one_hot", &d)?;
            let index = Tensor::iota(full, d.len() - 1, self.known_device("one_hot")?);
            Ok(index.eq(self.unsqueeze(-1).cast(DType::I32)).cast(dtype))
        })
    }
}
