//! A data set held in memory.

use crate::{Array, ErrorKind, Field, Result, Source};

/// Samples in memory: arrays with equal first dimension, one row a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct InMemory {
    arrays: Vec<Array>,
    fields: Vec<Field>,
    len: usize,
}

impl InMemory {
    /// A data set from arrays `[n, ...]`; an error if there is none, one has no dimension, or the first dimensions differ.
    pub fn new(arrays: Vec<Array>) -> Result<InMemory> {
        let mismatch = |what: &str, expected: String, found: String| {
            Err(ErrorKind::Mismatch {
                what: what.into(),
                expected,
                found,
            }
            .into())
        };
        let Some(first) = arrays.first() else {
            return mismatch(
                "an in-memory data set",
                "at least one array".into(),
                "none".into(),
            );
        };
        let len = first.rows();
        for (i, array) in arrays.iter().enumerate() {
            if array.shape().is_empty() {
                return mismatch(
                    &format!("array {i}"),
                    "at least one dimension".into(),
                    "a scalar".into(),
                );
            }
            if array.rows() != len {
                return mismatch(
                    &format!("array {i}"),
                    format!("first dimension {len}, as array 0 has"),
                    format!("shape {:?}", array.shape()),
                );
            }
        }
        let fields = arrays.iter().map(Field::of).collect();
        Ok(InMemory {
            arrays,
            fields,
            len,
        })
    }

    /// The arrays, each `[n, ...]`.
    pub fn arrays(&self) -> &[Array] {
        &self.arrays
    }
}

impl Source for InMemory {
    fn len(&self) -> usize {
        self.len
    }
    fn fields(&self) -> &[Field] {
        &self.fields
    }
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>> {
        self.arrays.iter().map(|a| a.gather(indices)).collect()
    }
}
