//! Numbers that cannot be meant are errors, neither panics nor a machine without memory or threads.

use bimetal_cpu::CpuBackend;
use bimetal_tensor::{DType, Device, Tensor};

fn ones(device: &Device) -> Tensor {
    Tensor::full(&[2, 6], 1.0, DType::F32, device)
}

#[test]
fn sizes_that_do_not_fit() {
    let x = ones(&bimetal_cpu::cpu());
    for (before, after) in [
        (usize::MAX, 3),
        (3, usize::MAX),
        (usize::MAX, 1),
        (1, usize::MAX),
    ] {
        let text = x.pad(0, before, after).to_bytes().unwrap_err().to_string();
        assert!(
            text.contains("pad: ") && text.contains("too many elements"),
            "{text}"
        );
    }
    for n in [0, 4, usize::MAX] {
        let parts = x.split(n, 1);
        assert!(!parts.is_empty() && parts.iter().all(|p| p.error().is_some()));
    }
    assert_eq!(x.split(3, 1).len(), 3);
}

#[test]
fn a_mistyped_number_of_threads_is_bounded() {
    let device = Device::new(CpuBackend::new(Some(usize::MAX)));
    assert!(device.info().units <= 1024);
    assert_eq!(ones(&device).sum_all().item().unwrap(), 12.0);
}

#[test]
fn devices_made_separately_are_told_apart_from_different_ones() {
    let (a, b) = (bimetal_cpu::cpu(), bimetal_cpu::cpu());
    let text = (ones(&a) + ones(&b)).to_bytes().unwrap_err().to_string();
    assert!(
        text.contains("make the device once") && text.contains("mistakes.rs"),
        "{text}"
    );
}
