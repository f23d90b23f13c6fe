//! From global to shared memory: tiles of operands in the type that the matrix units read.
use super::tile::Tile;
use crate::code::Loc;
use crate::kernels::source::{self, Operand as Source};
use crate::words::{self, Buffers};
use bimetal_tensor::DType;
use cubecl::prelude::*;

/// An operand of a product: where its elements lie, and how its tiles get into shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operand {
    /// What gives the elements by their linear index where they lie at no strides, as the patches of a convolution.
    pub(crate) source: Option<Source>,
    /// Where the matrix of a batch index begins.
    pub(crate) matrix: Loc,
    /// Elements (wrapping) from one row, or column of the right operand, to the next; and from one index of the sum to the next.
    pub(crate) free: u32,
    pub(crate) sum: u32,
    /// Rows of the left or columns of the right operand, and the length of the sum.
    pub(crate) frees: u32,
    pub(crate) sums: u32,
    /// What the elements are rounded to.
    pub(crate) compute: DType,
    /// Whether neighbours along the sum, and not along the other axis, are neighbours in shared memory.
    pub(crate) sum_inner: bool,
    /// Whether pieces are whole and aligned in global memory.
    pub(crate) wide: bool,
    /// The tile: its extent along the free axis and along the sum.
    pub(crate) tile: [u32; 2],
    /// Elements of a piece, which one unit moves at once.
    pub(crate) piece: usize,
    /// Units of a cube.
    pub(crate) units: u32,
}

impl Operand {
    /// Elements of a piece in one word.
    fn per_word(&self) -> usize {
        4 / self.compute.size()
    }

    /// Words of a piece.
    pub(crate) fn words(&self) -> usize {
        self.piece / self.per_word()
    }

    /// Elements of a line of the tile in shared memory that are neighbours.
    fn inner(&self) -> u32 {
        if self.sum_inner {
            self.tile[1]
        } else {
            self.tile[0]
        }
    }

    fn outer(&self) -> u32 {
        if self.sum_inner {
            self.tile[0]
        } else {
            self.tile[1]
        }
    }

    /// Elements from one line in shared memory to the next: 16 bytes more than a line, so that the lines of an instruction lie in different banks.
    pub(crate) fn line(&self) -> u32 {
        self.inner() + (16 / self.compute.size() as u32).max(self.piece as u32)
    }

    /// Pieces of a tile in shared memory, gaps included.
    pub(crate) fn pieces(&self) -> usize {
        (self.outer() * self.line()) as usize / self.piece
    }

    /// Pieces that one unit moves.
    pub(crate) fn rounds(&self) -> usize {
        (self.outer() * self.inner()).div_ceil(self.piece as u32 * self.units) as usize
    }

    /// Whether every unit moves as many pieces.
    fn even(&self) -> bool {
        (self.outer() * self.inner()).is_multiple_of(self.piece as u32 * self.units)
    }

    /// Whether no element of a tile can lie outside of the operand along an axis.
    fn whole(&self, axis: usize) -> bool {
        [self.frees, self.sums][axis].is_multiple_of(self.tile[axis])
    }
}

/// Whether an operand can be loaded in pieces: neighbours along one axis, and every piece aligned and whole.
pub(crate) fn is_wide(o: &Operand, strides: &[isize], offset: usize, stored: DType) -> bool {
    let fits = stored == o.compute || (stored == DType::F32 && o.compute.size() == 2);
    let inner = if o.sum_inner { o.sum } else { o.free };
    let length = if o.sum_inner { o.sums } else { o.frees };
    let piece = o.piece;
    let other = strides
        .iter()
        .filter(|s| **s != 1)
        .all(|s| s.unsigned_abs().is_multiple_of(piece));
    fits && inner == 1
        && other
        && offset.is_multiple_of(piece)
        && (length as usize).is_multiple_of(piece)
}

/// The first element of a unit's piece of this round, along the free axis and the sum of the tile.
#[cube]
fn corner(unit: u32, #[comptime] round: usize, #[comptime] o: Operand) -> (u32, u32) {
    let piece = unit + comptime!(round as u32 * o.units);
    let per_line = comptime!(o.inner() / o.piece as u32);
    let outer = piece / per_line;
    let inner = (piece % per_line) * comptime!(o.piece as u32);
    if comptime!(o.sum_inner) {
        (outer, inner)
    } else {
        (inner, outer)
    }
}

/// A piece's place in a tile in shared memory, in pieces.
#[cube]
pub(crate) fn slot(unit: u32, #[comptime] round: usize, #[comptime] o: Operand) -> u32 {
    let piece = unit + comptime!(round as u32 * o.units);
    let per_line = comptime!(o.inner() / o.piece as u32);
    (piece / per_line) * comptime!(o.line() / o.piece as u32) + piece % per_line
}

/// Whether a unit has a piece in this round.
#[cube]
pub(crate) fn has_piece(unit: u32, #[comptime] round: usize, #[comptime] o: Operand) -> bool {
    if comptime!(o.even()) {
        true.runtime()
    } else {
        unit + comptime!(round as u32 * o.units) < comptime!(o.outer() * o.inner() / o.piece as u32)
    }
}

/// The bits of an element as the matrix units read it, in the lower end of a word.
#[cube]
fn element(buffers: &Buffers, at: u32, #[comptime] o: Operand) -> u32 {
    match comptime!(o.source.clone()) {
        Some(source) => {
            let value = source::element(buffers, at, source);
            if comptime!(o.compute == DType::F32) {
                tf32(value)
            } else {
                words::narrow(value, comptime!(o.compute))
            }
        }
        None => stored_element(buffers, at, o),
    }
}

#[cube]
fn stored_element(buffers: &Buffers, at: u32, #[comptime] o: Operand) -> u32 {
    let stored = comptime!(o.matrix.dtype);
    if comptime!(stored == o.compute && stored.size() < 4) {
        let per = comptime!(4 / stored.size() as u32);
        let words = buffers.index(comptime!(o.matrix.binding));
        let word = words[(at / per) as usize];
        (word >> ((at % per) * comptime!(32 / per))) & comptime!((1u32 << (32 / per)) - 1)
    } else {
        let value = words::load(buffers, comptime!(o.matrix.binding), at, stored);
        if comptime!(o.compute == DType::F32) {
            tf32(value)
        } else {
            words::narrow(value, comptime!(o.compute))
        }
    }
}

/// An f32 with 10 bits of mantissa.
#[cube]
pub(crate) fn tf32(x: u32) -> u32 {
    let odd = (x >> 13u32) & 1u32;
    let near = (x + (0xfffu32 + odd)) & 0xffff_e000u32;
    select((x & 0x7fff_ffffu32) >= 0x7f80_0000u32, x, near)
}

/// A piece of an operand, zeros where it lies outside: `first` is where the tile begins along the free axis and the sum.
#[cube]
pub(crate) fn piece<W: Size>(
    buffers: &Buffers,
    matrix: u32,
    first: (u32, u32),
    unit: u32,
    #[comptime] round: usize,
    #[comptime] o: Operand,
) -> Vector<u32, W> {
    let (free, sum) = corner(unit, round, comptime!(o.clone()));
    let free = first.0 + free;
    let sum = first.1 + sum;
    let mut out = Vector::<u32, W>::new(0u32);
    let at = matrix + free * comptime!(o.free) + sum * comptime!(o.sum);
    if comptime!(o.wide) {
        let mut inside = true.runtime();
        if comptime!(!o.whole(0)) {
            inside = inside && free < comptime!(o.frees);
        }
        if comptime!(!o.whole(1)) {
            inside = inside && sum < comptime!(o.sums);
        }
        if inside {
            out = wide::<W>(buffers, at, comptime!(o.clone()));
        }
    } else {
        let per = comptime!(o.per_word());
        #[unroll]
        for w in 0..comptime!(o.words()) {
            let mut word = 0u32.runtime();
            #[unroll]
            for e in 0..per {
                let j = comptime!((w * per + e) as u32);
                let mut free_j = free;
                let mut sum_j = sum;
                let mut at_j = at;
                if comptime!(o.sum_inner) {
                    sum_j += j;
                    at_j += comptime!(j.wrapping_mul(o.sum));
                } else {
                    free_j += j;
                    at_j += comptime!(j.wrapping_mul(o.free));
                }
                if free_j < comptime!(o.frees) && sum_j < comptime!(o.sums) {
                    word |= element(buffers, at_j, comptime!(o.clone()))
                        << comptime!((e * 32 / per) as u32);
                }
            }
            out.insert(w, word);
        }
    }
    out
}

/// A whole aligned piece.
#[cube]
fn wide<W: Size>(buffers: &Buffers, at: u32, #[comptime] o: Operand) -> Vector<u32, W> {
    let all = buffers.index(comptime!(o.matrix.binding));
    let vectors = all.as_vectorized().with_vector_size::<W>();
    let stored = comptime!(o.matrix.dtype);
    if comptime!(stored == o.compute) {
        let found = vectors[(at / comptime!(o.piece as u32)) as usize];
        if comptime!(o.compute == DType::F32) {
            let mut out = Vector::<u32, W>::new(0u32);
            #[unroll]
            for w in 0..comptime!(o.words()) {
                out.insert(w, tf32(found.extract(w)));
            }
            out
        } else {
            found
        }
    } else {
        let mut out = Vector::<u32, W>::new(0u32);
        let count = comptime!(o.words());
        let start = (at / comptime!(o.words() as u32)) as usize;
        #[unroll]
        for half in 0..2 {
            let found = vectors[start + half];
            #[unroll]
            for w in 0..comptime!(count / 2) {
                let low = words::narrow(found.extract(comptime!(2 * w)), comptime!(o.compute));
                let high = words::narrow(found.extract(comptime!(2 * w + 1)), comptime!(o.compute));
                out.insert(comptime!(half * (count / 2) + w), low | (high << 16u32));
            }
        }
        out
    }
}

/// What both operands' tiles need of a cube's memory, in bytes.
pub(crate) fn shared_bytes(a: &Operand, b: &Operand, tile: &Tile) -> u32 {
    let of = |o: &Operand| 2 * (o.pieces() * o.piece * o.compute.size()) as u32;
    of(a) + of(b) + stage_len(tile) as u32 * 4
}

/// Values of one line of a plane's stage.
pub(crate) fn stage_line(tile: &Tile) -> u32 {
    tile.columns() + 4
}

/// Values that the stages of all planes have.
pub(crate) fn stage_len(tile: &Tile) -> usize {
    (tile.planes_m * tile.planes_n * tile.unit[0] * stage_line(tile)) as usize
}
