//! Wrong use and what goes wrong underneath is one clear error.
use bimetal_cubecl::{GpuBackend, Limits, MatrixUnits};
use bimetal_tensor::{DType, Device, DeviceInfo, Slot, Support, Tensor, commit};
use cubecl::device::WgpuDeviceKind;
use std::process::Command;

/// The adapter; without one a test has nothing to run on.
fn open() -> Option<Device> {
    match bimetal_wgpu::wgpu() {
        Ok(device) => Some(device),
        Err(e) => {
            println!("skipped: {e}");
            None
        }
    }
}

/// A device over the same adapter that believes other things of it.
fn with(device: &Device, memory: usize, max_binding: usize, max_buffers: usize) -> Device {
    let client = match cfg!(target_os = "macos") {
        true => cubecl::Device::wgpu(WgpuDeviceKind::default()),
        false => cubecl::Device::vulkan(WgpuDeviceKind::default()),
    };
    let client = client.unwrap().client();
    let limits = Limits {
        max_binding,
        max_units: 64,
        max_cubes: 65535,
        matrix: MatrixUnits::default(),
    };
    let info = DeviceInfo {
        max_buffers,
        max_instructions: 64.max(2 * max_buffers),
        ..device.info().clone()
    };
    Device::new(GpuBackend::new(client, info, limits).with_memory(memory))
}

/// Runs one of the tests below in a process of its own, with other variables.
fn child(test: &str, variables: &[(&str, &str)]) -> String {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap()
}

#[test]
#[ignore = "run by other tests in a process of its own"]
fn opening() {
    for _ in 0..2 {
        match bimetal_wgpu::wgpu() {
            Ok(device) => println!("opened {}", device.info().name),
            Err(e) => println!("error: {e}"),
        }
    }
}

#[test]
fn without_an_adapter_the_error_says_what_to_install() {
    let nothing = "/nonexistent/driver.json";
    let text = child(
        "opening",
        &[("VK_DRIVER_FILES", nothing), ("VK_ICD_FILENAMES", nothing)],
    );
    if !cfg!(target_os = "linux") {
        println!("skipped: drivers can be hidden on Linux only");
        return;
    }
    for part in [
        "error: wgpu: no graphics adapter",
        "mesa-vulkan-drivers",
        "CPU device",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    assert!(
        !text.contains("panicked") && !text.contains("opened"),
        "{text}"
    );
}

#[test]
fn a_bound_of_memory_that_is_no_number_is_an_error() {
    let text = child("opening", &[("BIMETAL_GPU_MEMORY_MB", "1GB")]);
    assert!(text.contains("`1GB`") && text.contains("MiB"), "{text}");
}

#[test]
fn software_and_emulation_are_said_once() {
    let Some(device) = open() else { return };
    let info = device.info();
    let text = child("opening", &[]);
    assert_eq!(text.matches("opened").count(), 2);
    let software = info.name.ends_with("[software]");
    assert_eq!(software, info.name.contains("llvmpipe"));
    assert_eq!(
        text.matches("a software adapter").count(),
        usize::from(software)
    );
    let emulated = info.dtypes.iter().any(|(_, s)| *s == Support::Emulated);
    assert_eq!(
        text.matches("computes them in float32").count(),
        usize::from(emulated)
    );
}

#[test]
fn a_dtype_that_the_device_lacks_is_named_where_it_was_asked_for() {
    let Some(device) = open() else { return };
    let x = Tensor::from_slice(&[1f64, 2.0], &[2], &device);
    let line = format!("wrong_use.rs:{}", line!() - 1);
    let e = (&x * 2.0).to_bytes().unwrap_err().to_string();
    for part in ["float64", "float32", &device.info().name, &line] {
        assert!(e.contains(part), "no `{part}` in {e}");
    }
    let i = Tensor::arange(3, &device).cast(DType::I64);
    let e = (i + 1.0).to_bytes().unwrap_err().to_string();
    assert!(e.contains("int64") && e.contains("int32"), "{e}");
    // The device goes on.
    let y = Tensor::from_slice(&[1f32, 2.0], &[2], &device) * 2.0;
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0, 4.0]);
}

#[test]
fn too_much_memory_is_an_error_with_a_report_that_leaves_state_as_it_was() {
    let Some(device) = open() else { return };
    let device = with(&device, 8 << 20, 1 << 27, 8);
    let w = Slot::new("w", &Tensor::ones(&[1 << 18], DType::F32, &device), &device).unwrap();
    // The temporary alone is 64 MiB.
    let row = w.read();
    let big = row.reshape(&[1, -1]) * Tensor::ones(&[64, 1], DType::F32, &device);
    let sum = big.cumsum(0, false).sum(&[0], false);
    let e = commit(&[], &[(&w, &sum)]).unwrap_err().to_string();
    let live = device.memory().live;
    for part in [
        "out of device memory",
        "8388608",
        &live.to_string(),
        "at most",
        "smaller batch",
    ] {
        assert!(e.contains(part), "no `{part}` in {e}");
    }
    assert!(live > 0 && live <= 8 << 20);
    // The step may be tried again, smaller.
    commit(&[], &[(&w, &(w.read() + 1.0))]).unwrap();
    assert_eq!(
        w.read().narrow(0, 0, 2).to_vec::<f32>().unwrap(),
        [2.0, 2.0]
    );
}

#[test]
fn a_buffer_that_cannot_be_bound_is_an_error() {
    let Some(device) = open() else { return };
    let device = with(&device, usize::MAX, 1 << 20, 8);
    let x = Tensor::ones(&[(1 << 18) + 1], DType::F32, &device);
    let e = x.to_bytes().unwrap_err().to_string();
    for part in [
        "1048580 bytes",
        "1048576 bytes",
        "smaller batch",
        &device.info().name,
    ] {
        assert!(e.contains(part), "no `{part}` in {e}");
    }
    let y = Tensor::ones(&[2], DType::F32, &device);
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 1.0]);
}

#[test]
#[ignore = "run by another test in a process of its own: it takes the adapter away from all"]
fn losing() {
    use cubecl::device::{WgpuBackend, WgpuDevice};
    use cubecl::wgpu::{RuntimeOptions, Vulkan, try_init_setup};
    // The device behind the client that opening gives.
    let selected = WgpuDevice::new(WgpuDeviceKind::default()).on(WgpuBackend::Vulkan);
    let setup = try_init_setup::<Vulkan>(&selected, RuntimeOptions::default()).unwrap();
    let device = bimetal_wgpu::wgpu().unwrap();
    let x = Tensor::ones(&[3], DType::F32, &device).settle().unwrap();
    let w = Slot::new("w", &x, &device).unwrap();
    commit(&[], &[(&w, &(w.read() + 1.0))]).unwrap();
    println!("before: {:?}", w.read().to_vec::<f32>().unwrap());
    setup.device.destroy();
    // The device is told, and nobody asks yet whether it did it.
    let told = commit(&[], &[(&w, &(w.read() * 2.0))]);
    println!("read: {}", w.to_bytes().unwrap_err());
    println!(
        "step: {}",
        told.and_then(|()| commit(&[], &[(&w, &(w.read() * 2.0))]))
            .unwrap_err()
    );
    println!("alloc: {}", Slot::new("v", &x, &device).err().unwrap());
}

#[test]
fn a_lost_device_is_named_and_hands_out_nothing_more() {
    if open().is_none() || !cfg!(target_os = "linux") {
        println!("skipped: an adapter can be taken away on Linux only");
        return;
    }
    let text = child("losing", &[]);
    let line = |start: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(start));
        line.unwrap_or_else(|| panic!("no `{start}` in {text}"))
            .to_string()
    };
    assert_eq!(line("before: "), "[2.0, 2.0, 2.0]");
    let read = line("read: ");
    assert!(read.contains(": ") && !read.contains("Backtrace"), "{read}");
    assert!(read.len() < 1000, "{read}");
    for start in ["step: ", "alloc: "] {
        let e = line(start);
        for part in ["failed before", "checkpoint", "The first failure"] {
            assert!(e.contains(part), "no `{part}` in {e}");
        }
    }
}
