//! Derivatives of every operation on a device.
mod common;

use bimetal_testing::gradcheck;
use common::{device, rounds, seed};

#[test]
fn first_and_second_derivatives_agree_with_differences() {
    gradcheck::run(&device(), seed(), rounds(3), true).assert_clean();
}
