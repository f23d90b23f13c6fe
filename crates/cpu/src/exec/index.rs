//! Gathering and its adjoints. All indices are checked before anything is written.
use super::convert;
use super::cx::{Compile, Cx, Kernel, Operand};
use super::reduce::fold::{Fold, by_type};
use super::view::Arg;
use bimetal_kernels::par;
use bimetal_tensor::plan::{Dense, register};
use bimetal_tensor::{DType, ErrorKind, Result};

/// Bytes of a task, about.
const TASK: usize = 64 * 1024;

/// `[outer, size, inner]` and how it is indexed.
pub(crate) struct Index {
    kind: Kind,
    outer: usize,
    size: usize,
    inner: usize,
    /// Number of indices along the axis.
    count: usize,
    index: Operand,
    data: Operand,
    output: Operand,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// `[outer, count, inner]` of the rows that the indices name.
    Take,
    /// The sums of the update's rows that go to each row.
    TakeGrad,
    /// Each element by its own index.
    Gather,
    /// The sums of the update's elements that go to each element.
    Scatter,
}

impl Index {
    /// `Take` (`grad` false) or `TakeGrad`; `data` is the operand or the update.
    pub(crate) fn take(
        grad: bool,
        [outer, size, inner]: [usize; 3],
        index: &Dense,
        data: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Index> {
        let kind = if grad { Kind::TakeGrad } else { Kind::Take };
        Index::new(
            kind,
            [outer, size, inner, index.shape.numel()],
            index,
            data,
            output,
            cx,
        )
    }

    /// `GatherAlong` or `ScatterAlong`.
    pub(crate) fn along(
        scatter: bool,
        axis: usize,
        index: &Dense,
        data: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Index> {
        let (kind, wide) = match scatter {
            true => (Kind::Scatter, output),
            false => (Kind::Gather, data),
        };
        let s = &wide.shape;
        cx.check(
            axis < s.rank() && index.shape.rank() == s.rank(),
            "no such axis",
        )?;
        let outer = s[..axis].iter().product();
        let inner = s[axis + 1..].iter().product();
        Index::new(
            kind,
            [outer, s[axis], inner, index.shape[axis]],
            index,
            data,
            output,
            cx,
        )
    }

    fn new(
        kind: Kind,
        [outer, size, inner, count]: [usize; 4],
        index: &Dense,
        data: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Index> {
        let x = Index {
            kind,
            outer,
            size,
            inner,
            count,
            index: cx.dense(index)?,
            data: cx.dense(data)?,
            output: cx.dense(output)?,
        };
        let wide = outer * size * inner;
        let narrow = outer * count * inner;
        let (from, to) = match kind {
            Kind::Take | Kind::Gather => (wide, narrow),
            Kind::TakeGrad | Kind::Scatter => (narrow, wide),
        };
        let indices = match kind {
            Kind::Take | Kind::TakeGrad => count,
            _ => narrow,
        };
        cx.check(
            x.data.numel == from && x.output.numel == to && x.index.numel == indices,
            "the sizes of an indexed operand do not match",
        )?;
        cx.check(
            matches!(index.dtype, DType::I32 | DType::I64) && data.dtype == output.dtype,
            "an index is not I32 or I64, or the dtypes of operand and result differ",
        )?;
        Ok(x)
    }

    /// The indices, all within the axis.
    fn indices<'a>(&self, cx: &'a Cx<'_>) -> std::result::Result<Indices<'a>, ErrorKind> {
        // SAFETY: the dtype was checked; nobody writes an index while it is read.
        let all = unsafe {
            match self.index.dtype {
                DType::I32 => Indices::I32(cx.slice(&self.index)),
                _ => Indices::I64(cx.slice(&self.index)),
            }
        };
        let outside = |i: &i64| *i < 0 || *i as u64 >= self.size as u64;
        let bad = match all {
            Indices::I32(v) => v.iter().map(|i| *i as i64).find(outside),
            Indices::I64(v) => v.iter().copied().find(outside),
        };
        match bad {
            None => Ok(all),
            Some(index) => Err(ErrorKind::IndexOutOfRange {
                index,
                size: self.size,
            }),
        }
    }

    fn run_take(&self, cx: &Cx<'_>, index: Indices<'_>) {
        let bytes = self.inner * self.data.dtype.size();
        let rows = self.outer * self.count;
        let per_task = (TASK / bytes.max(1)).max(1);
        par::for_each(par::pieces(rows, per_task), |t| {
            let (src, dst) = (cx.ptr(self.data.buf), cx.ptr(self.output.buf));
            for row in par::piece(rows, per_task, t) {
                let from = row / self.count * self.size + index.get(row % self.count);
                // SAFETY: both rows lie in their buffers; each row of the result has one writer.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        src.add(from * bytes),
                        dst.add(row * bytes),
                        bytes,
                    )
                };
            }
        });
    }

    fn run_gather(&self, cx: &Cx<'_>, index: Indices<'_>) {
        let size = self.data.dtype.size();
        let rows = self.outer * self.count;
        let per_task = (TASK / (8 * self.inner).max(1)).max(1);
        par::for_each(par::pieces(rows, per_task), |t| {
            let (src, dst) = (cx.ptr(self.data.buf), cx.ptr(self.output.buf));
            for row in par::piece(rows, per_task, t) {
                let base = row / self.count * self.size;
                for i in 0..self.inner {
                    let at = row * self.inner + i;
                    let from = (base + index.get(at)) * self.inner + i;
                    // SAFETY: both elements lie in their buffers; each element of the result has one writer.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            src.add(from * size),
                            dst.add(at * size),
                            size,
                        )
                    };
                }
            }
        });
    }

    /// Sums by destination: the update's rows are sorted by it, so that every sum has one writer and one order.
    fn run_take_grad<T: Fold>(&self, cx: &Cx<'_>, index: Indices<'_>) {
        let mut starts = vec![0u32; self.size + 1];
        for i in 0..self.count {
            starts[index.get(i) + 1] += 1;
        }
        for i in 0..self.size {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut order = vec![0u32; self.count];
        for i in 0..self.count {
            let n = &mut next[index.get(i)];
            order[*n as usize] = i as u32;
            *n += 1;
        }
        let dtype = self.data.dtype;
        let size = dtype.size();
        let rows = self.outer * self.size;
        let per_task = (TASK / (self.inner * size).max(1)).max(1);
        par::for_each(par::pieces(rows, per_task), |t| {
            let (src, dst) = (cx.ptr(self.data.buf), cx.ptr(self.output.buf));
            let mut sum = vec![T::ZERO; self.inner];
            let mut row = vec![T::ZERO; self.inner];
            for to in par::piece(rows, per_task, t) {
                let (outer, at) = (to / self.size, to % self.size);
                let list = &order[starts[at] as usize..starts[at + 1] as usize];
                let dst = dst.wrapping_add(to * self.inner * size);
                if list.is_empty() {
                    // SAFETY: the row lies in the result, and each row has one writer.
                    unsafe { std::ptr::write_bytes(dst, 0, self.inner * size) };
                    continue;
                }
                sum.fill(T::ZERO);
                for i in list {
                    let from = (outer * self.count + *i as usize) * self.inner * size;
                    // SAFETY: the row lies in the update; `T` is its register type.
                    unsafe {
                        convert::load(dtype, src.add(from), 1, self.inner, row.as_mut_ptr().cast())
                    };
                    for (s, v) in sum.iter_mut().zip(&row) {
                        *s = T::sum(*s, *v);
                    }
                }
                let sum = Arg::dense(sum.as_ptr().cast());
                // SAFETY: as above.
                unsafe { convert::store(dtype, dst, 1, self.inner, sum, register(dtype)) };
            }
        });
    }

    /// Each `[size, inner]` matrix of the result by one task, in the order of the update.
    fn run_scatter<T: Fold>(&self, cx: &Cx<'_>, index: Indices<'_>) {
        let dtype = self.data.dtype;
        let bytes = dtype.size();
        // Columns are independent too.
        let strip = (TASK / 8 / (self.size + self.count).max(1)).clamp(1, self.inner.max(1));
        let strips = par::pieces(self.inner, strip);
        par::for_each(self.outer * strips, |t| {
            let (outer, cols) = (t / strips, par::piece(self.inner, strip, t % strips));
            let (src, dst) = (cx.ptr(self.data.buf), cx.ptr(self.output.buf));
            let n = cols.len();
            let mut sum = vec![T::ZERO; self.size * n];
            let mut row = vec![T::ZERO; n];
            for i in 0..self.count {
                let at = (outer * self.count + i) * self.inner + cols.start;
                // SAFETY: the run lies in the update; `T` is its register type.
                unsafe { convert::load(dtype, src.add(at * bytes), 1, n, row.as_mut_ptr().cast()) };
                for (c, v) in row.iter().enumerate() {
                    let s = &mut sum[index.get(at + c) * n + c];
                    *s = T::sum(*s, *v);
                }
            }
            for i in 0..self.size {
                let at = (outer * self.size + i) * self.inner + cols.start;
                let sum = Arg::dense(sum[i * n..].as_ptr().cast());
                // SAFETY: the run lies in the result, and no two tasks share elements.
                unsafe { convert::store(dtype, dst.add(at * bytes), 1, n, sum, register(dtype)) };
            }
        });
    }
}

#[derive(Clone, Copy)]
enum Indices<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl Indices<'_> {
    #[inline(always)]
    fn get(&self, i: usize) -> usize {
        match self {
            Indices::I32(v) => v[i] as usize,
            Indices::I64(v) => v[i] as usize,
        }
    }
}

impl Kernel for Index {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let index = self.indices(cx)?;
        fn take_grad<T: Fold>(x: &Index, cx: &Cx<'_>, i: Indices<'_>) {
            x.run_take_grad::<T>(cx, i);
        }
        fn scatter<T: Fold>(x: &Index, cx: &Cx<'_>, i: Indices<'_>) {
            x.run_scatter::<T>(cx, i);
        }
        let ty = register(self.data.dtype);
        match self.kind {
            Kind::Take => self.run_take(cx, index),
            Kind::Gather => self.run_gather(cx, index),
            Kind::TakeGrad => by_type!(ty, take_grad(self, cx, index)),
            Kind::Scatter => by_type!(ty, scatter(self, cx, index)),
        }
        Ok(())
    }

    fn work(&self) -> usize {
        self.data.numel.min(self.output.numel * 2) + self.output.numel + self.index.numel
    }
}
