//! Sums over rows, one per column, from the partial sums of blocks of rows.
use crate::par;
use rayon::prelude::*;

/// Additions that are not worth another thread.
const FEW: usize = 1 << 17;

/// Rows whose column sums are accumulated one after the other; depends on the shape alone.
pub fn block_rows(cols: usize) -> usize {
    (65_536 / cols.max(1)).clamp(8, 256)
}

/// Adds vectors of length `width` laid end to end, pairwise as in [`crate::simd::Tree`]; the sum is left in the first.
pub fn add_pairwise(partial: &mut [f32], width: usize) {
    let mut stride = width;
    while stride < partial.len() {
        let add = |pair: &mut [f32]| {
            if pair.len() > stride {
                let (left, right) = pair.split_at_mut(stride);
                for (a, b) in left[..width].iter_mut().zip(&right[..width]) {
                    *a += *b;
                }
            }
        };
        match partial.len() / stride * width < FEW {
            true => partial.chunks_mut(2 * stride).for_each(add),
            false => par::items(partial.par_chunks_mut(2 * stride), |_, pair| add(pair)),
        }
        stride *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Tree;

    #[test]
    fn the_tree_is_that_of_the_reductions() {
        for n in [1, 2, 3, 7, 8, 13] {
            let mut x: Vec<f32> = (0..n * 3).map(|i| 1.0 / (i as f32 + 0.7)).collect();
            let want: Vec<f32> = (0..3)
                .map(|c| {
                    let mut t = Tree::new(0.0, |a: f32, b: f32| a + b);
                    (0..n).for_each(|r| t.push(x[r * 3 + c]));
                    t.finish()
                })
                .collect();
            add_pairwise(&mut x, 3);
            assert_eq!(x[..3], want);
        }
        add_pairwise(&mut [], 3);
    }
}
