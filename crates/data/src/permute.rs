//! Keyed random functions: a permutation and a hash, both pure functions of their keys.

/// SplitMix64's output function (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 64 random bits for (`seed`, `n`).
pub(crate) fn keyed(seed: u64, n: u64) -> u64 {
    mix(mix(seed) ^ n)
}

const ROUNDS: usize = 8;

/// A random permutation of `0..len` that is a pure function of (seed, epoch), evaluated one element at a time.
///
/// A balanced Feistel network over a power of four that holds the range, walked until it lands inside the range (Black and
/// Rogaway, "Ciphers with arbitrary finite domains", 2002). It needs no memory for the order, so a position in
/// an epoch is one number, whatever the size of the data.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` for a seed and an epoch.
    pub fn new(len: usize, seed: u64, epoch: u64) -> Permutation {
        let len = len as u64;
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        // A network on very few bits reaches only some of the orders; a walk in a domain of 2^8 reaches all, evenly.
        let half_bits = bits.div_ceil(2).max(4);
        let key = keyed(seed, epoch);
        let mut keys = [0; ROUNDS];
        for (round, slot) in keys.iter_mut().enumerate() {
            *slot = keyed(key, round as u64);
        }
        Permutation {
            len,
            half_bits,
            keys,
        }
    }

    /// The element at `position`; `None` outside the range.
    pub fn get(&self, position: usize) -> Option<usize> {
        let mut x = position as u64;
        if x >= self.len {
            return None;
        }
        // Ends: the network is a bijection of the larger domain, so the walk comes back into the range at the
        // latest where it began.
        loop {
            x = self.encrypt(x);
            if x < self.len {
                return Some(x as usize);
            }
        }
    }

    fn encrypt(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn order(len: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let p = Permutation::new(len, seed, epoch);
        (0..len).map(|i| p.get(i).unwrap()).collect()
    }

    #[test]
    fn is_a_bijection() {
        let sizes = (0..70).chain([
            100, 255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4097, 6000, 16385,
        ]);
        for len in sizes {
            for seed in [0, 1, 42, u64::MAX] {
                let mut o = order(len, seed, seed % 3);
                o.sort_unstable();
                assert!(o.iter().copied().eq(0..len), "len {len}, seed {seed}");
            }
        }
        assert_eq!(Permutation::new(5, 0, 0).get(5), None);
        assert_eq!(Permutation::new(0, 0, 0).get(0), None);
    }

    #[test]
    fn huge_ranges_stay_inside_and_do_not_collide() {
        for len in [usize::MAX, isize::MAX as usize, (1 << 40) + 1] {
            let p = Permutation::new(len, 3, 0);
            let mut seen: Vec<usize> = (0..1000).map(|i| p.get(i).unwrap()).collect();
            seen.push(p.get(len - 1).unwrap());
            assert!(seen.iter().all(|s| *s < len));
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 1001);
        }
    }

    #[test]
    fn epochs_and_seeds_give_unrelated_orders() {
        let n = 5000;
        let base = order(n, 1, 0);
        for (seed, epoch) in [(1, 1), (1, 2), (2, 0), (0, 1), (2, 1)] {
            let other = order(n, seed, epoch);
            // Two independent orders agree in 1 place on average; 12 has a chance below 1e-9.
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(
                same < 12,
                "seed {seed}, epoch {epoch}: {same} of {n} in the same place"
            );
        }
        let still = base.iter().enumerate().filter(|(i, v)| i == *v).count();
        assert!(still < 12, "{still} fixed points");
        // Neighbours must not stay neighbours.
        let near = base.windows(2).filter(|w| w[0].abs_diff(w[1]) == 1).count();
        assert!(near < 16, "{near} neighbours kept");
    }

    #[test]
    fn every_order_of_a_small_set_is_equally_likely() {
        for (len, orders) in [(2, 2), (3, 6), (4, 24), (5, 120)] {
            let trials = 200 * orders;
            let mut counts: HashMap<Vec<usize>, usize> = HashMap::new();
            for epoch in 0..trials {
                *counts.entry(order(len, 9, epoch as u64)).or_default() += 1;
            }
            assert_eq!(counts.len(), orders);
            let chi2: f64 = counts
                .values()
                .map(|c| (*c as f64 - 200.0).powi(2) / 200.0)
                .sum();
            let dof = (orders - 1) as f64;
            // Mean dof, standard deviation sqrt(2 dof): five of them.
            assert!(
                chi2 < dof + 5.0 * (2.0 * dof).sqrt() + 5.0,
                "len {len}: chi2 {chi2} at {dof}"
            );
        }
    }

    #[test]
    fn places_are_uniform_in_a_larger_set() {
        // Where do samples 0, 1 and 999 of 1000 land, over 20,000 epochs, in 20 bins of 50?
        for sample in [0, 1, 999] {
            let mut bins = [0f64; 20];
            for epoch in 0..20_000 {
                bins[Permutation::new(1000, 4, epoch).get(sample).unwrap() / 50] += 1.0;
            }
            let chi2: f64 = bins.iter().map(|c| (c - 1000.0).powi(2) / 1000.0).sum();
            assert!(
                chi2 < 19.0 + 5.0 * 38f64.sqrt(),
                "sample {sample}: chi2 {chi2}"
            );
        }
    }

    /// The order is part of every checkpoint's meaning: a change here breaks resuming old runs. The numbers come
    /// from an independent implementation in Python.
    #[test]
    fn the_order_is_pinned() {
        assert_eq!(order(10, 0, 0), [3, 7, 1, 2, 8, 9, 6, 5, 0, 4]);
        assert_eq!(order(10, 7, 3), [1, 7, 6, 4, 5, 0, 3, 2, 8, 9]);
        assert_eq!(
            order(60_000, 1, 2)[..6],
            [4390, 44523, 34079, 33314, 40519, 57519]
        );
    }
}
