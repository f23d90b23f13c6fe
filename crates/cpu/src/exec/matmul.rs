//! Matrix products with a program on their results.
use super::code::{CHUNK, Code, Frame};
use super::convert;
use super::cx::{Compile, Cx, Kernel};
use super::ops;
use super::scratch::Scratch;
use super::view::{Arg, Block};
use crate::par;
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::plan::{Fused, MatOperand, register};
use bimetal_tensor::{CastMode, DType, ErrorKind, Result, Shape};

/// `[batch.., m, k] x [batch.., k, n]`.
pub(crate) struct Matmul {
    m: usize,
    n: usize,
    k: usize,
    a: Factor,
    b: Factor,
    precision: MatmulPrecision,
    acc: DType,
    epilogue: Code,
}

/// A strided operand.
struct Factor {
    buf: usize,
    dtype: DType,
    compute: DType,
    rows: isize,
    cols: isize,
    /// The first element of every matrix of the batch.
    offsets: Vec<isize>,
}

impl Factor {
    fn new(
        o: &MatOperand,
        batch: &Shape,
        rows: usize,
        cols: usize,
        cx: &Compile<'_>,
    ) -> Result<Factor> {
        let mut dims = batch.to_vec();
        dims.extend([rows, cols]);
        let domain = Shape::new(&dims);
        cx.check(domain.is_some(), "too many batch axes")?;
        let domain = domain.unwrap_or(Shape::scalar());
        cx.view(&o.access, &domain)?;
        let at = batch.rank();
        let mut offsets = vec![o.access.offset as isize];
        for i in 0..at {
            let s = o.access.strides[i];
            offsets = offsets
                .iter()
                .flat_map(|&base| (0..batch[i] as isize).map(move |j| base + j * s))
                .collect();
        }
        Ok(Factor {
            buf: o.access.buf as usize,
            dtype: o.access.dtype,
            compute: o.compute,
            rows: o.access.strides[at],
            cols: o.access.strides[at + 1],
            offsets,
        })
    }

    /// Rows of one matrix, dense, of the accumulator's dtype `acc`.
    ///
    /// # Safety
    /// `T` is that dtype.
    unsafe fn matrix<T: Copy + Default>(
        &self,
        cx: &Cx<'_>,
        acc: DType,
        batch: usize,
        rows: std::ops::Range<usize>,
        cols: usize,
    ) -> Vec<T> {
        let mut v = vec![T::default(); rows.len() * cols];
        let from = register(self.dtype);
        let mut spare = vec![0f64; cols];
        for (i, row) in rows.enumerate() {
            let at = self.offsets[batch] + row as isize * self.rows;
            let src = cx
                .ptr(self.buf)
                .wrapping_offset(at * self.dtype.size() as isize);
            let dst: *mut u8 = v[i * cols..].as_mut_ptr().cast();
            let tmp: *mut u8 = spare.as_mut_ptr().cast();
            // SAFETY: the access was checked when it was compiled; both arrays have room for a row.
            unsafe {
                if from == acc && (self.compute == self.dtype || acc != DType::F32) {
                    convert::load(self.dtype, src, self.cols, cols, dst);
                    continue;
                }
                convert::load(self.dtype, src, self.cols, cols, tmp);
                let row = Arg::dense(tmp);
                if acc == DType::F32 {
                    ops::round(from, self.compute, CastMode::Nonsaturating, row, dst, cols);
                } else {
                    ops::convert(from, acc, row, dst, cols);
                }
            }
        }
        v
    }
}

impl Matmul {
    pub(crate) fn new(
        batch: &Shape,
        [m, n, k]: [usize; 3],
        a: &MatOperand,
        b: &MatOperand,
        precision: MatmulPrecision,
        acc: DType,
        epilogue: &Fused,
        cx: &Compile<'_>,
    ) -> Result<Matmul> {
        let mut dims = batch.to_vec();
        dims.extend([m, n]);
        let domain = Shape::new(&dims).unwrap_or(Shape::scalar());
        for o in [a, b] {
            let from = register(o.access.dtype);
            cx.check(
                from == acc || acc.is_float() && from.is_float(),
                "operands and accumulator of a product have different dtypes",
            )?;
        }
        Ok(Matmul {
            m,
            n,
            k,
            a: Factor::new(a, batch, m, k, cx)?,
            b: Factor::new(b, batch, k, n, cx)?,
            precision,
            acc,
            epilogue: Code::new(epilogue, &domain, cx)?,
        })
    }

    /// # Safety
    /// `T` is the accumulator's type.
    unsafe fn plain<T: Copy + Default + Send + Sync>(
        &self,
        cx: &Cx<'_>,
        mac: impl Fn(T, T, T) -> T + Sync,
    ) {
        let _ = self.precision;
        for batch in 0..self.a.offsets.len() {
            // SAFETY: the caller's contract.
            let b = unsafe { self.b.matrix::<T>(cx, self.acc, batch, 0..self.k, self.n) };
            par::for_each(par::pieces(self.m, 8), |t| {
                let rows = par::piece(self.m, 8, t);
                // SAFETY: the caller's contract.
                let a = unsafe {
                    self.a
                        .matrix::<T>(cx, self.acc, batch, rows.clone(), self.k)
                };
                let mut out = vec![T::default(); rows.len() * self.n];
                for i in 0..rows.len() {
                    let out = &mut out[i * self.n..][..self.n];
                    for p in 0..self.k {
                        let x = a[i * self.k + p];
                        for (o, y) in out.iter_mut().zip(&b[p * self.n..]) {
                            *o = mac(x, *y, *o);
                        }
                    }
                }
                // SAFETY: values of the accumulator's type; no two tiles overlap.
                unsafe {
                    self.tile(
                        cx,
                        batch,
                        rows.start,
                        rows.len(),
                        0,
                        self.n,
                        out.as_ptr(),
                        self.n,
                    )
                };
            });
        }
    }

    /// Runs the epilogue on a finished tile.
    ///
    /// # Safety
    /// `data` has `rows` rows of `cols` values, `ld` apart, of the accumulator's type.
    unsafe fn tile<T: Copy>(
        &self,
        cx: &Cx<'_>,
        batch: usize,
        row: usize,
        rows: usize,
        col: usize,
        cols: usize,
        data: *const T,
        ld: usize,
    ) {
        let mut frame = Frame::new(&self.epilogue, cx);
        let mut scratch = Scratch::new(CHUNK * size_of::<T>());
        let buf = scratch.ptr().cast::<T>();
        let start = (batch * self.m + row) * self.n + col;
        if cols == 0 {
            return;
        }
        for c in (0..cols).step_by(CHUNK) {
            let width = CHUNK.min(cols - c);
            let many = CHUNK / width;
            for r in (0..rows).step_by(many) {
                let count = many.min(rows - r);
                let b = Block::matrix(start + r * self.n + c, count, width, self.n);
                // SAFETY: the caller's contract; scratch has room for a block.
                unsafe {
                    let from = data.add(r * ld + c);
                    let acc = if count == 1 || ld == width {
                        from
                    } else {
                        for i in 0..count {
                            std::ptr::copy_nonoverlapping(
                                from.add(i * ld),
                                buf.add(i * width),
                                width,
                            );
                        }
                        buf.cast_const()
                    };
                    frame.run(&b, Arg::dense(acc.cast()));
                }
            }
        }
    }
}

impl Kernel for Matmul {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        // SAFETY: the types are the accumulator's.
        unsafe {
            match self.acc {
                DType::F32 => self.plain::<f32>(cx, |x, y, s| s + x * y),
                DType::F64 => self.plain::<f64>(cx, |x, y, s| s + x * y),
                DType::I32 | DType::U32 => {
                    self.plain::<i32>(cx, |x, y, s| s.wrapping_add(x.wrapping_mul(y)))
                }
                DType::I64 => self.plain::<i64>(cx, |x, y, s| s.wrapping_add(x.wrapping_mul(y))),
                _ => self.plain::<u8>(cx, |x, y, s| s | x & y),
            }
        }
        Ok(())
    }

    fn work(&self) -> usize {
        let out = self.a.offsets.len() * self.m * self.n;
        out.saturating_mul(self.k / 8 + self.epilogue.cost())
    }
}
