//! The CPU backend through the conformance suite.
use bimetal_testing::conformance;

fn seed() -> u64 {
    std::env::var("BIMETAL_TEST_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1)
}

#[test]
fn every_operation_agrees_with_the_f64_reference() {
    conformance::run(&bimetal_cpu::cpu(), seed(), 8).assert_clean();
}

#[test]
fn fusion_never_changes_a_bit() {
    conformance::fusion_keeps_bits(&bimetal_cpu::cpu(), seed(), 150).assert_clean();
}
