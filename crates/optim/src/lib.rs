//! Optimizers, schedules and clipping of bimetal.
