//! Shared parts of the bimetal examples.
