//! Random access to samples.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bimetal_dtype::DType;

use crate::adapt::{Concat, Map, Part};
use crate::{Array, ErrorKind, Result};

/// One of the arrays a sample consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Element type.
    pub dtype: DType,
    /// Shape of one sample, without the batch dimension.
    pub shape: Vec<usize>,
}

impl Field {
    /// A field of `dtype` and per-sample `shape`.
    pub fn new(dtype: DType, shape: &[usize]) -> Field {
        Field {
            dtype,
            shape: shape.to_vec(),
        }
    }

    pub(crate) fn of(array: &Array) -> Field {
        Field::new(array.dtype(), array.shape().get(1..).unwrap_or(&[]))
    }
}

/// A data set with random access; `gather` must be a pure function of the indices.
pub trait Source: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// The arrays of a sample, in the order `gather` returns them.
    fn fields(&self) -> &[Field];

    /// The samples `indices` in that order, one array `[indices.len(), ...]` a field; an error for an index outside.
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>>;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The source behind a handle that is cheap to clone.
    fn dataset(self) -> Dataset
    where
        Self: Sized + 'static,
    {
        Dataset(Arc::new(self))
    }

    /// The first `n` samples, all if there are fewer.
    fn take(self, n: usize) -> Dataset
    where
        Self: Sized + 'static,
    {
        let end = n.min(self.len());
        Dataset(Arc::new(Part::new(self.dataset(), 0..end)))
    }

    /// The samples of a range; an error if it goes beyond the data set.
    fn range(self, range: Range<usize>) -> Result<Dataset>
    where
        Self: Sized + 'static,
    {
        let Range { start, end } = range;
        if start > end || end > self.len() {
            return Err(ErrorKind::Range {
                start,
                end,
                len: self.len(),
            }
            .into());
        }
        Ok(Dataset(Arc::new(Part::new(self.dataset(), range))))
    }

    /// The first `n` samples and the rest; an error if there are fewer than `n`.
    fn split_at(self, n: usize) -> Result<(Dataset, Dataset)>
    where
        Self: Sized + 'static,
    {
        let all = self.dataset();
        let len = all.len();
        if n > len {
            return Err(ErrorKind::Range {
                start: 0,
                end: n,
                len,
            }
            .into());
        }
        Ok((all.clone().range(0..n)?, all.range(n..len)?))
    }

    /// This data set followed by another; an error if their fields differ.
    fn concat(self, other: impl Source + 'static) -> Result<Dataset>
    where
        Self: Sized + 'static,
    {
        Ok(Dataset(Arc::new(Concat::new(
            self.dataset(),
            other.dataset(),
        )?)))
    }

    /// Every gathered group of samples through `f`: arrays `[rows, ...]` in, arrays with as many rows out.
    ///
    /// `f` must treat each sample by itself: it sees whatever samples a batch happens to hold. It is called once
    /// on the first sample to learn the new fields; an error if there is none.
    fn map(
        self,
        f: impl Fn(Vec<Array>) -> Result<Vec<Array>> + Send + Sync + 'static,
    ) -> Result<Dataset>
    where
        Self: Sized + 'static,
    {
        Ok(Dataset(Arc::new(Map::new(self.dataset(), Box::new(f))?)))
    }
}

/// A [`Source`] of any kind, shared and cheap to clone.
#[derive(Clone)]
pub struct Dataset(Arc<dyn Source>);

impl Source for Dataset {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fields(&self) -> &[Field] {
        self.0.fields()
    }
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>> {
        self.0.gather(indices)
    }
    fn dataset(self) -> Dataset {
        self
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset")
            .field("len", &self.len())
            .field("fields", &self.fields())
            .finish()
    }
}

/// Whether gathered arrays are what the fields promise for `rows` samples.
pub(crate) fn check_gathered(
    what: &str,
    arrays: &[Array],
    fields: &[Field],
    rows: usize,
) -> Result<()> {
    let mismatch = |what: String, expected: String, found: String| {
        Err(ErrorKind::Mismatch {
            what,
            expected,
            found,
        }
        .into())
    };
    if arrays.len() != fields.len() {
        return mismatch(
            what.into(),
            format!("{} arrays", fields.len()),
            format!("{}", arrays.len()),
        );
    }
    for (i, (array, field)) in arrays.iter().zip(fields).enumerate() {
        let mut shape = vec![rows];
        shape.extend_from_slice(&field.shape);
        if array.dtype() != field.dtype || array.shape() != shape {
            return mismatch(
                format!("array {i} of {what}"),
                format!("{:?} {shape:?}", field.dtype),
                format!("{:?} {:?}", array.dtype(), array.shape()),
            );
        }
    }
    Ok(())
}
