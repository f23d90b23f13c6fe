//! Against the definition in f64, at every level, for all kinds of sizes.

use super::*;
use crate::gemm::{Dense, Tile};
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

/// A tensor whose axes lie in some order in memory, with gaps.
struct Tensor {
    data: Data,
    strides: [isize; 4],
    offset: usize,
    round_to: Option<DType>,
}

impl Tensor {
    fn random(
        rng: &mut Rng,
        shape: [usize; 4],
        dtype: DType,
        value: fn(&mut Rng) -> f64,
    ) -> Tensor {
        let order = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 3, 1], [1, 0, 3, 2]][rng.below(4)];
        let mut strides = [0; 4];
        let mut step = 1;
        for axis in order.into_iter().rev() {
            strides[axis] = step;
            step *= shape[axis] as isize;
            if axis == 2 && rng.below(4) == 0 {
                step += 5;
            }
        }
        let len = shape
            .iter()
            .zip(strides)
            .map(|(&d, s)| d as isize * s)
            .max()
            .unwrap_or(0);
        let values: Vec<f64> = (0..len.max(step)).map(|_| value(rng)).collect();
        let mut offset = 0;
        if rng.below(5) == 0 && shape[2] > 0 {
            // The rows of every plane upside down.
            offset = (shape[2] - 1) * strides[2] as usize;
            strides[2] = -strides[2];
        }
        Tensor {
            data: Data::new(dtype, &values),
            strides,
            offset,
            round_to: None,
        }
    }

    fn view(&self) -> View4 {
        let ptr = self
            .data
            .ptr()
            .wrapping_add(self.offset * self.data.dtype.size());
        View4 {
            ptr,
            dtype: self.data.dtype,
            round_to: self.round_to,
            strides: self.strides,
        }
    }

    fn values(&self) -> Vec<f64> {
        let round = |v| self.round_to.map_or(v, |to| round_f64(v, to));
        self.data.values().into_iter().map(round).collect()
    }

    fn index(&self, index: [usize; 4]) -> usize {
        let at: isize = index
            .iter()
            .zip(self.strides)
            .map(|(&i, s)| i as isize * s)
            .sum();
        (at + self.offset as isize) as usize
    }
}

/// Calls `f` with the indices of x, w and y of every product.
fn products(conv: &Conv2d, mut f: impl FnMut([usize; 4], [usize; 4], [usize; 4])) {
    let ([oh, ow], (channels, filters, _)) = (conv.output(), conv.group());
    for n in 0..conv.batch {
        for o in 0..conv.filters {
            for (i, j) in (0..oh).flat_map(|i| (0..ow).map(move |j| (i, j))) {
                for c in 0..channels {
                    for u in 0..conv.kernel[0] {
                        let y = (i * conv.stride[0] + u * conv.dilation[0])
                            .wrapping_sub(conv.padding[0][0]);
                        for v in 0..conv.kernel[1] {
                            let x = (j * conv.stride[1] + v * conv.dilation[1])
                                .wrapping_sub(conv.padding[1][0]);
                            if y < conv.input[0] && x < conv.input[1] {
                                let channel = o / filters * channels + c;
                                f([n, channel, y, x], [o, c, u, v], [n, o, i, j]);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn flat(shape: [usize; 4], index: [usize; 4]) -> usize {
    index.iter().zip(shape).fold(0, |at, (&i, d)| at * d + i)
}

fn random_conv(rng: &mut Rng) -> Conv2d {
    let groups = [1, 1, 1, 2, 3][rng.below(5)];
    let mut two = |low: usize, n: usize| [low + rng.below(n), low + rng.below(n)];
    Conv2d {
        kernel: two(1, 4),
        stride: two(1, 3),
        dilation: two(1, 2),
        padding: [two(0, 3), two(0, 3)],
        input: two(0, 20),
        batch: two(0, 5)[0],
        channels: groups * two(1, 9)[0],
        filters: groups * two(1, 30)[0],
        groups,
    }
}

#[derive(Clone, Copy, Debug)]
enum Pass {
    Forward,
    InputGrad,
    WeightGrad,
}

const PASSES: [Pass; 3] = [Pass::Forward, Pass::InputGrad, Pass::WeightGrad];

impl Pass {
    /// Shapes of the two operands and of the result.
    fn shapes(self, conv: &Conv2d) -> [[usize; 4]; 3] {
        let ([oh, ow], (channels, ..)) = (conv.output(), conv.group());
        let x = [conv.batch, conv.channels, conv.input[0], conv.input[1]];
        let w = [conv.filters, channels, conv.kernel[0], conv.kernel[1]];
        let y = [conv.batch, conv.filters, oh, ow];
        match self {
            Pass::Forward => [x, w, y],
            Pass::InputGrad => [y, w, x],
            Pass::WeightGrad => [x, y, w],
        }
    }

    /// The result in f64, row-major, and the sums of the absolute products.
    fn reference(self, conv: &Conv2d, a: &Tensor, b: &Tensor) -> Vec<(f64, f64)> {
        let shape = self.shapes(conv)[2];
        let mut out = vec![(0.0, 0.0); shape.iter().product()];
        let (av, bv) = (a.values(), b.values());
        products(conv, |x, w, y| {
            let (ia, ib, io) = match self {
                Pass::Forward => (x, w, y),
                Pass::InputGrad => (y, w, x),
                Pass::WeightGrad => (x, y, w),
            };
            let product = av[a.index(ia)] * bv[b.index(ib)];
            let at = &mut out[flat(shape, io)];
            *at = (at.0 + product, at.1 + product.abs());
        });
        out
    }

    unsafe fn call(self, level: Level, conv: &Conv2d, a: View4, b: View4, out: Output<'_>) {
        // SAFETY: every view covers an array of this test that outlives the call.
        unsafe {
            match self {
                Pass::Forward => conv2d_at(level, conv, a, b, out),
                Pass::InputGrad => conv2d_input_grad_at(level, conv, a, b, out),
                Pass::WeightGrad => conv2d_weight_grad_at(level, conv, a, b, out),
            }
        }
    }

    /// Rows and columns of a matrix of the result.
    fn matrix(self, conv: &Conv2d) -> (usize, usize) {
        let [d0, d1, d2, d3] = self.shapes(conv)[2];
        match self {
            Pass::WeightGrad => (d0, d1 * d2 * d3),
            _ => (d1, d2 * d3),
        }
    }

    fn run(self, level: Level, conv: &Conv2d, a: &Tensor, b: &Tensor, dtype: DType) -> Data {
        let len = self.shapes(conv)[2].iter().product();
        let (m, n) = self.matrix(conv);
        let mut out = Data::new(dtype, &vec![f64::NAN; len]);
        let dense = Output::Dense(Dense::new(out.ptr_mut(), dtype, m, n));
        // SAFETY: every view covers an array of this test that outlives the call.
        unsafe { self.call(level, conv, a.view(), b.view(), dense) };
        out
    }
}

/// Small integers are summed without error, so every element must be the rounded exact sum.
#[test]
fn exact_on_small_integers() {
    let mut rng = Rng(11);
    for level in Level::available().iter().copied() {
        for trial in 0..120 {
            let conv = random_conv(&mut rng);
            for pass in PASSES {
                let mut pick = || FLOATS[rng.below(6)];
                let (da, db, dtype) = (pick(), pick(), pick());
                let [sa, sb, _] = pass.shapes(&conv);
                let a = Tensor::random(&mut rng, sa, da, |rng| rng.below(3) as f64 - 1.0);
                let b = Tensor::random(&mut rng, sb, db, |rng| rng.below(3) as f64 - 1.0);
                let out = pass.run(level, &conv, &a, &b, dtype);
                for (i, (want, _)) in pass.reference(&conv, &a, &b).into_iter().enumerate() {
                    let (got, want) = (out.get(i), round_f64(want, dtype));
                    assert!(
                        got == want || got.is_nan() && want.is_nan(),
                        "{level:?} trial {trial} {pass:?} {conv:?} {dtype:?} [{i}]: {got} {want}"
                    );
                }
            }
        }
    }
}

#[test]
fn within_the_rounding_bound_on_real_layers() {
    let mut rng = Rng(12);
    // The middle layer of a small CNN, a strided and a 1x1 layer of a ResNet, a depthwise layer.
    let layer = |channels, filters, input, kernel, stride, padding, groups| Conv2d {
        batch: 4,
        channels,
        input: [input; 2],
        filters,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [[padding; 2]; 2],
        dilation: [1; 2],
        groups,
    };
    let layers = [
        layer(64, 64, 13, 3, 1, 0, 1),
        layer(16, 32, 32, 3, 2, 1, 1),
        layer(32, 64, 16, 1, 2, 0, 1),
        layer(40, 40, 14, 3, 1, 1, 40),
        // Rows of whole and half vectors, and such that are read through.
        layer(3, 16, 32, 3, 1, 1, 1),
        layer(5, 9, 16, 5, 1, 2, 1),
        layer(24, 40, 8, 3, 1, 1, 2),
        layer(20, 17, 9, 1, 1, 0, 1),
    ];
    let levels = Level::available().iter().copied();
    for (level, conv) in levels.flat_map(|level| layers.map(|conv| (level, conv))) {
        for pass in PASSES {
            let [sa, sb, so] = pass.shapes(&conv);
            let mut a = Tensor::random(&mut rng, sa, DType::F32, Rng::normal);
            let b = Tensor::random(&mut rng, sb, DType::F16, Rng::normal);
            a.round_to = Some(DType::BF16);
            let out = pass.run(level, &conv, &a, &b, DType::F32);
            let want = pass.reference(&conv, &a, &b);
            for (i, (want, size)) in want.into_iter().enumerate() {
                let error = (out.get(i) - want).abs();
                assert!(
                    error <= 3e-6 * size.max(1e-3),
                    "{level:?} {pass:?} {conv:?} {so:?} [{i}]: {error}"
                );
            }
        }
    }
}

#[test]
fn same_bits_for_any_number_of_threads() {
    let mut rng = Rng(13);
    for trial in 0..30 {
        let mut conv = random_conv(&mut rng);
        if trial % 3 == 0 {
            conv.batch = 8;
            conv.input = [25, 30];
        }
        for pass in PASSES {
            let [sa, sb, _] = pass.shapes(&conv);
            let a = Tensor::random(&mut rng, sa, DType::F32, Rng::normal);
            let b = Tensor::random(&mut rng, sb, DType::BF16, Rng::normal);
            let run = |threads| {
                on_threads(threads, || {
                    pass.run(simd_level(), &conv, &a, &b, DType::F32)
                })
            };
            let one = run(1);
            for threads in [2, 3] {
                assert_eq!(one.bytes(), run(threads).bytes(), "{pass:?} {conv:?}");
            }
        }
    }
}

#[test]
fn every_element_reaches_the_closure_once() {
    let mut rng = Rng(14);
    for _ in 0..20 {
        let conv = random_conv(&mut rng);
        for pass in PASSES {
            let [sa, sb, so] = pass.shapes(&conv);
            let a = Tensor::random(&mut rng, sa, DType::F16, Rng::normal);
            let b = Tensor::random(&mut rng, sb, DType::F16, Rng::normal);
            let want = pass.run(simd_level(), &conv, &a, &b, DType::F32);
            let (m, n) = pass.matrix(&conv);
            let seen = std::sync::Mutex::new(vec![None; so.iter().product()]);
            let take = |t: Tile<'_, f32>| {
                let mut seen = seen.lock().unwrap();
                for (i, j) in (0..t.rows).flat_map(|i| (0..t.cols).map(move |j| (i, j))) {
                    let at = (t.batch * m + t.row + i) * n + t.col + j;
                    assert!(seen[at].replace(t.data[i * t.ld + j]).is_none());
                }
            };
            // SAFETY: every view covers an array of this test that outlives the call.
            unsafe {
                pass.call(
                    simd_level(),
                    &conv,
                    a.view(),
                    b.view(),
                    Output::Tiles(&take),
                )
            };
            for (i, got) in seen.into_inner().unwrap().into_iter().enumerate() {
                assert_eq!(got.map(f64::from), Some(want.get(i)), "{pass:?} {conv:?}");
            }
        }
    }
}

#[test]
fn output_sizes() {
    let conv = Conv2d {
        batch: 1,
        channels: 1,
        input: [7, 5],
        filters: 1,
        kernel: [3, 2],
        stride: [2, 1],
        padding: [[1, 0], [0, 2]],
        dilation: [1, 3],
        groups: 1,
    };
    assert_eq!(conv.output(), [3, 4]);
    assert_eq!(
        Conv2d {
            input: [1, 1],
            ..conv
        }
        .output(),
        [0, 0]
    );
}
