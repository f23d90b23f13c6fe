//! What a device's matrix units multiply, as the table of products needs it.
use bimetal_tensor::DType;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{DeviceProperties, ElemType, FloatKind};

/// Sizes `[m, n, k]` of the product that one instruction computes.
pub type UnitShape = [u32; 3];

/// The matrix units of a device, such as Tensor Cores; the default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatrixUnits {
    /// F16 operands, sums in f32.
    pub f16: Option<UnitShape>,
    /// BF16 operands, sums in f32.
    pub bf16: Option<UnitShape>,
    /// F32 operands of which 10 bits of mantissa count, sums in f32.
    pub tf32: Option<UnitShape>,
    /// 8-bit floats, both kinds in any combination, sums in f32.
    pub f8: Option<UnitShape>,
    /// Units of a plane (warp).
    pub plane: u32,
    /// Bytes of shared memory that a cube may have.
    pub shared_memory: u32,
    /// Multiprocessors.
    pub processors: u32,
    /// Whether 16-byte loads and conversions between f32 and 16-bit floats are instructions of the device.
    pub wide_loads: bool,
}

/// Multiprocessors of a device that does not say how many it has.
const SOME: u32 = 16;

impl MatrixUnits {
    /// What cubecl says of a device; `cuda` is for NVIDIA's, whose planes are as the kernels for 8-bit floats want them.
    pub fn of(properties: &DeviceProperties, cuda: bool) -> MatrixUnits {
        let features = &properties.features.matmul;
        let hardware = &properties.hardware;
        let f8 = [FloatKind::E4M3, FloatKind::E5M2];
        let f8 = f8
            .iter()
            .all(|a| f8.iter().all(|b| has(&features.mma, *a, *b, [16, 8, 32])));
        MatrixUnits {
            f16: shape(&features.cmma, FloatKind::F16, [16, 16, 16]),
            bf16: shape(&features.cmma, FloatKind::BF16, [16, 16, 16]),
            tf32: shape(&features.cmma, FloatKind::TF32, [16, 16, 8]),
            f8: (cuda && f8).then_some([16, 8, 32]),
            plane: hardware.plane_size_max,
            shared_memory: hardware.max_shared_memory_size as u32,
            processors: hardware.num_streaming_multiprocessors.unwrap_or(SOME),
            wide_loads: cuda,
        }
    }

    /// The dtypes that they multiply.
    pub fn dtypes(&self) -> Vec<DType> {
        let all = [
            (DType::F16, self.f16),
            (DType::BF16, self.bf16),
            (DType::F8E4M3, self.f8),
            (DType::F8E5M2, self.f8),
        ];
        all.iter()
            .filter(|(_, unit)| unit.is_some())
            .map(|(d, _)| *d)
            .collect()
    }
}

fn sums_in_f32(c: &MmaConfig, a: FloatKind, b: FloatKind) -> bool {
    c.a_type == ElemType::Float(a)
        && c.b_type == ElemType::Float(b)
        && c.cd_type == ElemType::Float(FloatKind::F32)
}

fn has<'a>(
    set: impl IntoIterator<Item = &'a MmaConfig>,
    a: FloatKind,
    b: FloatKind,
    [m, n, k]: UnitShape,
) -> bool {
    set.into_iter()
        .any(|c| sums_in_f32(c, a, b) && [c.m, c.n, c.k] == [m, n, k])
}

/// The wanted shape if the device has it, or else the first square one.
fn shape<'a>(
    set: impl IntoIterator<Item = &'a MmaConfig> + Clone,
    kind: FloatKind,
    want: UnitShape,
) -> Option<UnitShape> {
    if has(set.clone(), kind, kind, want) {
        return Some(want);
    }
    let mut found = set
        .into_iter()
        .filter(|c| sums_in_f32(c, kind, kind) && c.m == c.n && c.n == c.k);
    found.next().map(|c| [c.m, c.n, c.k])
}
