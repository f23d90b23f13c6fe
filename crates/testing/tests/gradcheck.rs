//! Derivatives of every operation on the CPU backend.
use bimetal_testing::gradcheck;

fn seed() -> u64 {
    std::env::var("BIMETAL_TEST_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1)
}

#[test]
fn first_and_second_derivatives_agree_with_differences() {
    gradcheck::run(&bimetal_cpu::cpu(), seed(), 3, true).assert_clean();
}
