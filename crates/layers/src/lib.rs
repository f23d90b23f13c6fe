//! Parameters, layers, initializers and losses of bimetal.
//!
//! A [`ParamStore`] owns the parameters of a model. Layers register theirs as they are built, under the path of the [`Scope`] they
//! are given; the path names the parameter in checkpoints, the layer in error messages and what a precision policy speaks of.
//! A forward pass is a call of [`Layer::forward`] with a [`Ctx`], which says whether this is training, draws random numbers and
//! collects state updates such as BatchNorm statistics.
//!
//! ```
//! use bimetal_layers::{Activation, Layer, Linear, ParamStore, Sequential, cross_entropy};
//! use bimetal_tensor::Tensor;
//!
//! # fn main() -> bimetal_tensor::Result<()> {
//! let device = bimetal_cpu::cpu();
//! let store = ParamStore::new(&device, "mixed_float16").seed(0);
//! let scope = store.root();
//! let model = Sequential::new()
//!     .then(Linear::new(&scope.at("hidden"), 4, 8))
//!     .then(Activation::Relu)
//!     .then(Linear::new(&scope.at("head").policy("float32"), 8, 3));
//! store.check()?;
//!
//! let x = Tensor::ones(&[2, 4], bimetal_tensor::DType::F32, &device);
//! let target = Tensor::from_slice(&[0i32, 2], &[2], &device);
//! let cx = store.train();
//! let loss = cross_entropy(&model.forward(&x, &cx), &target);
//! assert!(loss.item()? > 0.0);
//! # Ok(())
//! # }
//! ```
//!
//! Layers follow Keras in their use of dtypes: floating inputs are cast to the compute dtype at the entry of a layer, integers
//! never; parameters stay in the parameter dtype and are cast where they are read; results are cast to the output dtype. Norms,
//! softmax, the gates of an LSTM and losses compute in f32 inside (f64 where their inputs are). Names, layouts and initial values of
//! parameters are PyTorch's, so that values from there fit ([`ParamStore::load`]).
mod activation;
mod attention;
mod conv;
mod ctx;
mod dropout;
mod embedding;
mod float8;
mod init;
mod layer;
mod linear;
mod load;
mod loss;
mod lstm;
mod norm;
mod param;
mod pool;
mod scope;
mod site;
mod size;
mod store;

pub use activation::Activation;
pub use attention::{MultiHeadAttention, MultiHeadAttentionOptions};
pub use conv::{Conv2d, Conv2dOptions, Padding};
pub use ctx::Ctx;
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingOptions};
pub use init::Init;
pub use layer::{Flatten, Layer, Sequential};
pub use linear::{Linear, LinearOptions};
pub use load::StateEntry;
pub use loss::{
    CrossEntropyOptions, LossOptions, Reduction, bce_with_logits, bce_with_logits_with,
    cross_entropy, cross_entropy_with, huber, huber_with, l1, l1_with, mse, mse_with,
};
pub use lstm::{Lstm, LstmOptions, LstmState};
pub use norm::{BatchNorm2d, BatchNormOptions, LayerNorm, LayerNormOptions};
pub use param::Param;
pub use pool::{AvgPool2d, GlobalAvgPool2d, MaxPool2d, PoolOptions};
pub use scope::Scope;
pub use site::Site;
pub use size::Size2d;
pub use store::ParamStore;

use bimetal_tensor::DType;

/// The dtype in which norms, gates and losses compute.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
