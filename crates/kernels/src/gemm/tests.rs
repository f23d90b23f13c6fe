//! Against plain f64 loops, at every level, for all types, layouts and odd sizes.

use super::*;
use crate::simd::simd_level;
use crate::testutil::{Data, Rng, on_threads};
use bimetal_dtype::round_f64;

const FLOATS: [DType; 6] = [
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// A matrix in a buffer, with room around its elements.
struct Matrix {
    data: Data,
    round_to: Option<DType>,
    row_stride: isize,
    col_stride: isize,
    offsets: Vec<isize>,
}

impl Matrix {
    /// Values made by `value`; the layout is drawn: row-major, column-major, padded, spread or
    /// reversed, and the batch stored or broadcast.
    fn random(
        rng: &mut Rng,
        batch: usize,
        rows: usize,
        cols: usize,
        dtype: DType,
        value: impl Fn(&mut Rng) -> f64,
    ) -> Matrix {
        let (mut row_stride, mut col_stride) = match rng.below(4) {
            0 => (cols as isize, 1),
            1 => (1, rows as isize),
            2 => (cols as isize + 3, 1),
            _ => (2 * cols as isize + 1, 2),
        };
        let size = (rows as isize * row_stride.abs()).max(cols as isize * col_stride.abs()) + 1;
        let mut first = 0;
        if rng.below(6) == 0 && rows > 0 {
            first = (rows as isize - 1) * row_stride;
            row_stride = -row_stride;
        }
        if rng.below(8) == 0 {
            col_stride = 0;
        }
        let broadcast = rng.below(3) == 0;
        let offsets = (0..batch as isize)
            .map(|b| first + if broadcast { 0 } else { b * size })
            .collect();
        let values: Vec<f64> = (0..size * batch.max(1) as isize)
            .map(|_| value(rng))
            .collect();
        let data = Data::new(dtype, &values);
        Matrix {
            data,
            round_to: None,
            row_stride,
            col_stride,
            offsets,
        }
    }

    fn operand(&self) -> Operand<'_> {
        Operand {
            ptr: self.data.ptr(),
            dtype: self.data.dtype,
            round_to: self.round_to,
            row_stride: self.row_stride,
            col_stride: self.col_stride,
            offsets: &self.offsets,
        }
    }

    fn index(&self, b: usize, i: usize, j: usize) -> usize {
        let at = self.offsets[b] + i as isize * self.row_stride + j as isize * self.col_stride;
        at as usize
    }

    /// The values in memory order, as they take part.
    fn values(&self) -> Vec<f64> {
        let round = |v| self.round_to.map_or(v, |to| round_f64(v, to));
        self.data.values().into_iter().map(round).collect()
    }
}

/// The product in f64, and the sum of the absolute products, which bounds rounding errors.
fn reference(m: usize, n: usize, k: usize, a: &Matrix, b: &Matrix) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    let (x, y) = (a.values(), b.values());
    for batch in 0..a.offsets.len() {
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let terms = (0..k).map(|k| x[a.index(batch, i, k)] * y[b.index(batch, k, j)]);
            out.push(terms.fold((0.0, 0.0), |(s, t), x| (s + x, t + x.abs())));
        }
    }
    out
}

fn run(level: Level, m: usize, n: usize, k: usize, a: &Matrix, b: &Matrix, dtype: DType) -> Data {
    let mut out = Data::new(dtype, &vec![f64::NAN; a.offsets.len() * m * n]);
    let dense = Dense::new(out.ptr_mut(), dtype, m, n);
    // SAFETY: every view covers an array of this test that outlives the call.
    unsafe {
        gemm_at(
            level,
            m,
            n,
            k,
            a.operand(),
            b.operand(),
            Output::Dense(dense),
        )
    };
    out
}

fn sizes(rng: &mut Rng) -> (usize, usize, usize) {
    let mut size = |large: usize| match rng.below(8) {
        0 => 0,
        1 => 1,
        2 => large + rng.below(large),
        _ => 1 + rng.below(70),
    };
    (size(150), size(150), size(400))
}

/// Small integers are summed without error, so every element must be the rounded exact sum.
#[test]
fn exact_on_small_integers_for_all_types_and_layouts() {
    let mut rng = Rng(1);
    for level in Level::available().iter().copied() {
        for trial in 0..150 {
            let (m, n, k) = sizes(&mut rng);
            let batch = [0, 1, 1, 2, 3][rng.below(5)];
            let mut pick = || FLOATS[rng.below(6)];
            let (da, db, dtype) = (pick(), pick(), pick());
            let int = |rng: &mut Rng| rng.below(5) as f64 - 2.0;
            let a = Matrix::random(&mut rng, batch, m, k, da, int);
            let b = Matrix::random(&mut rng, batch, k, n, db, int);
            let out = run(level, m, n, k, &a, &b, dtype);
            for (i, (want, _)) in reference(m, n, k, &a, &b).into_iter().enumerate() {
                let (got, want) = (out.get(i), round_f64(want, dtype));
                assert!(
                    got == want || got.is_nan() && want.is_nan(),
                    "{level:?} trial {trial} {m}x{n}x{k} {da:?} {db:?} {dtype:?} [{i}]: {got} {want}"
                );
            }
        }
    }
}

#[test]
fn within_the_rounding_bound_on_random_values() {
    let mut rng = Rng(2);
    for level in Level::available().iter().copied() {
        for _ in 0..60 {
            let (m, n, k) = sizes(&mut rng);
            let wide = rng.below(2) == 0;
            let dtype = if wide { DType::F64 } else { DType::F32 };
            let a = Matrix::random(&mut rng, 2, m, k, dtype, Rng::normal);
            let b = Matrix::random(&mut rng, 2, k, n, dtype, Rng::normal);
            let out = run(level, m, n, k, &a, &b, dtype);
            let eps = if wide {
                f64::EPSILON
            } else {
                f32::EPSILON as f64
            };
            for (i, (want, size)) in reference(m, n, k, &a, &b).into_iter().enumerate() {
                let error = (out.get(i) - want).abs();
                assert!(
                    error <= 4.0 * eps * size * (k as f64).sqrt().max(1.0),
                    "{level:?} {m}x{n}x{k} {dtype:?}"
                );
            }
        }
    }
}

/// Rounding while packing gives the bits of a product of rounded copies.
#[test]
fn round_to_equals_a_cast_copy() {
    let mut rng = Rng(3);
    for level in Level::available().iter().copied() {
        for trial in 0..60 {
            let (m, n, k) = sizes(&mut rng);
            let from = [DType::F32, DType::F64][trial % 2];
            let to = FLOATS[rng.below(5)];
            let mut a = Matrix::random(&mut rng, 1, m, k, from, Rng::normal);
            let b = Matrix::random(&mut rng, 1, k, n, DType::F16, Rng::normal);
            let values: Vec<f64> = (0..a.data.len())
                .map(|i| round_f64(a.data.get(i), to))
                .collect();
            let copy = Matrix {
                data: Data::new(to, &values),
                round_to: None,
                row_stride: a.row_stride,
                col_stride: a.col_stride,
                offsets: a.offsets.clone(),
            };
            a.round_to = Some(to);
            let got = run(level, m, n, k, &a, &b, DType::F32);
            let want = run(level, m, n, k, &copy, &b, DType::F32);
            assert_eq!(
                got.bytes(),
                want.bytes(),
                "{level:?} {from:?} to {to:?} {m}x{n}x{k}"
            );
        }
    }
}

#[test]
fn same_bits_for_any_number_of_threads() {
    let mut rng = Rng(4);
    for trial in 0..60 {
        let large = trial % 6 == 0;
        let mut size = |x: usize| 1 + rng.below(if large { 4 * x } else { x });
        let (m, n, k) = (size(130), size(130), size(300));
        let (m, n) = if trial % 10 == 9 { (1, 1000) } else { (m, n) };
        let batch = 1 + rng.below(3);
        let dtype = FLOATS[2 + rng.below(4)];
        let a = Matrix::random(&mut rng, batch, m, k, dtype, Rng::normal);
        let b = Matrix::random(&mut rng, batch, k, n, DType::F32, Rng::normal);
        let run = |threads| on_threads(threads, || run(simd_level(), m, n, k, &a, &b, DType::F32));
        let one = run(1);
        for threads in [2, 3] {
            assert_eq!(one.bytes(), run(threads).bytes(), "{m}x{n}x{k} {dtype:?}");
        }
    }
}

/// An element does not depend on the matrix around it, so a merged batch has the bits of its parts.
#[test]
fn tall_batches_have_the_bits_of_their_parts() {
    let mut rng = Rng(5);
    let (batch, m, n, k) = (5, 37, 70, 300);
    let mut a = Matrix::random(&mut rng, batch, m, k, DType::F32, Rng::normal);
    (a.row_stride, a.col_stride) = (k as isize, 1);
    a.offsets = (0..batch).map(|b| (b * m * k) as isize).collect();
    a.data = Data::new(
        DType::F32,
        &(0..batch * m * k).map(|_| rng.normal()).collect::<Vec<_>>(),
    );
    let mut b = Matrix::random(&mut rng, 1, k, n, DType::F32, Rng::normal);
    b.offsets = vec![b.offsets[0]; batch];
    let whole = run(simd_level(), m, n, k, &a, &b, DType::F16);
    let offsets = std::mem::take(&mut a.offsets);
    b.offsets.truncate(1);
    let mut parts = Vec::new();
    for offset in offsets {
        a.offsets = vec![offset];
        parts.extend_from_slice(run(simd_level(), m, n, k, &a, &b, DType::F16).bytes());
    }
    assert_eq!(whole.bytes(), parts);
}

#[test]
fn every_element_reaches_the_closure_once() {
    let mut rng = Rng(6);
    for (batch, m, n, k) in [
        (1, 300, 600, 64),
        (3, 17, 33, 5),
        (2, 1, 40, 9),
        (1, 40, 1, 9),
        (1, 3, 4, 0),
    ] {
        let a = Matrix::random(&mut rng, batch, m, k, DType::F16, Rng::normal);
        let b = Matrix::random(&mut rng, batch, k, n, DType::BF16, Rng::normal);
        let want = run(simd_level(), m, n, k, &a, &b, DType::F32);
        let seen = std::sync::Mutex::new(vec![None; batch * m * n]);
        let take = |t: Tile<'_, f32>| {
            let mut seen = seen.lock().unwrap();
            for (i, j) in (0..t.rows).flat_map(|i| (0..t.cols).map(move |j| (i, j))) {
                let at = (t.batch * m + t.row + i) * n + t.col + j;
                assert!(seen[at].replace(t.data[i * t.ld + j]).is_none());
            }
        };
        // SAFETY: every view covers an array of this test that outlives the call.
        unsafe { gemm(m, n, k, a.operand(), b.operand(), Output::Tiles(&take)) };
        for (i, got) in seen.into_inner().unwrap().into_iter().enumerate() {
            assert_eq!(got.map(f64::from), Some(want.get(i)));
        }
    }
}

/// Nothing outside of C is written: rows and matrices with gaps between them.
#[test]
fn gaps_of_a_strided_output_stay_untouched() {
    let mut rng = Rng(7);
    for level in Level::available().iter().copied() {
        for dtype in FLOATS {
            let (batch, m, n, k) = (2, 19, 45, 21);
            let int = |rng: &mut Rng| rng.below(3) as f64 - 1.0;
            let a = Matrix::random(&mut rng, batch, m, k, DType::F32, int);
            let b = Matrix::random(&mut rng, batch, k, n, DType::F32, int);
            let (row_stride, batch_stride) = (n + 7, m * (n + 7) + 11);
            let mut out = Data::new(dtype, &vec![-7.0; batch * batch_stride]);
            let dense = Dense {
                ptr: out.ptr_mut(),
                dtype,
                row_stride,
                batch_stride,
            };
            // SAFETY: every view covers an array of this test that outlives the call.
            unsafe {
                gemm_at(
                    level,
                    m,
                    n,
                    k,
                    a.operand(),
                    b.operand(),
                    Output::Dense(dense),
                )
            };
            let want = reference(m, n, k, &a, &b);
            for at in 0..batch * batch_stride {
                let (i, j) = (
                    at % batch_stride / row_stride,
                    at % batch_stride % row_stride,
                );
                let inside = i < m && j < n;
                let index = (at / batch_stride * m + i) * n + j;
                let expected = if inside {
                    round_f64(want[index].0, dtype)
                } else {
                    -7.0
                };
                assert_eq!(out.get(at), expected);
            }
        }
    }
}

#[test]
fn non_finite_values_stay_in_their_row_and_column() {
    let mut rng = Rng(8);
    for level in Level::available().iter().copied() {
        let (m, n, k) = (30, 41, 50);
        let mut a = Matrix::random(&mut rng, 1, m, k, DType::F32, Rng::normal);
        (a.row_stride, a.col_stride, a.offsets) = (k as isize, 1, vec![0]);
        let mut values: Vec<f64> = (0..m * k).map(|_| rng.normal()).collect();
        values[7 * k + 3] = f64::NAN;
        values[9 * k + 3] = f64::INFINITY;
        a.data = Data::new(DType::F32, &values);
        let mut b = Matrix::random(&mut rng, 1, k, n, DType::F32, |rng| {
            rng.normal().abs() + 0.1
        });
        (b.row_stride, b.col_stride, b.offsets) = (n as isize, 1, vec![0]);
        b.data = Data::new(DType::F32, &vec![1.0; k * n]);
        let out = run(level, m, n, k, &a, &b, DType::F16);
        for i in 0..m * n {
            match i / n {
                7 => assert!(out.get(i).is_nan()),
                9 => assert_eq!(out.get(i), f64::INFINITY),
                _ => assert!(out.get(i).is_finite()),
            }
        }
    }
}

/// Large enough for several chunks of rows, of columns, and of k with sums kept in between.
#[test]
fn chunks_of_large_products() {
    let mut rng = Rng(9);
    for (m, n, k) in [
        (64, 100, 6000),
        (2500, 90, 40),
        (90, 2500, 40),
        (2100, 2100, 20),
    ] {
        for (da, dtype) in [(DType::F32, DType::F32), (DType::F16, DType::F16)] {
            let int = |rng: &mut Rng| rng.below(3) as f64 - 1.0;
            let a = Matrix::random(&mut rng, 1, m, k, da, int);
            let b = Matrix::random(&mut rng, 1, k, n, DType::BF16, int);
            let out = run(simd_level(), m, n, k, &a, &b, dtype).values();
            let want = reference(m, n, k, &a, &b);
            let wrong = (0..m * n).find(|&i| out[i] != round_f64(want[i].0, dtype));
            assert_eq!(wrong, None, "{m}x{n}x{k} {da:?}");
        }
    }
}
