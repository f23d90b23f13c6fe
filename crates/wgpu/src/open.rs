//! Opening an adapter.
use bimetal_cubecl::{GpuBackend, Limits};
use bimetal_tensor::plan::{MAX_BUFFERS, MAX_INSTRUCTIONS};
use bimetal_tensor::{DType, Device, DeviceInfo, Error, Result, Support};
use cubecl::client::Client;

/// The best adapter of this machine; `CUBECL_WGPU_DEFAULT_DEVICE` (`DiscreteGpu(0)`, `IntegratedGpu(0)`, `Cpu`) chooses another.
///
/// # Errors
/// If there is no adapter: the message says what to install.
pub fn wgpu() -> Result<Device> {
    let device = cubecl::Device::wgpu(Default::default()).map_err(|e| {
        Error::device(
            "wgpu",
            format!(
                "no graphics adapter was found ({e}); install a driver with Vulkan, Metal or DX12, or for software rendering on Linux the package \
                 `mesa-vulkan-drivers`, or use the CPU device"
            ),
        )
    })?;
    let client = device.client();
    let (info, limits) = (info(&client), limits(&client));
    Ok(Device::new(GpuBackend::new(client, info, limits)))
}

fn info(client: &Client) -> DeviceInfo {
    let p = client.properties();
    let support = |d: DType| match d {
        DType::F64 | DType::I64 => Support::No,
        DType::F32 | DType::I32 | DType::U32 | DType::Bool => Support::Native,
        _ => Support::Emulated,
    };
    DeviceInfo {
        name: p.identity.name.clone(),
        kind: "wgpu",
        architecture: p.identity.fingerprint.clone(),
        dtypes: DType::ALL.iter().map(|d| (*d, support(*d))).collect(),
        matrix_units: Vec::new(),
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
    }
}
