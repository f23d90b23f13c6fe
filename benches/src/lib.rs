//! Benchmarks of bimetal: whole train steps and kernels, beside the peers that are installed.
//!
//! `cargo xtask bench` runs them; `docs/benchmarks.md` says how to read what comes out. Each row is measured in a process of its own, so that its peak memory is its
//! own; CPU time is what counts, since other programs do not change it much.
//!
//! ```
//! use bimetal::DType;
//! use bimetal_bench::{Effort, find, times};
//!
//! let device = bimetal::device("cpu", Some(1))?;
//! let mut case = find("W7", "NN 64x64x64").unwrap().build(DType::F32, &device)?;
//! let times = times(Effort::QUICK, &mut case.run)?;
//! assert!(times.wall >= times.wall_min);
//! # Ok::<(), bimetal::Error>(())
//! ```

mod catalog;
mod child;
mod clock;
mod kernels;
mod large;
mod machine;
mod models;
mod options;
mod peers;
mod planned;
mod profile;
mod report;
mod row;
mod scaling;
mod session;
mod timed;
mod train;

pub use catalog::{Case, NAMES, Work, all, find};
pub use clock::{Effort, Times, least, load, median, peak_rss_mb, process_ms, thread_ms, times};
pub use kernels::{
    Run, adamw, bias_gelu_dropout, gemm, layer_norm, softmax_cross_entropy, w11_sizes,
};
pub use large::{BERT_BASE, GPT2, Large, RESNET50};
pub use machine::{Limits, measure};
pub use models::{Model, Sizes, W4, gpt, mlp, w1, w2, w3, w4, w5, w6};
pub use options::Options;
pub use planned::{Planned, plan_gpt2, planner};
pub use profile::profile;
pub use row::Row;
pub use session::main;
pub use timed::{InPlans, timed_cpu};
pub use train::{Training, policy};
