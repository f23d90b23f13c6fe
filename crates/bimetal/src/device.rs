//! Devices by name.

use crate::{Device, Error, Result};

/// The CPU, with as many threads as `BIMETAL_THREADS` or `RAYON_NUM_THREADS` say, or else as there are cores. Results do not
/// depend on their number.
#[cfg(feature = "cpu")]
pub fn cpu() -> Device {
    bimetal_cpu::cpu()
}

/// The best graphics adapter, by Vulkan, Metal or DX12: see [`bimetal_wgpu::wgpu`].
///
/// # Errors
/// No adapter: the message says what to install.
#[cfg(feature = "wgpu")]
pub fn wgpu() -> Result<Device> {
    Ok(bimetal_wgpu::wgpu()?)
}

/// NVIDIA GPU number `index`, counted from 0: see [`bimetal_cuda::cuda`].
///
/// # Errors
/// No such GPU, no driver, or a driver without what kernels are compiled with: the message says which and what to install.
#[cfg(feature = "cuda")]
pub fn cuda(index: usize) -> Result<Device> {
    Ok(bimetal_cuda::cuda(index)?)
}

/// The names that [`device`] takes: those of the backends this program was built with.
pub fn devices() -> &'static [&'static str] {
    &[
        #[cfg(feature = "cpu")]
        "cpu",
        #[cfg(feature = "wgpu")]
        "wgpu",
        #[cfg(feature = "cuda")]
        "cuda",
    ]
}

/// The names of all backends; each is a feature of this crate.
const BACKENDS: [&str; 3] = ["cpu", "wgpu", "cuda"];

/// A device by name, with `threads` threads if it is one whose threads can be chosen: `cpu`, `wgpu`, `cuda` (the first GPU) or `cuda:1`.
///
/// # Errors
/// An unknown name, the name of a backend that this program was built without (the message names the feature), or a device that cannot be opened.
pub fn device(name: &str, threads: Option<usize>) -> Result<Device> {
    if let Some(n) = threads.filter(|n| !(1..=1024).contains(n)) {
        return Err(Error::invalid(format!("{n} threads; expected 1 to 1024")));
    }
    let (backend, number) = match name.split_once(':') {
        Some((backend, number)) => (backend, Some(number)),
        None => (name, None),
    };
    match (backend, number) {
        #[cfg(feature = "cpu")]
        ("cpu", None) => Ok(Device::new(bimetal_cpu::CpuBackend::new(threads))),
        #[cfg(feature = "wgpu")]
        ("wgpu", None) => wgpu(),
        #[cfg(feature = "cuda")]
        ("cuda", number) => match number.unwrap_or("0").parse() {
            Ok(index) => cuda(index),
            Err(_) => Err(Error::invalid(format!(
                "`{name}` is no device; expected `cuda` or a number behind it, as in `cuda:1`"
            ))),
        },
        _ if BACKENDS.contains(&backend) && !devices().contains(&backend) => {
            Err(Error::invalid(format!(
                "this program was built without the device `{backend}`; build it with `--features {backend}`. It has: {}",
                devices().join(", ")
            )))
        }
        _ => Err(Error::invalid(format!(
            "unknown device `{name}`; this program has: {}",
            devices().join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_unknown_device_lists_the_known() {
        for name in ["tpu", "cpu:1", "wgpu:x", ""] {
            let text = super::device(name, None).unwrap_err().to_string();
            assert!(text.contains("has: cpu"), "{name}: {text}");
        }
        let text = super::device("cuda:x", None).unwrap_err().to_string();
        let expected = if cfg!(feature = "cuda") {
            "`cuda:1`"
        } else {
            "--features cuda"
        };
        assert!(text.contains(expected), "{text}");
        for threads in [0, 1025, usize::MAX] {
            let text = super::device("cpu", Some(threads)).unwrap_err().to_string();
            assert!(text.contains(&format!("{threads} threads")), "{text}");
        }
    }

    #[test]
    fn a_backend_that_is_not_in_the_build_is_named_with_its_feature() {
        for (name, built) in [
            ("wgpu", cfg!(feature = "wgpu")),
            ("cuda", cfg!(feature = "cuda")),
        ] {
            assert_eq!(super::devices().contains(&name), built);
            if !built {
                let text = super::device(name, None).unwrap_err().to_string();
                assert!(text.contains(&format!("--features {name}")), "{text}");
            }
        }
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn threads_are_chosen() {
        let device = super::device("cpu", Some(2)).unwrap();
        assert_eq!(device.info().units, 2);
    }
}
