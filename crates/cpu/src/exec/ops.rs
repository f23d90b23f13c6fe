//! Instructions of programs on whole registers: the vector instruction set, and what an operand that is one number saves.
use super::view::Arg;
use bimetal_kernels::gemm::Scratch;
use bimetal_kernels::simd::isa::{map, map2, pick};
use bimetal_kernels::simd::{self, BinaryOp, CmpOp, LogicOp, UnaryOp};
use bimetal_tensor::graph::{Binary, Distribution, Unary};
use bimetal_tensor::{CastMode, DType, round_f64, round_stochastic_slice};

/// A register's values.
///
/// # Safety
/// The register has `n` values of type `T` (one if splat, and then `n` is 1).
unsafe fn get<'a, T>(a: Arg, n: usize) -> &'a [T] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(a.ptr.cast(), n) }
}

/// # Safety
/// `dst` has room for `n` values and overlaps no operand.
unsafe fn put<'a, T>(dst: *mut u8, n: usize) -> &'a mut [T] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(dst.cast(), n) }
}

/// A register with one number repeated, and the memory it lies in.
struct Wide(#[allow(dead_code)] Option<Scratch>, Arg);

impl Wide {
    /// # Safety
    /// As [`get`], but `n` may be anything.
    unsafe fn new<T: Copy>(a: Arg, n: usize) -> Wide {
        if !a.splat || n == 1 {
            return Wide(None, a);
        }
        let s = Scratch::take::<u8>(n * size_of::<T>());
        // SAFETY: the scratch has room for `n` values, `a` has one.
        unsafe { put::<T>(s.ptr(), n).fill(*a.ptr.cast()) };
        let arg = Arg::dense(s.ptr());
        Wide(Some(s), arg)
    }
}

fn unary_op(op: Unary) -> Option<UnaryOp> {
    macro_rules! same {
        ($($name:ident)*) => {
            match op {
                $(Unary::$name => Some(UnaryOp::$name),)*
                Unary::Not | Unary::IsFinite | Unary::IsNan => None,
            }
        };
    }
    same!(Neg Abs Sign Sqrt Rsqrt Recip Exp Expm1 Log Log1p Sin Cos Tanh Sigmoid Erf Relu Silu Gelu GeluTanh Softplus Floor
        Ceil Round Trunc Square GeluGrad GeluTanhGrad SiluGrad)
}

/// A function of one register of dtype `ty`.
///
/// # Safety
/// The registers hold `n` elements of these types; `dst` has room and overlaps none.
pub(crate) unsafe fn unary(op: Unary, ty: DType, a: Arg, dst: *mut u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match (ty, unary_op(op)) {
            (DType::F32, Some(op)) => simd::unary_f32(op)(put(dst, n), get(a, n)),
            (DType::F64, Some(op)) => simd::unary_f64(op)(put(dst, n), get(a, n)),
            (DType::I32, Some(op)) => match simd::unary_i32(op) {
                Some(f) => f(put(dst, n), get(a, n)),
                None => put::<i32>(dst, n).copy_from_slice(get(a, n)),
            },
            (DType::I64, Some(op)) => match simd::unary_i64(op) {
                Some(f) => f(put(dst, n), get(a, n)),
                None => put::<i64>(dst, n).copy_from_slice(get(a, n)),
            },
            (DType::U32, Some(op)) => map(put(dst, n), get(a, n), |v: u32| match op {
                UnaryOp::Neg => v.wrapping_neg(),
                UnaryOp::Sign => (v != 0) as u32,
                UnaryOp::Square => v.wrapping_mul(v),
                _ => v,
            }),
            (_, Some(_)) => put::<u8>(dst, n).copy_from_slice(get(a, n)),
            (DType::F32, None) if op == Unary::IsFinite => {
                simd::is_finite::<f32>()(put(dst, n), get(a, n))
            }
            (DType::F32, None) => simd::is_nan::<f32>()(put(dst, n), get(a, n)),
            (DType::F64, None) if op == Unary::IsFinite => {
                simd::is_finite::<f64>()(put(dst, n), get(a, n))
            }
            (DType::F64, None) => simd::is_nan::<f64>()(put(dst, n), get(a, n)),
            (DType::Bool, None) if op == Unary::Not => simd::not()(put(dst, n), get(a, n)),
            (_, None) => put::<u8>(dst, n).fill((op == Unary::IsFinite) as u8),
        }
    }
}

/// `Ok` for arithmetic, `Err` for the rest.
fn binary_op(op: Binary) -> std::result::Result<BinaryOp, std::result::Result<CmpOp, LogicOp>> {
    Ok(match op {
        Binary::Add => BinaryOp::Add,
        Binary::Sub => BinaryOp::Sub,
        Binary::Mul => BinaryOp::Mul,
        Binary::Div => BinaryOp::Div,
        Binary::Max => BinaryOp::Max,
        Binary::Min => BinaryOp::Min,
        Binary::Pow => BinaryOp::Pow,
        Binary::Rem => BinaryOp::Rem,
        Binary::Eq => return Err(Ok(CmpOp::Eq)),
        Binary::Ne => return Err(Ok(CmpOp::Ne)),
        Binary::Lt => return Err(Ok(CmpOp::Lt)),
        Binary::Le => return Err(Ok(CmpOp::Le)),
        Binary::Gt => return Err(Ok(CmpOp::Gt)),
        Binary::Ge => return Err(Ok(CmpOp::Ge)),
        Binary::And => return Err(Err(LogicOp::And)),
        Binary::Or => return Err(Err(LogicOp::Or)),
        Binary::Xor => return Err(Err(LogicOp::Xor)),
    })
}

/// An instruction with a number as second operand.
type NumberOp<D> = fn(&mut [D], &[f32], f32);

/// `dst[i] = f(a[i], b)`, or `f(b, a[i])` if `left`: the instructions of f32 that often meet one number.
fn with_number(op: Binary, left: bool) -> Option<NumberOp<f32>> {
    macro_rules! each {
        ($f:expr) => {
            if left {
                pick!(simd::simd_level(), fn(dst: &mut [f32], a: &[f32], b: f32) {
                    map(dst, a, |x: f32| $f(b, x))
                })
            } else {
                pick!(simd::simd_level(), fn(dst: &mut [f32], a: &[f32], b: f32) {
                    map(dst, a, |x: f32| $f(x, b))
                })
            }
        };
    }
    Some(match op {
        Binary::Add => each!(|x: f32, y: f32| x + y),
        Binary::Sub => each!(|x: f32, y: f32| x - y),
        Binary::Mul => each!(|x: f32, y: f32| x * y),
        Binary::Div => each!(|x: f32, y: f32| x / y),
        _ => return None,
    })
}

/// As [`with_number`], for comparisons.
fn compare_number(op: Binary, left: bool) -> Option<NumberOp<u8>> {
    macro_rules! each {
        ($f:expr) => {
            pick!(simd::simd_level(), fn(dst: &mut [u8], a: &[f32], b: f32) {
                map(dst, a, |x: f32| $f(x, b) as u8)
            })
        };
    }
    let flipped = match op {
        Binary::Lt => Binary::Gt,
        Binary::Le => Binary::Ge,
        Binary::Gt => Binary::Lt,
        Binary::Ge => Binary::Le,
        op => op,
    };
    Some(match if left { flipped } else { op } {
        Binary::Eq => each!(|x: f32, y: f32| x == y),
        Binary::Ne => each!(|x: f32, y: f32| x != y),
        Binary::Lt => each!(|x: f32, y: f32| x < y),
        Binary::Le => each!(|x: f32, y: f32| x <= y),
        Binary::Gt => each!(|x: f32, y: f32| x > y),
        Binary::Ge => each!(|x: f32, y: f32| x >= y),
        _ => return None,
    })
}

/// A function of two registers of dtype `ty`; splat operands only stand next to dense ones, or `n` is 1.
///
/// # Safety
/// As [`unary`].
pub(crate) unsafe fn binary(op: Binary, ty: DType, a: Arg, b: Arg, dst: *mut u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if ty == DType::F32 && a.splat != b.splat {
            let (v, s) = if a.splat { (b, a) } else { (a, b) };
            let s = *s.ptr.cast::<f32>();
            if let Some(f) = with_number(op, a.splat) {
                return f(put(dst, n), get(v, n), s);
            }
            if let Some(f) = compare_number(op, a.splat) {
                return f(put(dst, n), get(v, n), s);
            }
        }
        macro_rules! typed {
            ($t:ty, $arithmetic:path) => {{
                let (a, b) = (Wide::new::<$t>(a, n), Wide::new::<$t>(b, n));
                let (a, b) = (get::<$t>(a.1, n), get::<$t>(b.1, n));
                match binary_op(op) {
                    Ok(op) => $arithmetic(op)(put(dst, n), a, b),
                    Err(Ok(op)) => simd::compare::<$t>(op)(put(dst, n), a, b),
                    Err(Err(_)) => {}
                }
            }};
        }
        match ty {
            DType::F32 => typed!(f32, simd::binary_f32),
            DType::F64 => typed!(f64, simd::binary_f64),
            DType::I32 => typed!(i32, simd::binary_i32),
            DType::I64 => typed!(i64, simd::binary_i64),
            DType::U32 => typed!(u32, simd::binary_u32),
            _ => {
                let (a, b) = (Wide::new::<u8>(a, n), Wide::new::<u8>(b, n));
                let (a, b) = (get::<u8>(a.1, n), get::<u8>(b.1, n));
                match binary_op(op) {
                    Err(Ok(op)) => simd::compare::<u8>(op)(put(dst, n), a, b),
                    Err(Err(op)) => simd::logic(op)(put(dst, n), a, b),
                    Ok(BinaryOp::Min | BinaryOp::Mul) => {
                        map2(put(dst, n), a, b, |x: u8, y: u8| x & y)
                    }
                    Ok(_) => map2(put(dst, n), a, b, |x: u8, y: u8| x | y),
                }
            }
        }
    }
}

/// `c ? a : b`.
///
/// # Safety
/// As [`unary`].
pub(crate) unsafe fn select(ty: DType, c: Arg, a: Arg, b: Arg, dst: *mut u8, n: usize) {
    // SAFETY: the caller's contract. A selection moves bits, whatever they mean.
    unsafe {
        if c.splat && n > 1 {
            let v = if *c.ptr != 0 { a } else { b };
            return match ty.size() {
                1 => put::<u8>(dst, n).copy_from_slice(get(Wide::new::<u8>(v, n).1, n)),
                4 => put::<u32>(dst, n).copy_from_slice(get(Wide::new::<u32>(v, n).1, n)),
                _ => put::<u64>(dst, n).copy_from_slice(get(Wide::new::<u64>(v, n).1, n)),
            };
        }
        if ty == DType::F32 && a.splat != b.splat {
            let f = if b.splat {
                pick!(simd::simd_level(), fn(dst: &mut [f32], c: &[u8], a: &[f32], b: f32) {
                    map2(dst, c, a, |c: u8, a: f32| if c != 0 { a } else { b })
                })
            } else {
                pick!(simd::simd_level(), fn(dst: &mut [f32], c: &[u8], b: &[f32], a: f32) {
                    map2(dst, c, b, |c: u8, b: f32| if c != 0 { a } else { b })
                })
            };
            let (v, s) = if a.splat { (b, a) } else { (a, b) };
            return f(put(dst, n), get(c, n), get(v, n), *s.ptr.cast());
        }
        macro_rules! typed {
            ($t:ty) => {{
                let (a, b) = (Wide::new::<$t>(a, n), Wide::new::<$t>(b, n));
                simd::select::<$t>()(put(dst, n), get(c, n), get(a.1, n), get(b.1, n))
            }};
        }
        match ty.size() {
            1 => typed!(u8),
            4 => typed!(u32),
            _ => typed!(i64),
        }
    }
}

/// `a * b + c`, rounded once.
///
/// # Safety
/// As [`unary`].
pub(crate) unsafe fn fma(ty: DType, a: Arg, b: Arg, c: Arg, dst: *mut u8, n: usize) {
    macro_rules! typed {
        ($t:ty, $f:expr) => {{
            // SAFETY: the caller's contract.
            unsafe {
                let (a, b, c) = (
                    Wide::new::<$t>(a, n),
                    Wide::new::<$t>(b, n),
                    Wide::new::<$t>(c, n),
                );
                $f(
                    put(dst, n),
                    get::<$t>(a.1, n),
                    get::<$t>(b.1, n),
                    get::<$t>(c.1, n),
                )
            }
        }};
    }
    macro_rules! whole {
        ($t:ty) => {
            |d: &mut [$t], a: &[$t], b: &[$t], c: &[$t]| {
                simd::isa::map3(d, a, b, c, |a: $t, b: $t, c: $t| {
                    a.wrapping_mul(b).wrapping_add(c)
                })
            }
        };
    }
    match ty {
        DType::F32 => typed!(f32, simd::mul_add_f32()),
        DType::F64 => typed!(f64, simd::mul_add_f64()),
        DType::I32 | DType::U32 => typed!(u32, whole!(u32)),
        DType::I64 => typed!(i64, whole!(i64)),
        _ => typed!(u8, whole!(u8)),
    }
}

/// Conversion between register dtypes.
///
/// # Safety
/// As [`unary`].
pub(crate) unsafe fn convert(from: DType, to: DType, a: Arg, dst: *mut u8, n: usize) {
    macro_rules! cast {
        ($($f:ident $s:ty: $($t:ident $d:ty),*;)*) => {
            match (from, to) {
                $($((DType::$f, DType::$t) => simd::cast::<$s, $d>()(put(dst, n), get(a, n)),)*)*
                _ => match from.size() {
                    1 => put::<u8>(dst, n).copy_from_slice(get(a, n)),
                    4 => put::<u32>(dst, n).copy_from_slice(get(a, n)),
                    _ => put::<u64>(dst, n).copy_from_slice(get(a, n)),
                },
            }
        };
    }
    // SAFETY: the caller's contract.
    unsafe {
        cast! {
            F32 f32: F64 f64, I32 i32, I64 i64, U32 u32, Bool u8;
            F64 f64: F32 f32, I32 i32, I64 i64, U32 u32, Bool u8;
            I32 i32: F32 f32, F64 f64, I64 i64, U32 u32, Bool u8;
            I64 i64: F32 f32, F64 f64, I32 i32, U32 u32, Bool u8;
            U32 u32: F32 f32, F64 f64, I32 i32, I64 i64, Bool u8;
            Bool u8: F32 f32, F64 f64, I32 i32, I64 i64, U32 u32;
        }
    }
}

/// Rounds to the values of a narrower dtype; the result is in that dtype's register.
///
/// # Safety
/// As [`unary`].
pub(crate) unsafe fn round(from: DType, to: DType, mode: CastMode, a: Arg, dst: *mut u8, n: usize) {
    let saturating = mode == CastMode::Saturating;
    let max = to.max_finite();
    let r64 = |v: f64| match saturating {
        true => round_f64(v.clamp(-max, max), to) as f32,
        false => round_f64(v, to) as f32,
    };
    // SAFETY: the caller's contract.
    unsafe {
        match from {
            DType::F32 => {
                let d = put::<f32>(dst, n);
                if saturating {
                    let max = max as f32;
                    // NaN passes through both comparisons.
                    map(d, get(a, n), |v: f32| v.clamp(-max, max));
                } else {
                    d.copy_from_slice(get(a, n));
                }
                if let Some(f) = simd::round_to(to) {
                    f(d);
                }
            }
            DType::F64 if to == DType::F64 => put::<f64>(dst, n).copy_from_slice(get(a, n)),
            DType::F64 if to == DType::F32 && !saturating => {
                simd::cast::<f64, f32>()(put(dst, n), get(a, n))
            }
            DType::F64 => map(put(dst, n), get(a, n), r64),
            DType::I64 if to.is_float() => map(put(dst, n), get(a, n), |v: i64| r64(odd(v))),
            DType::I32 if to == DType::U8 => map(put(dst, n), get(a, n), |v: i32| v as u8 as i32),
            _ => match from.size() {
                1 => put::<u8>(dst, n).copy_from_slice(get(a, n)),
                4 => put::<u32>(dst, n).copy_from_slice(get(a, n)),
                _ => put::<u64>(dst, n).copy_from_slice(get(a, n)),
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

/// Rounds to a neighbour at random, by the noise in another register.
///
/// # Safety
/// As [`unary`]; all registers are f32.
pub(crate) unsafe fn round_stochastic(to: DType, a: Arg, noise: Arg, dst: *mut u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let (a, noise) = (Wide::new::<f32>(a, n), Wide::new::<f32>(noise, n));
        let dst = put::<f32>(dst, n);
        dst.copy_from_slice(get(a.1, n));
        round_stochastic_slice(dst, get(noise.1, n), to);
    }
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

/// The key of a random stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) key: [u32; 2],
    pub(crate) step: u32,
    pub(crate) micro: u32,
}

/// Random elements number `first..first + n`.
///
/// # Safety
/// `dst` has room for them.
pub(crate) unsafe fn random(d: Distribution, s: Stream, first: usize, dst: *mut u8, n: usize) {
    let high = [s.step, s.micro];
    // SAFETY: the caller's contract.
    unsafe {
        match d {
            Distribution::Bits => simd::philox_fill_u32(s.key, high, first as u64, put(dst, n)),
            Distribution::Uniform => simd::fill_uniform(s.key, high, first as u64, put(dst, n)),
            Distribution::Normal => simd::fill_normal(s.key, high, first as u64, put(dst, n)),
        }
    }
}

/// `a` where random element number `first + i` is at least `p`, else `other`; all f32.
///
/// # Safety
/// As [`unary`].
pub(crate) unsafe fn drop_elements(
    s: Stream,
    first: usize,
    [p, other]: [f32; 2],
    a: Arg,
    dst: *mut u8,
    n: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let dst = put::<f32>(dst, n);
        let Some(least) = simd::least_word(p) else {
            return dst.fill(other);
        };
        let draw = simd::Draw {
            key: s.key,
            ctr_hi: [s.step, s.micro],
            first: first as u64,
        };
        let a = Wide::new::<f32>(a, n);
        simd::select_at_least(draw, least, get(a.1, n), other, dst);
    }
}
