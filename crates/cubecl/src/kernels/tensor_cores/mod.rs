//! Products of matrices on matrix units (Tensor Cores, cooperative matrices), and the table that says which products those are.
mod cmma;
mod f8;
mod load;
pub(crate) mod offline;
mod tile;

use super::Launch;
use super::common::{Build, Runs, Scratch};
use super::matmul::Matmul;
use super::source::Layout;
use super::split::{self, Split};
use crate::code::{Code, Loc};
use crate::matrix_units::{MatrixUnits, UnitShape};
use crate::plan::{Bound, Cx};
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::plan::{Access, Fused, MatOperand};
use bimetal_tensor::{DType, ErrorKind, MAX_RANK, Shape, Strides};
use cmma::{Product, cmma_kernel};
use cubecl::prelude::*;
use f8::f8_kernel;
use half::{bf16, f16};
use load::{Operand, is_wide, shared_bytes};
use tile::Tile;

/// The instruction by which a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    F16,
    Bf16,
    Tf32,
    /// The dtypes of both operands.
    F8(DType, DType),
}

/// Below this size along any axis most of an instruction would be padding.
const LEAST: usize = 8;

/// The table: dtypes after folded casts, precision and sizes decide, and nothing else. F32 without leave to round stays with the units of f32.
pub(crate) fn kind(
    [a, b]: [DType; 2],
    precision: MatmulPrecision,
    acc: DType,
    sizes: [usize; 3],
    units: &MatrixUnits,
) -> Option<(Kind, UnitShape)> {
    use DType::{BF16, F8E4M3, F8E5M2, F16, F32};
    if acc != F32 || sizes.iter().any(|s| *s < LEAST) {
        return None;
    }
    match (a, b) {
        (F16, F16) => units.f16.map(|u| (Kind::F16, u)),
        (BF16, BF16) => units.bf16.map(|u| (Kind::Bf16, u)),
        (F32, F32) if precision == MatmulPrecision::Tf32 => units.tf32.map(|u| (Kind::Tf32, u)),
        // Values of both formats are values of f16.
        (F8E4M3 | F8E5M2, F8E4M3 | F8E5M2) => match units.f8 {
            Some(u) => Some((Kind::F8(a, b), u)),
            None => units.f16.map(|u| (Kind::F16, u)),
        },
        _ => None,
    }
}

/// A batched product on matrix units.
pub(super) struct TensorCores {
    pub(super) kind: Kind,
    pub(super) product: Product,
    pub(super) epilogue: Code,
    bound: Bound,
    /// Bindings of the operands, which are the first.
    operands: usize,
    batch: usize,
}

/// A shape with two more axes.
fn with(batch: &Shape, rows: usize, columns: usize) -> Option<Shape> {
    let mut dims = [0; MAX_RANK + 2];
    dims[..batch.rank()].copy_from_slice(&batch[..]);
    dims[batch.rank()] = rows;
    dims[batch.rank() + 1] = columns;
    Shape::new(&dims[..batch.rank() + 2])
}

impl TensorCores {
    /// The launch of a product, or none if the table leaves it to the plain kernel.
    pub(super) fn new(
        build: &Build<'_>,
        batch: &Shape,
        sizes: [usize; 3],
        operands: [&MatOperand; 2],
        precision: MatmulPrecision,
        acc: DType,
        epilogue: &Fused,
    ) -> Result<Option<TensorCores>, String> {
        let units = &build.limits.matrix;
        let computes = operands.map(|o| o.compute);
        let Some((kind, unit)) = kind(computes, precision, acc, sizes, units) else {
            return Ok(None);
        };
        let [m, n, _] = sizes;
        let Some(domain) = with(batch, m, n) else {
            return Ok(None);
        };
        build.numel(&domain)?;
        let mut bound = Bound::default();
        let bindings = operands.map(|o| bound.buffer(build.same_place(o.access.buf as usize)));
        let accesses = operands.map(|o| &o.access);
        let Some(mut product) = product((kind, unit), batch, sizes, accesses, bindings, units)
        else {
            return Ok(None);
        };
        product.guarded = build.guarded();
        if product.tile.units() > build.limits.max_units {
            return Ok(None);
        }
        let operands = bound.buffers.len();
        let epilogue = build.code(epilogue, &domain, Runs::Of(n), &mut bound);
        Ok(Some(TensorCores {
            kind,
            product,
            epilogue,
            bound,
            operands,
            batch: batch.numel(),
        }))
    }
}

impl TensorCores {
    /// The same as a product of operands of which one is the patches of a convolution, if the table has it; otherwise what was given.
    pub(super) fn patches(plain: Matmul, units: &MatrixUnits) -> Box<dyn Launch> {
        match convolution(&plain, units) {
            Some((kind, product)) => Box::new(TensorCores {
                kind,
                product,
                epilogue: plain.epilogue,
                bound: plain.bound,
                operands: plain.operands,
                batch: plain.batch,
            }),
            None => Box::new(plain),
        }
    }
}

fn convolution(plain: &Matmul, units: &MatrixUnits) -> Option<(Kind, Product)> {
    let s = &plain.shape;
    let sizes = [s.m, s.n, s.k].map(|v| v as usize);
    let acc = if s.float { DType::F32 } else { DType::I32 };
    let found = kind([s.a.compute, s.b.compute], s.precision, acc, sizes, units)?;
    if plain.batch == 0 || matches!(found.0, Kind::F8(..)) {
        return None;
    }
    // The linear index of an element is its place, which is strided; the source finds the element.
    let [m, n, k] = sizes;
    let batch = Shape::new(&[plain.batch])?;
    let access = |rows: usize, columns: usize, dtype: DType| Access {
        buf: 0,
        offset: 0,
        strides: Strides::new(&[(rows * columns) as isize, columns as isize, 1]),
        dtype,
    };
    let accesses = [access(m, k, s.a.dtype), access(k, n, s.b.dtype)];
    let [a, b] = &accesses;
    let mut product = product(
        found,
        &batch,
        sizes,
        [a, b],
        [s.a.binding, s.b.binding],
        units,
    )?;
    product.guarded = s.guarded;
    for (o, source) in [(&mut product.a, &s.a), (&mut product.b, &s.b)] {
        o.source = Some(source.clone());
        o.wide = false;
        // Neighbours in the buffer are places, which are the sum only here.
        o.sum_inner = o.sum_inner || matches!(source.layout, Layout::Taps(_));
    }
    Some((found.0, product))
}

/// Cubes that a multiprocessor should have if the sum can be cut, and the steps that a part of it has at least.
const CUBES_EACH: usize = 2;
const LEAST_STEPS: usize = 8;

/// The most cubes along the last axis of a launch.
const MAX_BATCH: usize = 65535;

/// A product cut into tiles, or none if the device has not the memory or the cubes.
fn product(
    (kind, unit): (Kind, UnitShape),
    batch: &Shape,
    sizes: [usize; 3],
    accesses: [&Access; 2],
    bindings: [usize; 2],
    units: &MatrixUnits,
) -> Option<Product> {
    let [m, n, k] = sizes;
    let computes = match kind {
        Kind::F16 => [DType::F16; 2],
        Kind::Bf16 => [DType::BF16; 2],
        Kind::Tf32 => [DType::F32; 2],
        Kind::F8(a, b) => [a, b],
    };
    let depth = match unit[0] < 16 {
        true => 2 * unit[2],
        false => 64 / computes[0].size() as u32,
    };
    let tile = Tile::choose([m as u32, n as u32], batch.numel(), unit, depth, units);
    let rank = batch.rank();
    let operand = |left: bool| {
        let i = usize::from(!left);
        let (access, compute) = (accesses[i], computes[i]);
        let (rows, columns) = (access.strides[rank], access.strides[rank + 1]);
        let (free, sum) = if left {
            (rows, columns)
        } else {
            (columns, rows)
        };
        let mut o = Operand {
            source: None,
            matrix: Loc::new(access, batch, bindings[i]),
            free: free as i32 as u32,
            sum: sum as i32 as u32,
            frees: if left { m } else { n } as u32,
            sums: k as u32,
            compute,
            // Words of 8-bit floats run along the sum, as `mma` wants them.
            sum_inner: matches!(kind, Kind::F8(..)) || sum == 1 || free != 1,
            wide: false,
            tile: [if left { tile.m } else { tile.n }, tile.k],
            piece: if units.wide_loads { 16 } else { 4 } / compute.size(),
            units: tile.units(),
        };
        o.wide = units.wide_loads
            && is_wide(&o, &access.strides[..rank + 2], access.offset, access.dtype);
        o
    };
    let (a, b) = (operand(true), operand(false));
    let fits = shared_bytes(&a, &b, &tile) <= units.shared_memory && batch.numel() <= MAX_BATCH;
    let mut product = Product {
        m: m as u32,
        n: n as u32,
        k: k as u32,
        a,
        b,
        tile,
        split: Split::default(),
        guarded: false,
    };
    let cubes = product.cubes() as usize * batch.numel();
    product.split = Split::choose(
        cubes,
        batch.numel(),
        batch.numel() * m * n,
        product.k.div_ceil(product.tile.k),
        [CUBES_EACH * units.processors as usize, LEAST_STEPS],
    );
    fits.then_some(product)
}

impl TensorCores {
    /// Launches the product, or its parts with all that they bind.
    fn products(&self, cx: &Cx<'_>, bound: &Bound, words: Option<&Scratch>, epilogue: &Code) {
        let p = &self.product;
        let (mut buffers, atomics) = cx.bind(bound);
        if let Some(words) = words {
            buffers.push(words.arg());
        }
        let cubes = CubeCount::Static(p.cubes(), 1, p.split.matrices(self.batch) as u32);
        let units = CubeDim::new_2d(p.tile.plane, p.tile.planes_m * p.tile.planes_n);
        let (client, scalars, fault) = (&cx.device.client, cx.scalars(), cx.fault());
        let (p, e) = (p.clone(), epilogue.clone());
        // SAFETY: loads outside of operands are not made, and stores outside of the result neither.
        unsafe {
            match self.kind {
                Kind::F16 => cmma_kernel::launch_unchecked::<f16>(
                    client, cubes, units, buffers, atomics, scalars, fault, p, e,
                ),
                Kind::Bf16 => cmma_kernel::launch_unchecked::<bf16>(
                    client, cubes, units, buffers, atomics, scalars, fault, p, e,
                ),
                Kind::Tf32 => cmma_kernel::launch_unchecked::<tf32>(
                    client, cubes, units, buffers, atomics, scalars, fault, p, e,
                ),
                Kind::F8(..) => f8_kernel::launch_unchecked(
                    client, cubes, units, buffers, atomics, scalars, fault, p, e,
                ),
            }
        };
    }
}

impl Launch for TensorCores {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        let p = &self.product;
        if self.batch == 0 {
            return Ok(());
        }
        if p.split.is_whole() {
            self.products(cx, &self.bound, None, &self.epilogue);
            return Ok(());
        }
        let numel = self.batch * (p.m * p.n) as usize;
        let all = p.split.matrices(self.batch) / self.batch * numel;
        let words = Scratch::new(cx, all);
        let operands = split::operands(&self.bound, self.operands);
        self.products(
            cx,
            &operands,
            Some(&words),
            &split::store(self.operands, all),
        );
        split::join(
            cx,
            &self.bound,
            &words,
            numel,
            p.split.parts,
            true,
            p.guarded,
            &self.epilogue,
        );
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}
