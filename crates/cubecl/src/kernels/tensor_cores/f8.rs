//! Products of 8-bit floats by `mma` with registers laid out by hand: cooperative matrices have no such operands.
//!
//! The instruction is written as PTX, because cubecl's own `mma` of 8-bit floats names a kind that only compute capability 12 knows.
use super::cmma::{Product, fetch, flush, origin};
use super::load::{Operand, has_piece, slot, stage_len, stage_line};
use crate::code::Code;
use crate::interpret::place;
use crate::kernels::split;
use crate::words::{Atomics, Buffers};
use bimetal_tensor::DType;
use cubecl::prelude::*;

/// Registers of a unit for the left operand and the right one, words of four elements; the sums are four f32.
const LEFT: usize = 4;
const RIGHT: usize = 2;
/// Rows of a unit in its sums, a pair of neighbours in each.
const PAIRS: usize = 2;

/// The name of a dtype in PTX.
fn ptx(dtype: DType) -> &'static str {
    match dtype {
        DType::F8E5M2 => "e5m2",
        _ => "e4m3",
    }
}

/// `c + a b` for 16 rows, 8 columns and 32 products.
#[cube]
fn mma(
    a: Vector<u32, Const<4>>,
    b: Vector<u32, Const<2>>,
    c: Vector<f32, Const<4>>,
    #[comptime] left: &str,
    #[comptime] right: &str,
) -> Vector<f32, Const<4>> {
    let out: Vector<f32, Const<4>>;
    gpu_asm!(
        "mma.sync.aligned.m16n8k32.row.col.f32.{left}.{right}.f32 {d}, {a}, {b}, {c};",
        a = in(_) a, b = in(_) b, c = in(_) c, d = out(_) out,
        options(nomem),
    );
    out
}

#[cube]
fn put<W: Size>(
    shared: &mut Shared<[Vector<u32, W>]>,
    staged: &Array<Vector<u32, W>>,
    half: u32,
    unit: u32,
    #[comptime] o: Operand,
) {
    #[unroll]
    for round in 0..comptime!(o.rounds()) {
        if has_piece(unit, round, comptime!(o.clone())) {
            let to = half * comptime!(o.pieces() as u32) + slot(unit, round, comptime!(o.clone()));
            shared[to as usize] = staged[round];
        }
    }
}

/// Four elements along the sum, of line `free` of a tile.
#[cube]
fn word<W: Size>(
    shared: &Shared<[Vector<u32, W>]>,
    half: u32,
    free: u32,
    sum: u32,
    #[comptime] o: Operand,
) -> u32 {
    let all = shared.as_vectorized().with_vector_size::<Const<1>>();
    let at = half * comptime!((o.pieces() * o.words()) as u32)
        + (free * comptime!(o.line()) + sum) / 4u32;
    all[at as usize].extract(0usize)
}

/// The left operand's registers: the lower half of the rows, then the upper one, then both for the rest of the sum.
#[cube]
fn rows_of<W: Size>(
    shared: &Shared<[Vector<u32, W>]>,
    half: u32,
    free: u32,
    sum: u32,
    #[comptime] o: Operand,
) -> Vector<u32, Const<4>> {
    let mut out = Vector::<u32, Const<4>>::new(0u32);
    #[unroll]
    for h in 0..LEFT {
        let rows = comptime!((h % 2) as u32 * 8);
        let sums = comptime!((h / 2) as u32 * 16);
        out.insert(
            h,
            word::<W>(shared, half, free + rows, sum + sums, comptime!(o.clone())),
        );
    }
    out
}

/// A batched product of 8-bit floats; lines of both tiles run along the sum in shared memory.
#[cube(launch_unchecked)]
pub(crate) fn f8_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    scalars: &[u32],
    fault: &[u32],
    #[comptime] p: Product,
    #[comptime] epilogue: Code,
) {
    if comptime!(p.guarded) {
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    let size!(W) = comptime!(p.a.words());
    let mut shared_a =
        Shared::<[Vector<u32, W>]>::new_aligned_slice(comptime!(2 * p.a.pieces()), 32usize);
    let mut shared_b =
        Shared::<[Vector<u32, W>]>::new_aligned_slice(comptime!(2 * p.b.pieces()), 32usize);
    let mut stage = Shared::<[f32]>::new_aligned_slice(comptime!(stage_len(&p.tile)), 32usize);
    let mut staged_a = Array::<Vector<u32, W>>::new(comptime!(p.a.rounds()));
    let mut staged_b = Array::<Vector<u32, W>>::new(comptime!(p.b.rounds()));

    let unit = UNIT_POS_Y * comptime!(p.tile.plane) + UNIT_POS_X;
    let (row, column) = origin(comptime!(p.clone()));
    let matrix = split::matrix(CUBE_POS_Z, comptime!(p.split));
    let matrix_a = place(matrix, comptime!(p.a.matrix.clone()));
    let matrix_b = place(matrix, comptime!(p.b.matrix.clone()));
    let (begin, end) = split::steps(
        CUBE_POS_Z,
        comptime!(p.k.div_ceil(p.tile.k)),
        comptime!(p.split),
    );
    let plane_row =
        (UNIT_POS_Y / comptime!(p.tile.planes_n)) * comptime!(p.tile.m / p.tile.planes_m);
    let plane_column = (UNIT_POS_Y % comptime!(p.tile.planes_n)) * comptime!(p.tile.columns());
    // A unit's rows (or columns) and the words of the sum are given by its quarter of a group of four.
    let group = UNIT_POS_X / 4u32;
    let quarter = UNIT_POS_X % 4u32;

    let across_m = comptime!(p.tile.across_m());
    let across_n = comptime!(p.tile.across_n());
    let mut sums = Array::<Vector<f32, Const<4>>>::new(comptime!(across_m * across_n));
    #[unroll]
    for i in 0..comptime!(across_m * across_n) {
        sums[i] = Vector::<f32, Const<4>>::new(0.0f32);
    }

    fetch::<W>(
        &buffers,
        &mut staged_a,
        matrix_a,
        (row, begin * comptime!(p.tile.k)),
        unit,
        comptime!(p.a.clone()),
    );
    fetch::<W>(
        &buffers,
        &mut staged_b,
        matrix_b,
        (column, begin * comptime!(p.tile.k)),
        unit,
        comptime!(p.b.clone()),
    );
    put::<W>(
        &mut shared_a,
        &staged_a,
        0u32.runtime(),
        unit,
        comptime!(p.a.clone()),
    );
    put::<W>(
        &mut shared_b,
        &staged_b,
        0u32.runtime(),
        unit,
        comptime!(p.b.clone()),
    );
    sync_cube();

    for step in begin..end {
        let half = (step - begin) % 2u32;
        let more = step + 1u32 < end;
        if more {
            let next = (step + 1u32) * comptime!(p.tile.k);
            fetch::<W>(
                &buffers,
                &mut staged_a,
                matrix_a,
                (row, next),
                unit,
                comptime!(p.a.clone()),
            );
            fetch::<W>(
                &buffers,
                &mut staged_b,
                matrix_b,
                (column, next),
                unit,
                comptime!(p.b.clone()),
            );
        }
        #[unroll]
        for s in 0..comptime!(p.tile.k / 32) {
            let sum = comptime!(s * 32) + quarter * 4u32;
            let mut right = Sequence::<Vector<u32, Const<2>>>::new();
            #[unroll]
            for j in 0..across_n {
                let free = plane_column + comptime!(j as u32 * 8) + group;
                let mut r = Vector::<u32, Const<2>>::new(0u32);
                #[unroll]
                for h in 0..RIGHT {
                    let w = word::<W>(
                        &shared_b,
                        half,
                        free,
                        sum + comptime!(h as u32 * 16),
                        comptime!(p.b.clone()),
                    );
                    r.insert(h, w);
                }
                right.push(r);
            }
            #[unroll]
            for i in 0..across_m {
                let free = plane_row + comptime!(i as u32 * 16) + group;
                let mut left = Sequence::<Vector<u32, Const<4>>>::new();
                left.push(rows_of::<W>(
                    &shared_a,
                    half,
                    free,
                    sum,
                    comptime!(p.a.clone()),
                ));
                #[unroll]
                for j in 0..across_n {
                    let c = comptime!(i * across_n + j);
                    sums[c] = mma(
                        *left.index(0usize),
                        *right.index(j),
                        sums[c],
                        comptime!(ptx(p.a.compute)),
                        comptime!(ptx(p.b.compute)),
                    );
                }
            }
        }
        if more {
            put::<W>(
                &mut shared_a,
                &staged_a,
                1u32 - half,
                unit,
                comptime!(p.a.clone()),
            );
            put::<W>(
                &mut shared_b,
                &staged_b,
                1u32 - half,
                unit,
                comptime!(p.b.clone()),
            );
        }
        sync_cube();
    }

    let line = comptime!(stage_line(&p.tile));
    let start = UNIT_POS_Y * comptime!(p.tile.unit[0] * stage_line(&p.tile));
    #[unroll]
    for i in 0..across_m {
        #[unroll]
        for j in 0..across_n {
            let c = sums[comptime!(i * across_n + j)];
            #[unroll]
            for r in 0..PAIRS {
                let at = start
                    + (group + comptime!(r as u32 * 8)) * line
                    + comptime!(j as u32 * 8)
                    + quarter * 2u32;
                stage[at as usize] = c.extract(comptime!(2 * r));
                stage[(at + 1u32) as usize] = c.extract(comptime!(2 * r + 1));
            }
        }
        sync_cube();
        flush(
            &mut buffers,
            &atomics,
            scalars,
            &stage,
            start,
            row + plane_row + comptime!(i as u32 * p.tile.unit[0]),
            column + plane_column,
            comptime!(p.clone()),
            comptime!(epilogue.clone()),
        );
        sync_cube();
    }
}
