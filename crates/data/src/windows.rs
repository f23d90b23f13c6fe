//! Windows over a sequence of tokens, for language models: `x` and `y`, which is `x` one token later.

use std::sync::Arc;

use bimetal_dtype::DType;

use crate::permute::keyed;
use crate::{Array, ErrorKind, Field, Result, Source};

#[derive(Clone)]
struct Tokens {
    tokens: Arc<[i32]>,
    context: usize,
    fields: Vec<Field>,
}

impl Tokens {
    fn new(tokens: Arc<[i32]>, context: usize) -> Result<Tokens> {
        if context == 0 {
            return Err(ErrorKind::Options(
                "a context of 0 tokens asked for, expected at least 1".into(),
            )
            .into());
        }
        if tokens.len() <= context {
            let needed = context.saturating_add(1);
            return Err(ErrorKind::TextTooShort {
                tokens: tokens.len(),
                needed,
            }
            .into());
        }
        let fields = vec![Field::new(DType::I32, &[context]); 2];
        Ok(Tokens {
            tokens,
            context,
            fields,
        })
    }

    /// `x` and `y`, each I32 `[indices, context]`, for windows that begin where `start` says.
    fn gather(
        &self,
        indices: &[usize],
        len: usize,
        start: impl Fn(usize) -> usize,
    ) -> Result<Vec<Array>> {
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for &index in indices {
            if index >= len {
                return Err(ErrorKind::Index { index, len }.into());
            }
            let first = start(index);
            x.extend_from_slice(&self.tokens[first..first + self.context]);
            y.extend_from_slice(&self.tokens[first + 1..first + 1 + self.context]);
        }
        let shape = [indices.len(), self.context];
        Ok(vec![
            Array::from_vec(x, &shape)?,
            Array::from_vec(y, &shape)?,
        ])
    }
}

/// Windows at random places, for training by steps: practically endless.
///
/// The place of sample `i` is a pure function of (seed, `i`), uniform over all places. The length is
/// `isize::MAX`, so a loader never comes to the end of its first epoch; do not shuffle it. `take(n)` makes
/// an epoch of `n` windows, the same in every epoch.
#[derive(Clone)]
pub struct RandomWindows {
    tokens: Tokens,
    seed: u64,
}

impl RandomWindows {
    /// Windows of `context` + 1 tokens: fields `x` and `y`, both I32 `[context]`. An error if the context is 0 or
    /// the sequence shorter than one window.
    pub fn new(tokens: impl Into<Arc<[i32]>>, context: usize, seed: u64) -> Result<RandomWindows> {
        Ok(RandomWindows {
            tokens: Tokens::new(tokens.into(), context)?,
            seed,
        })
    }
}

impl Source for RandomWindows {
    fn len(&self) -> usize {
        isize::MAX as usize
    }
    fn fields(&self) -> &[Field] {
        &self.tokens.fields
    }
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>> {
        let places = (self.tokens.tokens.len() - self.tokens.context) as u128;
        // The high half of the product maps 64 random bits onto the places without the bias of a remainder.
        let start =
            |index: usize| ((u128::from(keyed(self.seed, index as u64)) * places) >> 64) as usize;
        self.tokens.gather(indices, self.len(), start)
    }
}

/// Windows one after the other, for evaluation: each token but the first is a target once; up to `context` - 1 at
/// the end, which do not fill a window, are left out.
#[derive(Clone)]
pub struct Windows {
    tokens: Tokens,
}

impl Windows {
    /// Windows of `context` + 1 tokens: fields `x` and `y`, both I32 `[context]`. An error if the context is 0 or
    /// the sequence shorter than one window.
    pub fn new(tokens: impl Into<Arc<[i32]>>, context: usize) -> Result<Windows> {
        Ok(Windows {
            tokens: Tokens::new(tokens.into(), context)?,
        })
    }
}

impl Source for Windows {
    fn len(&self) -> usize {
        (self.tokens.tokens.len() - 1) / self.tokens.context
    }
    fn fields(&self) -> &[Field] {
        &self.tokens.fields
    }
    fn gather(&self, indices: &[usize]) -> Result<Vec<Array>> {
        self.tokens
            .gather(indices, self.len(), |index| index * self.tokens.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_tile_the_sequence() {
        let w = Windows::new((0..10).collect::<Vec<i32>>(), 3).unwrap();
        assert_eq!(w.len(), 3);
        let xy = w.gather(&[2, 0]).unwrap();
        assert_eq!(xy[0].shape(), [2, 3]);
        assert_eq!(xy[0].to_vec::<i32>().unwrap(), [6, 7, 8, 0, 1, 2]);
        assert_eq!(xy[1].to_vec::<i32>().unwrap(), [7, 8, 9, 1, 2, 3]);
        assert!(w.gather(&[3]).is_err());
        // Nine tokens fill two windows of three with their targets, and no third.
        assert_eq!(
            Windows::new((0..9).collect::<Vec<i32>>(), 3).unwrap().len(),
            2
        );
        assert_eq!(Windows::new(vec![1, 2], 1).unwrap().len(), 1);
    }

    #[test]
    fn random_windows_reach_every_place_evenly_and_depend_on_seed_and_index_alone() {
        let tokens: Arc<[i32]> = (0..13).collect();
        let w = RandomWindows::new(tokens.clone(), 3, 5).unwrap();
        let indices: Vec<usize> = (0..10_000).collect();
        let xy = w.gather(&indices).unwrap();
        let (x, y) = (
            xy[0].to_vec::<i32>().unwrap(),
            xy[1].to_vec::<i32>().unwrap(),
        );
        let mut counts = [0f64; 10];
        for (x, y) in x.chunks(3).zip(y.chunks(3)) {
            assert!((0..3).all(|i| x[i] == x[0] + i as i32 && y[i] == x[i] + 1));
            counts[x[0] as usize] += 1.0;
        }
        let chi2: f64 = counts.iter().map(|c| (c - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi2 < 9.0 + 5.0 * 18f64.sqrt(), "{counts:?}");

        assert_eq!(
            w.gather(&[777]).unwrap()[0].to_vec::<i32>().unwrap(),
            x[3 * 777..3 * 778]
        );
        let other = RandomWindows::new(tokens, 3, 6)
            .unwrap()
            .gather(&indices)
            .unwrap();
        assert_ne!(other[0].to_vec::<i32>().unwrap(), x);
        assert!(w.gather(&[isize::MAX as usize - 1]).is_ok());
    }

    #[test]
    fn short_texts_are_errors() {
        let e = RandomWindows::new(vec![1, 2, 3], 3, 0)
            .map(|_| ())
            .unwrap_err();
        assert!(
            matches!(
                e.kind(),
                ErrorKind::TextTooShort {
                    tokens: 3,
                    needed: 4
                }
            ),
            "{e}"
        );
        assert!(Windows::new(vec![1, 2, 3], 0).is_err());
        assert!(Windows::new(Vec::new(), 1).is_err());
        assert!(RandomWindows::new(vec![1, 2, 3], 2, 0).is_ok());
    }
}
