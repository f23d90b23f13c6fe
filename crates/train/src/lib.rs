//! Trainer, metrics, callbacks, checkpoints and TensorBoard logs of bimetal.
