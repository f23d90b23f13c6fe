//! The device that a suite runs on.

/// `BIMETAL_TEST_DEVICE`, or the CPU.
pub fn name() -> String {
    std::env::var("BIMETAL_TEST_DEVICE").unwrap_or("cpu".into())
}

/// The seed of random cases: `BIMETAL_TEST_SEED`, or 1.
#[allow(dead_code)]
pub fn seed() -> u64 {
    let given = std::env::var("BIMETAL_TEST_SEED").ok();
    given.and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// A device of its own for each test, so that none sees the settings and the memory of another. Panics if there is none: `device.rs` asks first.
#[allow(dead_code)]
pub fn device() -> bimetal::Device {
    bimetal::device(&name(), Some(2)).unwrap()
}

/// Rounds of random cases: fewer on a device whose kernels are compiled when they are first used.
#[allow(dead_code)]
pub fn rounds(most: usize) -> usize {
    match name().as_str() {
        "cpu" => most,
        _ => most.div_ceil(4),
    }
}
