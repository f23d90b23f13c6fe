//! Products by cooperative matrices (WMMA): 16-bit floats and TF32, sums in f32.
use super::load::{Operand, has_piece, piece, slot, stage_len, stage_line};
use super::tile::Tile;
use crate::code::Code;
use crate::interpret::{place, run};
use crate::kernels::common::{GROUP, emit};
use crate::kernels::split::{self, Split};
use crate::math::bits;
use crate::words::{Atomics, Buffers};
use cubecl::cmma::{self, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

/// What a kernel of a product knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) tile: Tile,
    pub(crate) split: Split,
    pub(crate) guarded: bool,
}

impl Product {
    fn layout_a(&self) -> MatrixLayout {
        if self.a.sum_inner {
            MatrixLayout::RowMajor
        } else {
            MatrixLayout::ColMajor
        }
    }

    fn layout_b(&self) -> MatrixLayout {
        if self.b.sum_inner {
            MatrixLayout::ColMajor
        } else {
            MatrixLayout::RowMajor
        }
    }

    /// Cubes of one matrix.
    pub(crate) fn cubes(&self) -> u32 {
        self.m.div_ceil(self.tile.m) * self.n.div_ceil(self.tile.n)
    }
}

/// Rows of tiles whose cubes run together, so that they share what they read.
const BAND: u32 = 8;

/// Where the tile of a cube begins: neighbours in the queue are neighbours in both directions.
#[cube]
pub(crate) fn origin(#[comptime] p: Product) -> (u32, u32) {
    let rows = comptime!(p.m.div_ceil(p.tile.m));
    let columns = comptime!(p.n.div_ceil(p.tile.n));
    let first = (CUBE_POS_X / comptime!(BAND * columns)) * comptime!(BAND);
    let rest = CUBE_POS_X % comptime!(BAND * columns);
    let high = min(rows - first, comptime!(BAND).runtime());
    let row = (first + rest % high) * comptime!(p.tile.m);
    let column = (rest / high) * comptime!(p.tile.n);
    (row, column)
}

/// Stores what a plane's stage holds (`unit.m` rows of sums) through the epilogue; `row` and `column` are of its first.
#[cube]
pub(crate) fn flush(
    buffers: &mut Buffers,
    atomics: &Atomics,
    scalars: &[u32],
    stage: &Shared<[f32]>,
    start: u32,
    row: u32,
    column: u32,
    #[comptime] p: Product,
    #[comptime] epilogue: Code,
) {
    let groups = comptime!(p.tile.columns() / GROUP as u32);
    let mut g = UNIT_POS_X;
    while g < comptime!(groups * p.tile.unit[0]) {
        let r = g / groups;
        let c = (g % groups) * comptime!(GROUP as u32);
        if row + r < comptime!(p.m) && column + c < comptime!(p.n) {
            let line = (CUBE_POS_Z * comptime!(p.m) + row + r) * comptime!(p.n);
            let end = line + comptime!(p.n);
            let first = line + column + c;
            let from = start + r * comptime!(stage_line(&p.tile)) + c;
            let mut files = Sequence::<Sequence<u32>>::new();
            #[unroll]
            for j in 0..GROUP {
                let at = min(first + comptime!(j as u32), end - 1u32);
                let acc = bits(stage[(from + comptime!(j as u32)) as usize]);
                let file = run(&*buffers, scalars, at, acc, comptime!(epilogue.clone()));
                files.push(file);
            }
            emit(
                buffers,
                atomics,
                &files,
                first,
                end,
                comptime!(epilogue.clone()),
            );
        }
        g += comptime!(p.tile.plane);
    }
}

/// The tile of one operand at `first`, on its way to shared memory.
#[cube]
pub(crate) fn fetch<W: Size>(
    buffers: &Buffers,
    staged: &mut Array<Vector<u32, W>>,
    matrix: u32,
    first: (u32, u32),
    unit: u32,
    #[comptime] o: Operand,
) {
    #[unroll]
    for round in 0..comptime!(o.rounds()) {
        if has_piece(unit, round, comptime!(o.clone())) {
            staged[round] = piece::<W>(buffers, matrix, first, unit, round, comptime!(o.clone()));
        }
    }
}

/// Puts a fetched tile into half `half` of an operand's shared memory.
#[cube]
fn put<T: Float, N: Size, W: Size>(
    shared: &mut Shared<[Vector<T, N>]>,
    staged: &Array<Vector<u32, W>>,
    half: u32,
    unit: u32,
    #[comptime] o: Operand,
) {
    #[unroll]
    for round in 0..comptime!(o.rounds()) {
        if has_piece(unit, round, comptime!(o.clone())) {
            let to = half * comptime!(o.pieces() as u32) + slot(unit, round, comptime!(o.clone()));
            shared[to as usize] = Vector::<T, N>::reinterpret(staged[round]);
        }
    }
}

/// One instruction's part of an operand.
#[cube]
fn fragment<T: Float, N: Size>(
    shared: &Shared<[Vector<T, N>]>,
    half: u32,
    free: u32,
    #[comptime] sum: u32,
    #[comptime] ident: MatrixIdent,
    #[comptime] layout: MatrixLayout,
    #[comptime] p: Product,
    #[comptime] o: Operand,
) -> cmma::Matrix<T> {
    let [m, n, k] = comptime!(p.tile.unit);
    let line = comptime!(o.line());
    let element = if comptime!(o.sum_inner) {
        free * line + sum
    } else {
        sum * line + free
    };
    let at = (half * comptime!(o.pieces() as u32) + element / comptime!(o.piece as u32)) as usize;
    // SAFETY: it is loaded below, before anything reads it.
    let mut matrix = unsafe {
        cmma::Matrix::<T>::uninitialized(
            ident,
            comptime!(m as usize),
            comptime!(n as usize),
            comptime!(k as usize),
            layout,
        )
    };
    cmma::load(&mut matrix, &shared[at..comptime!(2 * o.pieces())], line);
    matrix
}

/// A batched product on matrix units: tiles of both operands go through registers into one half of shared memory while the other half is multiplied.
#[cube(launch_unchecked)]
pub(crate) fn cmma_kernel<T: Float>(
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
    let size!(N) = comptime!(p.a.piece);
    let mut shared_a =
        Shared::<[Vector<T, N>]>::new_aligned_slice(comptime!(2 * p.a.pieces()), 32usize);
    let mut shared_b =
        Shared::<[Vector<T, N>]>::new_aligned_slice(comptime!(2 * p.b.pieces()), 32usize);
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

    let [m, n, k] = comptime!(p.tile.unit);
    let across_m = comptime!(p.tile.across_m());
    let across_n = comptime!(p.tile.across_n());
    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(across_m * across_n) {
        sums.push(cmma::Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            comptime!(m as usize),
            comptime!(n as usize),
            comptime!(k as usize),
            MatrixLayout::Undefined,
            0.0f32,
        ));
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
    put::<T, N, W>(
        &mut shared_a,
        &staged_a,
        0u32.runtime(),
        unit,
        comptime!(p.a.clone()),
    );
    put::<T, N, W>(
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
        for s in 0..comptime!(p.tile.k / p.tile.unit[2]) {
            let mut right = Sequence::<cmma::Matrix<T>>::new();
            #[unroll]
            for j in 0..across_n {
                let free = plane_column + comptime!(j as u32 * p.tile.unit[1]);
                right.push(fragment::<T, N>(
                    &shared_b,
                    half,
                    free,
                    comptime!(s * p.tile.unit[2]),
                    MatrixIdent::B,
                    comptime!(p.layout_b()),
                    comptime!(p.clone()),
                    comptime!(p.b.clone()),
                ));
            }
            #[unroll]
            for i in 0..across_m {
                let free = plane_row + comptime!(i as u32 * p.tile.unit[0]);
                let left = fragment::<T, N>(
                    &shared_a,
                    half,
                    free,
                    comptime!(s * p.tile.unit[2]),
                    MatrixIdent::A,
                    comptime!(p.layout_a()),
                    comptime!(p.clone()),
                    comptime!(p.a.clone()),
                );
                #[unroll]
                for j in 0..across_n {
                    let c = sums.index(comptime!(i * across_n + j));
                    cmma::execute(&left, right.index(j), c, c);
                }
            }
        }
        if more {
            put::<T, N, W>(
                &mut shared_a,
                &staged_a,
                1u32 - half,
                unit,
                comptime!(p.a.clone()),
            );
            put::<T, N, W>(
                &mut shared_b,
                &staged_b,
                1u32 - half,
                unit,
                comptime!(p.b.clone()),
            );
        }
        sync_cube();
    }

    let start = UNIT_POS_Y * comptime!(p.tile.unit[0] * stage_line(&p.tile));
    #[unroll]
    for i in 0..across_m {
        #[unroll]
        for j in 0..across_n {
            let at = (start + comptime!(j as u32 * p.tile.unit[1])) as usize;
            cmma::store(
                &mut stage[at..comptime!(stage_len(&p.tile))],
                sums.index(comptime!(i * across_n + j)),
                comptime!(stage_line(&p.tile)).runtime(),
                MatrixLayout::RowMajor,
            );
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
