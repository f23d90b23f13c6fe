//! Accesses of kernels, compiled: how an index of a kernel's domain becomes an address.
use super::convert;
use bimetal_tensor::plan::Access;
use bimetal_tensor::{DType, MAX_RANK, Shape};

/// A register's value in one block: a dense array, or one element that stands for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arg {
    pub(crate) ptr: *const u8,
    pub(crate) splat: bool,
}

impl Arg {
    pub(crate) const NONE: Arg = Arg {
        ptr: std::ptr::null(),
        splat: true,
    };
    pub(crate) fn dense(ptr: *const u8) -> Arg {
        Arg { ptr, splat: false }
    }
    pub(crate) fn splat(ptr: *const u8) -> Arg {
        Arg { ptr, splat: true }
    }
}

/// Elements of a domain in row-major order: `rows` runs of `cols`, `pitch` apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Block {
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) pitch: usize,
}

impl Block {
    /// `n` elements from `start`.
    pub(crate) fn linear(start: usize, n: usize) -> Block {
        Block {
            start,
            rows: 1,
            cols: n,
            pitch: n,
        }
    }

    /// Rows of a matrix; a single run where the rows join.
    pub(crate) fn matrix(start: usize, rows: usize, cols: usize, pitch: usize) -> Block {
        if rows == 1 || pitch == cols {
            Block::linear(start, rows * cols)
        } else {
            Block {
                start,
                rows,
                cols,
                pitch,
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }
}

/// How the domain lies in the buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Element `i` of the domain is element `offset + i`.
    Dense,
    /// Every element of the domain is the same one.
    Scalar,
    /// By strides.
    Strided,
}

/// A compiled access.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) buf: usize,
    pub(crate) dtype: DType,
    pub(crate) offset: usize,
    /// Where blocks are tiles of two axes: elements from one row and one column to the next.
    pub(crate) tile: Option<[isize; 2]>,
    kind: Kind,
    rank: usize,
    size: [usize; MAX_RANK],
    stride: [isize; MAX_RANK],
    /// Whether loads copy, even where the buffer holds what a register does: the buffer is overwritten while the value is wanted.
    pub(crate) copied: bool,
}

impl View {
    /// Compiles an access over `domain`; axes that continue each other are merged.
    pub(crate) fn new(access: &Access, domain: &Shape) -> View {
        let mut v = View {
            buf: access.buf as usize,
            dtype: access.dtype,
            offset: access.offset,
            tile: None,
            kind: Kind::Strided,
            rank: 0,
            size: [1; MAX_RANK],
            stride: [0; MAX_RANK],
            copied: false,
        };
        for axis in 0..domain.rank() {
            let (n, s) = (domain[axis], access.strides[axis]);
            if n == 1 {
                continue;
            }
            if v.rank > 0 && v.stride[v.rank - 1] == s * n as isize {
                v.size[v.rank - 1] *= n;
                v.stride[v.rank - 1] = s;
            } else {
                v.size[v.rank] = n;
                v.stride[v.rank] = s;
                v.rank += 1;
            }
        }
        v.kind = match (v.rank, v.stride[0]) {
            (0, _) => Kind::Scalar,
            (1, 0) => Kind::Scalar,
            (1, 1) => Kind::Dense,
            _ => Kind::Strided,
        };
        v
    }

    /// The offsets of the first and last element touched, or `None` if there are none.
    pub(crate) fn bounds(&self) -> Option<(isize, isize)> {
        let (mut lo, mut hi) = (self.offset as isize, self.offset as isize);
        for i in 0..self.rank {
            if self.size[i] == 0 {
                return None;
            }
            let d = (self.size[i] as isize - 1) * self.stride[i];
            lo += d.min(0);
            hi += d.max(0);
        }
        Some((lo, hi))
    }

    /// Whether the domain is walked in memory order without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        self.kind == Kind::Dense || self.rank == 0
    }

    /// Whether one element stands for all.
    pub(crate) fn is_scalar(&self) -> bool {
        self.kind == Kind::Scalar
    }

    /// The length of a run along the innermost merged axis, if the access is strided.
    pub(crate) fn run(&self) -> Option<usize> {
        (self.kind == Kind::Strided).then(|| self.size[self.rank - 1])
    }

    /// The address of an element by its offset.
    pub(crate) fn at(&self, base: *mut u8, element: isize) -> *mut u8 {
        base.wrapping_offset(element * self.dtype.size() as isize)
    }

    /// Calls `f(position, offset of the first element, stride, length)` for each run of `n` elements from `start`.
    fn runs(&self, start: usize, n: usize, mut f: impl FnMut(usize, isize, isize, usize)) {
        let base = self.offset as isize;
        match self.kind {
            Kind::Dense => return f(0, base + start as isize, 1, n),
            Kind::Scalar => return f(0, base, 0, n),
            Kind::Strided => {}
        }
        let last = self.rank - 1;
        let (inner, step) = (self.size[last], self.stride[last]);
        let mut index = [0usize; MAX_RANK];
        let mut at = base;
        let mut rest = start / inner;
        let mut col = start % inner;
        for i in (0..last).rev() {
            index[i] = rest % self.size[i];
            rest /= self.size[i];
            at += index[i] as isize * self.stride[i];
        }
        let mut done = 0;
        while done < n {
            let len = (inner - col).min(n - done);
            f(done, at + col as isize * step, step, len);
            done += len;
            col = 0;
            for i in (0..last).rev() {
                index[i] += 1;
                at += self.stride[i];
                if index[i] < self.size[i] {
                    break;
                }
                at -= index[i] as isize * self.stride[i];
                index[i] = 0;
            }
        }
    }

    /// The block's elements in their register dtype: in place where they lie so, else copied to `scratch`.
    ///
    /// # Safety
    /// `base` is the buffer, the block lies in the domain, and `scratch` has room for its elements.
    pub(crate) unsafe fn load(&self, base: *mut u8, b: &Block, scratch: *mut u8) -> Arg {
        let plain = convert::is_register(self.dtype);
        if self.kind == Kind::Scalar {
            let src = self.at(base, self.offset as isize);
            if plain {
                return Arg::splat(src);
            }
            // SAFETY: one element of the buffer; the scratch is not empty.
            unsafe { convert::load(self.dtype, src, 0, 1, scratch) };
            return Arg::splat(scratch);
        }
        if b.rows == 1 && plain && !self.copied {
            let mut direct = None;
            if self.kind == Kind::Dense {
                direct = Some(Arg::dense(self.at(base, (self.offset + b.start) as isize)));
            } else if let Some(inner) = self.run()
                && b.start % inner + b.cols <= inner
                && matches!(self.stride[self.rank - 1], 0 | 1)
            {
                let splat = self.stride[self.rank - 1] == 0;
                self.runs(b.start, 1, |_, at, _, _| {
                    direct = Some(Arg {
                        ptr: self.at(base, at),
                        splat,
                    });
                });
            }
            if let Some(a) = direct {
                return a;
            }
        }
        let width = convert::width(self.dtype);
        if b.rows > 1
            && let Some(steps) = self.tile
        {
            self.runs(b.start, 1, |_, at, _, _| {
                let first = self.at(base, at);
                // SAFETY: the block is a tile, whose elements lie in the buffer and fit in the scratch.
                unsafe { convert::load_tile(self.dtype, first, steps, [b.rows, b.cols], scratch) };
            });
            return Arg::dense(scratch);
        }
        for row in 0..b.rows {
            self.runs(b.start + row * b.pitch, b.cols, |done, at, step, len| {
                let dst = scratch.wrapping_add((row * b.cols + done) * width);
                // SAFETY: the run lies in the buffer, and the block's elements fit in the scratch.
                unsafe { convert::load(self.dtype, self.at(base, at), step, len, dst) };
            });
        }
        Arg::dense(scratch)
    }

    /// Stores a register of dtype `from` to the block's elements, rounding once.
    ///
    /// # Safety
    /// `base` is the buffer, which nobody else reads or writes at these elements; the block lies in the domain; the register
    /// has its elements.
    pub(crate) unsafe fn store(&self, base: *mut u8, b: &Block, value: Arg, from: DType) {
        let width = from.size();
        for row in 0..b.rows {
            self.runs(b.start + row * b.pitch, b.cols, |done, at, step, len| {
                let src = match value.splat {
                    true => value,
                    false => Arg::dense(value.ptr.wrapping_add((row * b.cols + done) * width)),
                };
                // SAFETY: the run lies in the buffer, the values in the register.
                unsafe { convert::store(self.dtype, self.at(base, at), step, len, src, from) };
            });
        }
    }
}
