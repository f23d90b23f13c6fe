//! Matrix products with a program on their results.
use super::code::Code;
use super::convert;
use super::cx::{Compile, Cx, Kernel};
use super::ops;
use super::tile::Results;
use super::view::Arg;
use bimetal_kernels::gemm;
use bimetal_kernels::par;
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::plan::{Fused, MatOperand, register};
use bimetal_tensor::{CastMode, DType, ErrorKind, Result, Shape, round_f32};

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
        [rows, cols]: [usize; 2],
        cx: &Compile<'_>,
    ) -> Result<Factor> {
        let mut dims = batch.to_vec();
        dims.extend([rows, cols]);
        let domain = Shape::new(&dims);
        cx.check(domain.is_some(), "too many batch axes")?;
        cx.view(&o.access, &domain.unwrap_or(Shape::scalar()))?;
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

    fn operand(&self, cx: &Cx<'_>) -> gemm::Operand<'_> {
        gemm::Operand {
            ptr: cx.ptr(self.buf),
            dtype: self.dtype,
            round_to: (self.compute != self.dtype).then_some(self.compute),
            row_stride: self.rows,
            col_stride: self.cols,
            offsets: &self.offsets,
        }
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
            a: Factor::new(a, batch, [m, k], cx)?,
            b: Factor::new(b, batch, [k, n], cx)?,
            precision,
            acc,
            epilogue: Code::new(epilogue, &domain, cx)?,
        })
    }

    fn results<'a>(&'a self, cx: &'a Cx<'a>) -> Results<'a> {
        Results {
            epilogue: &self.epilogue,
            cx,
            m: self.m,
            n: self.n,
        }
    }

    fn floats(&self, cx: &Cx<'_>, k: usize, a: gemm::Operand<'_>, b: gemm::Operand<'_>) {
        let results = self.results(cx);
        // SAFETY: the accesses were checked when they were compiled; the results share no memory with the operands, and the
        // tiles do not overlap.
        results.product(self.acc == DType::F64, |out| unsafe {
            gemm::gemm(self.m, self.n, k, a, b, out);
        });
    }

    /// A product of parts of the operands, which are written side by side along k: `parts(value)` gives the factors.
    fn split<const N: usize>(
        &self,
        cx: &Cx<'_>,
        left: impl Fn(f32) -> [f32; N] + Sync,
        right: impl Fn(f32) -> [f32; N] + Sync,
    ) {
        let (m, n, k) = (self.m, self.n, self.k);
        let batch = self.a.offsets.len();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for i in 0..batch {
            // SAFETY: the accumulator is f32.
            let (x, y) = unsafe {
                (
                    self.a.matrix::<f32>(cx, self.acc, i, 0..m, k),
                    self.b.matrix::<f32>(cx, self.acc, i, 0..k, n),
                )
            };
            for row in x.chunks(k.max(1)) {
                for p in 0..N {
                    a.extend(row.iter().map(|v| left(*v)[p]));
                }
            }
            for p in 0..N {
                b.extend(y.iter().map(|v| right(*v)[p]));
            }
        }
        let k = N * k;
        let offsets =
            |size: usize| -> Vec<isize> { (0..batch).map(|i| (i * size) as isize).collect() };
        let (oa, ob) = (offsets(m * k), offsets(k * n));
        let operand = |v: &[f32], cols: usize| gemm::Operand {
            ptr: v.as_ptr().cast(),
            dtype: DType::F32,
            round_to: None,
            row_stride: cols as isize,
            col_stride: 1,
            offsets: &[],
        };
        let a = gemm::Operand {
            offsets: &oa,
            ..operand(&a, k)
        };
        let b = gemm::Operand {
            offsets: &ob,
            ..operand(&b, n)
        };
        self.floats(cx, k, a, b);
    }

    /// # Safety
    /// `T` is the accumulator's type.
    unsafe fn plain<T: Copy + Default + Send + Sync>(
        &self,
        cx: &Cx<'_>,
        mac: impl Fn(T, T, T) -> T + Sync,
    ) {
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
                self.results(cx).tile(gemm::Tile {
                    batch,
                    row: rows.start,
                    rows: rows.len(),
                    col: 0,
                    cols: self.n,
                    data: &mut out,
                    ld: self.n,
                });
            });
        }
    }
}

/// Two bf16 values whose sum is `v` to 17 bits.
fn halves(v: f32) -> [f32; 2] {
    let high = round_f32(v, DType::BF16);
    // Infinity has no rest.
    let rest = if high.is_finite() { v - high } else { 0.0 };
    [high, round_f32(rest, DType::BF16)]
}

/// `v` with 10 mantissa bits, to nearest even.
fn tf32(v: f32) -> f32 {
    let bits = v.to_bits();
    match v.is_finite() {
        true => f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff),
        false => v,
    }
}

impl Kernel for Matmul {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        // SAFETY: the types are the accumulator's.
        unsafe {
            match (self.acc, self.precision) {
                (DType::F32, MatmulPrecision::Tf32) => self.split(cx, |v| [tf32(v)], |v| [tf32(v)]),
                (DType::F32, MatmulPrecision::Bf16x3) => self.split(
                    cx,
                    // The small products first; that of both rests is left out.
                    |v| {
                        let [high, low] = halves(v);
                        [low, high, high]
                    },
                    |v| {
                        let [high, low] = halves(v);
                        [high, low, high]
                    },
                ),
                (DType::F32 | DType::F64, _) => {
                    self.floats(cx, self.k, self.a.operand(cx), self.b.operand(cx))
                }
                (DType::I32 | DType::U32, _) => {
                    self.plain::<i32>(cx, |x, y, s| s.wrapping_add(x.wrapping_mul(y)))
                }
                (DType::I64, _) => {
                    self.plain::<i64>(cx, |x, y, s| s.wrapping_add(x.wrapping_mul(y)))
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_right() {
        for v in [1.0f32, -3.456789e-7, 123456.79, 0.0] {
            let [x, y] = halves(v);
            let rest = x as f64 + y as f64 - v as f64;
            assert!(rest.abs() <= v.abs() as f64 / 131072.0);
            assert_eq!(tf32(v).to_bits() & 0x1fff, 0);
            assert!((tf32(v) - v).abs() <= v.abs() / 2048.0);
        }
        assert_eq!(tf32(1.0 + 1.0 / 2048.0), 1.0);
        assert_eq!(tf32(1.0 + 3.0 / 2048.0), 1.0 + 1.0 / 512.0);
        assert_eq!(tf32(f32::INFINITY), f32::INFINITY);
        assert_eq!(halves(f32::INFINITY), [f32::INFINITY, 0.0]);
    }
}
