//! Gathering and its adjoints. An index outside of its axis sets the fault word; nothing is read or written outside.
use super::Launch;
use super::common::{Build, GROUP, Slab, get, put, spread};
use crate::interpret::combine;
use crate::plan::{Bound, Cx};
use crate::words::{self, Buffers};
use bimetal_tensor::graph::ReduceOp;
use bimetal_tensor::plan::{Dense, register};
use bimetal_tensor::{DType, ErrorKind};
use cubecl::prelude::*;

/// `[outer, size, inner]` and how it is indexed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sizes {
    size: u32,
    inner: u32,
    /// Indices along the axis.
    count: u32,
    /// Whether each element has an index of its own, or each row.
    each: bool,
    index: Slab,
    data: Slab,
    output: Slab,
}

/// An index; outside of the axis it is reported and taken for 0.
#[cube]
fn index_at(
    buffers: &Buffers,
    fault: &mut [u32],
    at: u32,
    plan: u32,
    step: u32,
    #[comptime] s: Sizes,
) -> u32 {
    let i = get(buffers, at, comptime!(s.index.clone()));
    report(fault, i, comptime!(s.size), plan, step)
}

/// An index into an axis of `size` elements; one outside is reported and taken for 0.
#[cube]
pub(super) fn report(
    fault: &mut [u32],
    i: u32,
    #[comptime] size: u32,
    plan: u32,
    step: u32,
) -> u32 {
    if i >= size && fault[0] == 0u32 {
        fault[1] = plan;
        fault[2] = step;
        fault[3] = i;
        fault[0] = 1u32;
    }
    select(i < size, i, 0u32)
}

#[cube(launch_unchecked)]
fn gather_kernel(
    mut buffers: Buffers,
    fault: &mut [u32],
    numel: u32,
    plan: u32,
    number: u32,
    #[comptime] s: Sizes,
) {
    let first = ABSOLUTE_POS as u32 * comptime!(GROUP as u32);
    if first >= numel {
        terminate!();
    }
    let mut values = Sequence::<u32>::new();
    #[unroll]
    for j in 0..GROUP {
        let i = min(first + comptime!(j as u32), numel - 1u32);
        let x = i % comptime!(s.inner);
        let row = i / comptime!(s.inner);
        let at = if comptime!(s.each) {
            i
        } else {
            row % comptime!(s.count)
        };
        let index = index_at(&buffers, fault, at, plan, number, comptime!(s.clone()));
        let outer = row / comptime!(s.count);
        let from = (outer * comptime!(s.size) + index) * comptime!(s.inner) + x;
        let value = get(&buffers, from, comptime!(s.data.clone()));
        values.push(value);
    }
    put(
        &mut buffers,
        &values,
        first,
        numel,
        comptime!(s.output.binding),
        comptime!(s.output.dtype),
    );
}

/// Adds the updates in their order: each unit has one column of the result, in `sums` of the register dtype.
#[cube(launch_unchecked)]
fn scatter_kernel(
    buffers: Buffers,
    sums: &mut [u32],
    fault: &mut [u32],
    columns: u32,
    plan: u32,
    number: u32,
    #[comptime] s: Sizes,
) {
    let column = ABSOLUTE_POS as u32;
    if column >= columns {
        terminate!();
    }
    let x = column % comptime!(s.inner);
    let outer = column / comptime!(s.inner);
    let ty = comptime!(register(s.data.dtype));
    for i in 0..comptime!(s.size) {
        sums[((outer * comptime!(s.size) + i) * comptime!(s.inner) + x) as usize] = 0u32;
    }
    for i in 0..comptime!(s.count) {
        let from = (outer * comptime!(s.count) + i) * comptime!(s.inner) + x;
        let at = if comptime!(s.each) { from } else { i };
        let index = index_at(&buffers, fault, at, plan, number, comptime!(s.clone()));
        let value = get(&buffers, from, comptime!(s.data.clone()));
        let to = ((outer * comptime!(s.size) + index) * comptime!(s.inner) + x) as usize;
        sums[to] = combine(sums[to], value, ReduceOp::Sum, ty);
    }
}

/// Adds the updates of each element of the result, for results of few columns.
#[cube(launch_unchecked)]
fn collect_kernel(
    mut buffers: Buffers,
    fault: &mut [u32],
    numel: u32,
    plan: u32,
    number: u32,
    #[comptime] s: Sizes,
) {
    let first = ABSOLUTE_POS as u32 * comptime!(GROUP as u32);
    if first >= numel {
        terminate!();
    }
    let ty = comptime!(register(s.data.dtype));
    let mut values = Sequence::<u32>::new();
    #[unroll]
    for j in 0..GROUP {
        let e = min(first + comptime!(j as u32), numel - 1u32);
        let x = e % comptime!(s.inner);
        let row = (e / comptime!(s.inner)) % comptime!(s.size);
        let outer = e / comptime!(s.inner * s.size);
        let mut sum = 0u32.runtime();
        for i in 0..comptime!(s.count) {
            let from = (outer * comptime!(s.count) + i) * comptime!(s.inner) + x;
            let at = if comptime!(s.each) { from } else { i };
            let index = index_at(&buffers, fault, at, plan, number, comptime!(s.clone()));
            if index == row {
                let value = get(&buffers, from, comptime!(s.data.clone()));
                sum = combine(sum, value, ReduceOp::Sum, ty);
            }
        }
        values.push(sum);
    }
    put(
        &mut buffers,
        &values,
        first,
        numel,
        comptime!(s.output.binding),
        comptime!(s.output.dtype),
    );
}

#[cube(launch_unchecked)]
fn round_kernel(sums: &[u32], to: &mut [u32], numel: u32, #[comptime] dtype: DType) {
    let per = comptime!(4 / dtype.size());
    let first = ABSOLUTE_POS as u32 * comptime!(per as u32);
    if first >= numel {
        terminate!();
    }
    let mut word = 0u32.runtime();
    #[unroll]
    for j in 0..per {
        let i = min(first + comptime!(j as u32), numel - 1u32);
        word |= words::pack(sums[i as usize], dtype) << comptime!((j * 32 / per) as u32);
    }
    to[ABSOLUTE_POS] = word;
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gather,
    /// By columns.
    Scatter,
    /// By elements.
    Collect,
}

/// Gathering or scattering along an axis.
pub(super) struct Index {
    kind: Kind,
    sizes: Sizes,
    bound: Bound,
    outer: usize,
    output: usize,
    numel: usize,
    step: usize,
}

impl Index {
    /// `data` is the operand, or the update if `scatter`; each element has an index of its own if `each`.
    pub(super) fn new(
        b: &Build<'_>,
        scatter: bool,
        each: bool,
        [outer, size, inner]: [usize; 3],
        index: &Dense,
        data: &Dense,
        output: &Dense,
    ) -> Result<Index, String> {
        let count = match each {
            true => index.shape.numel() / (outer * inner).max(1),
            false => index.shape.numel(),
        };
        let mut bound = Bound::default();
        let sizes = Sizes {
            size: size as u32,
            inner: inner.max(1) as u32,
            count: count.max(1) as u32,
            each,
            index: b.slab(index, &mut bound)?,
            data: b.slab(data, &mut bound)?,
            output: b.slab(output, &mut bound)?,
        };
        let kind = match scatter {
            false => Kind::Gather,
            true if count == 0 => Kind::Collect,
            true if outer * inner >= 64 => Kind::Scatter,
            true => Kind::Collect,
        };
        let mut sizes = sizes;
        if scatter {
            sizes.count = count as u32;
        }
        Ok(Index {
            kind,
            sizes,
            bound,
            outer,
            output: output.buf as usize,
            numel: b.numel(&output.shape)?,
            step: b.step,
        })
    }
}

impl Launch for Index {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        if self.numel == 0 {
            return Ok(());
        }
        let (buffers, _) = cx.bind(&self.bound);
        let (count, dim) = spread(cx, self.numel, GROUP);
        let (client, numel, s) = (&cx.device.client, self.numel as u32, self.sizes.clone());
        let (plan, step) = (cx.plan, self.step as u32);
        // SAFETY: indices outside of the axis are taken for 0; all others are computed from the operands' sizes.
        unsafe {
            match self.kind {
                Kind::Gather => gather_kernel::launch_unchecked(
                    client,
                    count,
                    dim,
                    buffers,
                    cx.fault(),
                    numel,
                    plan,
                    step,
                    s,
                ),
                Kind::Collect => collect_kernel::launch_unchecked(
                    client,
                    count,
                    dim,
                    buffers,
                    cx.fault(),
                    numel,
                    plan,
                    step,
                    s,
                ),
                Kind::Scatter => {
                    let columns = self.outer * s.inner as usize;
                    let dtype = s.output.dtype;
                    let handle = cx.scratch(4 * self.numel);
                    let sums = || BufferArg::from_raw_parts(handle.clone(), self.numel);
                    let (count, dim) = spread(cx, columns, 1);
                    scatter_kernel::launch_unchecked(
                        client,
                        count,
                        dim,
                        buffers,
                        sums(),
                        cx.fault(),
                        columns as u32,
                        plan,
                        step,
                        s,
                    );
                    let (count, dim) = spread(cx, self.numel, 4 / dtype.size());
                    let to = cx.buffer(self.output);
                    round_kernel::launch_unchecked(client, count, dim, sums(), to, numel, dtype);
                }
            }
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }

    fn checks_indices(&self) -> bool {
        true
    }
}
