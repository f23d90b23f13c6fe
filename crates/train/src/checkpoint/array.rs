//! Named arrays of bytes, the content of a checkpoint.

use std::borrow::Cow;
use std::fmt;

use bimetal_tensor::DType;

/// Name, dtype and shape of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayInfo {
    /// The name, for a parameter its path: `head.weight`.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The shape, row-major; empty for a scalar.
    pub shape: Vec<usize>,
}

/// A named array: row-major elements in little-endian byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array<'a> {
    /// Name, dtype and shape.
    pub info: ArrayInfo,
    /// The elements, `dtype.size()` bytes each.
    pub data: Cow<'a, [u8]>,
}

impl ArrayInfo {
    /// Name, dtype and shape.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.into(),
        }
    }

    /// Bytes that the elements take, `None` when that number does not fit a `usize`.
    pub fn byte_len(&self) -> Option<usize> {
        self.shape
            .iter()
            .try_fold(self.dtype.size(), |bytes, &dim| bytes.checked_mul(dim))
    }
}

impl<'a> Array<'a> {
    /// An array of borrowed (`&[u8]`) or owned (`Vec<u8>`) little-endian elements.
    pub fn new(
        name: impl Into<String>,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Self {
        Self {
            info: ArrayInfo::new(name, dtype, shape),
            data: data.into(),
        }
    }
}

impl fmt::Display for ArrayInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.name, self.dtype, self.shape)
    }
}
