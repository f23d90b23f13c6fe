//! Devices by name.

use crate::{Device, Error, Result};

/// The CPU, with as many threads as `BIMETAL_THREADS` or `RAYON_NUM_THREADS` say, or else as there are cores. Results do not
/// depend on their number.
#[cfg(feature = "cpu")]
pub fn cpu() -> Device {
    bimetal_cpu::cpu()
}

/// The names that [`device`] takes: those of the backends this program was built with.
pub fn devices() -> &'static [&'static str] {
    &[
        #[cfg(feature = "cpu")]
        "cpu",
    ]
}

/// A device by name, with `threads` threads if it is one whose threads can be chosen.
///
/// # Errors
/// An unknown name; the error lists those that there are.
pub fn device(name: &str, threads: Option<usize>) -> Result<Device> {
    if let Some(n) = threads.filter(|n| !(1..=1024).contains(n)) {
        return Err(Error::invalid(format!("{n} threads; expected 1 to 1024")));
    }
    match name {
        #[cfg(feature = "cpu")]
        "cpu" => Ok(Device::new(bimetal_cpu::CpuBackend::new(threads))),
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
        let text = super::device("tpu", None).unwrap_err().to_string();
        assert!(text.contains("`tpu`") && text.contains("cpu"), "{text}");
        for threads in [0, 1025, usize::MAX] {
            let text = super::device("cpu", Some(threads)).unwrap_err().to_string();
            assert!(text.contains(&format!("{threads} threads")), "{text}");
        }
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn threads_are_chosen() {
        let device = super::device("cpu", Some(2)).unwrap();
        assert_eq!(device.info().units, 2);
    }
}
