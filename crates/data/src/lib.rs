//! Data sets and the input pipeline of bimetal: host batches, ready to be uploaded.
//!
//! A [`Source`] is random access to samples; a [`Loader`] turns one into batches: shuffled by a keyed
//! permutation, mapped, prefetched in the background. The order of epoch `e` is a pure function of
//! (seed, `e`), so the position in the data is two numbers (a [`Cursor`]) and a resumed run sees exactly
//! the batches the uninterrupted one would have seen. Prefetching never changes the data.
//!
//! The crate knows of bimetal's other crates only the element types ([`DType`](bimetal_dtype::DType)).
//!
//! ```
//! use bimetal_data::{Array, InMemory, Loader, Source};
//!
//! # fn main() -> bimetal_data::Result<()> {
//! let x = Array::from_vec((0..20u8).collect(), &[10, 2])?;
//! let y = Array::from((0..10i32).collect::<Vec<_>>());
//! let data = InMemory::new(vec![x, y])?.map(|mut arrays| {
//!     arrays[0] = arrays[0].map_f32(|v| v / 255.0)?;
//!     Ok(arrays)
//! })?;
//! let mut loader = Loader::new(data).batch(4).shuffle(7).prefetch(2);
//! let sizes: Vec<usize> = loader.epoch().map(|b| Ok(b?.size)).collect::<bimetal_data::Result<_>>()?;
//! assert_eq!(sizes, [4, 4, 2]);
//! # Ok(())
//! # }
//! ```

mod adapt;
mod array;
mod batch;
mod error;
mod idx;
mod loader;
mod memory;
mod mnist;
mod permute;
mod prefetch;
mod source;
mod text;
mod windows;

pub use array::{Array, HostElement};
pub use batch::{Batch, Cursor};
pub use error::{Error, ErrorKind, Result};
pub use idx::{read_idx, write_idx};
pub use loader::Loader;
pub use memory::InMemory;
pub use mnist::{Split, mnist};
pub use permute::Permutation;
pub use source::{Dataset, Field, Source};
pub use text::{CharText, CharVocab};
pub use windows::{RandomWindows, Windows};
