//! Precision policies, loss scaling and numerics checks of bimetal.
mod policy;

pub use policy::{Policy, PolicyError, PolicyMap, path_matches};
