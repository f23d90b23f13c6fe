//! Matrix products of any float types, strides and batches, with a fused store.

mod convert;
mod factors;
mod gemv;
mod grid;
pub mod isa;
pub(crate) mod micro;
mod operand;
mod output;
mod scratch;
#[cfg(test)]
mod test_speed;
#[cfg(test)]
mod tests;
mod tiles;

pub use crate::simd::SimdLevel as Level;
#[allow(unused_imports)]
pub use convert::{Convert, Elements};
pub use factors::Tile;
#[allow(unused_imports)]
pub use factors::{Layout, PackA, PackB, Sink};
#[allow(unused_imports)]
pub use isa::{Isa, by_level};
pub use micro::{Family, Real};
pub use operand::Operand;
pub use output::{AnySink, store_rows};
pub use output::{Dense, Output};
pub use scratch::{Dst, Scratch};
pub use tiles::Product;

use crate::par;
use crate::simd::simd_level;
use bimetal_dtype::DType;

/// `C[b] = A[b] * B[b]`, A `[m, k]`, B `[k, n]`, C `[m, n]`, for every b below `a.offsets.len()`.
///
/// Sums are f32 (f64 if f64 values take part) and are rounded once, when stored. Every element is
/// summed in an order that depends on nothing but k and the instruction set, so the bits do not
/// depend on the number of threads. k = 0 gives zeros. Runs in the current pool.
///
/// # Safety
/// `a` and `b` have equally many offsets and all their elements are readable, aligned to their type
/// and written by no one; a dense output is writable, aligned, overlaps neither and its matrices do
/// not overlap each other.
pub unsafe fn gemm(m: usize, n: usize, k: usize, a: Operand<'_>, b: Operand<'_>, out: Output<'_>) {
    // SAFETY: the caller's contract.
    unsafe { gemm_at(simd_level(), m, n, k, a, b, out) }
}

/// [`gemm`] at a given level.
///
/// # Safety
/// As [`gemm`].
pub unsafe fn gemm_at(
    level: Level,
    m: usize,
    n: usize,
    k: usize,
    a: Operand<'_>,
    b: Operand<'_>,
    out: Output<'_>,
) {
    let wide = a.value_dtype() == DType::F64 || b.value_dtype() == DType::F64;
    let dense = match out {
        Output::Dense(dense) => Some(dense),
        _ => None,
    };
    // SAFETY: the caller's contract.
    unsafe {
        match out.sink(wide) {
            AnySink::F32(out) => product::<f32>(level, m, n, k, a, b, &*out, dense),
            AnySink::F64(out) => product::<f64>(level, m, n, k, a, b, &*out, dense),
        }
    }
}

/// # Safety
/// As [`gemm`]; `dense` is `out` if that is memory.
unsafe fn product<T: Real>(
    level: Level,
    m: usize,
    n: usize,
    k: usize,
    mut a: Operand<'_>,
    b: Operand<'_>,
    out: &dyn Sink<T>,
    dense: Option<Dense>,
) {
    let (mut m, mut batch) = (m, a.offsets.len());
    if let Some(dense) = dense
        && one_matrix(m, &a, &b, &dense)
    {
        // One tall product, in which B is packed once.
        m *= batch;
        batch = 1;
        a.offsets = &a.offsets[..1];
    }
    if k > 0 && (m == 1 || n == 1) {
        // SAFETY: the caller's contract.
        return unsafe { vectors(level, m, n, k, &a, &b, out) };
    }
    Product {
        level,
        batch,
        m,
        n,
        k,
        a: &a,
        b: &b,
        out,
        add: false,
    }
    .run();
}

/// Whether all of A, and all of C, are the rows of one matrix, and B is the same for each.
fn one_matrix(m: usize, a: &Operand<'_>, b: &Operand<'_>, out: &Dense) -> bool {
    let Some(&first) = a.offsets.first() else {
        return false;
    };
    a.offsets.len() > 1
        && out.batch_stride == m * out.row_stride
        && b.offsets.iter().all(|o| *o == b.offsets[0])
        && a.offsets
            .iter()
            .zip(0..)
            .all(|(o, i)| o - first == i * m as isize * a.row_stride)
}

/// Products with one row or one column.
///
/// # Safety
/// As [`gemm`].
unsafe fn vectors<T: Real>(
    level: Level,
    m: usize,
    n: usize,
    k: usize,
    a: &Operand<'_>,
    b: &Operand<'_>,
    out: &dyn Sink<T>,
) {
    // A row times B is the transpose of B times a column.
    let (matrix, vector) = if n == 1 {
        (*a, b.transposed())
    } else {
        (b.transposed(), *a)
    };
    let len = m.max(n);
    let one = |batch: usize| {
        let (x, y) = (Scratch::take::<T>(k), Scratch::take::<T>(len));
        // SAFETY: the vector is row 0 of an operand with k columns; the matrix has len rows, and
        // y as many values, all written before they are read.
        let data = unsafe {
            vector.load_row(level, batch, 0, 0..k, x.ptr::<T>());
            gemv::gemv::<T>(level, &matrix, batch, len, k, x.ptr(), y.ptr());
            std::slice::from_raw_parts_mut(y.ptr::<T>(), len)
        };
        out.store(
            level,
            Tile {
                batch,
                row: 0,
                rows: m,
                col: 0,
                cols: n,
                data,
                ld: n,
            },
        );
    };
    let batch = a.offsets.len();
    if batch > 1 && len.saturating_mul(k).saturating_mul(batch) > gemv::TASK {
        par::for_each(batch, one);
    } else {
        (0..batch).for_each(one);
    }
}
