//! Data sets made from data sets.

use std::ops::Range;

use crate::source::check_gathered;
use crate::{Array, Dataset, ErrorKind, Field, Result, Source};

/// A range of a data set.
pub(crate) struct Part {
    base: Dataset,
    range: Range<usize>,
}

impl Part {
    /// `range` lies within `base`.
    pub(crate) fn new(base: Dataset, range: Range<usize>) -> Part {
        Part { base, range }
    }
}

impl Source for Part {
    fn len(&self) -> usize {
        self.range.len()
    }
    fn fields(&self) -> &[Field] {
        self.base.fields()
    }
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>> {
        let len = self.range.len();
        let shifted: Vec<usize> = indices
            .iter()
            .map(|&index| {
                if index < len {
                    Ok(self.range.start + index)
                } else {
                    Err(ErrorKind::Index { index, len }.into())
                }
            })
            .collect::<Result<_>>()?;
        self.base.gather(&shifted)
    }
}

/// One data set after another.
pub(crate) struct Concat {
    first: Dataset,
    second: Dataset,
    len: usize,
}

impl Concat {
    pub(crate) fn new(first: Dataset, second: Dataset) -> Result<Concat> {
        if first.fields() != second.fields() {
            return Err(ErrorKind::Mismatch {
                what: "fields of the second data set in concat".into(),
                expected: format!("{:?}", first.fields()),
                found: format!("{:?}", second.fields()),
            }
            .into());
        }
        let len = first
            .len()
            .checked_add(second.len())
            .ok_or_else(|| ErrorKind::Mismatch {
                what: "samples of both data sets in concat".into(),
                expected: format!("at most {}", usize::MAX),
                found: format!("{} + {}", first.len(), second.len()),
            })?;
        Ok(Concat { first, second, len })
    }
}

impl Source for Concat {
    fn len(&self) -> usize {
        self.len
    }
    fn fields(&self) -> &[Field] {
        self.first.fields()
    }
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>> {
        let border = self.first.len();
        if let Some(&index) = indices.iter().find(|i| **i >= self.len) {
            return Err(ErrorKind::Index {
                index,
                len: self.len,
            }
            .into());
        }
        let (mut low, mut high) = (Vec::new(), Vec::new());
        // Where each row lies once the rows of both data sets stand one after the other.
        let mut place = Vec::with_capacity(indices.len());
        let lows = indices.iter().filter(|i| **i < border).count();
        for &index in indices {
            if index < border {
                place.push(low.len());
                low.push(index);
            } else {
                place.push(lows + high.len());
                high.push(index - border);
            }
        }
        if high.is_empty() {
            return self.first.gather(&low);
        }
        if low.is_empty() {
            return self.second.gather(&high);
        }
        let (a, b) = (self.first.gather(&low)?, self.second.gather(&high)?);
        check_gathered("the first data set in concat", &a, self.fields(), low.len())?;
        check_gathered(
            "the second data set in concat",
            &b,
            self.fields(),
            high.len(),
        )?;
        a.into_iter()
            .zip(b)
            .map(|(a, b)| {
                let (dtype, mut shape, mut bytes) = a.into_parts();
                bytes.extend_from_slice(b.bytes());
                if let Some(rows) = shape.first_mut() {
                    *rows += b.rows();
                }
                Array::from_bytes(dtype, &shape, bytes)?.gather(&place)
            })
            .collect()
    }
}

type MapFn = Box<dyn Fn(Vec<Array>) -> Result<Vec<Array>> + Send + Sync>;

/// A data set whose gathered arrays go through a function.
pub(crate) struct Map {
    base: Dataset,
    f: MapFn,
    fields: Vec<Field>,
}

impl Map {
    pub(crate) fn new(base: Dataset, f: MapFn) -> Result<Map> {
        if base.is_empty() {
            return Err(ErrorKind::Empty.into());
        }
        let probe = f(base.gather(&[0])?)?;
        let fields: Vec<Field> = probe.iter().map(Field::of).collect();
        check_gathered("the mapped data set", &probe, &fields, 1)?;
        Ok(Map { base, f, fields })
    }
}

impl Source for Map {
    fn len(&self) -> usize {
        self.base.len()
    }
    fn fields(&self) -> &[Field] {
        &self.fields
    }
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>> {
        let arrays = (self.f)(self.base.gather(indices)?)?;
        check_gathered("the mapped data set", &arrays, &self.fields, indices.len())?;
        Ok(arrays)
    }
}
