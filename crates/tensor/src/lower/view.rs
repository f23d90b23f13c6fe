//! Views: affine maps from the indices of a tensor to the elements of a dense buffer.
use crate::graph::Axes;
use crate::shape::MAX_RANK;
use crate::{Shape, Strides};

/// Element `i` of a tensor of shape `shape` lies at `offset + sum(i[d] * strides[d])` of its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub shape: Shape,
    pub strides: Strides,
    pub offset: usize,
}

impl View {
    /// The buffer itself.
    pub fn dense(shape: Shape) -> View {
        View {
            shape,
            strides: shape.strides(),
            offset: 0,
        }
    }

    /// Whether the elements in row-major order are the buffer's first elements in order.
    pub fn is_dense(&self) -> bool {
        let want = self.shape.strides();
        self.offset == 0
            && (self.shape.numel() == 0
                || (0..self.shape.rank()).all(|i| self.shape[i] == 1 || self.strides[i] == want[i]))
    }

    /// Whether the elements of the last axis lie together, and all others behind the first.
    pub fn has_rows(&self) -> bool {
        let rank = self.shape.rank();
        rank > 0 && self.strides[rank - 1] == 1 && (0..rank).all(|i| self.strides[i] >= 0)
    }

    pub fn permute(&self, axes: &Axes, shape: Shape) -> View {
        let s: Vec<isize> = (0..shape.rank())
            .map(|i| self.strides[axes.map[i] as usize])
            .collect();
        View {
            shape,
            strides: Strides::new(&s),
            ..*self
        }
    }

    pub fn broadcast(&self, shape: Shape) -> View {
        let lead = shape.rank() - self.shape.rank();
        let s: Vec<isize> = (0..shape.rank())
            .map(|i| match i.checked_sub(lead) {
                Some(j) if self.shape[j] == shape[i] => self.strides[j],
                _ => 0,
            })
            .collect();
        View {
            shape,
            strides: Strides::new(&s),
            ..*self
        }
    }

    pub fn slice(&self, axis: usize, start: usize, step: isize, shape: Shape) -> View {
        let mut s = self.strides.to_vec();
        let offset = self.offset as isize + start as isize * s[axis];
        s[axis] *= step;
        View {
            shape,
            strides: Strides::new(&s),
            offset: offset.max(0) as usize,
        }
    }

    /// The view under another shape of as many elements, if it is still affine.
    pub fn reshape(&self, shape: Shape) -> Option<View> {
        if shape == self.shape {
            return Some(*self);
        }
        if self.is_dense() {
            return Some(View::dense(shape));
        }
        if shape.numel() == 0 {
            return Some(View {
                shape,
                strides: shape.strides(),
                offset: self.offset,
            });
        }
        // Match runs of old axes with runs of new axes of equal product; each run of old axes must be contiguous in itself.
        let old: Vec<(usize, isize)> = (0..self.shape.rank())
            .filter(|&i| self.shape[i] != 1)
            .map(|i| (self.shape[i], self.strides[i]))
            .collect();
        let mut out = [0isize; MAX_RANK];
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (mut a, mut i2) = (old[i].0, i + 1);
            let start = j;
            let mut b = 1;
            while j < shape.rank() && (b == 1 || b < a) {
                b *= shape[j];
                j += 1;
            }
            while a != b {
                if a < b {
                    a *= old.get(i2)?.0;
                    i2 += 1;
                } else {
                    b *= *shape.get(j)?;
                    j += 1;
                }
            }
            if (i + 1..i2).any(|d| old[d - 1].1 != old[d].1 * old[d].0 as isize) {
                return None;
            }
            let mut stride = old[i2 - 1].1;
            for d in (start..j).rev() {
                out[d] = stride;
                stride *= shape[d] as isize;
            }
            i = i2;
        }
        Some(View {
            shape,
            strides: Strides::new(&out[..shape.rank()]),
            offset: self.offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(v: &View) -> Vec<isize> {
        let mut out = Vec::new();
        for linear in 0..v.shape.numel() {
            let (mut rest, mut at) = (linear, v.offset as isize);
            for d in (0..v.shape.rank()).rev() {
                at += (rest % v.shape[d]) as isize * v.strides[d];
                rest /= v.shape[d];
            }
            out.push(at);
        }
        out
    }

    #[test]
    fn reshape_keeps_the_order_of_elements_or_refuses() {
        let s = |d: &[usize]| Shape::new(d).unwrap();
        let swap = Axes {
            map: [1, 0, 2, 3, 4, 5, 6, 7],
        };
        let base = View::dense(s(&[4, 6, 5]));
        let views = [
            base,
            base.permute(&swap, s(&[6, 4, 5])),
            base.slice(1, 1, 2, s(&[4, 3, 5])),
            base.slice(0, 3, -1, s(&[4, 6, 5])),
            View::dense(s(&[1, 6, 1])).broadcast(s(&[4, 6, 5])),
        ];
        let shapes: &[&[usize]] = &[
            &[120],
            &[24, 5],
            &[4, 30],
            &[2, 2, 6, 5],
            &[6, 4, 5],
            &[6, 2, 2, 5],
            &[24, 1, 5],
            &[12, 5],
            &[4, 3, 5, 1],
            &[4, 15],
            &[60],
            &[4, 2, 3, 5],
            &[1, 4, 6, 5],
            &[3, 40],
            &[2, 60],
        ];
        let mut done = 0;
        for v in views {
            for t in shapes {
                if s(t).numel() != v.shape.numel() {
                    continue;
                }
                if let Some(r) = v.reshape(s(t)) {
                    assert_eq!(elements(&r), elements(&v), "{v:?} to {t:?}");
                    done += 1;
                }
            }
        }
        assert!(done > 20, "{done}");
        assert!(
            base.permute(&swap, s(&[6, 4, 5]))
                .reshape(s(&[24, 5]))
                .is_none()
        );
    }
}
