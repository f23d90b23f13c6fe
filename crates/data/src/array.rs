//! Host arrays: dtype, shape and bytes.

use std::borrow::Cow;

use bimetal_dtype::DType;

use crate::{ErrorKind, Result};

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that an [`Array`] can be made from and read as; implemented for `bool`, `u8`, `u32`, `i32`, `i64`, `f32`, `f64`.
pub trait HostElement: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The element type of arrays of this type.
    const DTYPE: DType;
    #[doc(hidden)]
    fn bytes_of(values: &[Self]) -> &[u8];
    #[doc(hidden)]
    fn view(bytes: &[u8]) -> Cow<'_, [Self]>;
}

macro_rules! host_element {
    ($($t:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl HostElement for $t {
            const DTYPE: DType = DType::$dtype;
            fn bytes_of(values: &[Self]) -> &[u8] {
                bytemuck::cast_slice(values)
            }
            fn view(bytes: &[u8]) -> Cow<'_, [Self]> {
                // A byte buffer need not be aligned for wider types; then the view is a copy.
                match bytemuck::try_cast_slice(bytes) {
                    Ok(values) => Cow::Borrowed(values),
                    Err(_) => {
                        let chunks = bytes.chunks_exact(size_of::<$t>());
                        Cow::Owned(chunks.map(bytemuck::pod_read_unaligned).collect())
                    }
                }
            }
        }
    )*};
}
host_element!(u8 => U8, u32 => U32, i32 => I32, i64 => I64, f32 => F32, f64 => F64);

impl sealed::Sealed for bool {}
impl HostElement for bool {
    const DTYPE: DType = DType::Bool;
    fn bytes_of(values: &[Self]) -> &[u8] {
        bytemuck::cast_slice(values)
    }
    fn view(bytes: &[u8]) -> Cow<'_, [Self]> {
        Cow::Owned(bytes.iter().map(|b| *b != 0).collect())
    }
}

/// A dense row-major array in host memory; its bytes are in the machine's own byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
}

impl Array {
    /// An array of `shape` from its elements in row-major order; an error if their number differs from the shape's.
    pub fn from_vec<T: HostElement>(data: Vec<T>, shape: &[usize]) -> Result<Array> {
        let expected = elements(shape);
        if expected != Some(data.len()) {
            return Err(ErrorKind::Length {
                unit: "elements",
                shape: shape.to_vec(),
                expected,
                found: data.len(),
            }
            .into());
        }
        Ok(Array {
            dtype: T::DTYPE,
            shape: shape.to_vec(),
            bytes: T::bytes_of(&data).to_vec(),
        })
    }

    /// An array from raw bytes in native byte order, of any dtype; an error if their number differs from the
    /// shape's, or a byte of a Bool array is neither 0 nor 1.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Result<Array> {
        let expected = elements(shape).and_then(|n| n.checked_mul(dtype.size()));
        if expected != Some(bytes.len()) {
            return Err(ErrorKind::Length {
                unit: "bytes",
                shape: shape.to_vec(),
                expected,
                found: bytes.len(),
            }
            .into());
        }
        if dtype == DType::Bool
            && let Some(bad) = bytes.iter().find(|b| **b > 1)
        {
            return Err(ErrorKind::Value {
                value: bad.to_string(),
                expected: "a Bool: 0 or 1",
            }
            .into());
        }
        Ok(Array {
            dtype,
            shape: shape.to_vec(),
            bytes,
        })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape; the first dimension counts samples or rows.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements' bytes, row-major, in native byte order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The array's parts: dtype, shape, bytes.
    pub fn into_parts(self) -> (DType, Vec<usize>, Vec<u8>) {
        (self.dtype, self.shape, self.bytes)
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Size of the first dimension; 1 for an array without dimensions.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// The elements as `T`, without a copy where the buffer is aligned; an error if the array is not of `T`.
    pub fn view<T: HostElement>(&self) -> Result<Cow<'_, [T]>> {
        if self.dtype != T::DTYPE {
            return Err(ErrorKind::Type {
                expected: std::any::type_name::<T>(),
                found: self.dtype,
            }
            .into());
        }
        Ok(T::view(&self.bytes))
    }

    /// The elements as a vector of `T`; an error if the array is not of `T`.
    pub fn to_vec<T: HostElement>(&self) -> Result<Vec<T>> {
        Ok(self.view()?.into_owned())
    }

    /// The same elements in another shape; an error if the shape has another number of elements.
    pub fn reshape(mut self, shape: &[usize]) -> Result<Array> {
        let expected = elements(shape);
        if expected != Some(self.elements()) {
            return Err(ErrorKind::Length {
                unit: "elements",
                shape: shape.to_vec(),
                expected,
                found: self.elements(),
            }
            .into());
        }
        self.shape = shape.to_vec();
        Ok(self)
    }

    /// An F32 array of `f(x)` for every element `x` converted to f32; an error for f8, f16 and bf16 arrays.
    pub fn map_f32(&self, f: impl Fn(f32) -> f32) -> Result<Array> {
        fn apply<T: HostElement>(a: &Array, f: impl Fn(T) -> f32) -> Result<Vec<f32>> {
            Ok(a.view::<T>()?.iter().map(|v| f(*v)).collect())
        }
        let data = match self.dtype {
            DType::Bool => apply(self, |v: bool| f(f32::from(u8::from(v)))),
            DType::U8 => apply(self, |v: u8| f(f32::from(v))),
            DType::U32 => apply(self, |v: u32| f(v as f32)),
            DType::I32 => apply(self, |v: i32| f(v as f32)),
            DType::I64 => apply(self, |v: i64| f(v as f32)),
            DType::F32 => apply(self, f),
            DType::F64 => apply(self, |v: f64| f(v as f32)),
            found => Err(ErrorKind::Type {
                expected: "bool, u8, u32, i32, i64, f32 or f64",
                found,
            }
            .into()),
        }?;
        Array::from_vec(data, &self.shape)
    }

    /// The integers as an I32 array, the dtype of indices and targets; an error for a value that does not fit and for floats.
    pub fn to_i32(&self) -> Result<Array> {
        fn apply<T: HostElement + TryInto<i32> + std::fmt::Display>(a: &Array) -> Result<Vec<i32>> {
            let narrow = |v: &T| {
                (*v).try_into().map_err(|_| {
                    ErrorKind::Value {
                        value: v.to_string(),
                        expected: "within the range of i32",
                    }
                    .into()
                })
            };
            a.view::<T>()?.iter().map(narrow).collect()
        }
        let data = match self.dtype {
            DType::Bool => self.view::<bool>()?.iter().map(|v| i32::from(*v)).collect(),
            DType::U8 => apply::<u8>(self)?,
            DType::U32 => apply::<u32>(self)?,
            DType::I32 => return Ok(self.clone()),
            DType::I64 => apply::<i64>(self)?,
            found => {
                return Err(ErrorKind::Type {
                    expected: "bool, u8, u32, i32 or i64",
                    found,
                }
                .into());
            }
        };
        Array::from_vec(data, &self.shape)
    }

    /// The rows `indices` of the first dimension, in that order; an error for an index outside and for an array without dimensions.
    pub fn gather(&self, indices: &[usize]) -> Result<Array> {
        let Some((&len, inner)) = self.shape.split_first() else {
            return Err(ErrorKind::Mismatch {
                what: "gather".into(),
                expected: "an array with at least one dimension".into(),
                found: "a scalar".into(),
            }
            .into());
        };
        let row = self.bytes.len().checked_div(len).unwrap_or(0);
        let mut bytes = Vec::with_capacity(row.saturating_mul(indices.len()));
        for &index in indices {
            if index >= len {
                return Err(ErrorKind::Index { index, len }.into());
            }
            bytes.extend_from_slice(&self.bytes[index * row..(index + 1) * row]);
        }
        let mut shape = vec![indices.len()];
        shape.extend_from_slice(inner);
        Ok(Array {
            dtype: self.dtype,
            shape,
            bytes,
        })
    }
}

impl<T: HostElement> From<Vec<T>> for Array {
    /// A one-dimensional array.
    fn from(data: Vec<T>) -> Array {
        Array {
            dtype: T::DTYPE,
            shape: vec![data.len()],
            bytes: T::bytes_of(&data).to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_shape_errors() {
        let a = Array::from_vec(vec![1.5f32, -2.0, 3.0, 0.25, 5.0, 6.0], &[3, 2]).unwrap();
        assert_eq!(
            (a.dtype(), a.shape(), a.rows(), a.elements()),
            (DType::F32, &[3, 2][..], 3, 6)
        );
        assert_eq!(a.to_vec::<f32>().unwrap(), [1.5, -2.0, 3.0, 0.25, 5.0, 6.0]);
        assert_eq!(
            a.gather(&[2, 0, 2]).unwrap().to_vec::<f32>().unwrap(),
            [5.0, 6.0, 1.5, -2.0, 5.0, 6.0]
        );
        assert!(matches!(
            a.to_vec::<i32>().unwrap_err().kind(),
            ErrorKind::Type {
                found: DType::F32,
                ..
            }
        ));
        assert!(matches!(
            a.gather(&[3]).unwrap_err().kind(),
            ErrorKind::Index { index: 3, len: 3 }
        ));
        let e = Array::from_vec(vec![1u8; 5], &[2, 3]).unwrap_err();
        assert_eq!(
            e.to_string(),
            "shape [2, 3] asks for 6 elements, but the data have 5"
        );
        let e = Array::from_vec(vec![1u8; 5], &[usize::MAX, 3]).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Length { expected: None, .. }));
        assert!(Array::from_bytes(DType::F64, &[1], vec![0; 7]).is_err());
        assert!(Array::from_bytes(DType::Bool, &[2], vec![0, 2]).is_err());
        assert!(a.clone().reshape(&[4]).is_err());
        assert_eq!(a.reshape(&[2, 3]).unwrap().shape(), [2, 3]);
    }

    #[test]
    fn conversions() {
        let a = Array::from(vec![0u8, 51, 255]);
        assert_eq!(
            a.map_f32(|v| v / 255.0).unwrap().to_vec::<f32>().unwrap(),
            [0.0, 0.2, 1.0]
        );
        assert_eq!(a.to_i32().unwrap().to_vec::<i32>().unwrap(), [0, 51, 255]);
        assert_eq!(
            Array::from(vec![true, false]).to_vec::<bool>().unwrap(),
            [true, false]
        );
        assert_eq!(
            Array::from(vec![-3i64])
                .to_i32()
                .unwrap()
                .to_vec::<i32>()
                .unwrap(),
            [-3]
        );
        let e = Array::from(vec![1i64 << 40]).to_i32().unwrap_err();
        assert!(e.to_string().contains("1099511627776"), "{e}");
        assert!(Array::from(vec![1.0f32]).to_i32().is_err());
        let half = Array::from_bytes(DType::F16, &[1], vec![0, 0x3c]).unwrap();
        assert!(half.map_f32(|v| v).is_err());
    }

    #[test]
    fn a_view_of_misaligned_bytes_is_a_copy_with_the_same_values() {
        let bytes: Vec<u8> = std::iter::once(0)
            .chain(7.5f32.to_ne_bytes())
            .chain((-1.0f32).to_ne_bytes())
            .collect();
        let shifted = (0..4)
            .map(|s| f32::view(&bytes[1..]).get(s).copied())
            .collect::<Vec<_>>();
        assert_eq!(shifted, [Some(7.5), Some(-1.0), None, None]);
    }
}
