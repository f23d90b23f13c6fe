//! What can go wrong with element types.

use super::DType;
use std::fmt;

/// A mistake in naming an element type or in the byte lengths given with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DTypeError {
    /// A string that names no element type.
    UnknownName {
        /// The string as given.
        found: String,
    },
    /// A byte buffer that does not hold the expected number of elements.
    Length {
        /// The element type the buffer was read or written as.
        dtype: DType,
        /// Length of the buffer in bytes.
        found: usize,
        /// Length it should have had in bytes; `None` for any multiple of the element size.
        expected: Option<usize>,
    },
}

impl fmt::Display for DTypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DTypeError::UnknownName { found } => {
                write!(f, "unknown dtype \"{found}\"; use one of")?;
                for (i, dtype) in DType::ALL.into_iter().enumerate() {
                    write!(f, "{} {dtype}", if i == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            DTypeError::Length {
                dtype,
                found,
                expected: Some(expected),
            } => write!(
                f,
                "a {dtype} buffer has {found} bytes but {expected} are needed; pass {} elements of {} bytes",
                expected / dtype.size(),
                dtype.size()
            ),
            DTypeError::Length {
                dtype,
                found,
                expected: None,
            } => write!(
                f,
                "{found} bytes do not hold whole {dtype} elements; pass a multiple of {} bytes",
                dtype.size()
            ),
        }
    }
}

impl std::error::Error for DTypeError {}
