//! Random numbers on the host.

/// SplitMix64 (Steele, Lea, Flood 2014) from a key: the same key gives the same numbers, in a resumed run too.
pub struct Random(u64);

impl Random {
    /// The stream of a key such as `[seed, epoch, batch]`.
    pub fn new(key: &[u64]) -> Random {
        let mut random = Random(0);
        for part in key {
            random.0 = random.bits() ^ part;
        }
        random
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.fraction() * n as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn keys_tell_streams_apart_and_numbers_spread() {
        let draw = |key: &[u64]| Random::new(key).bits();
        assert_eq!(draw(&[1, 2]), draw(&[1, 2]));
        assert_ne!(draw(&[1, 2]), draw(&[2, 1]));
        assert_ne!(draw(&[1, 0]), draw(&[1]));
        let mut counts = [0; 5];
        let mut random = Random::new(&[0]);
        (0..5000).for_each(|_| counts[random.below(5)] += 1);
        assert!(counts.iter().all(|n| (900..1100).contains(n)), "{counts:?}");
    }
}
