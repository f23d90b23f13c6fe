//! Backend conformance suite, gradient checks and golden values of bimetal. Not published.
//!
//! [`mod@reference`] computes any graph in f64 on the host with plain loops, straight from what each operation is defined to mean: it
//! shares no code with the scheduler or a backend, and takes composites by their decompositions. [`conformance`] puts a device through every
//! operation of [`cases`] on random shapes, layouts and dtypes against it; [`gradcheck`] compares first and second derivatives with differences; [`pitfalls`] are the
//! faults of mixed-precision training elsewhere.
//!
//! ```
//! use bimetal_testing::conformance;
//!
//! conformance::run(&bimetal_cpu::cpu(), 3, 1).assert_clean();
//! ```
#![allow(missing_docs)]
pub mod cases;
pub mod conformance;
mod exact;
pub mod gradcheck;
pub mod pitfalls;
pub mod random;
pub mod random_graph;
pub mod reference;

/// The code of the README, of CONTRIBUTING.md and of the guide, compiled and run by `cargo test --doc`.
#[cfg(doctest)]
mod guide {
    macro_rules! chapters {
        ($($name:ident: $path:literal,)*) => {$(
            #[doc = include_str!(concat!("../../../", $path))]
            pub struct $name;
        )*};
    }
    chapters! {
        Readme: "README.md",
        Contributing: "CONTRIBUTING.md",
        Tensors: "docs/guide/01-tensors.md",
        Gradients: "docs/guide/02-gradients.md",
        MixedPrecision: "docs/guide/03-mixed-precision.md",
        Training: "docs/guide/04-training.md",
        OwnLoop: "docs/guide/05-own-loop.md",
        Data: "docs/guide/06-data.md",
        ComingFrom: "docs/guide/07-coming-from-pytorch-and-keras.md",
        SeeingPrecision: "docs/guide/08-seeing-precision.md",
        Gpu: "docs/gpu.md",
    }
}
