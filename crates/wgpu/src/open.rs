//! Opening an adapter.
use bimetal_cubecl::{GpuBackend, Limits, MatrixUnits};
use bimetal_tensor::plan::{MAX_BUFFERS, MAX_INSTRUCTIONS};
use bimetal_tensor::{DType, Device, DeviceInfo, Error, Result, Support};
use cubecl::client::Client;
use cubecl::device::DeviceUnavailable;
use cubecl::device::WgpuDeviceKind;
use std::sync::Once;

/// The best adapter of this machine by Vulkan or DX12, or Metal on macOS; `CUBECL_WGPU_DEFAULT_DEVICE` (`DiscreteGpu(0)`, `IntegratedGpu(0)`, `Cpu`) chooses another.
///
/// `BIMETAL_GPU_MEMORY_MB` bounds what buffers hold together: wgpu does not say how much memory there is, and a driver that runs out of it loses the device. A
/// software adapter, and dtypes that are computed by conversion, are said once on standard error.
///
/// # Errors
/// If there is no adapter: the message says what to install. A bound that is no number.
pub fn wgpu() -> Result<Device> {
    let memory = memory_bound()?;
    let device = adapter().map_err(|e| {
        Error::setting(
            "wgpu",
            format!(
                "no graphics adapter was found ({e}); install a driver with Vulkan, Metal or DX12, or for software rendering on Linux the package \
                 `mesa-vulkan-drivers`, or use the CPU device"
            ),
        )
    })?;
    let client = device.client();
    let (info, limits) = (info(&client), limits(&client));
    announce(&client, &info);
    let backend = GpuBackend::new(client, info, limits);
    Ok(Device::new(match memory {
        Some(bytes) => backend.with_memory(bytes),
        None => backend,
    }))
}

/// Never OpenGL, which the runtime would take where there is nothing else: its compute shaders lack what kernels need.
fn adapter() -> std::result::Result<cubecl::Device, DeviceUnavailable> {
    let kind = WgpuDeviceKind::default;
    if cfg!(target_os = "macos") {
        return cubecl::Device::wgpu(kind());
    }
    cubecl::Device::vulkan(kind()).or_else(|e| cubecl::Device::dx12(kind()).map_err(|_| e))
}

fn memory_bound() -> Result<Option<usize>> {
    const NAME: &str = "BIMETAL_GPU_MEMORY_MB";
    let Some(text) = std::env::var_os(NAME) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    match text.trim().parse::<usize>() {
        Ok(mb) if mb > 0 => Ok(Some(mb.saturating_mul(1 << 20))),
        _ => Err(Error::setting(
            "wgpu",
            format!("{NAME} is `{text}`; expected a whole number of MiB above 0"),
        )),
    }
}

/// Whether the adapter is a program on the processor.
fn is_software(client: &Client) -> bool {
    client.properties().identity.physical.is_none()
}

/// Says once what a user would wonder about later.
fn announce(client: &Client, info: &DeviceInfo) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let name = &info.name;
        if is_software(client) {
            eprintln!(
                "bimetal: warning: {name} is a software adapter: it runs kernels on the processor, many times slower than the CPU device; it is for tests, not for training"
            );
        }
        let emulated: Vec<String> = info
            .dtypes
            .iter()
            .filter(|(_, s)| *s == Support::Emulated)
            .map(|(d, _)| d.to_string())
            .collect();
        if !emulated.is_empty() {
            eprintln!(
                "bimetal: {name} stores {} in their own size and computes them in float32: they save memory, not time",
                emulated.join(", ")
            );
        }
    });
}

fn info(client: &Client) -> DeviceInfo {
    let p = client.properties();
    let support = |d: DType| match d {
        DType::F64 | DType::I64 => Support::No,
        DType::F32 | DType::I32 | DType::U32 | DType::Bool => Support::Native,
        _ => Support::Emulated,
    };
    let name = p.identity.name.clone();
    DeviceInfo {
        name: match is_software(client) {
            true => format!("{name} [software]"),
            false => name,
        },
        kind: "wgpu",
        architecture: p.identity.fingerprint.clone(),
        dtypes: DType::ALL.iter().map(|d| (*d, support(*d))).collect(),
        matrix_units: MatrixUnits::of(p, false).dtypes(),
        units: p.hardware.num_streaming_multiprocessors.unwrap_or(1) as usize,
        max_instructions: MAX_INSTRUCTIONS,
        // The scalar table and the fault word are bound as well.
        max_buffers: MAX_BUFFERS.min(p.hardware.max_bindings.saturating_sub(3) as usize),
    }
}

fn limits(client: &Client) -> Limits {
    let p = client.properties();
    Limits {
        max_binding: p.memory.max_page_size as usize,
        max_units: p.hardware.max_units_per_cube,
        max_cubes: p.hardware.max_cube_count.0.min(p.hardware.max_cube_count.1),
        matrix: MatrixUnits::of(p, false),
    }
}
