//! Shapes: sizes of the axes of a tensor, outermost first.
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// The largest number of axes a tensor may have.
pub const MAX_RANK: usize = 8;

/// The sizes of the axes of a tensor, outermost (slowest) first; at most [`MAX_RANK`] of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    rank: u8,
    // Zero behind the rank.
    dims: [usize; MAX_RANK],
}

// Keys of plans are full of shapes, and most of a shape is the zeros behind its rank.
impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.rank);
        for &size in self.iter() {
            state.write_usize(size);
        }
    }
}

impl Shape {
    /// A shape from its sizes, or `None` if there are more than [`MAX_RANK`].
    pub fn new(dims: &[usize]) -> Option<Shape> {
        if dims.len() > MAX_RANK {
            return None;
        }
        let mut d = [0; MAX_RANK];
        d[..dims.len()].copy_from_slice(dims);
        Some(Shape {
            rank: dims.len() as u8,
            dims: d,
        })
    }

    /// The shape of a scalar: no axes, one element.
    pub const fn scalar() -> Shape {
        Shape {
            rank: 0,
            dims: [0; MAX_RANK],
        }
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The number of elements (1 for a scalar); `None` if it does not fit `usize`.
    pub fn checked_numel(&self) -> Option<usize> {
        self.iter().try_fold(1usize, |a, &d| a.checked_mul(d))
    }

    /// The number of elements (1 for a scalar). Shapes inside nodes have been checked to fit.
    pub fn numel(&self) -> usize {
        self.iter().product()
    }

    /// The row-major strides, in elements.
    pub fn strides(&self) -> Strides {
        let mut s = [0isize; MAX_RANK];
        let mut acc = 1isize;
        for i in (0..self.rank()).rev() {
            s[i] = acc;
            acc *= self.dims[i].max(1) as isize;
        }
        Strides { rank: self.rank, s }
    }

    /// This shape with axis `axis` set to `size`. The axis must exist.
    pub fn with(mut self, axis: usize, size: usize) -> Shape {
        self.dims[axis] = size;
        self
    }

    /// This shape without axis `axis`.
    pub fn without(&self, axis: usize) -> Shape {
        let mut d = *self;
        for i in axis..self.rank() - 1 {
            d.dims[i] = d.dims[i + 1];
        }
        d.rank -= 1;
        d.dims[d.rank()] = 0;
        d
    }

    /// The broadcast of two shapes by NumPy's rules (aligned at the last axis; size 1 stretches).
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let n = self.rank().max(other.rank());
        let mut out = Shape {
            rank: n as u8,
            dims: [0; MAX_RANK],
        };
        for i in 0..n {
            let a = if i + self.rank() >= n {
                self[i + self.rank() - n]
            } else {
                1
            };
            let b = if i + other.rank() >= n {
                other[i + other.rank() - n]
            } else {
                1
            };
            out.dims[i] = match (a, b) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return None,
            };
        }
        Some(out)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Distances in elements between neighbours along each axis; 0 repeats, negative walks backwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strides {
    rank: u8,
    s: [isize; MAX_RANK],
}

impl Strides {
    /// Strides from a slice of at most [`MAX_RANK`] values; more are cut off.
    pub fn new(v: &[isize]) -> Strides {
        let mut s = [0; MAX_RANK];
        let n = v.len().min(MAX_RANK);
        s[..n].copy_from_slice(&v[..n]);
        Strides { rank: n as u8, s }
    }
}

impl Deref for Strides {
    type Target = [isize];
    fn deref(&self) -> &[isize] {
        &self.s[..self.rank as usize]
    }
}

impl fmt::Debug for Strides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn broadcasting_follows_numpy() {
        let s = |d: &[usize]| Shape::new(d).unwrap();
        assert_eq!(s(&[4, 1, 3]).broadcast(&s(&[2, 1])), Some(s(&[4, 2, 3])));
        assert_eq!(s(&[]).broadcast(&s(&[5])), Some(s(&[5])));
        assert_eq!(s(&[0, 3]).broadcast(&s(&[1])), Some(s(&[0, 3])));
        assert_eq!(s(&[2, 3]).broadcast(&s(&[2])), None);
        assert_eq!(&*s(&[2, 3, 4]).strides(), &[12, 4, 1]);
    }
}
