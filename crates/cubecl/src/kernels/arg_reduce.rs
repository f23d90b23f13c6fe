//! The index of an extreme element.
use super::Launch;
use super::common::{Build, loc};
use crate::code::Loc;
use crate::interpret::{before, place};
use crate::plan::{Bound, Cx};
use crate::words::{self, Buffers};
use bimetal_tensor::graph::ArgOp;
use bimetal_tensor::plan::{Access, BufId, register};
use bimetal_tensor::{ErrorKind, Shape};
use cubecl::prelude::*;

const UNITS: u32 = 64;

/// One unit a row: the first of equals, NaN before everything.
#[cube(launch_unchecked)]
fn arg_kernel(
    mut buffers: Buffers,
    rows: u32,
    #[comptime] row: u32,
    #[comptime] from: Loc,
    #[comptime] output: usize,
    #[comptime] largest: bool,
) {
    let r = ABSOLUTE_POS as u32;
    if r >= rows {
        terminate!();
    }
    let ty = comptime!(register(from.dtype));
    let mut best = 0u32.runtime();
    let mut top = 0u32.runtime();
    let mut i = 0u32.runtime();
    while i < row {
        let at = place(r * row + i, comptime!(from.clone()));
        let value = words::load(&buffers, comptime!(from.binding), at, comptime!(from.dtype));
        if i == 0u32 || before(value, top, ty, largest) {
            best = i;
            top = value;
        }
        i += 1u32;
    }
    let words = buffers.index_mut(output);
    words[r as usize] = best;
}

pub(super) struct ArgReduce {
    bound: Bound,
    from: Loc,
    output: usize,
    rows: usize,
    row: usize,
    op: ArgOp,
}

impl ArgReduce {
    pub(super) fn new(
        b: &Build<'_>,
        domain: &Shape,
        input: &Access,
        op: ArgOp,
        output: BufId,
    ) -> Result<ArgReduce, String> {
        b.numel(domain)?;
        let row = domain.last().copied().unwrap_or(1);
        let mut bound = Bound::default();
        let from = loc(input, domain, bound.buffer(input.buf as usize));
        Ok(ArgReduce {
            from,
            output: bound.buffer(output as usize),
            bound,
            rows: domain.numel().checked_div(row).unwrap_or(0),
            row,
            op,
        })
    }
}

impl Launch for ArgReduce {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        if self.rows == 0 {
            return Ok(());
        }
        let (buffers, _) = cx.bind(&self.bound);
        // SAFETY: accesses lie in their buffers, and units past the last row stop.
        unsafe {
            arg_kernel::launch_unchecked(
                &cx.device.client,
                cx.grid(self.rows.div_ceil(UNITS as usize)),
                CubeDim::new_1d(UNITS),
                buffers,
                self.rows as u32,
                self.row as u32,
                self.from.clone(),
                self.output,
                self.op == ArgOp::Max,
            )
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}
