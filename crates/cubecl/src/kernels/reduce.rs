//! Reductions of programs over trailing axes.
use super::Launch;
use super::common::{Build, Runs, Scratch, emit};
use crate::code::{Code, Loc, Op, Store};
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
    /// Parts of a row that are folded apart, and the elements of one.
    parts: u32,
    part: u32,
    /// What a mean divides by; 0 where the result is no mean, or not the whole one.
    count: u32,
    /// Units that share a part; 1 gives each unit a part of its own.
    units: u32,
    guarded: bool,
}

/// Folds elements `from, from + step, ...` of part `id` of all rows' parts, the first part of each row first.
#[cube]
fn fold(
    buffers: &Buffers,
    scalars: &[u32],
    id: u32,
    all: u32,
    from: u32,
    #[comptime] f: Fold,
    #[comptime] code: Code,
) -> u32 {
    let mut base = id * comptime!(f.row);
    let mut last = comptime!(f.row).runtime();
    let mut i = from;
    if comptime!(f.parts > 1) {
        let rows = all / comptime!(f.parts);
        let start = (id / rows) * comptime!(f.part);
        base = (id % rows) * comptime!(f.row);
        last = min(start + comptime!(f.part), last);
        i += start;
    }
    let mut total = identity(comptime!(f.op), comptime!(f.acc));
    while i < last {
        let end = min(i + comptime!(RUN * f.units), last);
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
    let mut total = fold(
        &buffers,
        scalars,
        row,
        rows,
        from,
        comptime!(f.clone()),
        prologue,
    );
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
    if comptime!(f.count > 0) {
        match comptime!(f.acc) {
            DType::F32 => bits(float(total) / comptime!(f.count as f32)),
            DType::I32 => u32::reinterpret(i32::reinterpret(total) / comptime!(f.count as i32)),
            _ => total / comptime!(f.count),
        }
    } else {
        total
    }
}

/// One launch of a reduction: rows, or parts of rows, to what the epilogue stores.
struct Stage {
    prologue: Code,
    epilogue: Code,
    bound: Bound,
    /// Rows, or all rows' parts.
    rows: usize,
    fold: Fold,
}

/// A reduction in one launch, or in two where the rows are few and long: parts of rows first, each of which leaves a word, and then those.
pub(super) struct Reduce {
    parts: Option<Stage>,
    whole: Stage,
}

/// Units that a device should have at work, and the elements that one of them should fold before a row is cut for more.
const BUSY: usize = 1 << 17;
const LEAST: usize = 32;

/// Units that share a row of so many elements that lie side by side.
fn side_by_side(row: usize) -> u32 {
    (row.div_ceil(4) as u32).next_power_of_two().clamp(8, UNITS)
}

/// A word of each row's part, the first part of all rows first.
fn words_of_parts(rows: usize, parts: u32, binding: usize) -> Loc {
    Loc {
        binding,
        dtype: DType::U32,
        offset: 0,
        axes: vec![(rows as u32, 1), (parts, rows as u32)],
    }
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
        // Neighbouring units read neighbouring elements: along the row, or from row to row where the rows lie across.
        let across = prologue.inputs.iter().any(|a| {
            let inner = (kept..domain.rank()).rev().find(|i| domain[*i] > 1);
            inner.is_some_and(|i| a.strides[i].unsigned_abs() > 1)
        });
        let units = if row <= 32 || (across && rows >= 64) {
            1
        } else {
            side_by_side(row)
        };
        let units = units.min(b.limits.max_units);
        let fold = Fold {
            op,
            acc,
            row: row as u32,
            parts: 1,
            part: row as u32,
            count: if op == ReduceOp::Mean {
                row.max(1) as u32
            } else {
                0
            },
            units,
            guarded: b.guarded(),
        };
        let busy = rows.max(1) * units as usize;
        let parts = (BUSY / busy).min(row / (units as usize * LEAST));
        if parts < 2 {
            let epilogue = b.code(epilogue, &shape, Runs::Single, &mut bound);
            let whole = Stage {
                prologue: first,
                epilogue,
                bound,
                rows,
                fold,
            };
            return Ok(Reduce { parts: None, whole });
        }
        let part = row.div_ceil(parts) as u32;
        let parts = (row as u32).div_ceil(part);
        // The words between the two are bound behind all else.
        let word = Store {
            register: 0,
            to: Loc {
                binding: bound.buffers.len(),
                dtype: DType::U32,
                offset: 0,
                axes: vec![(rows as u32 * parts, 1)],
            },
            shared: false,
        };
        let some = Stage {
            prologue: first,
            epilogue: Code {
                ops: vec![Op::Acc],
                stores: vec![word],
                result: 0,
            },
            bound,
            rows: rows * parts as usize,
            fold: Fold {
                parts,
                part,
                count: 0,
                ..fold.clone()
            },
        };
        let mut bound = Bound::default();
        let epilogue = b.code(epilogue, &shape, Runs::Single, &mut bound);
        let load = words_of_parts(rows, parts, bound.buffers.len());
        let units = if rows >= 4096 {
            1
        } else {
            side_by_side(parts as usize).min(b.limits.max_units)
        };
        let whole = Stage {
            prologue: Code {
                ops: vec![Op::Load(load)],
                stores: Vec::new(),
                result: 0,
            },
            epilogue,
            bound,
            rows,
            fold: Fold {
                row: parts,
                part: parts,
                units,
                ..fold
            },
        };
        Ok(Reduce {
            parts: Some(some),
            whole,
        })
    }
}

impl Stage {
    fn launch(&self, cx: &Cx<'_>, words: Option<&Scratch>) {
        let (cubes, units) = match self.fold.units {
            1 => (self.rows.div_ceil(64), 64),
            units => (self.rows, units),
        };
        let (mut buffers, atomics) = cx.bind(&self.bound);
        if let Some(words) = words {
            buffers.push(words.arg());
        }
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
    }
}

impl Launch for Reduce {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        if self.whole.rows == 0 {
            return Ok(());
        }
        match &self.parts {
            None => self.whole.launch(cx, None),
            Some(parts) => {
                let words = Scratch::new(cx, parts.rows);
                parts.launch(cx, Some(&words));
                self.whole.launch(cx, Some(&words));
            }
        }
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        let parts = self.parts.iter().flat_map(|p| p.bound.all());
        parts.chain(self.whole.bound.all()).collect()
    }
}
