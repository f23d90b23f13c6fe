//! What consumers add to the gradient of a value, and the sum of it.
use bimetal_tensor::{DType, Result, Shape, Tensor};

/// One consumer's part of a gradient.
pub(crate) enum Contribution {
    /// For the whole value.
    Whole(Tensor),
    /// For the elements from `start` along `axis`; zero elsewhere.
    Range {
        axis: usize,
        start: usize,
        part: Tensor,
    },
}

impl From<Tensor> for Contribution {
    fn from(t: Tensor) -> Contribution {
        Contribution::Whole(t)
    }
}

/// The dtype in which the gradient of a value of dtype `d` travels: 8 bits would not hold it.
pub(crate) fn carrier(d: DType) -> DType {
    match d {
        DType::F8E4M3 | DType::F8E5M2 => DType::F32,
        d => d,
    }
}

impl Contribution {
    pub fn tensor(&self) -> &Tensor {
        match self {
            Contribution::Whole(t) | Contribution::Range { part: t, .. } => t,
        }
    }

    /// Whether it is for the whole value.
    pub fn is_whole(&self) -> bool {
        matches!(self, Contribution::Whole(_))
    }

    /// In the dtype gradients of `d` travel in.
    pub fn carried(self, d: DType) -> Contribution {
        if self.tensor().dtype() == carrier(d) {
            return self;
        }
        match self {
            Contribution::Whole(t) => Contribution::Whole(t.cast(carrier(d))),
            Contribution::Range { axis, start, part } => Contribution::Range {
                axis,
                start,
                part: part.cast(carrier(d)),
            },
        }
    }
}

/// The gradient of a value of shape `shape` from its contributions, in their order.
pub(crate) fn total(list: Vec<Contribution>, shape: Shape) -> Result<Tensor> {
    let mut whole = Vec::new();
    let mut axes: Vec<(usize, Vec<(usize, Tensor)>)> = Vec::new();
    for c in list {
        match c {
            Contribution::Whole(t) => whole.push(t),
            Contribution::Range { axis, start, part } => {
                match axes.iter_mut().find(|(a, _)| *a == axis) {
                    Some((_, parts)) => parts.push((start, part)),
                    None => axes.push((axis, vec![(start, part)])),
                }
            }
        }
    }
    for (axis, parts) in axes {
        whole.extend(assemble(axis, parts, shape)?);
    }
    sum(whole).check().cloned()
}

/// Slices of one axis as whole tensors: one concatenation if no two of them overlap, else each padded with zeros.
fn assemble(axis: usize, parts: Vec<(usize, Tensor)>, shape: Shape) -> Result<Vec<Tensor>> {
    let mut ranges: Vec<(usize, usize, Vec<Tensor>)> = Vec::new();
    for (start, part) in parts {
        let count = part.shape()?[axis];
        match ranges.iter_mut().find(|r| (r.0, r.1) == (start, count)) {
            Some(r) => r.2.push(part),
            None => ranges.push((start, count, vec![part])),
        }
    }
    ranges.sort_by_key(|r| (r.0, r.1));
    let disjoint = ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0);
    let size = shape[axis];
    let a = axis as isize;
    if ranges.len() == 1 || !disjoint {
        return Ok(ranges
            .into_iter()
            .map(|(start, count, parts)| sum(parts).pad(a, start, size - start - count))
            .collect());
    }
    let mut pieces: Vec<Tensor> = Vec::new();
    let mut end = 0;
    for (start, count, parts) in ranges {
        let t = sum(parts);
        if start > end {
            pieces.push(zeros(&t, shape.with(axis, start - end)));
        }
        end = start + count;
        pieces.push(t);
    }
    if end < size {
        let gap = zeros(&pieces[0], shape.with(axis, size - end));
        pieces.push(gap);
    }
    Ok(vec![Tensor::concat(&pieces.iter().collect::<Vec<_>>(), a)])
}

/// Zeros of another shape, dtype and device as `like`.
pub(crate) fn zeros(like: &Tensor, shape: Shape) -> Tensor {
    match like.device() {
        Some(d) => Tensor::zeros(&shape, like.dtype(), d),
        None => like.clone(),
    }
}

/// The sum as a balanced tree; many 16-bit summands are added in f32 and rounded once.
fn sum(mut terms: Vec<Tensor>) -> Tensor {
    let dtype = terms.first().map_or(DType::F32, Tensor::dtype);
    if dtype.is_half() && terms.len() > 2 {
        terms.iter_mut().for_each(|t| *t = t.cast(DType::F32));
    }
    while terms.len() > 1 {
        terms = terms
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => a + b,
                rest => rest[0].clone(),
            })
            .collect();
    }
    match terms.pop() {
        Some(t) => t.cast(dtype),
        None => Tensor::scalar(0.0),
    }
}
