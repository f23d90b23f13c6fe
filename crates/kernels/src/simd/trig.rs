//! Sine and cosine.
use super::isa::Isa;

/// Beyond this the reduction would lose bits; the standard library takes over.
pub const LIMIT: f32 = 1.0e6;

/// `sin(x + shift * pi/2)` for `|x| <= LIMIT`, in f64 inside.
///
/// Reduction by pi/2 in two parts, the first of 33 bits so that `n * PIO2_1` is exact (fdlibm
/// `e_rem_pio2.c`); polynomials by the Remez exchange, relative error 2^-37.
#[inline(always)]
fn sin_shifted<I: Isa>(x: f32, shift: u64) -> f32 {
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    const PIO2_1: f64 = 1.570_796_326_734_125_6;
    const PIO2_1T: f64 = 6.077_100_506_506_192e-11;
    let x = x as f64;
    let t = I::mul_add64(x, std::f64::consts::FRAC_2_PI, MAGIC);
    let q = t.to_bits().wrapping_add(shift);
    let n = t - MAGIC;
    let r = I::mul_add64(n, -PIO2_1T, I::mul_add64(n, -PIO2_1, x));
    let z = r * r;
    let s = I::mul_add64(2.718_046_742_299_652_7e-6, z, -1.983_930_444_871_844e-4);
    let s = I::mul_add64(s, z, 0.008_333_329_280_639_144);
    let s = I::mul_add64(s, z, -0.166_666_666_405_892_03);
    let s = I::mul_add64(s, z * r, r);
    let c = I::mul_add64(-2.720_504_752_437_929_5e-7, z, 2.479_945_156_539_908e-5);
    let c = I::mul_add64(c, z, -0.001_388_888_346_731_139_7);
    let c = I::mul_add64(c, z, 0.041_666_666_619_107_4);
    let c = I::mul_add64(c, z * z, 1.0 - 0.5 * z);
    let y = if q & 1 == 0 { s } else { c };
    f64::from_bits(y.to_bits() ^ ((q & 2) << 62)) as f32
}

#[inline(always)]
pub fn sin<I: Isa>(x: f32) -> f32 {
    let y = sin_shifted::<I>(x, 0);
    if x == 0.0 { x } else { y }
}

#[inline(always)]
pub fn cos<I: Isa>(x: f32) -> f32 {
    sin_shifted::<I>(x, 1)
}

/// Replaces the results of huge arguments; which elements those are depends on their value only.
#[inline(always)]
pub fn repair(dst: &mut [f32], src: &[f32], f: fn(f64) -> f64) {
    let mut huge = false;
    for &x in src {
        huge |= x.abs() > LIMIT;
    }
    if huge {
        for (d, &x) in dst.iter_mut().zip(src) {
            if x.abs() > LIMIT {
                *d = f(x as f64) as f32;
            }
        }
    }
}

/// `(sin, cos)` of `2 pi u` for u in `[0, 1]`, in f32: reducing turns is exact.
#[inline(always)]
pub fn sin_cos_turns<I: Isa>(u: f32) -> (f32, f32) {
    const MAGIC: f32 = 12_582_912.0;
    let t = u * 4.0 + MAGIC;
    let q = t.to_bits();
    let r = (u - (t - MAGIC) * 0.25) * std::f32::consts::TAU;
    // Minimax (Remez): sin(r) = r + r^3 S(r^2), 2^-27.9; cos(r) = 1 - r^2/2 + r^4 C(r^2), 2^-33.
    let z = r * r;
    let s = I::mul_add(-1.951_789_6e-4, z, 0.008_332_187);
    let s = I::mul_add(s, z, -0.166_666_55);
    let s = I::mul_add(s, z * r, r);
    let c = I::mul_add(2.443_067e-5, z, -0.001_388_730_1);
    let c = I::mul_add(c, z, 0.041_666_646);
    let c = I::mul_add(c, z * z, 1.0 - 0.5 * z);
    let (a, b) = if q & 1 == 0 { (s, c) } else { (c, s) };
    let sign_s = (q & 2) << 30;
    let sign_c = (q.wrapping_add(1) & 2) << 30;
    (
        f32::from_bits(a.to_bits() ^ sign_s),
        f32::from_bits(b.to_bits() ^ sign_c),
    )
}
