//! Instructions on whole registers: plain loops.
use super::view::Arg;
use bimetal_tensor::graph::{Binary, Distribution, Unary};
use bimetal_tensor::{CastMode, DType, round_f32, round_f64};

/// # Safety
/// The registers hold `n` elements (one if splat) of these types; `dst` has room and overlaps none.
#[inline(always)]
unsafe fn map1<A: Copy, D: Copy>(a: Arg, dst: *mut u8, n: usize, f: impl Fn(A) -> D) {
    let (a, dst) = (a.ptr.cast::<A>(), dst.cast::<D>());
    for i in 0..n {
        // SAFETY: the caller's contract.
        unsafe { *dst.add(i) = f(*a.add(i)) };
    }
}

/// # Safety
/// As [`map1`].
#[inline(always)]
unsafe fn map2<A: Copy, D: Copy>(a: Arg, b: Arg, dst: *mut u8, n: usize, f: impl Fn(A, A) -> D) {
    let (x, y, dst) = (a.ptr.cast::<A>(), b.ptr.cast::<A>(), dst.cast::<D>());
    // SAFETY: the caller's contract.
    unsafe {
        match (a.splat, b.splat) {
            (false, false) => (0..n).for_each(|i| *dst.add(i) = f(*x.add(i), *y.add(i))),
            (false, true) => {
                let y = *y;
                (0..n).for_each(|i| *dst.add(i) = f(*x.add(i), y));
            }
            (true, false) => {
                let x = *x;
                (0..n).for_each(|i| *dst.add(i) = f(x, *y.add(i)));
            }
            (true, true) => {
                let v = f(*x, *y);
                (0..n).for_each(|i| *dst.add(i) = v);
            }
        }
    }
}

/// # Safety
/// As [`map1`].
#[inline(always)]
unsafe fn map3<A: Copy, B: Copy, D: Copy>(
    a: Arg,
    b: Arg,
    c: Arg,
    dst: *mut u8,
    n: usize,
    f: impl Fn(A, B, B) -> D,
) {
    let (x, y, z) = (a.ptr.cast::<A>(), b.ptr.cast::<B>(), c.ptr.cast::<B>());
    let (i, j, k) = (!a.splat as usize, !b.splat as usize, !c.splat as usize);
    for e in 0..n {
        // SAFETY: the caller's contract.
        unsafe { *dst.cast::<D>().add(e) = f(*x.add(e * i), *y.add(e * j), *z.add(e * k)) };
    }
}

/// A function of one register of dtype `ty`.
///
/// # Safety
/// As [`map1`].
pub(crate) unsafe fn unary(op: Unary, ty: DType, a: Arg, dst: *mut u8, n: usize) {
    use Unary::*;
    // SAFETY: the caller's contract.
    unsafe {
        match (ty, op) {
            (DType::F32, Neg) => map1(a, dst, n, |v: f32| -v),
            (DType::F32, Abs) => map1(a, dst, n, f32::abs),
            (DType::F32, Sqrt) => map1(a, dst, n, f32::sqrt),
            (DType::F32, Recip) => map1(a, dst, n, |v: f32| 1.0 / v),
            (DType::F32, Square) => map1(a, dst, n, |v: f32| v * v),
            (DType::F32, Relu) => map1(a, dst, n, |v: f32| if v < 0.0 { 0.0 } else { v }),
            (DType::F32, IsFinite) => map1(a, dst, n, f32::is_finite),
            (DType::F32, IsNan) => map1(a, dst, n, f32::is_nan),
            (DType::F32, _) => map1(a, dst, n, |v: f32| float(op, v as f64) as f32),
            (DType::F64, IsFinite) => map1(a, dst, n, f64::is_finite),
            (DType::F64, IsNan) => map1(a, dst, n, f64::is_nan),
            (DType::F64, _) => map1(a, dst, n, |v: f64| float(op, v)),
            (DType::Bool, Not) => map1(a, dst, n, |v: u8| (v == 0) as u8),
            (DType::Bool, _) => map1(a, dst, n, |v: u8| v),
            (_, IsFinite) => map1(a, dst, n, |_: u8| 1u8),
            (_, IsNan) => map1(a, dst, n, |_: u8| 0u8),
            (DType::I32, _) => map1(a, dst, n, |v: i32| int(op, v as i64) as i32),
            (DType::I64, _) => map1(a, dst, n, |v: i64| int(op, v)),
            (DType::U32, Neg) => map1(a, dst, n, u32::wrapping_neg),
            (DType::U32, _) => map1(a, dst, n, |v: u32| int(op, v as i64) as u32),
            _ => {}
        }
    }
}

fn int(op: Unary, v: i64) -> i64 {
    match op {
        Unary::Neg => v.wrapping_neg(),
        Unary::Abs => v.wrapping_abs(),
        Unary::Sign => v.signum(),
        Unary::Relu => v.max(0),
        Unary::Square => v.wrapping_mul(v),
        _ => v,
    }
}

/// The functions in f64.
pub(crate) fn float(op: Unary, x: f64) -> f64 {
    use std::f64::consts::{FRAC_1_SQRT_2, PI};
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let phi = |x: f64| 0.5 * (1.0 + erf(x * FRAC_1_SQRT_2));
    let root = (2.0 / PI).sqrt();
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x.is_nan() || x == 0.0 => x,
        Unary::Sign => x.signum(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Recip => 1.0 / x,
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::Erf => erf(x),
        Unary::Relu if x < 0.0 => 0.0,
        Unary::Relu => x,
        Unary::Silu => x * sigmoid(x),
        Unary::SiluGrad => {
            let s = sigmoid(x);
            s * (1.0 + x * (1.0 - s))
        }
        Unary::Gelu => x * phi(x),
        Unary::GeluGrad => phi(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt(),
        Unary::GeluTanh => 0.5 * x * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh()),
        Unary::GeluTanhGrad => {
            let u = 2.0 * root * (x + 0.044715 * x * x * x);
            let s = sigmoid(u);
            s + x * s * sigmoid(-u) * 2.0 * root * (1.0 + 3.0 * 0.044715 * x * x)
        }
        Unary::Softplus if x > 0.0 => x + (-x).exp().ln_1p(),
        Unary::Softplus => x.exp().ln_1p(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::Square => x * x,
        Unary::Not | Unary::IsFinite | Unary::IsNan => x,
    }
}

/// The error function: its Taylor series near 0, the continued fraction of its complement beyond.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..90 {
            term *= -x * x / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let mut f = 0.0;
    for k in (1..60).rev() {
        f = 0.5 * k as f64 / (a + f);
    }
    let c = (-a * a).exp() / (std::f64::consts::PI.sqrt() * (a + f));
    (1.0 - c).copysign(x)
}

/// A function of two registers of dtype `ty`.
///
/// # Safety
/// As [`map1`].
pub(crate) unsafe fn binary(op: Binary, ty: DType, a: Arg, b: Arg, dst: *mut u8, n: usize) {
    use Binary::*;
    macro_rules! compare {
        ($t:ty) => {
            match op {
                Eq => return map2(a, b, dst, n, |x: $t, y: $t| x == y),
                Ne => return map2(a, b, dst, n, |x: $t, y: $t| x != y),
                Lt => return map2(a, b, dst, n, |x: $t, y: $t| x < y),
                Le => return map2(a, b, dst, n, |x: $t, y: $t| x <= y),
                Gt => return map2(a, b, dst, n, |x: $t, y: $t| x > y),
                Ge => return map2(a, b, dst, n, |x: $t, y: $t| x >= y),
                _ => {}
            }
        };
    }
    macro_rules! float {
        ($t:ty) => {{
            compare!($t);
            match op {
                Add => map2(a, b, dst, n, |x: $t, y: $t| x + y),
                Sub => map2(a, b, dst, n, |x: $t, y: $t| x - y),
                Mul => map2(a, b, dst, n, |x: $t, y: $t| x * y),
                Div => map2(a, b, dst, n, |x: $t, y: $t| x / y),
                // `x + y` is NaN exactly if one of them is.
                Max => map2(a, b, dst, n, |x: $t, y: $t| {
                    if x.is_nan() || y.is_nan() {
                        x + y
                    } else if x > y {
                        x
                    } else {
                        y
                    }
                }),
                Min => map2(a, b, dst, n, |x: $t, y: $t| {
                    if x.is_nan() || y.is_nan() {
                        x + y
                    } else if x < y {
                        x
                    } else {
                        y
                    }
                }),
                Pow => map2(a, b, dst, n, |x: $t, y: $t| (x as f64).powf(y as f64) as $t),
                Rem => map2(a, b, dst, n, |x: $t, y: $t| {
                    let r = x % y;
                    if r != 0.0 && (r < 0.0) != (y < 0.0) {
                        r + y
                    } else {
                        r
                    }
                }),
                _ => {}
            }
        }};
    }
    macro_rules! int {
        ($t:ty) => {{
            compare!($t);
            match op {
                Add => map2(a, b, dst, n, <$t>::wrapping_add),
                Sub => map2(a, b, dst, n, <$t>::wrapping_sub),
                Mul => map2(a, b, dst, n, <$t>::wrapping_mul),
                Max => map2(a, b, dst, n, |x: $t, y: $t| x.max(y)),
                Min => map2(a, b, dst, n, |x: $t, y: $t| x.min(y)),
                Div => map2(
                    a,
                    b,
                    dst,
                    n,
                    |x: $t, y: $t| {
                        if y == 0 { 0 } else { x.wrapping_div(y) }
                    },
                ),
                #[allow(unused_comparisons)]
                Rem => map2(a, b, dst, n, |x: $t, y: $t| {
                    if y == 0 {
                        return 0;
                    }
                    let r = x.wrapping_rem(y);
                    if r != 0 && (r < 0) != (y < 0) {
                        r + y
                    } else {
                        r
                    }
                }),
                _ => {}
            }
        }};
    }
    // SAFETY: the caller's contract.
    unsafe {
        match ty {
            DType::F32 => float!(f32),
            DType::F64 => float!(f64),
            DType::I32 => int!(i32),
            DType::I64 => int!(i64),
            DType::U32 => int!(u32),
            _ => {
                compare!(u8);
                match op {
                    And | Min | Mul => map2(a, b, dst, n, |x: u8, y: u8| x & y),
                    Or | Max | Add => map2(a, b, dst, n, |x: u8, y: u8| x | y),
                    Xor => map2(a, b, dst, n, |x: u8, y: u8| x ^ y),
                    _ => {}
                }
            }
        }
    }
}

/// `c ? a : b`.
///
/// # Safety
/// As [`map1`].
pub(crate) unsafe fn select(ty: DType, c: Arg, a: Arg, b: Arg, dst: *mut u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match ty.size() {
            1 => map3(
                c,
                a,
                b,
                dst,
                n,
                |c: u8, a: u8, b: u8| if c != 0 { a } else { b },
            ),
            4 => map3(
                c,
                a,
                b,
                dst,
                n,
                |c: u8, a: u32, b: u32| {
                    if c != 0 { a } else { b }
                },
            ),
            _ => map3(
                c,
                a,
                b,
                dst,
                n,
                |c: u8, a: u64, b: u64| {
                    if c != 0 { a } else { b }
                },
            ),
        }
    }
}

/// `a * b + c`, rounded once.
///
/// # Safety
/// As [`map1`].
pub(crate) unsafe fn fma(ty: DType, a: Arg, b: Arg, c: Arg, dst: *mut u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match ty {
            DType::F32 => map3(a, b, c, dst, n, |a: f32, b: f32, c: f32| a.mul_add(b, c)),
            DType::F64 => map3(a, b, c, dst, n, |a: f64, b: f64, c: f64| a.mul_add(b, c)),
            DType::I32 | DType::U32 => map3(a, b, c, dst, n, |a: i32, b: i32, c: i32| {
                a.wrapping_mul(b).wrapping_add(c)
            }),
            DType::I64 => map3(a, b, c, dst, n, |a: i64, b: i64, c: i64| {
                a.wrapping_mul(b).wrapping_add(c)
            }),
            _ => map3(a, b, c, dst, n, |a: u8, b: u8, c: u8| a & b | c),
        }
    }
}

/// Conversion between register dtypes.
///
/// # Safety
/// As [`map1`].
pub(crate) unsafe fn convert(from: DType, to: DType, a: Arg, dst: *mut u8, n: usize) {
    macro_rules! to {
        ($f:ty) => {
            match to {
                DType::F32 => map1(a, dst, n, |v: $f| v as f32),
                DType::F64 => map1(a, dst, n, |v: $f| v as f64),
                DType::I32 => map1(a, dst, n, |v: $f| v as i32),
                DType::I64 => map1(a, dst, n, |v: $f| v as i64),
                DType::U32 => map1(a, dst, n, |v: $f| v as u32),
                _ => map1(a, dst, n, |v: $f| (v != (0 as $f)) as u8),
            }
        };
    }
    // SAFETY: the caller's contract.
    unsafe {
        match from {
            DType::F32 => to!(f32),
            DType::F64 => to!(f64),
            DType::I32 => to!(i32),
            DType::I64 => to!(i64),
            DType::U32 => to!(u32),
            _ => match to {
                DType::F32 => map1(a, dst, n, |v: u8| v as f32),
                DType::F64 => map1(a, dst, n, |v: u8| v as f64),
                DType::I32 | DType::U32 => map1(a, dst, n, |v: u8| v as i32),
                DType::I64 => map1(a, dst, n, |v: u8| v as i64),
                _ => map1(a, dst, n, |v: u8| v),
            },
        }
    }
}

/// Rounds to the values of a narrower dtype.
///
/// # Safety
/// As [`map1`].
pub(crate) unsafe fn round(from: DType, to: DType, mode: CastMode, a: Arg, dst: *mut u8, n: usize) {
    let max = to.max_finite();
    let saturating = mode == CastMode::Saturating && to.size() <= 2;
    let r32 = |v: f32| match saturating {
        // Beyond half a step above the largest value rounding alone would give infinity or NaN.
        true => round_f32(v.clamp(-max as f32, max as f32), to),
        false => round_f32(v, to),
    };
    let r64 = |v: f64| match saturating {
        true => round_f64(v.clamp(-max, max), to),
        false => round_f64(v, to),
    };
    // SAFETY: the caller's contract.
    unsafe {
        match (from, to) {
            (DType::I32, DType::U8) => map1(a, dst, n, |v: i32| v as u8 as i32),
            (DType::F64, DType::F64) => map1(a, dst, n, |v: f64| v),
            (DType::F64, _) => map1(a, dst, n, |v: f64| r64(v) as f32),
            (DType::F32, _) => map1(a, dst, n, r32),
            (DType::I64, _) if to.is_float() => map1(a, dst, n, |v: i64| r64(odd(v)) as f32),
            _ => match from.size() {
                1 => map1(a, dst, n, |v: u8| v),
                4 => map1(a, dst, n, |v: u32| v),
                _ => map1(a, dst, n, |v: u64| v),
            },
        }
    }
}

/// An integer as f64, rounded to odd, so that one more rounding gives the nearest value.
fn odd(v: i64) -> f64 {
    let x = v.unsigned_abs();
    let drop = 11u32.saturating_sub(x.leading_zeros());
    let lost = x & ((1 << drop) - 1) != 0;
    let kept = (x >> drop | lost as u64) << drop;
    if v < 0 { -(kept as f64) } else { kept as f64 }
}

/// A number in a register.
pub(crate) fn number(value: f64, ty: DType) -> u64 {
    match ty {
        DType::F32 => (value as f32).to_bits() as u64,
        DType::F64 => value.to_bits(),
        DType::I32 => value as i32 as u32 as u64,
        DType::U32 => value as u32 as u64,
        DType::I64 => value as i64 as u64,
        _ => (value != 0.0) as u64,
    }
}

/// Philox-4x32-10 (Salmon et al. 2011).
pub(crate) fn philox(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p = c[0] as u64 * 0xD251_1F53;
        let q = c[2] as u64 * 0xCD9E_8D57;
        c = [
            (q >> 32) as u32 ^ c[1] ^ k[0],
            q as u32,
            (p >> 32) as u32 ^ c[3] ^ k[1],
            p as u32,
        ];
        k = [
            k[0].wrapping_add(0x9E37_79B9),
            k[1].wrapping_add(0xBB67_AE85),
        ];
    }
    c
}

/// The key of a random stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) key: [u32; 2],
    pub(crate) step: u32,
    pub(crate) micro: u32,
}

impl Stream {
    fn draw(&self, index: u64) -> [u32; 4] {
        philox(
            [index as u32, (index >> 32) as u32, self.step, self.micro],
            self.key,
        )
    }
}

/// Random elements number `first..first + n`.
///
/// # Safety
/// As [`map1`].
pub(crate) unsafe fn random(d: Distribution, s: Stream, first: usize, dst: *mut u8, n: usize) {
    let unit = |bits: u32| (bits >> 8) as f32 * (1.0 / 16_777_216.0);
    for i in 0..n {
        let r = s.draw((first + i) as u64);
        // SAFETY: the caller's contract.
        unsafe {
            match d {
                Distribution::Bits => *dst.cast::<u32>().add(i) = r[0],
                Distribution::Uniform => *dst.cast::<f32>().add(i) = unit(r[0]),
                Distribution::Normal => {
                    let u = 1.0 - unit(r[0]) as f64;
                    let v = unit(r[1]) as f64 * std::f64::consts::TAU;
                    *dst.cast::<f32>().add(i) = ((-2.0 * u.ln()).sqrt() * v.cos()) as f32;
                }
            }
        }
    }
}
