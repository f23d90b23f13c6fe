//! Takes the place of `cubecl-llvm`, whose build downloads LLVM, in this workspace.
//!
//! `cubecl-cuda` compiles kernels either to PTX with LLVM or to CUDA C++ with NVRTC. bimetal uses the second (the feature `cuda-cpp`), but the
//! first is named in the types of `cubecl-cuda`, so those types must exist. None of them can be reached: [`PlironCompiler::compile`] is an error.
//! A patch counts only in the workspace that states it: `docs/gpu.md` says what a crate that depends on `bimetal-cuda` gets.
use cubecl_core::ir::{amd::GfxArch, nvidia::SmArch};
use cubecl_core::prelude::KernelDefinition;
use cubecl_core::{CompilationError, Compiler};
use std::fmt;

pub use cubecl_core::ir::attributes::BufferIOAttr;

/// What LLVM would generate code for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// The host.
    #[default]
    Cpu,
    /// NVIDIA's PTX.
    Nvptx,
}

/// The compiler that is not there.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// Its target.
    pub target: LlvmTarget,
}

/// Options of the compiler that is not there.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// Alignment of buffers on the host.
    pub cpu_buffer_alignment: Option<u32>,
    /// AMD's architecture.
    pub arch: Option<GfxArch>,
    /// NVIDIA's architecture.
    pub sm_arch: Option<SmArch>,
    /// The newest PTX that the driver reads.
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    /// Whether parameters lie in grid constants.
    pub grid_constants: bool,
}

/// A module of PTX.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// Its text.
    pub ptx: Vec<core::ffi::c_char>,
    /// The kernel's name.
    pub entrypoint: String,
    /// The LLVM code it came from.
    pub ir: String,
    /// Bytes of shared memory.
    pub shared_memory_size: usize,
    /// What is read and what is written.
    pub io: Vec<BufferIOAttr>,
}

/// What the compiler would return.
#[derive(Clone)]
pub enum PlironArtifact {
    /// Code for NVIDIA's devices.
    NvptxCode(NvptxModule),
    /// Code for others.
    Other,
}

impl fmt::Display for PlironArtifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("built without LLVM")
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _: KernelDefinition,
        _: &PlironOptions,
    ) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic {
            reason: "this build has no LLVM: it compiles CUDA kernels as C++ (cubecl's feature `cuda-cpp`)".into(),
            backtrace: Default::default(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "ll"
    }
}

/// NVIDIA's half of the stand-in.
pub mod nvptx {
    /// Versions of PTX.
    pub mod ptx_version {
        use std::fmt;

        /// A version of PTX.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct PtxVersion(u32);

        impl PtxVersion {
            /// None: no PTX is written here.
            pub fn for_driver(_: i32) -> Option<Self> {
                None
            }
        }

        impl fmt::Display for PtxVersion {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "ptx{}", self.0)
            }
        }
    }
}

/// What the targets share.
pub mod shared {
    /// Features that LLVM's lowering lacks.
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// The target.
        pub enum GpuTarget {
            /// NVIDIA's PTX.
            Nvptx,
        }

        /// Takes away nothing.
        pub fn restrict_features(_: &mut DeviceProperties, _: GpuTarget) {}
    }
}
