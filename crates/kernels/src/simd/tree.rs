//! The fixed order in which the results of blocks are combined.

/// Combines the results of consecutive blocks pairwise: (0, 1), (2, 3), then pairs of pairs, and so on.
///
/// The shape of the tree depends on the number of blocks alone, and rounding errors of a sum grow with its
/// depth. An aligned run of `2^k` blocks is a subtree: threads may reduce such runs apart and push the
/// results in order for the same bits.
pub struct Tree<T, F> {
    combine: F,
    /// Results of subtrees, one for each bit set in `count`, largest first.
    stack: [T; 64],
    depth: usize,
    count: u64,
    identity: T,
}

impl<T: Copy, F: Fn(T, T) -> T> Tree<T, F> {
    /// An empty tree; `identity` is the result if nothing is pushed.
    #[inline(always)]
    pub fn new(identity: T, combine: F) -> Self {
        Tree {
            combine,
            stack: [identity; 64],
            depth: 0,
            count: 0,
            identity,
        }
    }

    /// Adds the result of the next block.
    #[inline(always)]
    pub fn push(&mut self, mut value: T) {
        let mut carry = self.count;
        while carry & 1 == 1 {
            self.depth -= 1;
            value = (self.combine)(self.stack[self.depth], value);
            carry >>= 1;
        }
        self.stack[self.depth] = value;
        self.depth += 1;
        self.count += 1;
    }

    /// The result of all blocks; incomplete subtrees join from the right.
    #[inline(always)]
    pub fn finish(self) -> T {
        let mut parts = self.stack[..self.depth].iter().rev().copied();
        let Some(last) = parts.next() else {
            return self.identity;
        };
        parts.fold(last, |right, left| (self.combine)(left, right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as a formula, written by recursion.
    fn formula(n: u32, from: u32) -> String {
        if n == 1 {
            return from.to_string();
        }
        let left = 1 << (31 - (n - 1).leading_zeros());
        format!(
            "({} {})",
            formula(left, from),
            formula(n - left, from + left)
        )
    }

    #[test]
    fn pairs_of_pairs_in_order() {
        use std::cell::RefCell;
        for n in 1..70u32 {
            // Values are indices into the list of the terms made so far.
            let terms = RefCell::new((0..n).map(|i| i.to_string()).collect::<Vec<_>>());
            let mut tree = Tree::new(0, |a: usize, b: usize| {
                let mut t = terms.borrow_mut();
                let joined = format!("({} {})", t[a], t[b]);
                t.push(joined);
                t.len() - 1
            });
            (0..n as usize).for_each(|i| tree.push(i));
            let last = tree.finish();
            assert_eq!(terms.borrow()[last], formula(n, 0));
        }
        assert_eq!(Tree::new(7, |a: i32, b: i32| a + b).finish(), 7);
    }
}
