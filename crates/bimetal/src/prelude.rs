//! The usual names: `use bimetal::prelude::*;`.

pub use crate::{Error, Result};

pub use bimetal_autodiff::{checkpoint, grad, grad_optional, vjp};
pub use bimetal_data::{Array, Batch, CharText, InMemory, Loader, Source, Split, mnist};
pub use bimetal_layers::{
    Activation, AvgPool2d, BatchNorm2d, Conv2d, Conv2dOptions, Ctx, Dropout, Embedding,
    EmbeddingOptions, Flatten, GlobalAvgPool2d, Init, Layer, LayerNorm, LayerNormOptions, Linear,
    LinearOptions, Lstm, MaxPool2d, MultiHeadAttention, MultiHeadAttentionOptions, Param,
    ParamStore, Scope, Sequential, cross_entropy, cross_entropy_with, mse,
};
pub use bimetal_optim::{
    Accumulator, Adam, AdamW, Cosine, Ema, Optimizer, ParamGroup, Schedule, Sgd, StepHandle,
    warmup_cosine,
};
pub use bimetal_precision::{
    Grads, LossScale, LossScaler, Policy, PolicyMap, Scaled, StepOutcome, Unscaled,
};
pub use bimetal_tensor::{DType, Device, Slot, Tensor, bf16, commit, eval, f16};
pub use bimetal_train::{
    Callback, Control, CsvLogger, EarlyStopping, Frequency, JsonlLogger, Logs, Mode,
    ModelCheckpoint, Output, Report, Task, TensorBatch, TensorBoard, TerminateOnNaN, Trainer,
    load_checkpoint, load_weights,
};
