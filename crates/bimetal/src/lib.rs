//! Deep-learning training in Rust with mixed precision first.
//!
//! Matrix work runs in f16, bf16 or f8 where a policy says so, everything that needs range or resolution in f32: weights are kept in f32,
//! the loss scale finds itself, and a step with a gradient that is not finite changes nothing.
//!
//! A network from data to a report:
//!
//! ```
//! use bimetal::prelude::*;
//!
//! # fn main() -> Result<()> {
//! // 64 samples of y = a b.
//! let x: Vec<f32> = (0..128).map(|i| ((i * 37) % 64) as f32 / 32.0 - 1.0).collect();
//! let y: Vec<f32> = x.chunks(2).map(|x| x[0] * x[1]).collect();
//! let data = InMemory::new(vec![Array::from_vec(x, &[64, 2])?, Array::from_vec(y, &[64, 1])?])?;
//!
//! let store = ParamStore::new(&bimetal::cpu(), "mixed_float16").seed(0);
//! let scope = store.root();
//! let net = Sequential::new()
//!     .then(Linear::new(&scope.at("hidden"), 2, 16))
//!     .then(Activation::Relu)
//!     .then(Linear::new(&scope.at("head").policy("float32"), 16, 1));
//! let task = |batch: &TensorBatch, cx: &Ctx| Output::new(mse(&net.forward(&batch[0], cx), &batch[1]));
//!
//! let loader = Loader::new(data).batch(16).shuffle(0);
//! let report = Trainer::new(&store, Adam::new(0.02)).progress(false).fit(&task, loader, None, 60)?;
//! assert!(report.train_loss() < 1e-2, "{report}");
//! # Ok(())
//! # }
//! ```
//!
//! The repository has a guide (`docs/guide`) and whole programs (`examples`).
//!
//! # Where things are
//!
//! [`prelude`] holds the usual names. The crates behind this one are its modules: [`tensor`] (lazy tensors, devices, plans), [`autodiff`],
//! [`precision`] (policies, loss scaling), [`layers`], [`optim`], [`data`] and [`train`] (Trainer, callbacks, checkpoints).
//! Errors of all of them convert to [`Error`] with `?`.
//!
//! # Features
//!
//! - `cpu` (default): the CPU backend, `bimetal::cpu()`.
//! - `wgpu`: graphics adapters by Vulkan, Metal and DX12, `bimetal::wgpu()`.
//! - `cuda`: NVIDIA GPUs, `bimetal::cuda(0)`.
//!
//! The last two compile a compiler of kernels, which takes some minutes. What runs where is said in `docs/gpu.md` of the repository.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod device;
pub mod prelude;

pub use bimetal_autodiff as autodiff;
#[cfg(feature = "cpu")]
pub use bimetal_cpu as cpu_backend;
#[cfg(feature = "cuda")]
pub use bimetal_cuda as cuda_backend;
pub use bimetal_data as data;
pub use bimetal_layers as layers;
pub use bimetal_optim as optim;
pub use bimetal_precision as precision;
pub use bimetal_tensor as tensor;
pub use bimetal_train as train;
#[cfg(feature = "wgpu")]
pub use bimetal_wgpu as wgpu_backend;

pub use bimetal_tensor::{DType, Device, Tensor};
pub use bimetal_train::{Error, Result};
#[cfg(feature = "cpu")]
pub use device::cpu;
#[cfg(feature = "cuda")]
pub use device::cuda;
#[cfg(feature = "wgpu")]
pub use device::wgpu;
pub use device::{device, devices};
