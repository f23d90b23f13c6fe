//! Running sums and sorting.
use super::Launch;
use super::common::{Build, Slab, get, spread};
use crate::interpret::{before, combine};
use crate::plan::{Bound, Cx};
use crate::words::{self, Atomics, Buffers};
use bimetal_tensor::graph::ReduceOp;
use bimetal_tensor::plan::{Dense, register};
use bimetal_tensor::{DType, ErrorKind};
use cubecl::prelude::*;

/// One unit a column.
#[cube(launch_unchecked)]
fn cumsum_kernel(
    buffers: Buffers,
    atomics: Atomics,
    columns: u32,
    #[comptime] size: u32,
    #[comptime] inner: u32,
    #[comptime] reverse: bool,
    #[comptime] from: Slab,
    #[comptime] to: Slab,
) {
    let column = ABSOLUTE_POS as u32;
    if column >= columns {
        terminate!();
    }
    let x = column % inner;
    let outer = column / inner;
    let ty = comptime!(register(from.dtype));
    let mut sum = 0u32.runtime();
    for i in 0..size {
        let row = if reverse { (size - 1) - i } else { i };
        let at = (outer * size + row) * inner + x;
        let value = get(&buffers, at, comptime!(from.clone()));
        sum = combine(sum, value, ReduceOp::Sum, ty);
        words::store_part(
            &atomics,
            comptime!(to.binding),
            at,
            sum,
            comptime!(to.dtype),
        );
    }
}

pub(super) struct CumSum {
    bound: Bound,
    outer: usize,
    size: usize,
    inner: usize,
    reverse: bool,
    from: Slab,
    to: Slab,
}

impl CumSum {
    pub(super) fn new(
        b: &Build<'_>,
        [outer, size, inner]: [usize; 3],
        reverse: bool,
        input: &Dense,
        output: &Dense,
    ) -> Result<CumSum, String> {
        let mut bound = Bound::default();
        Ok(CumSum {
            from: b.slab(input, &mut bound)?,
            to: Slab {
                binding: bound.atomic(output.buf as usize),
                dtype: output.dtype,
            },
            bound,
            outer,
            size,
            inner,
            reverse,
        })
    }
}

impl Launch for CumSum {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        let columns = self.outer * self.inner;
        if columns * self.size == 0 {
            return Ok(());
        }
        let (buffers, atomics) = cx.bind(&self.bound);
        let (count, dim) = spread(cx, columns, 1);
        // SAFETY: indices are computed from the sizes of the operands, which fit their buffers.
        unsafe {
            cumsum_kernel::launch_unchecked(
                &cx.device.client,
                count,
                dim,
                buffers,
                atomics,
                columns as u32,
                self.size as u32,
                self.inner as u32,
                self.reverse,
                self.from.clone(),
                self.to.clone(),
            )
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}

/// How rows are sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Order {
    /// Elements of a row, and how many of the first are wanted.
    row: u32,
    wanted: u32,
    descending: bool,
    from: Slab,
    values: Option<Slab>,
    indices: Option<Slab>,
}

/// One unit an element, which counts those that come before it: O(n) for each, but without exchanges.
#[cube(launch_unchecked)]
fn sort_kernel(buffers: Buffers, atomics: Atomics, numel: u32, #[comptime] o: Order) {
    let e = ABSOLUTE_POS as u32;
    if e >= numel {
        terminate!();
    }
    let at = e % comptime!(o.row);
    let base = e - at;
    let ty = comptime!(register(o.from.dtype));
    let mine = get(&buffers, e, comptime!(o.from.clone()));
    let mut rank = 0u32.runtime();
    for i in 0..comptime!(o.row) {
        let other = get(&buffers, base + i, comptime!(o.from.clone()));
        let first = sorts_before(other, mine, ty, comptime!(o.descending));
        let last = sorts_before(mine, other, ty, comptime!(o.descending));
        // Equals keep their order.
        if first || (!last && i < at) {
            rank += 1u32;
        }
    }
    if rank < comptime!(o.wanted) {
        let to = e / comptime!(o.row) * comptime!(o.wanted) + rank;
        if comptime!(o.values.is_some()) {
            let slab = comptime!(o.values.clone().unwrap_or(o.from.clone()));
            words::store_part(
                &atomics,
                comptime!(slab.binding),
                to,
                mine,
                comptime!(slab.dtype),
            );
        }
        if comptime!(o.indices.is_some()) {
            let slab = comptime!(o.indices.clone().unwrap_or(o.from.clone()));
            words::store_part(&atomics, comptime!(slab.binding), to, at, DType::I32);
        }
    }
}

/// NaN counts as the largest.
#[cube]
fn sorts_before(x: u32, y: u32, #[comptime] ty: DType, #[comptime] descending: bool) -> bool {
    if comptime!(descending) {
        before(x, y, ty, true)
    } else {
        // The other way round NaN must come last.
        let x_nan = (x & 0x7fff_ffffu32) > 0x7f80_0000u32;
        let y_nan = (y & 0x7fff_ffffu32) > 0x7f80_0000u32;
        if comptime!(ty == DType::F32) {
            !x_nan & (y_nan | before(x, y, ty, false))
        } else {
            before(x, y, ty, false)
        }
    }
}

pub(super) struct Sort {
    bound: Bound,
    order: Order,
    numel: usize,
}

impl Sort {
    pub(super) fn new(
        b: &Build<'_>,
        descending: bool,
        input: &Dense,
        values: Option<&Dense>,
        indices: Option<&Dense>,
    ) -> Result<Sort, String> {
        let mut bound = Bound::default();
        let from = b.slab(input, &mut bound)?;
        let result = values.or(indices).ok_or("a sort has a result")?;
        let mut shared = |d: &Dense| Slab {
            binding: bound.atomic(d.buf as usize),
            dtype: d.dtype,
        };
        let (values, indices) = (values.map(&mut shared), indices.map(&mut shared));
        Ok(Sort {
            order: Order {
                row: input.shape.last().copied().unwrap_or(1) as u32,
                wanted: result.shape.last().copied().unwrap_or(1) as u32,
                descending,
                from,
                values,
                indices,
            },
            bound,
            numel: b.numel(&input.shape)?,
        })
    }
}

impl Launch for Sort {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        if self.numel == 0 {
            return Ok(());
        }
        let (buffers, atomics) = cx.bind(&self.bound);
        let (count, dim) = spread(cx, self.numel, 1);
        // SAFETY: ranks are less than the row's length, and those wanted have a place in the results.
        unsafe {
            sort_kernel::launch_unchecked(
                &cx.device.client,
                count,
                dim,
                buffers,
                atomics,
                self.numel as u32,
                self.order.clone(),
            )
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}
