//! Opening a device.
use crate::probe::{CudaProperties, can_compile, cuda_properties};
use bimetal_cubecl::{GpuBackend, Limits, MatrixUnits};
use bimetal_tensor::plan::{MAX_BUFFERS, MAX_INSTRUCTIONS};
use bimetal_tensor::{DType, Device, DeviceInfo, Error, Result, Support};
use cubecl::client::Client;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// NVIDIA's device of this number, counted from 0.
///
/// # Errors
/// If the driver, the device, NVRTC or the headers of CUDA are missing, or NVRTC is newer than the driver: the message says which and what to install.
pub fn cuda(index: usize) -> Result<Device> {
    let properties = cuda_properties(index)?;
    can_compile(&properties)?;
    let failed =
        |e: String| Error::device("cuda", format!("{} does not open: {e}", properties.name));
    let device = cubecl::Device::cuda(index).map_err(|e| failed(e.to_string()))?;
    // The runtime has no other way to say that a driver refused.
    let client = catch_unwind(AssertUnwindSafe(|| device.client())).map_err(|e| {
        let text = e.downcast_ref::<String>().map(String::as_str);
        failed(
            text.or(e.downcast_ref::<&str>().copied())
                .unwrap_or("the driver refused")
                .into(),
        )
    })?;
    let limits = limits(&client);
    Ok(Device::new(GpuBackend::new(
        client,
        info(&properties, &limits),
        limits,
    )))
}

fn info(p: &CudaProperties, limits: &Limits) -> DeviceInfo {
    let support = |d: DType| match d {
        DType::F64 | DType::I64 => Support::No,
        DType::F8E4M3 | DType::F8E5M2 if limits.matrix.f8.is_none() => Support::Emulated,
        _ => Support::Native,
    };
    DeviceInfo {
        name: format!(
            "{} (sm_{}, {} GiB, {} Tensor Cores)",
            p.name,
            p.sm,
            p.memory >> 30,
            if p.tensor_cores { "with" } else { "without" }
        ),
        kind: "cuda",
        architecture: format!("sm_{}", p.sm),
        dtypes: DType::ALL.iter().map(|d| (*d, support(*d))).collect(),
        matrix_units: limits.matrix.dtypes(),
        units: p.processors as usize,
        max_instructions: MAX_INSTRUCTIONS,
        max_buffers: MAX_BUFFERS,
    }
}

fn limits(client: &Client) -> Limits {
    let p = client.properties();
    Limits {
        max_binding: p.memory.max_page_size as usize,
        max_units: p.hardware.max_units_per_cube,
        max_cubes: p.hardware.max_cube_count.0,
        matrix: MatrixUnits::of(p, true),
    }
}
