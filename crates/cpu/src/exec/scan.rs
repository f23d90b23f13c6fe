//! Running sums and sorting.
use super::convert;
use super::cx::{Compile, Cx, Kernel, Operand};
use super::reduce::fold::{Fold, by_type};
use super::view::Arg;
use bimetal_kernels::par;
use bimetal_tensor::plan::{Dense, register};
use bimetal_tensor::{DType, ErrorKind, Result};
use std::cmp::Ordering;

/// Running sums along the middle of `[outer, size, inner]`.
pub(crate) struct CumSum {
    outer: usize,
    size: usize,
    inner: usize,
    reverse: bool,
    input: Operand,
    output: Operand,
}

/// Columns summed together, and elements of a row loaded together.
const STRIP: usize = 256;
const PART: usize = 1024;
/// Elements that are found by insertion.
const FEW: usize = 32;

impl CumSum {
    pub(crate) fn new(
        [outer, size, inner]: [usize; 3],
        reverse: bool,
        input: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<CumSum> {
        let (input, output) = (cx.dense(input)?, cx.dense(output)?);
        let n = outer * size * inner;
        cx.check(
            input.numel == n && output.numel == n && input.dtype == output.dtype,
            "sizes or dtypes of a running sum do not match",
        )?;
        Ok(CumSum {
            outer,
            size,
            inner,
            reverse,
            input,
            output,
        })
    }

    /// Rows of consecutive elements.
    fn rows<T: Fold>(&self, cx: &Cx<'_>) {
        let dtype = self.input.dtype;
        let bytes = dtype.size();
        let per_task = (16 * 1024 / self.size.max(1)).max(1);
        par::for_each(par::pieces(self.outer, per_task), |t| {
            let (src, dst) = (cx.ptr(self.input.buf), cx.ptr(self.output.buf));
            let mut part = vec![T::ZERO; PART.min(self.size)];
            for row in par::piece(self.outer, per_task, t) {
                let mut sum = T::ZERO;
                for p in 0..par::pieces(self.size, PART) {
                    let p = if self.reverse {
                        par::pieces(self.size, PART) - 1 - p
                    } else {
                        p
                    };
                    let range = par::piece(self.size, PART, p);
                    let at = (row * self.size + range.start) * bytes;
                    let part = &mut part[..range.len()];
                    let mut add = |v: &mut T| {
                        sum = T::sum(sum, *v);
                        *v = sum;
                    };
                    // SAFETY: the run lies in operand and result, `T` is its register type, and no two tasks share rows.
                    unsafe {
                        convert::load(dtype, src.add(at), 1, part.len(), part.as_mut_ptr().cast());
                        match self.reverse {
                            true => part.iter_mut().rev().for_each(&mut add),
                            false => part.iter_mut().for_each(&mut add),
                        }
                        let value = Arg::dense(part.as_ptr().cast());
                        convert::store(dtype, dst.add(at), 1, part.len(), value, register(dtype));
                    }
                }
            }
        });
    }

    fn sums<T: Fold>(&self, cx: &Cx<'_>) {
        if self.inner == 1 {
            return self.rows::<T>(cx);
        }
        let dtype = self.input.dtype;
        let bytes = dtype.size();
        let strips = par::pieces(self.inner, STRIP);
        par::for_each(self.outer * strips, |t| {
            let (outer, cols) = (t / strips, par::piece(self.inner, STRIP, t % strips));
            let (src, dst) = (cx.ptr(self.input.buf), cx.ptr(self.output.buf));
            let n = cols.len();
            let mut sum = vec![T::ZERO; n];
            let mut row = vec![T::ZERO; n];
            for i in 0..self.size {
                let i = if self.reverse { self.size - 1 - i } else { i };
                let at = ((outer * self.size + i) * self.inner + cols.start) * bytes;
                // SAFETY: the run lies in operand and result, `T` is its register type, and no two tasks share elements.
                unsafe {
                    convert::load(dtype, src.add(at), 1, n, row.as_mut_ptr().cast());
                    for (s, v) in sum.iter_mut().zip(&row) {
                        *s = T::sum(*s, *v);
                    }
                    let sum = Arg::dense(sum.as_ptr().cast());
                    convert::store(dtype, dst.add(at), 1, n, sum, register(dtype));
                }
            }
        });
    }
}

impl Kernel for CumSum {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        fn sums<T: Fold>(x: &CumSum, cx: &Cx<'_>) {
            x.sums::<T>(cx);
        }
        by_type!(register(self.input.dtype), sums(self, cx));
        Ok(())
    }

    fn work(&self) -> usize {
        4 * self.input.numel
    }
}

/// The last axis in stable order.
pub(crate) struct Sort {
    descending: bool,
    rows: usize,
    len: usize,
    wanted: usize,
    input: Operand,
    values: Option<Operand>,
    indices: Option<Operand>,
}

impl Sort {
    pub(crate) fn new(
        descending: bool,
        input: &Dense,
        values: Option<&Dense>,
        indices: Option<&Dense>,
        cx: &Compile<'_>,
    ) -> Result<Sort> {
        let input = cx.dense(input)?;
        let values = values.map(|d| cx.dense(d)).transpose()?;
        let indices = indices.map(|d| cx.dense(d)).transpose()?;
        let len = input.shape.last().copied().unwrap_or(1);
        let rows = input.numel.checked_div(len).unwrap_or(0);
        let mut wanted = None;
        for d in [&values, &indices].into_iter().flatten() {
            let k = d.shape.last().copied().unwrap_or(1);
            cx.check(
                d.numel == rows * k && k <= len && wanted.is_none_or(|w| w == k),
                "sizes of a sort do not match",
            )?;
            wanted = Some(k);
        }
        let dtypes = values.as_ref().is_none_or(|v| v.dtype == input.dtype)
            && indices.as_ref().is_none_or(|i| i.dtype == DType::I32);
        cx.check(dtypes, "dtypes of a sort do not match")?;
        Ok(Sort {
            descending,
            rows,
            len,
            wanted: wanted.unwrap_or(0),
            input,
            values,
            indices,
        })
    }

    fn sort<T: Fold + PartialOrd>(&self, cx: &Cx<'_>) {
        let dtype = self.input.dtype;
        let bytes = dtype.size();
        let per_task = (4096 / self.len.max(1)).max(1);
        par::for_each(par::pieces(self.rows, per_task), |t| {
            let mut row = vec![T::ZERO; self.len];
            let mut order: Vec<(T, i32)> = Vec::with_capacity(self.len);
            for r in par::piece(self.rows, per_task, t) {
                let src = cx.ptr(self.input.buf).wrapping_add(r * self.len * bytes);
                // SAFETY: the row lies in the operand; `T` is its register type.
                unsafe { convert::load(dtype, src, 1, self.len, row.as_mut_ptr().cast()) };
                order.clear();
                let by = |a: &(T, i32), b: &(T, i32)| {
                    let o = ascending(a.0, b.0);
                    let o = if self.descending { o.reverse() } else { o };
                    o.then(a.1.cmp(&b.1))
                };
                if self.wanted <= FEW && self.wanted * 8 < self.len {
                    // Most elements do not come before the last of the few.
                    for v in row.iter().copied().zip(0..) {
                        if order.len() == self.wanted {
                            match order.last() {
                                Some(last) if by(&v, last).is_lt() => order.pop(),
                                _ => continue,
                            };
                        }
                        let at = order.partition_point(|o| by(o, &v).is_lt());
                        order.insert(at, v);
                    }
                } else {
                    order.extend(row.iter().copied().zip(0..));
                    // The index breaks ties, so that unstable sorts are stable.
                    if self.wanted > 0 && self.wanted < self.len {
                        order.select_nth_unstable_by(self.wanted - 1, by);
                    }
                }
                let first = &mut order[..self.wanted];
                first.sort_unstable_by(by);
                let at = r * self.wanted;
                for (i, (v, index)) in first.iter().enumerate() {
                    // SAFETY: each row of the results has one writer.
                    unsafe {
                        if let Some(d) = &self.values {
                            let dst = cx.ptr(d.buf).add((at + i) * bytes);
                            let v = Arg::splat((&raw const *v).cast());
                            convert::store(dtype, dst, 1, 1, v, register(dtype));
                        }
                        if let Some(d) = &self.indices {
                            *cx.ptr(d.buf).cast::<i32>().add(at + i) = *index;
                        }
                    }
                }
            }
        });
    }
}

/// NaN is larger than any number.
fn ascending<T: PartialOrd>(a: T, b: T) -> Ordering {
    #[allow(clippy::eq_op)]
    a.partial_cmp(&b).unwrap_or_else(|| (a != a).cmp(&(b != b)))
}

impl Kernel for Sort {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        fn sort<T: Fold + PartialOrd>(x: &Sort, cx: &Cx<'_>) {
            x.sort::<T>(cx);
        }
        by_type!(register(self.input.dtype), sort(self, cx));
        Ok(())
    }

    fn work(&self) -> usize {
        16 * self.input.numel
    }
}
