//! Distributions over the Philox stream; element i depends on the key, `ctr_hi` and i only.
use super::SimdLevel;
use super::isa::{Isa, map, pick};
use super::log::log;
use super::philox::{GROUP, philox_at};
use super::trig::sin_cos_turns;

/// Words drawn at a time; even, so that pairs stay whole.
const CHUNK: usize = 512;

/// 24 bits in `[0, 1)`: `(u >> 8) * 2^-24`.
#[inline(always)]
fn unit(u: u32) -> f32 {
    (u >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

/// Draws chunk by chunk and lets `f` turn words into results.
fn by_chunks<T>(
    level: SimdLevel,
    key: [u32; 2],
    ctr_hi: [u32; 2],
    first_element: u64,
    out: &mut [T],
    f: impl Fn(&mut [T], &[u32]),
) {
    let draw = philox_at(level);
    let mut words = [0; CHUNK];
    let mut at = first_element;
    for part in out.chunks_mut(CHUNK) {
        let words = &mut words[..part.len()];
        draw(key, ctr_hi, at, words);
        f(part, words);
        at = at.wrapping_add(part.len() as u64);
    }
}

/// Uniform in `[0, 1)`: element i is `(u_i >> 8) * 2^-24`.
pub fn fill_uniform(key: [u32; 2], ctr_hi: [u32; 2], first_element: u64, out: &mut [f32]) {
    uniform_at(super::simd_level(), key, ctr_hi, first_element, out)
}

pub fn uniform_at(level: SimdLevel, key: [u32; 2], ctr_hi: [u32; 2], first: u64, out: &mut [f32]) {
    let convert = pick!(level, fn(dst: &mut [f32], u: &[u32]) { map(dst, u, unit) });
    by_chunks(level, key, ctr_hi, first, out, convert)
}

/// The threshold at which [`fill_bernoulli`] keeps an element with probability `p`: `ceil(p 2^24)`,
/// so that it keeps exactly the elements whose uniform value is below `p`.
pub fn bernoulli_threshold(p: f64) -> u32 {
    (p.clamp(0.0, 1.0) * 16_777_216.0).ceil() as u32
}

/// 1 where `u_i >> 8` is below `threshold` (see [`bernoulli_threshold`]), else 0.
pub fn fill_bernoulli(
    key: [u32; 2],
    ctr_hi: [u32; 2],
    first_element: u64,
    threshold: u32,
    out: &mut [u8],
) {
    let level = super::simd_level();
    let below = pick!(level, fn(dst: &mut [u8], u: &[u32], threshold: u32) {
        map(dst, u, |u: u32| ((u >> 8) < threshold) as u8)
    });
    by_chunks(level, key, ctr_hi, first_element, out, |d, u| {
        below(d, u, threshold)
    })
}

/// Where [`select_at_least`] works, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// The key of the stream.
    pub key: [u32; 2],
    /// The upper half of the counter.
    pub ctr_hi: [u32; 2],
    /// The number of the first element.
    pub first: u64,
}

/// The least word whose uniform value is at least `p`, if there is one.
pub fn least_word(p: f32) -> Option<u32> {
    // NaN is no limit that anything reaches.
    let steps = (p as f64 * 16_777_216.0).ceil();
    (steps < 16_777_216.0).then_some((steps as u32) << 8)
}

/// `a[i]` where word i of the stream is at least `least` (see [`least_word`]), else `other`: a dropout in one pass, whose words never leave the registers.
pub fn select_at_least(draw: Draw, least: u32, a: &[f32], other: f32, dst: &mut [f32]) {
    select_at(super::simd_level())(draw, least, a, other, dst)
}

type SelectAt = fn(Draw, u32, &[f32], f32, &mut [f32]);

fn select_at(level: SimdLevel) -> SelectAt {
    pick!(level, fn(draw: Draw, least: u32, a: &[f32], other: f32, dst: &mut [f32]) {
        let mut words = [[0; 4]; GROUP / 4];
        let mut block = draw.first / 4;
        // The first group may begin within a block.
        let mut skip = (draw.first % 4) as usize;
        let (mut a, mut dst) = (a, dst);
        while !dst.is_empty() {
            I::philox(draw.key, draw.ctr_hi, block, &mut words);
            block = block.wrapping_add((GROUP / 4) as u64);
            let n = dst.len().min(GROUP - skip);
            let (now, later) = dst.split_at_mut(n);
            let (from, rest) = a.split_at(n);
            let words = words.as_flattened();
            let pick = |u: u32, a: f32| if u >= least { a } else { other };
            match (now.as_chunks_mut::<GROUP>().0, from.as_chunks::<GROUP>().0) {
                ([now], [from]) => {
                    for ((d, &u), &a) in now.iter_mut().zip(words).zip(from) {
                        *d = pick(u, a);
                    }
                }
                _ => {
                    for ((d, &u), &a) in now.iter_mut().zip(&words[skip..]).zip(from) {
                        *d = pick(u, a);
                    }
                }
            }
            (a, dst, skip) = (rest, later, 0);
        }
    })
}

/// Both results of Box and Muller (1958) for a pair of words: radius from the first, angle from the second.
#[inline(always)]
fn box_muller<I: Isa>(a: u32, b: u32) -> (f32, f32) {
    // In (0, 1]: all 32 bits, so that the tails reach 6.6.
    let u = a as f32 * (1.0 / 4_294_967_296.0) + 0.5 / 4_294_967_296.0;
    let u = if u > 1.0 { 1.0 } else { u };
    let r = (-2.0 * log::<I>(u)).sqrt();
    let (s, c) = sin_cos_turns::<I>(unit(b));
    (r * c, r * s)
}

type Pairs = fn(&mut [f32], &[u32]);

fn normal_pairs(level: SimdLevel) -> Pairs {
    pick!(level, fn(dst: &mut [f32], u: &[u32]) {
        for (d, u) in dst.as_chunks_mut::<2>().0.iter_mut().zip(u.as_chunks::<2>().0) {
            let (even, odd) = box_muller::<I>(u[0], u[1]);
            *d = [even, odd];
        }
    })
}

/// Standard normal: elements 2k and 2k+1 are `r cos t` and `r sin t` with `r = sqrt(-2 log u)`,
/// `u = u_2k 2^-32 + 2^-33` and `t = 2 pi (u_2k+1 >> 8) 2^-24`.
pub fn fill_normal(key: [u32; 2], ctr_hi: [u32; 2], first_element: u64, out: &mut [f32]) {
    normal_at(super::simd_level(), key, ctr_hi, first_element, out)
}

pub fn normal_at(level: SimdLevel, key: [u32; 2], ctr_hi: [u32; 2], first: u64, out: &mut [f32]) {
    let (draw, pairs) = (philox_at(level), normal_pairs(level));
    let (mut words, mut values) = ([0; CHUNK], [0.0; CHUNK]);
    let mut at = first;
    let mut rest = out;
    while !rest.is_empty() {
        let skip = (at % 2) as usize;
        let n = rest.len().min(CHUNK - skip);
        let whole = (skip + n).next_multiple_of(2);
        draw(key, ctr_hi, at - skip as u64, &mut words[..whole]);
        pairs(&mut values[..whole], &words[..whole]);
        let (now, later) = rest.split_at_mut(n);
        now.copy_from_slice(&values[skip..skip + n]);
        rest = later;
        at = at.wrapping_add(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u32; 2] = [17, 42];
    const HI: [u32; 2] = [5, 6];

    #[test]
    fn uniform_is_24_bits_of_the_word() {
        let mut words = vec![0; 10_000];
        philox_at(SimdLevel::Portable)(KEY, HI, 9, &mut words);
        for &level in SimdLevel::available() {
            let mut u = vec![0.0; 10_000];
            uniform_at(level, KEY, HI, 9, &mut u);
            assert!(
                u.iter()
                    .zip(&words)
                    .all(|(&u, &w)| u as f64 == (w >> 8) as f64 / 16_777_216.0)
            );
            let mean = u.iter().map(|&x| x as f64).sum::<f64>() / 1e4;
            // Four standard errors.
            assert!(
                (mean - 0.5).abs() < 4.0 * (1.0 / 12.0f64).sqrt() / 100.0,
                "{mean}"
            );
        }
    }

    #[test]
    fn bernoulli_keeps_what_is_below_p() {
        let mut u = vec![0.0; 20_000];
        fill_uniform(KEY, HI, 3, &mut u);
        for p in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let mut keep = vec![9; u.len()];
            fill_bernoulli(KEY, HI, 3, bernoulli_threshold(p), &mut keep);
            assert!(
                u.iter()
                    .zip(&keep)
                    .all(|(&u, &k)| ((u as f64) < p) == (k == 1))
            );
        }
    }

    #[test]
    fn a_selection_is_that_of_the_uniform_values() {
        let a: Vec<f32> = (0..700).map(|i| i as f32 + 1.0).collect();
        for p in [0.0, 1e-9, 0.1, 0.5, 0.9, 1.0 - 2f32.powi(-24)] {
            let least = least_word(p).unwrap();
            for (first, n) in [(0, 700), (3, 700), (1, 2), (61, 64), (62, 65), (5, 0)] {
                let draw = Draw {
                    key: KEY,
                    ctr_hi: HI,
                    first,
                };
                let mut u = vec![0.0; n];
                uniform_at(SimdLevel::Portable, KEY, HI, first, &mut u);
                let want: Vec<f32> = u
                    .iter()
                    .zip(&a)
                    .map(|(u, a)| if *u >= p { *a } else { -2.0 })
                    .collect();
                for &level in SimdLevel::available() {
                    let mut got = vec![9.0; n];
                    select_at(level)(draw, least, &a[..n], -2.0, &mut got);
                    assert_eq!(got, want, "{level} {p} {first} {n}");
                }
            }
        }
        assert_eq!(least_word(1.0), None);
        assert_eq!(least_word(f32::NAN), None);
        assert_eq!(least_word(-1.0), Some(0));
    }

    #[test]
    fn normal_has_the_moments_and_does_not_depend_on_the_range() {
        for &level in SimdLevel::available() {
            let n = 200_000;
            let mut x = vec![0.0; n];
            normal_at(level, KEY, HI, 100, &mut x);
            let m = |k: i32| x.iter().map(|&v| (v as f64).powi(k)).sum::<f64>() / n as f64;
            let se = 1.0 / (n as f64).sqrt();
            assert!(m(1).abs() < 4.0 * se);
            assert!((m(2) - 1.0).abs() < 4.0 * 2f64.sqrt() * se);
            assert!(m(3).abs() < 4.0 * 15f64.sqrt() * se);
            assert!((m(4) - 3.0).abs() < 4.0 * 96f64.sqrt() * se);
            for (from, len) in [(0, 1), (1, 1), (1, 2), (7, 1500), (511, 3), (1000, 1023)] {
                let mut part = vec![0.0; len];
                normal_at(level, KEY, HI, 100 + from as u64, &mut part);
                assert!(part == x[from..from + len], "{level} {from} {len}");
            }
        }
    }

    #[test]
    fn normal_follows_the_formula() {
        let mut words = vec![0; 20_000];
        philox_at(SimdLevel::Portable)(KEY, HI, 0, &mut words);
        words[0] = 0;
        words[2] = u32::MAX;
        for &level in SimdLevel::available() {
            let mut z = vec![0.0; words.len()];
            normal_pairs(level)(&mut z, &words);
            for (u, z) in words.chunks(2).zip(z.chunks(2)) {
                let a = (u[0] as f64 + 0.5) / 4_294_967_296.0;
                let r = (-2.0 * a.ln()).sqrt();
                let t = std::f64::consts::TAU * (u[1] >> 8) as f64 / 16_777_216.0;
                // Near u = 1 the f32 nearest to u decides.
                let slack = if a > 0.99 { 1e-3 } else { 2e-6 };
                assert!((z[0] as f64 - r * t.cos()).abs() < slack, "{level} {u:?}");
                assert!((z[1] as f64 - r * t.sin()).abs() < slack, "{level} {u:?}");
            }
        }
    }
}
