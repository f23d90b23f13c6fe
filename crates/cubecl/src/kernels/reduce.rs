//! Reductions of programs over trailing axes.
use super::Launch;
use super::common::{Build, Runs, emit, is_float};
use crate::code::Code;
use crate::interpret::{combine, identity, run};
use crate::math::{bits, float};
use crate::plan::{Bound, Cx};
use crate::words::{Atomics, Buffers};
use bimetal_tensor::graph::ReduceOp;
use bimetal_tensor::plan::Fused;
use bimetal_tensor::{DType, ErrorKind, Shape};
use cubecl::prelude::*;

/// Units of a cube that folds one row.
const UNITS: u32 = 128;

/// Elements that are folded one after the other before they join the rest: errors grow with the length of such runs, not of the row.
const RUN: u32 = 64;

/// How a row is folded and finished.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fold {
    op: ReduceOp,
    acc: DType,
    /// Elements of a row.
    row: u32,
    /// Units that share a row; 1 gives each unit a row of its own.
    units: u32,
    guarded: bool,
}

/// Folds elements `from, from + step, ...` of a row.
#[cube]
fn fold(
    buffers: &Buffers,
    scalars: &[u32],
    row: u32,
    from: u32,
    #[comptime] f: Fold,
    #[comptime] code: Code,
) -> u32 {
    let base = row * comptime!(f.row);
    let mut total = identity(comptime!(f.op), comptime!(f.acc));
    let mut i = from;
    while i < comptime!(f.row) {
        let end = min(i + comptime!(RUN * f.units), comptime!(f.row).runtime());
        let mut part = identity(comptime!(f.op), comptime!(f.acc));
        while i < end {
            let file = run(buffers, scalars, base + i, 0u32, comptime!(code.clone()));
            let value = *file.index(comptime!(code.result));
            part = combine(part, value, comptime!(f.op), comptime!(f.acc));
            i += comptime!(f.units);
        }
        total = combine(total, part, comptime!(f.op), comptime!(f.acc));
    }
    total
}

#[cube(launch_unchecked)]
fn reduce_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    scalars: &[u32],
    fault: &[u32],
    rows: u32,
    #[comptime] f: Fold,
    #[comptime] prologue: Code,
    #[comptime] epilogue: Code,
) {
    if comptime!(f.guarded) {
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    let alone = comptime!(f.units == 1);
    let row = if alone {
        ABSOLUTE_POS as u32
    } else {
        CUBE_POS as u32
    };
    if row >= rows {
        terminate!();
    }
    let from = if alone { 0u32.runtime() } else { UNIT_POS };
    let mut total = fold(&buffers, scalars, row, from, comptime!(f.clone()), prologue);
    if comptime!(f.units > 1) {
        let mut shared = Shared::new_slice(comptime!(f.units as usize));
        shared[UNIT_POS as usize] = total;
        let mut half = comptime!(f.units / 2).runtime();
        while half > 0u32 {
            sync_cube();
            if UNIT_POS < half {
                let a = shared[UNIT_POS as usize];
                let b = shared[(UNIT_POS + half) as usize];
                shared[UNIT_POS as usize] = combine(a, b, comptime!(f.op), comptime!(f.acc));
            }
            half /= 2u32;
        }
        total = shared[UNIT_POS as usize];
    }
    if from == 0u32 {
        let result = finish(total, comptime!(f.clone()));
        let file = run(&buffers, scalars, row, result, comptime!(epilogue.clone()));
        let mut files = Sequence::<Sequence<u32>>::new();
        files.push(file);
        emit(&mut buffers, &atomics, &files, row, rows, epilogue);
    }
}

#[cube]
fn finish(total: u32, #[comptime] f: Fold) -> u32 {
    if comptime!(f.op == ReduceOp::Mean) {
        match comptime!(f.acc) {
            DType::F32 => bits(float(total) / comptime!(f.row as f32)),
            DType::I32 => {
                u32::reinterpret(i32::reinterpret(total) / comptime!(f.row.max(1) as i32))
            }
            _ => total / comptime!(f.row.max(1)),
        }
    } else {
        total
    }
}

pub(super) struct Reduce {
    prologue: Code,
    epilogue: Code,
    bound: Bound,
    rows: usize,
    fold: Fold,
}

impl Reduce {
    pub(super) fn new(
        b: &Build<'_>,
        domain: &Shape,
        kept: usize,
        prologue: &Fused,
        op: ReduceOp,
        acc: DType,
        epilogue: &Fused,
    ) -> Result<Reduce, String> {
        b.numel(domain)?;
        let rows: usize = domain[..kept].iter().product();
        let row: usize = domain[kept..].iter().product();
        let shape = Shape::new(&domain[..kept]).ok_or("a reduction has too many axes")?;
        let mut bound = Bound::default();
        let first = b.code(prologue, domain, Runs::Single, &mut bound);
        let last = b.code(epilogue, &shape, Runs::Single, &mut bound);
        // Neighbouring units read neighbouring elements: along the row, or from row to row where the rows lie across.
        let across = prologue.inputs.iter().any(|a| {
            let inner = (kept..domain.rank()).rev().find(|i| domain[*i] > 1);
            inner.is_some_and(|i| a.strides[i].unsigned_abs() > 1)
        });
        let units = if row <= 32 || (across && rows >= 64) {
            1
        } else {
            (row.div_ceil(4) as u32).next_power_of_two().clamp(8, UNITS)
        };
        let _ = is_float(acc);
        Ok(Reduce {
            prologue: first,
            epilogue: last,
            bound,
            rows,
            fold: Fold {
                op,
                acc,
                row: row as u32,
                units: units.min(b.limits.max_units),
                guarded: b.guarded(),
            },
        })
    }
}

impl Launch for Reduce {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        if self.rows == 0 {
            return Ok(());
        }
        let (cubes, units) = match self.fold.units {
            1 => (self.rows.div_ceil(64), 64),
            units => (self.rows, units),
        };
        let (buffers, atomics) = cx.bind(&self.bound);
        // SAFETY: accesses lie in their buffers, and units past the last row stop together with their cube.
        unsafe {
            reduce_kernel::launch_unchecked(
                &cx.device.client,
                cx.grid(cubes),
                CubeDim::new_1d(units),
                buffers,
                atomics,
                cx.scalars(),
                cx.fault(),
                self.rows as u32,
                self.fold.clone(),
                self.prologue.clone(),
                self.epilogue.clone(),
            )
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}
