//! What goes wrong in mixed-precision training elsewhere: [`bimetal_testing::pitfalls`] on the device that `BIMETAL_TEST_DEVICE` names (default `cpu`).
//! `cargo xtask test --suite pitfalls` prints a line for each fault.
mod common;

macro_rules! suite {
    ($($module:ident: $($test:ident,)*;)*) => {$($(
        #[test]
        fn $test() {
            bimetal_testing::pitfalls::$module::$test(&common::device());
        }
    )*)*};
}

bimetal_testing::each_pitfall!(suite);
