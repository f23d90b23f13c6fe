//! Backend conformance suite, gradient checks and golden values of bimetal. Not published.
//!
//! [`reference`] computes any graph in f64 on the host with plain loops, straight from what each operation is defined to mean: it
//! shares no code with the scheduler or a backend. [`conformance`] puts a device through every operation on random shapes, layouts and
//! dtypes against it.
#![allow(missing_docs)]
pub mod cases;
pub mod conformance;
pub mod gradcheck;
pub mod random;
pub mod reference;
