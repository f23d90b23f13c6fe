//! What a machine has of CUDA, found before anything of it is used.
use crate::nvrtc::nvrtc_version;
use bimetal_tensor::{Error, Result};
use cudarc::driver::{result, sys};
use std::path::{Path, PathBuf};

/// A device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaProperties {
    /// The name, such as `NVIDIA H200`.
    pub name: String,
    /// The compute capability, as in `sm_90`.
    pub sm: u32,
    /// Whether it has Tensor Cores.
    pub tensor_cores: bool,
    /// Bytes of memory.
    pub memory: usize,
    /// Multiprocessors.
    pub processors: u32,
    /// Thousands of operations a second of the multiprocessors' clock.
    pub clock_khz: u32,
    /// The newest CUDA that the driver serves, as in 13000 for 13.0.
    pub driver: i32,
}

fn missing(detail: String) -> Error {
    Error::device("cuda", detail)
}

/// The properties of device `index`.
///
/// # Errors
/// If the driver is missing or too old, or if it has no such device.
pub fn cuda_properties(index: usize) -> Result<CudaProperties> {
    // SAFETY: libraries of these names are looked for and, if found, loaded.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing(
            "no NVIDIA driver was found (libcuda.so, nvcuda.dll); install it, or use the CPU device, or wgpu for other GPUs".into(),
        ));
    }
    let failed = |what: &str, e: result::DriverError| {
        missing(format!("NVIDIA's driver is installed, but {what}: {e}"))
    };
    result::init().map_err(|e| failed("does not start", e))?;
    let count = result::device::get_count().map_err(|e| failed("does not count its devices", e))?;
    if index as i32 >= count {
        return Err(missing(format!(
            "device {index} was asked for, and NVIDIA's driver has {count} of them, numbered from 0 (CUDA_VISIBLE_DEVICES hides some)"
        )));
    }
    let device =
        result::device::get(index as i32).map_err(|e| failed("does not give its device", e))?;
    let name =
        result::device::get_name(device).map_err(|e| failed("does not name its device", e))?;
    let attribute = |a| {
        // SAFETY: the device is the driver's.
        unsafe { result::device::get_attribute(device, a) }
            .map_err(|e| failed("does not describe its device", e))
    };
    use sys::CUdevice_attribute as A;
    let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let sm = (10 * major + minor) as u32;
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) }
        .map_err(|e| failed("does not tell its memory", e))?;
    let mut driver = 0;
    // SAFETY: the number is written to a place that outlives the call.
    unsafe { sys::cuDriverGetVersion(&mut driver) }
        .result()
        .map_err(|e| failed("does not tell its version", e))?;
    Ok(CudaProperties {
        tensor_cores: cubecl_cpp::cuda::arch::CudaArchitecture::has_tensor_cores(sm, &name),
        name,
        sm,
        memory,
        processors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)? as u32,
        driver,
    })
}

/// An error if kernels could not be compiled for this device: a kernel that does not compile is found out only when its result is read.
pub(crate) fn can_compile(p: &CudaProperties) -> Result<()> {
    let Some((major, minor)) = nvrtc_version() else {
        return Err(missing(format!(
            "{} is there, but NVRTC, which compiles kernels, was not found (libnvrtc.so); install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc \
             nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl` and set LD_LIBRARY_PATH to its `nvidia/cu13/lib`",
            p.name
        )));
    };
    if 1000 * major + 10 * minor > p.driver {
        return Err(missing(format!(
            "NVRTC {major}.{minor} is newer than what the driver of {} reads (CUDA {}.{}); install NVRTC of that version or an older one, or a newer driver",
            p.name,
            p.driver / 1000,
            p.driver % 1000 / 10
        )));
    }
    headers(&p.name)
}

/// Headers that kernels include.
const HEADERS: [&str; 4] = ["cuda_fp16.h", "cuda_bf16.h", "mma.h", "crt/mma.h"];

fn headers(name: &str) -> Result<()> {
    let set = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let places = set
        .clone()
        .into_iter()
        .chain(["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from));
    // The first that exists is the one that the compiler will look into.
    let found = match set {
        Some(path) => Some(path),
        None => places.into_iter().find(|p| p.exists()),
    };
    let Some(root) = found else {
        let hint = wheels().map_or_else(String::new, |p| {
            format!("; these seem to be they: CUDA_PATH={}", p.display())
        });
        return Err(missing(format!(
            "{name} is there, but CUDA's headers were not found; set CUDA_PATH to a CUDA toolkit or to the folder `nvidia/cu13` of the Python \
             packages nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl{hint}"
        )));
    };
    match HEADERS
        .iter()
        .find(|h| !root.join("include").join(h).exists())
    {
        None => Ok(()),
        Some(header) => Err(missing(format!(
            "{name} is there, but {} has no include/{header}, which kernels need; set CUDA_PATH to a whole CUDA toolkit, or install the Python packages \
             nvidia-cuda-runtime and nvidia-cuda-crt of NVRTC's version",
            root.display()
        ))),
    }
}

/// The folder of NVIDIA's Python packages in the virtual environment that is active, if there is one.
fn wheels() -> Option<PathBuf> {
    let root = PathBuf::from(
        std::env::var_os("VIRTUAL_ENV").or_else(|| std::env::var_os("CONDA_PREFIX"))?,
    );
    let versions = std::fs::read_dir(root.join("lib")).ok()?;
    let folder = |p: &Path| p.join("site-packages/nvidia/cu13");
    versions
        .flatten()
        .map(|v| folder(&v.path()))
        .find(|p| p.join("include/cuda_fp16.h").exists())
}
