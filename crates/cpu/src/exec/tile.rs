//! Programs on the tiles of a finished product.
use super::code::{CHUNK, Code};
use super::cx::Cx;
use super::frame::Frame;
use super::view::{Arg, Block};
use bimetal_kernels::gemm;
use bimetal_kernels::gemm::Scratch;

/// Elements of a row that are worth a block of their own.
const LONG: usize = 128;

/// Where the matrices `[batch, m, n]` of a product go.
pub(crate) struct Results<'a> {
    pub(crate) epilogue: &'a Code,
    pub(crate) cx: &'a Cx<'a>,
    pub(crate) m: usize,
    pub(crate) n: usize,
}

impl Results<'_> {
    /// The memory that takes the product as it is, if the program only rounds and stores it.
    pub(crate) fn dense(&self, wide: bool) -> Option<gemm::Dense> {
        let view = self.epilogue.stores_acc()?;
        let fits = view.dtype.is_float() && (view.dtype == bimetal_tensor::DType::F64) == wide;
        let ptr = view.at(self.cx.ptr(view.buf), view.offset as isize);
        fits.then(|| gemm::Dense::new(ptr, view.dtype, self.m, self.n))
    }

    /// Lets `run` compute the product straight into memory, or hand over its tiles.
    pub(crate) fn product(&self, wide: bool, run: impl FnOnce(gemm::Output<'_>)) {
        if let Some(out) = self.dense(wide) {
            run(gemm::Output::Dense(out));
        } else if wide {
            run(gemm::Output::Tiles64(&|t| self.tile(t)));
        } else {
            run(gemm::Output::Tiles(&|t| self.tile(t)));
        }
    }

    /// Runs the program on a tile of the accumulator's type.
    pub(crate) fn tile<T: Copy>(&self, tile: gemm::Tile<'_, T>) {
        let gemm::Tile { rows, cols, ld, .. } = tile;
        if rows * cols == 0 {
            return;
        }
        let mut frame = Frame::new(self.epilogue, self.cx);
        let scratch = Scratch::take::<u8>(CHUNK * size_of::<T>());
        let buf = scratch.ptr::<T>();
        let start = (tile.batch * self.m + tile.row) * self.n + tile.col;
        for c in (0..cols).step_by(CHUNK) {
            let width = CHUNK.min(cols - c);
            // Rows that join in memory are taken together, other long ones where they lie, short ones as a copy.
            let join = ld == width && self.n == width;
            let many = match width >= LONG && !join {
                true => 1,
                false => CHUNK / width,
            };
            for r in (0..rows).step_by(many) {
                let count = many.min(rows - r);
                let b = Block::matrix(start + r * self.n + c, count, width, self.n);
                let from = &tile.data[r * ld + c..];
                let acc = if count == 1 || ld == width {
                    from.as_ptr()
                } else {
                    for i in 0..count {
                        let row = &from[i * ld..][..width];
                        // SAFETY: scratch has room for a block.
                        unsafe {
                            std::ptr::copy_nonoverlapping(row.as_ptr(), buf.add(i * width), width);
                        }
                    }
                    buf.cast_const()
                };
                // SAFETY: the block lies in the program's domain, no two tiles overlap, and `acc` has its values.
                unsafe { frame.run(&b, Arg::dense(acc.cast())) };
            }
        }
    }
}
