//! Precision policies, loss scaling and numerics checks of bimetal.
