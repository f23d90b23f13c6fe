//! Weights as matrices whose values lie together.

use super::{Conv2d, View4};
use crate::gemm::{Dst, Isa, Level, Operand, Real, Scratch, by_level};
use crate::par;
use bimetal_dtype::DType;

/// Weights `[filters, channels of a group, kh, kw]` that lie together: where they are, or in a copy.
pub struct Weights {
    ptr: *const u8,
    dtype: DType,
    round_to: Option<DType>,
    row: isize,
    _own: Option<Scratch>,
}

impl Weights {
    pub fn new<T: Real>(level: Level, conv: &Conv2d, w: &View4) -> Weights {
        let (channels, _, taps) = conv.group();
        let row = (channels * taps) as isize;
        let (taps, width) = (taps as isize, conv.kernel[1] as isize);
        if w.strides == [row, taps, width, 1] {
            let (ptr, dtype, round_to) = (w.ptr, w.dtype, w.round_to);
            return Weights {
                ptr,
                dtype,
                round_to,
                row,
                _own: None,
            };
        }
        Weights::copy::<T>(level, conv, w)
    }

    /// A copy of the accumulator type.
    pub fn copy<T: Real>(level: Level, conv: &Conv2d, w: &View4) -> Weights {
        let (channels, _, taps) = conv.group();
        let row = channels * taps;
        let own = Scratch::take::<T>(conv.filters * row);
        let dst = Dst(own.ptr::<T>());
        let together = (1 << 12) / row.max(1) + 1;
        par::for_each(par::pieces(conv.filters, together), |t| {
            for o in par::piece(conv.filters, together, t) {
                // SAFETY: each task writes the rows of its own filters.
                unsafe { filter(level, w, conv, o, dst.at(o * row)) }
            }
        });
        let ptr = own.ptr::<u8>().cast_const();
        Weights {
            ptr,
            dtype: T::DTYPE,
            round_to: None,
            row: row as isize,
            _own: Some(own),
        }
    }

    /// The address of a copy.
    pub fn ptr<T>(&self) -> *const T {
        self.ptr.cast()
    }

    /// The matrices `[filters of a group, taps]`.
    pub fn operand<'a>(&self, offsets: &'a [isize]) -> Operand<'a> {
        Operand {
            ptr: self.ptr,
            dtype: self.dtype,
            round_to: self.round_to,
            row_stride: self.row,
            col_stride: 1,
            offsets,
        }
    }
}

by_level!(
    /// One filter.
    fn filter<T: Real>(w: &View4, conv: &Conv2d, o: usize, dst: *mut T) = filter_body
);

#[inline(always)]
unsafe fn filter_body<I: Isa, T: Real>(w: &View4, conv: &Conv2d, o: usize, dst: *mut T) {
    let (channels, _, taps) = conv.group();
    for c in 0..channels {
        for u in 0..conv.kernel[0] {
            // SAFETY: a row of a window in both.
            unsafe {
                let dst = dst.add(c * taps + u * conv.kernel[1]);
                let src = w.at([o, c, u, 0]);
                w.elements()
                    .load::<I, T>(src, w.strides[3], conv.kernel[1], dst);
            }
        }
    }
}
