//! The kernels of products for a device that is not there: what the gate compiles and looks into.
use super::{Kind, cmma_kernel, f8_kernel, kind, product};
use crate::code::{Code, Loc, Op, Store};
use crate::kernels::split;
use crate::matrix_units::MatrixUnits;
use bimetal_tensor::graph::{Binary, MatmulPrecision, Unary};
use bimetal_tensor::plan::Access;
use bimetal_tensor::{DType, Shape, Strides};
use cubecl::CubeKernel;
use cubecl::ir::DeviceProperties;
use cubecl::prelude::*;
use half::{bf16, f16};
use std::sync::Arc;

/// A kernel of a product with bias, tanh and a cast in its epilogue, as a train step has it.
#[derive(Clone, Debug)]
pub struct MatrixKernel {
    /// Dtype, layouts and tile, such as `matmul_f16_nt_4096x4096x4096`.
    pub name: String,
    /// `f16`, `bf16`, `tf32` or `f8`.
    pub kind: &'static str,
    product: super::Product,
    instruction: Kind,
    epilogue: Code,
}

/// A product: stored and computed dtypes of both operands, whether each is transposed, sizes and batch.
struct Case {
    stored: [DType; 2],
    compute: [DType; 2],
    transposed: [bool; 2],
    sizes: [usize; 3],
    batch: usize,
}

fn cases() -> Vec<Case> {
    use DType::{BF16, F8E4M3, F8E5M2, F16, F32};
    let mut all = Vec::new();
    let mut add = |stored, compute, transposed, sizes, batch| {
        all.push(Case {
            stored,
            compute,
            transposed,
            sizes,
            batch,
        });
    };
    for d in [F16, BF16, F32] {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            add([d; 2], [d; 2], transposed, [4096, 4096, 4096], 1);
        }
        // Heads of attention, skinny operands, and sizes that fit nothing.
        add([d; 2], [d; 2], [false, true], [1024, 1024, 64], 192);
        add([d; 2], [d; 2], [false, false], [256, 256, 4096], 1);
        add([d; 2], [d; 2], [false, false], [16, 4096, 4096], 1);
        add([d; 2], [d; 2], [false, false], [4096, 16, 4096], 1);
        add([d; 2], [d; 2], [false, false], [1130, 1070, 550], 3);
        add([d; 2], [d; 2], [true, true], [131, 77, 53], 1);
        // Casts of f32 masters, folded.
        if d != F32 {
            add([d, F32], [d; 2], [false, false], [4096, 4096, 1024], 1);
            add([F32; 2], [d; 2], [true, false], [515, 4096, 1023], 1);
        }
    }
    for pair in [
        [F8E4M3, F8E4M3],
        [F8E4M3, F8E5M2],
        [F8E5M2, F8E4M3],
        [F8E5M2, F8E5M2],
    ] {
        add(pair, pair, [false, true], [4096, 4096, 4096], 1);
    }
    add(
        [F8E4M3; 2],
        [F8E4M3; 2],
        [false, false],
        [4096, 4096, 1024],
        1,
    );
    add([F8E4M3; 2], [F8E4M3; 2], [false, true], [300, 200, 100], 2);
    all
}

/// Every kind of kernel of products that the table gives a device with these units.
pub fn matrix_kernels(units: &MatrixUnits) -> Vec<MatrixKernel> {
    cases().iter().filter_map(|c| kernel(c, units)).collect()
}

fn kernel(c: &Case, units: &MatrixUnits) -> Option<MatrixKernel> {
    use DType::{BF16, F8E4M3, F8E5M2, F16};
    let [m, n, k] = c.sizes;
    let (instruction, unit) = kind(c.compute, MatmulPrecision::Tf32, DType::F32, c.sizes, units)?;
    let batch = Shape::new(&[c.batch])?;
    let access = |i: usize, rows: usize, columns: usize| {
        let (rows, columns) = (rows as isize, columns as isize);
        let inner = if c.transposed[i] {
            [1, rows]
        } else {
            [columns, 1]
        };
        Access {
            buf: i as u32,
            offset: 0,
            strides: Strides::new(&[rows * columns, inner[0], inner[1]]),
            dtype: c.stored[i],
        }
    };
    let (a, b) = (access(0, m, k), access(1, k, n));
    let product = product(
        (instruction, unit),
        &batch,
        c.sizes,
        [&a, &b],
        [0, 1],
        units,
    )?;
    let narrow = match instruction {
        Kind::Bf16 => DType::BF16,
        Kind::Tf32 => DType::F32,
        Kind::F16 | Kind::F8(..) => DType::F16,
    };
    let name = |d: DType| match d {
        F16 => "f16",
        BF16 => "bf16",
        F8E4M3 => "e4m3",
        F8E5M2 => "e5m2",
        _ => "tf32",
    };
    let letter = |t: bool| if t { 't' } else { 'n' };
    let mut of = name(c.compute[0]).to_string();
    if c.compute[0] != c.compute[1] {
        of = format!("{of}_{}", name(c.compute[1]));
    }
    if c.stored != c.compute {
        of += "_from_f32";
    }
    let times = if c.batch > 1 {
        format!("{}x", c.batch)
    } else {
        String::new()
    };
    Some(MatrixKernel {
        name: format!(
            "matmul_{of}_{}{}_{times}{m}x{n}x{k}",
            letter(c.transposed[0]),
            letter(c.transposed[1])
        ),
        kind: match instruction {
            Kind::F16 => "f16",
            Kind::Bf16 => "bf16",
            Kind::Tf32 => "tf32",
            Kind::F8(..) => "f8",
        },
        product,
        instruction,
        epilogue: epilogue(c, narrow),
    })
}

/// `round(tanh(acc + bias))`
fn epilogue(c: &Case, to: DType) -> Code {
    let [m, n, _] = c.sizes;
    let dense = vec![((c.batch * m * n) as u32, 1)];
    let loc = |binding, dtype, axes| Loc {
        binding,
        dtype,
        offset: 0,
        axes,
    };
    let shared = to.size() < 4 && !n.is_multiple_of(4 / to.size());
    let store = Store {
        register: 4,
        to: loc(if shared { 0 } else { 3 }, to, dense),
        shared,
    };
    Code {
        ops: vec![
            Op::Acc,
            Op::Load(loc(
                2,
                DType::F32,
                vec![((c.batch * m) as u32, 0), (n as u32, 1)],
            )),
            Op::Binary(Binary::Add, 0, 1, DType::F32),
            Op::Unary(Unary::Tanh, 2, DType::F32),
            match to {
                DType::F32 => Op::Unary(Unary::Neg, 3, DType::F32),
                _ => Op::Round {
                    a: 3,
                    to,
                    saturating: false,
                },
            },
        ],
        stores: vec![store],
        result: 4,
    }
}

impl MatrixKernel {
    /// The kernel in cubecl's representation, for a compiler of CUDA C++.
    pub fn define(
        &self,
        properties: &Arc<DeviceProperties>,
        target: &Arc<TargetProperties>,
    ) -> KernelDefinition {
        let tile = &self.product.tile;
        let units = CubeDim::new_2d(tile.plane, tile.planes_m * tile.planes_n);
        let settings = || KernelSettings::new(*units, ExecutionMode::Unchecked, AddressType::U32);
        let buffer = || BufferCompilationArg { inplace: None };
        let p = self.product.clone();
        // Parts of a sum are stored as they are; what the epilogue reads and writes is bound in the launch that joins them.
        let e = match p.split.is_whole() {
            true => self.epilogue.clone(),
            false => split::store(2, (p.split.parts * p.split.batch * p.m * p.n) as usize),
        };
        let shared = e.stores.iter().any(|s| s.shared);
        let count = match (p.split.is_whole(), shared) {
            (true, false) => 4,
            _ => 3,
        };
        let buffers = || (0..count).map(|_| buffer()).collect();
        let atomics = || (0..usize::from(shared)).map(|_| buffer()).collect();
        macro_rules! define {
            ($kernel:ident :: $name:ident $(, $ty:ty)?) => {
                $kernel::$name $(::<$ty>)? ::new(
                    settings(), properties.clone(), target.clone(), buffers(), atomics(), buffer(), buffer(), p, e,
                )
                .define()
            };
        }
        match self.instruction {
            Kind::F16 => define!(cmma_kernel::CmmaKernel, f16),
            Kind::Bf16 => define!(cmma_kernel::CmmaKernel, bf16),
            Kind::Tf32 => define!(cmma_kernel::CmmaKernel, tf32),
            Kind::F8(..) => define!(f8_kernel::F8Kernel),
        }
    }
}
