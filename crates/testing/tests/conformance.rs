//! A device through the conformance suite.
mod common;

use bimetal_testing::conformance;
use common::{device, rounds, seed};

#[test]
fn every_operation_agrees_with_the_f64_reference() {
    conformance::run(&device(), seed(), rounds(8)).assert_clean();
}

#[test]
fn fusion_never_changes_a_bit() {
    conformance::fusion_keeps_bits(&device(), seed(), rounds(150)).assert_clean();
}
