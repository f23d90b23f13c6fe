//! Kernels as CUDA C++ for devices that are not there.
use bimetal_cubecl::{MatrixKernel, MatrixUnits};
use bimetal_tensor::{Error, Result};
use cubecl::__private::Runtime;
use cubecl::Compiler;
use cubecl::ir::features::Features;
use cubecl::ir::{DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties};
use cubecl::prelude::*;
use cubecl_cpp::cuda::arch::CudaArchitecture;
use cubecl_cpp::cuda::mma::CudaCmmaCompiler;
use cubecl_cpp::shared::{
    CompilationOptions, CppCompiler, CppSupportedFeatures, register_mma_features,
    register_wmma_features,
};
use cubecl_cpp::target::Cuda;
use std::sync::Arc;

/// What cubecl would say of a data-centre card of this compute capability.
fn properties(sm: u32) -> DeviceProperties {
    let arch = CudaArchitecture {
        version: sm,
        tensor_cores: true,
    };
    let wmma = CudaCmmaCompiler::Cpp.supported_cmma_combinations(&arch);
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 1024,
        max_shared_memory_size: match sm {
            90.. => 232_448,
            86..90 => 101_376,
            _ => 166_912,
        },
        max_cube_count: (i32::MAX as u32, 65535, 65535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(if sm >= 90 { 132 } else { 108 }),
        num_tensor_cores: Some(4),
        min_tensor_cores_dim: Some(8),
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let identity = DeviceIdentity {
        name: format!("sm_{sm}"),
        fingerprint: format!("sm_{sm}"),
        physical: None,
    };
    let mut p = DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(1 << 34, 512),
        hardware,
        cubecl::profile::TimingMethod::Device,
        identity,
    );
    cubecl_cpp::register_supported_types(&mut p);
    register_wmma_features(wmma, &mut p);
    register_mma_features(cubecl_cpp::cuda::supported_mma_combinations(&arch), &mut p);
    p
}

/// The matrix units of a card of this compute capability, such as 80 or 90.
pub fn offline_units(sm: u32) -> MatrixUnits {
    MatrixUnits::of(&properties(sm), true)
}

/// CUDA C++ of a kernel for this compute capability.
///
/// # Errors
/// If cubecl cannot translate it.
pub fn cuda_source(kernel: &MatrixKernel, sm: u32) -> Result<String> {
    let options = CompilationOptions {
        warp_size: 32,
        supports_features: CppSupportedFeatures {
            grid_constants: sm >= 70,
            clusters: sm >= 90,
            fast_math: true,
            fast_tanh: sm >= 75,
            elect_sync: sm >= 90,
            dp4a: true,
        },
        ..Default::default()
    };
    let definition = kernel.define(&Arc::new(properties(sm)), &Arc::new(target()));
    let compiled = CppCompiler::<Cuda>::default().compile(definition, &options);
    compiled
        .map(|source| source.to_string())
        .map_err(|e| Error::device("cuda_source", format!("{}: {e}", kernel.name)))
}

/// How `mma` lays out its registers, as cubecl's CUDA runtime says.
fn target() -> TargetProperties {
    <cubecl::cuda::CudaRuntime as Runtime>::target_properties()
}
