//! Elementary functions in f32, from additions, multiplications and integer operations only.
//!
//! What a driver calls `exp` or `sin` may be off by hundreds of units in the last place, and WGSL has no `erf`. These are the polynomials of the CPU backend
//! (`bimetal-kernels`, where their sources and errors are given), so that devices agree to a few units. Nothing here relies on a fused
//! multiply-add, on subnormal numbers, on how comparisons treat NaN, or on `(x + c) - c` being a rounding: drivers take that for x.
use cubecl::prelude::*;

/// The bits of infinity.
pub(crate) const INF: u32 = 0x7f80_0000;
const NAN: u32 = 0x7fc0_0000;
const ABS: u32 = 0x7fff_ffff;
const SIGN: u32 = 0x8000_0000;

#[cube]
pub(crate) fn float(bits: u32) -> f32 {
    f32::reinterpret(bits)
}

#[cube]
pub(crate) fn bits(x: f32) -> u32 {
    u32::reinterpret(x)
}

#[cube]
pub(crate) fn is_nan(x: f32) -> bool {
    (bits(x) & ABS) > INF
}

#[cube]
pub(crate) fn is_finite(x: f32) -> bool {
    (bits(x) & ABS) < INF
}

#[cube]
pub(crate) fn abs(x: f32) -> f32 {
    float(bits(x) & ABS)
}

/// `x` with the sign of `s`.
#[cube]
pub(crate) fn copysign(x: f32, s: f32) -> f32 {
    float((bits(x) & ABS) | (bits(s) & SIGN))
}

/// `2^n` for -127 < n < 128.
#[cube]
fn pow2(n: i32) -> f32 {
    float(u32::cast_from(n + 127) << 23)
}

/// `x` limited to `[lo, hi]`; NaN stays.
#[cube]
fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let y = select(x > hi, hi, x);
    select(y < lo, lo, y)
}

/// `exp(hi + lo) = 2^n (1 + p)`.
#[derive(CubeType, Clone, Copy)]
struct Parts {
    n: i32,
    p: f32,
}

#[cube]
fn exp_parts(hi: f32, lo: f32) -> Parts {
    let nf = (hi * 1.442_695_1f32 + 0.5f32).floor();
    let n = i32::cast_from(nf);
    let r = hi - nf * 0.693_145_75f32;
    let r = r - nf * 1.428_606_8e-6f32 + lo;
    let q = 0.001_383_786_2f32 * r + 0.008_367_088f32;
    let q = q * r + 0.041_667_75f32;
    let q = q * r + 0.166_665_39f32;
    let q = q * r + 0.499_999_97f32;
    Parts {
        n,
        p: r * r * q + r,
    }
}

/// `c 2^n (1 + p)`; in two halves, because n may lie beyond the exponents of f32.
#[cube]
fn times(e: &Parts, c: f32) -> f32 {
    let half = e.n >> 1;
    (c * e.p + c) * pow2(half) * pow2(e.n - half)
}

/// The same for c = 1 where the result is known not to be subnormal or infinite.
#[cube]
fn normal(e: &Parts) -> f32 {
    let s = pow2(e.n);
    s * e.p + s
}

#[cube]
pub(crate) fn exp(x: f32) -> f32 {
    let y = times(&exp_parts(clamp(x, -104.0f32, 88.8f32), 0.0f32), 1.0f32);
    let y = select(x > 88.73f32, float(INF), y);
    select(is_nan(x), x, y)
}

#[cube]
pub(crate) fn expm1(x: f32) -> f32 {
    let e = exp_parts(clamp(x, -30.0f32, 88.8f32), 0.0f32);
    let h = pow2(e.n - 1);
    let y = (h * e.p + (h - 0.5f32)) * 2.0f32;
    let y = select(abs(x) < 2.0e-8f32, x, y);
    let y = select(x > 88.73f32, float(INF), y);
    select(is_nan(x), x, y)
}

#[cube]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = abs(x);
    let e = normal(&exp_parts(select(a > 10.0f32, 20.0f32, 2.0f32 * a), 0.0f32));
    let big = 1.0f32 - 2.0f32 / (e + 1.0f32);
    let z = a * a;
    let p = -0.005_692_296f32 * z + 0.020_628_167f32;
    let p = p * z - 0.053_736_515f32;
    let p = p * z + 0.133_314_06f32;
    let p = p * z - 0.333_332_8f32;
    let small = z * a * p + a;
    let y = copysign(select(a < 0.625f32, small, big), x);
    select(is_nan(x), x, y)
}

#[cube]
fn exp_neg(x: f32) -> f32 {
    times(
        &exp_parts(select(x < -104.0f32, -104.0f32, x), 0.0f32),
        1.0f32,
    )
}

#[cube]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let e = exp_neg(-abs(x));
    let y = select(x < 0.0f32, e, 1.0f32) / (1.0f32 + e);
    select(is_nan(x), x, y)
}

#[cube]
fn gate(x: f32, e: &Parts) -> f32 {
    select(x < 0.0f32, times(e, x), x) / (1.0f32 + times(e, 1.0f32))
}

#[cube]
fn gate_grad(x: f32, dy: f32, e: &Parts) -> f32 {
    let e = times(e, 1.0f32);
    let d = 1.0f32 / (1.0f32 + e);
    let ed = e * d;
    let s = select(x < 0.0f32, ed, d);
    let other = select(x < 0.0f32, d, ed);
    x * dy * other * s + s
}

#[cube]
pub(crate) fn silu(x: f32) -> f32 {
    let v = select(x < -120.0f32, -120.0f32, x);
    let a = abs(v);
    let y = gate(v, &exp_parts(select(a > 120.0f32, -120.0f32, -a), 0.0f32));
    select(is_nan(x), x, y)
}

#[cube]
pub(crate) fn silu_grad(x: f32) -> f32 {
    let v = clamp(x, -120.0f32, 120.0f32);
    let y = gate_grad(v, 1.0f32, &exp_parts(-abs(v), 0.0f32));
    select(is_nan(x), x, y)
}

/// `e ln 2 + log(1 + f)`, with f in `[-1/3, 1/3]`, as a sum of two.
#[derive(CubeType, Clone, Copy)]
struct Sum {
    hi: f32,
    lo: f32,
}

#[cube]
fn log_parts(e: f32, f: f32) -> Sum {
    let p = 0.117_181_025f32 * f - 0.128_833_04f32;
    let p = p * f + 0.108_230_95f32;
    let p = p * f - 0.121_878_62f32;
    let p = p * f + 0.142_989_53f32;
    let p = p * f - 0.166_800_86f32;
    let p = p * f + 0.199_997_65f32;
    let p = p * f - 0.249_998_11f32;
    let p = p * f + 0.333_333_34f32;
    let z = f * f;
    let r = z * f * p - 0.5f32 * z;
    let r = e * 1.428_606_8e-6f32 + r;
    // Exact in its first product; the sum of both is split for those that need more than one f32.
    let a = e * 0.693_145_75f32;
    let hi = a + f;
    let back = hi - a;
    let lo = (a - (hi - back)) + (f - back) + r;
    let sum = hi + lo;
    Sum {
        hi: sum,
        lo: lo - (sum - hi),
    }
}

#[cube]
fn log_sum(x: f32) -> Sum {
    let tiny = x < 1.175_494_4e-38f32;
    let y = select(tiny, x * 8_388_608.0f32, x);
    let bias = select(tiny, 23i32, 0i32);
    let b = bits(y);
    let e = i32::cast_from(b - 0x3f2a_aaabu32) >> 23;
    let m = float(b - (u32::cast_from(e) << 23));
    log_parts(f32::cast_from(e - bias), m - 1.0f32)
}

#[cube]
pub(crate) fn log(x: f32) -> f32 {
    let s = log_sum(x);
    let r = select(bits(x) < INF, s.hi, x);
    let r = select((bits(x) & ABS) == 0u32, float(INF | SIGN), r);
    let r = select((bits(x) > SIGN) && !is_nan(x), float(NAN), r);
    select(is_nan(x), x, r)
}

#[cube]
pub(crate) fn log1p(x: f32) -> f32 {
    let u = 1.0f32 + x;
    let e = i32::cast_from(bits(u) - 0x3f2a_aaabu32) >> 23;
    let half = e >> 1;
    let s1 = pow2(-half);
    let s2 = pow2(half - e);
    let f = x * s1 * s2 + (s1 * s2 - 1.0f32);
    let r = log_parts(f32::cast_from(e), f).hi;
    let r = select(is_finite(x), r, x);
    let r = select(x == -1.0f32, float(INF | SIGN), r);
    let r = select(abs(x) < 1.0e-8f32, x, r);
    let r = select((x < -1.0f32) && !is_nan(x), float(NAN), r);
    select(is_nan(x), x, r)
}

#[cube]
pub(crate) fn softplus(x: f32) -> f32 {
    let y = select(x > 0.0f32, x, 0.0f32) + log1p(exp_neg(-abs(x)));
    select(is_nan(x), x, y)
}

#[cube]
pub(crate) fn erf(x: f32) -> f32 {
    let a = abs(x);
    let z = a * a;
    let p = 7.806_903e-5f32 * z - 7.997_853e-4f32;
    let p = p * z + 0.005_187_162f32;
    let p = p * z - 0.026_853_347f32;
    let p = p * z + 0.112_835_79f32;
    let p = p * z - 0.376_126_26f32;
    let p = p * z + 0.128_379_17f32;
    let small = a * p + a;
    let b = select(a > 3.95f32, 3.95f32, a);
    let g = -1.876_070_7e-4f32 * b + 0.002_960_134_3f32;
    let g = g * b - 0.021_889_707f32;
    let g = g * b + 0.103_218_295f32;
    let g = g * b + 0.638_012_2f32;
    let g = g * b + 1.127_171_6f32;
    let g = g * b + 3.205_890_5e-4f32;
    let big = 1.0f32 - normal(&exp_parts(-g, 0.0f32));
    let y = copysign(select(a < 1.0f32, small, big), x);
    select(is_nan(x), x, y)
}

/// The parts of `exp(-a^2/2)` for `0 <= a <= 14.5`.
#[cube]
fn density(a: f32) -> Parts {
    let hi = float(bits(a) & 0xffff_f000u32);
    exp_parts(-0.5f32 * hi * hi, -0.5f32 * (a - hi) * (a + hi))
}

#[cube]
fn tail_factor(a: f32) -> f32 {
    let u = (a - 4.25f32) / (a + 4.25f32);
    let g = -1.876_595_2e-4f32 * u + 8.422_459_4e-4f32;
    let g = g * u + 6.389_77e-4f32;
    let g = g * u - 0.010_047_432f32;
    let g = g * u + 0.032_970_782f32;
    let g = g * u - 0.067_622_02f32;
    let g = g * u + 0.098_854_56f32;
    let g = g * u - 0.103_451_14f32;
    let g = g * u + 0.067_212_25f32;
    g * u + 0.379_777_1f32
}

#[cube]
fn near_factor(a: f32) -> f32 {
    let z = a * a;
    let p = 1.160_964_45e-4f32 * z - 0.001_196_408f32;
    let p = p * z + 0.009_977_83f32;
    let p = p * z - 0.066_490_94f32;
    p * z + 0.398_942_3f32
}

#[cube]
pub(crate) fn gelu(x: f32) -> f32 {
    let a = abs(x);
    let a = select(a > 14.5f32, 14.5f32, a);
    let far = times(&density(a), tail_factor(a));
    let near = a * (0.5f32 - a * near_factor(a));
    let relu = select(x > 0.0f32, x, 0.0f32);
    let y = relu - select(a < 0.75f32, near, far);
    select(is_nan(x), x, y)
}

#[cube]
pub(crate) fn gelu_grad(x: f32) -> f32 {
    let a = abs(x);
    let a = select(a > 14.5f32, 14.5f32, a);
    let e = density(a);
    // The division is not reached by a = 0: `near` is chosen there.
    let far = times(
        &e,
        tail_factor(a) / select(a < 0.5f32, 0.5f32, a) - 0.398_942_3f32 * a,
    );
    let slope = near_factor(a) + times(&e, 0.398_942_3f32);
    let near = 0.5f32 - a * slope;
    let g = select(a < 0.75f32, near, far);
    let y = select(x < 0.0f32, g, 1.0f32 - g);
    select(is_nan(x), x, y)
}

/// `a b` as a sum of two, by splitting the factors (Dekker 1971).
#[cube]
fn two_prod(a: f32, b: f32) -> Sum {
    let ah = float(bits(a) & 0xffff_f000u32);
    let bh = float(bits(b) & 0xffff_f000u32);
    let al = a - ah;
    let bl = b - bh;
    let hi = a * b;
    let lo = ((ah * bh - hi) + ah * bl + al * bh) + al * bl;
    Sum { hi, lo }
}

/// `a b + c`, with the error of the product, but rounded twice. `zero` is a zero that the compiler does not know, which keeps it from taking the error for 0.
#[cube]
pub(crate) fn multiply_add(a: f32, b: f32, c: f32, zero: u32) -> f32 {
    let ah = float(bits(a) & 0xffff_f000u32);
    let bh = float(bits(b) & 0xffff_f000u32);
    let al = a - ah;
    let bl = b - bh;
    let hi = float(bits(a * b) ^ zero);
    let high = float(bits(ah * bh) ^ zero);
    let lo = ((high - hi) + ah * bl + al * bh) + al * bl;
    let sum = float(bits(hi + c) ^ zero);
    let y = sum + lo;
    // Beyond the range the parts are no numbers.
    select(is_finite(y), y, a * b + c)
}

/// The parts of `exp(-|y|)`, `y = 2 sqrt(2/pi) (x + 0.044715 x^3)`, for `|x| <= 11`.
#[cube]
fn tanh_form(a: f32) -> Parts {
    let z = two_prod(a, a);
    let w = two_prod(z.hi, 0.071_354_814f32);
    let w_lo = w.lo + z.lo * 0.071_354_814f32 + z.hi * 2.398_832_4e-9f32 - 4.534_068e-8f32;
    let s = 1.595_769_2f32 + w.hi;
    let t = s - 1.595_769_2f32;
    let s_lo = (1.595_769_2f32 - (s - t)) + (w.hi - t) + w_lo;
    let y = two_prod(a, s);
    exp_parts(-y.hi, -(y.lo + a * s_lo))
}

#[cube]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    let v = select(x < -11.0f32, -11.0f32, x);
    let a = abs(v);
    let y = gate(v, &tanh_form(select(a > 11.0f32, 11.0f32, a)));
    select(is_nan(x), x, y)
}

#[cube]
pub(crate) fn gelu_tanh_grad(x: f32) -> f32 {
    let v = clamp(x, -11.0f32, 11.0f32);
    let dy = 3.0f32 * 0.071_354_814f32 * v * v + 1.595_769_2f32;
    let y = gate_grad(v, dy, &tanh_form(abs(v)));
    select(is_nan(x), x, y)
}

/// `sin(x + shift pi/2)`. Below 8192 pi/2 is subtracted in three parts (Cody and Waite); beyond, the device's own function answers.
#[cube]
fn sin_shifted(x: f32, shift: u32) -> f32 {
    let n = (x * 0.636_619_75f32 + 0.5f32).floor();
    let q = u32::reinterpret(i32::cast_from(n)) + shift;
    let r = x - n * 1.570_312_5f32;
    let r = r - n * 4.837_513e-4f32;
    let r = r - n * 7.549_79e-8f32;
    let z = r * r;
    let s = -1.951_789_6e-4f32 * z + 0.008_332_187f32;
    let s = s * z - 0.166_666_55f32;
    let s = s * (z * r) + r;
    let c = 2.443_067e-5f32 * z - 0.001_388_730_1f32;
    let c = c * z + 0.041_666_646f32;
    let c = c * (z * z) + (1.0f32 - 0.5f32 * z);
    let y = select((q & 1u32) == 0u32, s, c);
    float(bits(y) ^ ((q & 2u32) << 30))
}

#[cube]
pub(crate) fn sin(x: f32) -> f32 {
    let y = select(abs(x) < 8192.0f32, sin_shifted(x, 0u32), x.sin());
    let y = select(is_finite(x), y, float(NAN));
    select((bits(x) & ABS) == 0u32, x, y)
}

#[cube]
pub(crate) fn cos(x: f32) -> f32 {
    let y = select(abs(x) < 8192.0f32, sin_shifted(x, 1u32), x.cos());
    select(is_finite(x), y, float(NAN))
}

/// `sqrt`, at zero and below as IEEE 754 says.
#[cube]
pub(crate) fn sqrt(x: f32) -> f32 {
    let positive = (bits(x) & SIGN) == 0u32 && bits(x) != 0u32;
    let y = select(positive, x, 1.0f32).sqrt();
    let y = select(positive, y, float(NAN));
    let y = select(bits(x) == INF, x, y);
    select((bits(x) & ABS) == 0u32 || is_nan(x), x, y)
}

/// `a^b` with the special cases of C99.
#[cube]
pub(crate) fn pow(a: f32, b: f32) -> f32 {
    let m = abs(a);
    let l = log_sum(select(m > 0.0f32 && is_finite(m), m, 1.0f32));
    let p = two_prod(l.hi, b);
    let lo = p.lo + l.lo * b;
    let over = p.hi > 88.8f32;
    let under = p.hi < -104.0f32;
    let inside = !over && !under && is_finite(p.hi) && is_finite(b);
    let r = times(
        &exp_parts(select(inside, p.hi, 0.0f32), select(inside, lo, 0.0f32)),
        1.0f32,
    );
    let r = select(over, float(INF), r);
    let r = select(under, 0.0f32, r);
    // Bases of 0 and infinity, whose logarithms are not numbers.
    let large = (m > 1.0f32) == (b > 0.0f32);
    let extreme = select(large, float(INF), 0.0f32);
    let special = bits(m) == 0u32 || bits(m) == INF || !is_finite(b);
    let r = select(special, extreme, r);
    let r = select(m == 1.0f32, 1.0f32, r);
    let integer = b.trunc() == b;
    let half = b * 0.5f32;
    let odd = integer && half.trunc() != half;
    let negative = (bits(a) & SIGN) != 0u32;
    let r = select(negative && odd, -r, r);
    let root = negative && bits(m) != 0u32 && bits(m) != INF && !integer;
    let r = select(root, float(NAN), r);
    let r = select(is_nan(a), a, r);
    let r = select(is_nan(b), b, r);
    select((bits(b) & ABS) == 0u32 || a == 1.0f32, 1.0f32, r)
}

/// The remainder with the divisor's sign.
#[cube]
pub(crate) fn remainder(x: f32, y: f32) -> f32 {
    let q = (x / y).trunc();
    let r = x - q * y;
    // The quotient may be off by one.
    let r = select(abs(r) >= abs(y), r - copysign(y, r), r);
    let r = select(
        r != 0.0f32 && (r < 0.0f32) != (x < 0.0f32),
        r + copysign(y, x),
        r,
    );
    let r = select(r != 0.0f32 && (r < 0.0f32) != (y < 0.0f32), r + y, r);
    let r = select(r == 0.0f32, copysign(0.0f32, y), r);
    // A finite number by an infinite one.
    let same = x == 0.0f32 || (x < 0.0f32) == (y < 0.0f32);
    let far = select(same, x, y);
    let r = select(is_finite(x) && bits(abs(y)) == INF, far, r);
    select(
        is_nan(x) || is_nan(y) || y == 0.0f32 || !is_finite(x),
        float(NAN),
        r,
    )
}

/// To the nearest integer, ties to even.
#[cube]
pub(crate) fn round_even(x: f32) -> f32 {
    let a = abs(x);
    let down = a.floor();
    let over = a - down;
    let half = down * 0.5f32;
    let odd = half.floor() != half;
    let up = (over > 0.5f32) | ((over == 0.5f32) & odd);
    let r = select(up, down + 1.0f32, down);
    select(a < 8_388_608.0f32, copysign(r, x), x)
}

/// `(sin, cos)` of `2 pi u`, u in `[0, 1]`: the first where `second` is false.
#[cube]
fn turn(u: f32, second: bool) -> f32 {
    let n = (u * 4.0f32 + 0.5f32).floor();
    let r = (u - n * 0.25f32) * 6.283_185_5f32;
    let q = u32::cast_from(n) + select(second, 1u32, 0u32);
    let z = r * r;
    let s = -1.951_789_6e-4f32 * z + 0.008_332_187f32;
    let s = s * z - 0.166_666_55f32;
    let s = s * (z * r) + r;
    let c = 2.443_067e-5f32 * z - 0.001_388_730_1f32;
    let c = c * z + 0.041_666_646f32;
    let c = c * (z * z) + (1.0f32 - 0.5f32 * z);
    let y = select((q & 1u32) == 0u32, s, c);
    float(bits(y) ^ ((q & 2u32) << 30))
}

/// 24 bits in `[0, 1)`.
#[cube]
pub(crate) fn unit(word: u32) -> f32 {
    f32::cast_from(word >> 8) * 5.960_464_5e-8f32
}

/// Element of a pair of standard normal numbers (Box and Muller 1958): radius from the first word, angle from the second.
#[cube]
pub(crate) fn normal_number(a: u32, b: u32, second: bool) -> f32 {
    let u = f32::cast_from(a) * 2.328_306_4e-10f32 + 1.164_153_2e-10f32;
    let u = select(u > 1.0f32, 1.0f32, u);
    let r = sqrt(-2.0f32 * log(u));
    // The even element has the cosine.
    r * turn(unit(b), !second)
}

/// A float as a signed integer: towards zero, saturating, NaN as 0.
#[cube]
pub(crate) fn to_i32(x: f32) -> i32 {
    let inside = x > -2_147_483_648.0f32 && x < 2_147_483_648.0f32;
    let i = i32::cast_from(select(inside, x, 0.0f32));
    let i = select(x >= 2_147_483_648.0f32, 0x7fff_ffffi32, i);
    let i = select(x <= -2_147_483_648.0f32, -0x7fff_ffffi32 - 1i32, i);
    select(is_nan(x), 0i32, i)
}

/// A float as an unsigned integer: towards zero, saturating, NaN as 0.
#[cube]
pub(crate) fn to_u32(x: f32) -> u32 {
    let inside = x > 0.0f32 && x < 4_294_967_296.0f32;
    let i = u32::cast_from(select(inside, x, 0.0f32));
    let i = select(x >= 4_294_967_296.0f32, 0xffff_ffffu32, i);
    select(is_nan(x), 0u32, i)
}
