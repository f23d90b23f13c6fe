//! Products of matrices without matrix units: every unit computes a tile in registers.
use super::Launch;
use super::common::{Build, GROUP, Runs, Scratch, Slab, emit, is_float, loc};
use super::source::{Layout, Operand, Sizes, element};
use super::split::{self, Split};
use crate::code::{Code, Loc};
use crate::interpret::run;
use crate::math::{bits, float};
use crate::plan::{Bound, Cx};
use crate::words::{self, Atomics, Buffers};
use bimetal_tensor::graph::{Conv2d, MatmulPrecision};
use bimetal_tensor::plan::{Access, Dense, Fused, Instr, MatOperand, Program};
use bimetal_tensor::{DType, ErrorKind, MAX_RANK, Shape};
use cubecl::prelude::*;

/// Units of a cube along columns and rows.
const WIDE: u32 = 8;
const HIGH: u32 = 8;

/// Products that are added one after the other before they join the rest: errors grow with the length of such runs.
const RUN: u32 = 128;

/// Cubes that a multiprocessor should have if the sum can be cut, and the runs that a part of it has at least.
const CUBES_EACH: usize = 8;
const LEAST_RUNS: usize = 2;

/// Sizes and operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape2 {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) a: Operand,
    pub(super) b: Operand,
    pub(super) precision: MatmulPrecision,
    pub(super) float: bool,
    pub(super) guarded: bool,
    pub(super) rows: usize,
    /// Cuts the sum into steps of [`RUN`] products.
    split: Split,
}

impl Shape2 {
    /// Cubes side by side.
    fn columns(&self) -> u32 {
        self.n.div_ceil(WIDE * GROUP as u32)
    }

    /// Cubes one above the other.
    fn bands(&self) -> u32 {
        self.m.div_ceil(HIGH * self.rows as u32)
    }
}

/// An f32 with 10 bits of mantissa.
#[cube]
fn tf32(x: u32) -> u32 {
    let odd = (x >> 13u32) & 1u32;
    let near = (x + (0xfffu32 + odd)) & 0xffff_e000u32;
    select((x & 0x7fff_ffffu32) >= 0x7f80_0000u32, x, near)
}

/// `acc + x y`.
#[cube]
fn product(acc: u32, x: u32, y: u32, #[comptime] s: Shape2) -> u32 {
    if comptime!(!s.float) {
        acc + x * y
    } else {
        match comptime!(s.precision) {
            MatmulPrecision::Exact => bits(fma(float(x), float(y), float(acc))),
            MatmulPrecision::Tf32 => bits(fma(float(tf32(x)), float(tf32(y)), float(acc))),
            MatmulPrecision::Bf16x3 => {
                let xh = float(words::round(x, DType::BF16, false));
                let yh = float(words::round(y, DType::BF16, false));
                let xl = float(words::round(bits(float(x) - xh), DType::BF16, false));
                let yl = float(words::round(bits(float(y) - yh), DType::BF16, false));
                bits(fma(xh, yh, fma(xl, yh, fma(xh, yl, float(acc)))))
            }
        }
    }
}

#[cube(launch_unchecked)]
fn matmul_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    scalars: &[u32],
    fault: &[u32],
    batches: u32,
    #[comptime] s: Shape2,
    #[comptime] epilogue: Code,
) {
    if comptime!(s.guarded) {
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    // One number for all cubes: a grid has few places along an axis, and there may be many matrices.
    let columns = comptime!(s.columns());
    let bands = comptime!(s.bands());
    let cube = CUBE_POS as u32;
    let z = cube / comptime!(columns * bands);
    let batch = split::matrix(z, comptime!(s.split));
    let (begin, stop) = split::steps(z, comptime!(s.k.div_ceil(RUN)), comptime!(s.split));
    let col = ((cube % columns) * WIDE + UNIT_POS_X) * comptime!(GROUP as u32);
    let row = ((cube / columns) % bands * HIGH + UNIT_POS_Y) * comptime!(s.rows as u32);
    if z >= batches || col >= comptime!(s.n) || row >= comptime!(s.m) {
        terminate!();
    }
    let cells = comptime!(s.rows * GROUP);
    let mut total = Array::<u32>::new(cells);
    let mut part = Array::<u32>::new(cells);
    #[unroll]
    for c in 0..cells {
        total[c] = 0u32;
    }
    let a0 = batch * comptime!(s.m);
    let b0 = batch * comptime!(s.k);
    let mut k = begin * RUN;
    let stop = min(stop * RUN, comptime!(s.k).runtime());
    while k < stop {
        let end = min(k + RUN, stop);
        #[unroll]
        for c in 0..cells {
            part[c] = 0u32;
        }
        while k < end {
            let mut right = Array::<u32>::new(GROUP);
            #[unroll]
            for j in 0..GROUP {
                let c = min(col + comptime!(j as u32), comptime!(s.n - 1).runtime());
                right[j] = element(
                    &buffers,
                    (b0 + k) * comptime!(s.n) + c,
                    comptime!(s.b.clone()),
                );
            }
            #[unroll]
            for i in 0..comptime!(s.rows) {
                let r = min(row + comptime!(i as u32), comptime!(s.m - 1).runtime());
                let left = element(
                    &buffers,
                    (a0 + r) * comptime!(s.k) + k,
                    comptime!(s.a.clone()),
                );
                #[unroll]
                for j in 0..GROUP {
                    let c = comptime!(i * GROUP + j);
                    part[c] = product(part[c], left, right[j], comptime!(s.clone()));
                }
            }
            k += 1u32;
        }
        #[unroll]
        for c in 0..cells {
            total[c] = if comptime!(s.float) {
                bits(float(total[c]) + float(part[c]))
            } else {
                total[c] + part[c]
            };
        }
    }
    #[unroll]
    for i in 0..comptime!(s.rows) {
        let r = row + comptime!(i as u32);
        if r < comptime!(s.m) {
            let start = (z * comptime!(s.m) + r) * comptime!(s.n);
            let end = start + comptime!(s.n);
            let mut files = Sequence::<Sequence<u32>>::new();
            #[unroll]
            for j in 0..GROUP {
                let at = min(start + col + comptime!(j as u32), end - 1u32);
                let acc = total[comptime!(i * GROUP + j)];
                let file = run(&buffers, scalars, at, acc, comptime!(epilogue.clone()));
                files.push(file);
            }
            emit(
                &mut buffers,
                &atomics,
                &files,
                start + col,
                end,
                comptime!(epilogue.clone()),
            );
        }
    }
}

/// A batched product with an epilogue.
pub(super) struct Matmul {
    pub(super) shape: Shape2,
    pub(super) epilogue: Code,
    pub(super) bound: Bound,
    /// Bindings of the operands, which are the first.
    pub(super) operands: usize,
    pub(super) batch: usize,
}

/// A shape with two more axes.
fn with(batch: &Shape, rows: usize, cols: usize) -> Result<Shape, String> {
    let mut dims = [0; MAX_RANK + 2];
    dims[..batch.rank()].copy_from_slice(&batch[..]);
    dims[batch.rank()] = rows;
    dims[batch.rank() + 1] = cols;
    Shape::new(&dims[..batch.rank() + 2]).ok_or_else(|| "a product has too many axes".into())
}

impl Matmul {
    pub(super) fn new(
        build: &Build<'_>,
        batch: &Shape,
        [m, n, k]: [usize; 3],
        operands: [&MatOperand; 2],
        precision: MatmulPrecision,
        acc: DType,
        epilogue: &Fused,
    ) -> Result<Matmul, String> {
        let domain = with(batch, m, n)?;
        let shapes = [with(batch, m, k)?, with(batch, k, n)?];
        build.numel(&domain)?;
        let mut bound = Bound::default();
        let mut both = Vec::with_capacity(2);
        for (o, shape) in operands.iter().zip(&shapes) {
            build.numel(shape)?;
            let binding = bound.buffer(build.same_place(o.access.buf as usize));
            both.push(Operand {
                binding,
                dtype: o.access.dtype,
                compute: o.compute,
                layout: Layout::Strided(loc(&o.access, shape, binding)),
            });
        }
        let (b, a) = (both.pop(), both.pop());
        let (Some(a), Some(b)) = (a, b) else {
            return Err("a product has two operands".into());
        };
        let count = bound.buffers.len();
        let epilogue = build.code(epilogue, &domain, Runs::Of(n), &mut bound);
        let sizes = [m, n, k];
        let float = is_float(acc);
        Ok(Matmul::of(
            build,
            sizes,
            [a, b],
            precision,
            float,
            epilogue,
            (bound, count),
            batch.numel(),
        ))
    }

    fn of(
        build: &Build<'_>,
        [m, n, k]: [usize; 3],
        [a, b]: [Operand; 2],
        precision: MatmulPrecision,
        float: bool,
        epilogue: Code,
        (bound, operands): (Bound, usize),
        batch: usize,
    ) -> Matmul {
        let mut product = Matmul {
            shape: Shape2 {
                m: m as u32,
                n: n as u32,
                k: k as u32,
                a,
                b,
                precision,
                float,
                guarded: build.guarded(),
                rows: if m >= 4 { 4 } else { 1 },
                split: Split::default(),
            },
            epilogue,
            bound,
            operands,
            batch,
        };
        product.shape.split = Split::choose(
            product.cubes(),
            batch,
            batch * m * n,
            product.shape.k.div_ceil(RUN),
            [
                CUBES_EACH * build.limits.matrix.processors as usize,
                LEAST_RUNS,
            ],
        );
        product
    }

    fn cubes(&self) -> usize {
        self.batch * self.shape.columns() as usize * self.shape.bands() as usize
    }

    /// A convolution: for each image and group the weights times the windows.
    pub(super) fn conv(
        build: &Build<'_>,
        conv: &Conv2d,
        input: &Dense,
        weight: &Dense,
        weight_compute: DType,
        shape: &Shape,
        epilogue: &Fused,
    ) -> Result<Matmul, String> {
        let s = Sizes::new(conv, &input.shape, &weight.shape, shape)?;
        build.numel(shape)?;
        let mut bound = Bound::default();
        let (x, w) = (
            build.slab(input, &mut bound)?,
            build.slab(weight, &mut bound)?,
        );
        let taps = s.c * s.kh * s.kw;
        let a = axes(
            w,
            weight_compute,
            &[(s.n, 0), (s.groups, s.o * taps), (s.o, taps), (taps, 1)],
        );
        let sizes = [s.o as usize, (s.oh * s.ow) as usize, taps as usize];
        let batch = (s.n * s.groups) as usize;
        let b = Operand {
            binding: x.binding,
            dtype: x.dtype,
            compute: x.dtype,
            layout: Layout::Windows(s),
        };
        let count = bound.buffers.len();
        let code = build.code(epilogue, shape, Runs::Of(sizes[1]), &mut bound);
        let exact = MatmulPrecision::Exact;
        Ok(Matmul::of(
            build,
            sizes,
            [a, b],
            exact,
            true,
            code,
            (bound, count),
            batch,
        ))
    }

    /// The gradient of a convolution's input: for each image and group the weights, outputs across, times the gradients that reach each place.
    pub(super) fn conv_input(
        build: &Build<'_>,
        conv: &Conv2d,
        weight: &Dense,
        weight_compute: DType,
        grad: &Dense,
        output: &Dense,
    ) -> Result<Matmul, String> {
        let s = Sizes::new(conv, &output.shape, &weight.shape, &grad.shape)?;
        build.numel(&output.shape)?;
        let mut bound = Bound::default();
        let (y, w) = (
            build.slab(grad, &mut bound)?,
            build.slab(weight, &mut bound)?,
        );
        let taps = s.kh * s.kw;
        let (group, across) = (s.o * s.c * taps, s.c * taps);
        let strides = [
            (s.n, 0),
            (s.groups, group),
            (s.c, taps),
            (s.o, across),
            (taps, 1),
        ];
        let a = axes(w, weight_compute, &strides);
        let sizes = [s.c as usize, (s.h * s.w) as usize, (s.o * taps) as usize];
        let batch = (s.n * s.groups) as usize;
        let b = Operand {
            binding: y.binding,
            dtype: y.dtype,
            compute: y.dtype,
            layout: Layout::Reached(s),
        };
        let count = bound.buffers.len();
        let (code, exact) = (
            whole(build, output, sizes[1], &mut bound),
            MatmulPrecision::Exact,
        );
        Ok(Matmul::of(
            build,
            sizes,
            [a, b],
            exact,
            true,
            code,
            (bound, count),
            batch,
        ))
    }

    /// The gradient of a convolution's weight: for each group the gradients times the windows, over all images and places.
    pub(super) fn conv_weight(
        build: &Build<'_>,
        conv: &Conv2d,
        input: &Dense,
        grad: &Dense,
        output: &Dense,
    ) -> Result<Matmul, String> {
        let s = Sizes::new(conv, &input.shape, &output.shape, &grad.shape)?;
        build.numel(&output.shape)?;
        let mut bound = Bound::default();
        let (x, y) = (
            build.slab(input, &mut bound)?,
            build.slab(grad, &mut bound)?,
        );
        let places = s.oh * s.ow;
        let image = s.groups * s.o * places;
        let strides = [
            (s.groups, s.o * places),
            (s.o, places),
            (s.n, image),
            (places, 1),
        ];
        let a = axes(y.clone(), y.dtype, &strides);
        let sizes = [s.o, s.c * s.kh * s.kw, s.n * places].map(|v| v as usize);
        let batch = s.groups as usize;
        let b = Operand {
            binding: x.binding,
            dtype: x.dtype,
            compute: x.dtype,
            layout: Layout::Taps(s),
        };
        let count = bound.buffers.len();
        let (code, exact) = (
            whole(build, output, sizes[1], &mut bound),
            MatmulPrecision::Exact,
        );
        Ok(Matmul::of(
            build,
            sizes,
            [a, b],
            exact,
            true,
            code,
            (bound, count),
            batch,
        ))
    }
}

/// An operand with these sizes and strides, outermost first.
fn axes(slab: Slab, compute: DType, axes: &[(u32, u32)]) -> Operand {
    Operand {
        binding: slab.binding,
        dtype: slab.dtype,
        compute,
        layout: Layout::Strided(Loc {
            binding: slab.binding,
            dtype: slab.dtype,
            offset: 0,
            axes: axes.to_vec(),
        }),
    }
}

/// The program that stores a product, rounded once, in a dense buffer.
fn whole(build: &Build<'_>, output: &Dense, run: usize, bound: &mut Bound) -> Code {
    let access = Access {
        buf: output.buf,
        offset: 0,
        strides: output.shape.strides(),
        dtype: output.dtype,
    };
    let fused = Fused {
        program: Program {
            instrs: vec![Instr::Acc { ty: DType::F32 }],
            outputs: vec![0],
        },
        inputs: Vec::new(),
        outputs: vec![access],
    };
    build.code(&fused, &output.shape, Runs::Of(run), bound)
}

impl Matmul {
    /// Launches the product, or its parts with all that they bind.
    fn products(&self, cx: &Cx<'_>, bound: &Bound, words: Option<&Scratch>, epilogue: &Code) {
        let s = &self.shape;
        let (mut buffers, atomics) = cx.bind(bound);
        if let Some(words) = words {
            buffers.push(words.arg());
        }
        let cubes = self.cubes() * s.split.parts.max(1) as usize;
        // SAFETY: accesses lie in their buffers, and units outside of the result stop.
        unsafe {
            matmul_kernel::launch_unchecked(
                &cx.device.client,
                cx.grid(cubes),
                CubeDim::new_2d(WIDE, HIGH),
                buffers,
                atomics,
                cx.scalars(),
                cx.fault(),
                s.split.matrices(self.batch) as u32,
                s.clone(),
                epilogue.clone(),
            )
        };
    }
}

impl Launch for Matmul {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        let s = &self.shape;
        if self.batch == 0 || s.m == 0 || s.n == 0 {
            return Ok(());
        }
        if s.split.is_whole() {
            self.products(cx, &self.bound, None, &self.epilogue);
            return Ok(());
        }
        let numel = self.batch * (s.m * s.n) as usize;
        let all = s.split.parts as usize * numel;
        let words = Scratch::new(cx, all);
        let operands = split::operands(&self.bound, self.operands);
        let store = split::store(self.operands, all);
        self.products(cx, &operands, Some(&words), &store);
        let (parts, epilogue) = (s.split.parts, &self.epilogue);
        split::join(
            cx,
            &self.bound,
            &words,
            numel,
            parts,
            s.float,
            s.guarded,
            epilogue,
        );
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}
