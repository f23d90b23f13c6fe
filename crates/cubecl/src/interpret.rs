//! Programs, unrolled into the kernels they hang on.
use crate::code::{Code, ENTRY, Loc, Op};
use crate::math::{self, bits, float, is_finite, is_nan};
use crate::philox;
use crate::words::{self, Atomics, Buffers};
use bimetal_tensor::DType;
use bimetal_tensor::graph::{Binary, Distribution, ReduceOp, Unary};
use cubecl::prelude::*;

/// The element of a buffer that belongs to element `i` of the domain.
#[cube]
pub(crate) fn place(i: u32, #[comptime] loc: Loc) -> u32 {
    let axes = comptime!(loc.axes.len());
    if comptime!(loc.is_dense()) {
        i
    } else {
        let mut at = comptime!(loc.offset).runtime();
        let mut rest = i;
        #[unroll]
        for k in 0..axes {
            let axis = comptime!(loc.axes[axes - 1 - k]);
            if comptime!(k + 1 == axes) {
                at += rest * comptime!(axis.1);
            } else {
                if comptime!(axis.1 != 0) {
                    at += (rest % comptime!(axis.0)) * comptime!(axis.1);
                }
                rest /= comptime!(axis.0);
            }
        }
        at
    }
}

/// The registers after a program ran for element `i` of its domain.
#[cube]
pub(crate) fn run(
    buffers: &Buffers,
    scalars: &[u32],
    i: u32,
    acc: u32,
    #[comptime] code: Code,
) -> Sequence<u32> {
    let mut regs = Sequence::<u32>::new();
    #[unroll]
    for n in 0..comptime!(code.ops.len()) {
        let op = comptime!(code.ops[n].clone());
        let value = step(buffers, scalars, &regs, i, acc, op);
        regs.push(value);
    }
    regs
}

/// The register that one instruction writes, for element `i` of the domain.
#[cube]
pub(crate) fn step(
    buffers: &Buffers,
    scalars: &[u32],
    regs: &Sequence<u32>,
    i: u32,
    acc: u32,
    #[comptime] op: Op,
) -> u32 {
    match op {
        Op::Load(loc) => {
            let at = place(i, comptime!(loc.clone()));
            words::load(buffers, comptime!(loc.binding), at, comptime!(loc.dtype))
        }
        Op::Acc => acc,
        Op::Const(value) => value.runtime(),
        Op::Scalar(word) => scalars[comptime!(word as usize)],
        Op::Iota { size, inner } => (i / comptime!(inner.max(1))) % comptime!(size.max(1)),
        Op::Random {
            distribution,
            key,
            step,
        } => random(scalars, regs, i, distribution, key, step),
        Op::Unary(op, a, ty) => {
            let x = *regs.index(a);
            match comptime!(ty) {
                DType::F32 => unary_float(float(x), op),
                DType::I32 => unary_signed(x, op),
                DType::U32 => unary_unsigned(x, op),
                _ => unary_bool(x, op),
            }
        }
        Op::Binary(op, a, b, ty) => {
            let x = *regs.index(a);
            let y = *regs.index(b);
            match comptime!(ty) {
                DType::F32 => binary_float(float(x), float(y), op),
                DType::I32 => binary_signed(i32::reinterpret(x), i32::reinterpret(y), op),
                DType::U32 => binary_unsigned(x, y, op),
                _ => binary_bool(x, y, op),
            }
        }
        Op::Select(c, a, b) => select(*regs.index(c) != 0u32, *regs.index(a), *regs.index(b)),
        Op::Fma(a, b, c, ty) => {
            let x = *regs.index(a);
            let y = *regs.index(b);
            let z = *regs.index(c);
            if comptime!(ty == DType::F32) {
                // A driver's own need not be fused: the product in two parts, so that nothing is lost where both summands cancel.
                bits(math::multiply_add(float(x), float(y), float(z), scalars[0]))
            } else {
                x * y + z
            }
        }
        Op::Convert { a, from, to } => convert(*regs.index(a), from, to),
        Op::Round { a, to, saturating } => {
            let x = *regs.index(a);
            match comptime!(to) {
                DType::U8 => x & 0xffu32,
                DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => {
                    words::round(x, to, saturating)
                }
                _ => x,
            }
        }
        Op::RoundStochastic { a, noise, to } => {
            round_stochastic(*regs.index(a), float(*regs.index(noise)), to)
        }
        Op::Nop => 0u32.runtime(),
    }
}

/// Stores the results of a program for one element; those whose words are not shared must fill them.
#[cube]
pub(crate) fn store(
    buffers: &mut Buffers,
    atomics: &Atomics,
    regs: &Sequence<u32>,
    i: u32,
    #[comptime] code: Code,
) {
    #[unroll]
    for n in 0..comptime!(code.stores.len()) {
        let s = comptime!(code.stores[n].clone());
        let at = place(i, comptime!(s.to.clone()));
        let value = *regs.index(comptime!(s.register));
        if comptime!(s.shared) {
            words::store_part(
                atomics,
                comptime!(s.to.binding),
                at,
                value,
                comptime!(s.to.dtype),
            );
        } else {
            let words = buffers.index_mut(comptime!(s.to.binding));
            words[at as usize] = value;
        }
    }
}

#[cube]
fn truth(b: bool) -> u32 {
    select(b, 1u32, 0u32)
}

#[cube]
fn unary_float(x: f32, #[comptime] op: Unary) -> u32 {
    match op {
        Unary::IsFinite => truth(is_finite(x)),
        Unary::IsNan => truth(is_nan(x)),
        Unary::Not => truth(x == 0.0f32),
        Unary::Neg => bits(x) ^ 0x8000_0000u32,
        Unary::Abs => bits(math::abs(x)),
        _ => bits(function(x, op)),
    }
}

#[cube]
fn function(x: f32, #[comptime] op: Unary) -> f32 {
    match op {
        Unary::Sign => {
            let y = select(x > 0.0f32, 1.0f32, x);
            select(x < 0.0f32, -1.0f32, y)
        }
        Unary::Sqrt => math::sqrt(x),
        Unary::Rsqrt => 1.0f32 / math::sqrt(x),
        Unary::Recip => 1.0f32 / x,
        Unary::Exp => math::exp(x),
        Unary::Expm1 => math::expm1(x),
        Unary::Log => math::log(x),
        Unary::Log1p => math::log1p(x),
        Unary::Sin => math::sin(x),
        Unary::Cos => math::cos(x),
        Unary::Tanh => math::tanh(x),
        Unary::Sigmoid => math::sigmoid(x),
        Unary::Erf => math::erf(x),
        Unary::Relu => select((x > 0.0f32) | is_nan(x), x, 0.0f32),
        Unary::Silu => math::silu(x),
        Unary::SiluGrad => math::silu_grad(x),
        Unary::Gelu => math::gelu(x),
        Unary::GeluGrad => math::gelu_grad(x),
        Unary::GeluTanh => math::gelu_tanh(x),
        Unary::GeluTanhGrad => math::gelu_tanh_grad(x),
        Unary::Softplus => math::softplus(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => math::round_even(x),
        Unary::Trunc => x.trunc(),
        Unary::Square => x * x,
        _ => x,
    }
}

#[cube]
fn unary_signed(x: u32, #[comptime] op: Unary) -> u32 {
    let v = i32::reinterpret(x);
    match op {
        Unary::Neg => 0u32 - x,
        Unary::Abs => select(v < 0i32, 0u32 - x, x),
        Unary::Sign => select(v > 0i32, 1u32, select(v < 0i32, 0xffff_ffffu32, 0u32)),
        Unary::Square => x * x,
        Unary::Relu => select(v > 0i32, x, 0u32),
        Unary::Not | Unary::IsNan => 0u32.runtime(),
        Unary::IsFinite => 1u32.runtime(),
        _ => x,
    }
}

#[cube]
fn unary_unsigned(x: u32, #[comptime] op: Unary) -> u32 {
    match op {
        Unary::Neg => 0u32 - x,
        Unary::Sign => truth(x != 0u32),
        Unary::Square => x * x,
        Unary::Not | Unary::IsNan => 0u32.runtime(),
        Unary::IsFinite => 1u32.runtime(),
        _ => x,
    }
}

#[cube]
fn unary_bool(x: u32, #[comptime] op: Unary) -> u32 {
    match op {
        Unary::Not => x ^ 1u32,
        Unary::IsNan => 0u32.runtime(),
        Unary::IsFinite => 1u32.runtime(),
        _ => x,
    }
}

#[cube]
fn binary_float(x: f32, y: f32, #[comptime] op: Binary) -> u32 {
    match op {
        Binary::Add => bits(x + y),
        Binary::Sub => bits(x - y),
        Binary::Mul => bits(x * y),
        Binary::Div => bits(x / y),
        Binary::Max => {
            let m = select(x > y, x, y);
            bits(select(is_nan(x), x, m))
        }
        Binary::Min => {
            let m = select(x < y, x, y);
            bits(select(is_nan(x), x, m))
        }
        Binary::Pow => bits(math::pow(x, y)),
        Binary::Rem => bits(math::remainder(x, y)),
        Binary::Eq => truth(x == y),
        Binary::Ne => truth(x != y),
        Binary::Lt => truth(x < y),
        Binary::Le => truth(x <= y),
        Binary::Gt => truth(x > y),
        Binary::Ge => truth(x >= y),
        _ => 0u32.runtime(),
    }
}

#[cube]
fn binary_signed(x: i32, y: i32, #[comptime] op: Binary) -> u32 {
    match op {
        Binary::Add => u32::reinterpret(x + y),
        Binary::Sub => u32::reinterpret(x - y),
        Binary::Mul => u32::reinterpret(x * y),
        // Neither by zero nor the one quotient that does not fit.
        Binary::Div => {
            let safe = select((y == 0i32) | (y == -1i32), 1i32, y);
            let q = select(y == -1i32, 0i32 - x, x / safe);
            u32::reinterpret(select(y == 0i32, 0i32, q))
        }
        Binary::Rem => {
            let safe = select((y == 0i32) | (y == -1i32), 1i32, y);
            let r = x - (x / safe) * safe;
            let wrong = (r != 0i32) & ((r < 0i32) != (y < 0i32));
            u32::reinterpret(select(wrong, r + y, r))
        }
        Binary::Max => u32::reinterpret(select(x > y, x, y)),
        Binary::Min => u32::reinterpret(select(x < y, x, y)),
        Binary::Pow => {
            let power = power(u32::reinterpret(x), u32::reinterpret(y));
            let odd = (y & 1i32) == 1i32;
            let inverse = select(x == 1i32, 1i32, 0i32);
            let inverse = select(x == -1i32, select(odd, -1i32, 1i32), inverse);
            select(y < 0i32, u32::reinterpret(inverse), power)
        }
        Binary::Eq => truth(x == y),
        Binary::Ne => truth(x != y),
        Binary::Lt => truth(x < y),
        Binary::Le => truth(x <= y),
        Binary::Gt => truth(x > y),
        Binary::Ge => truth(x >= y),
        _ => 0u32.runtime(),
    }
}

#[cube]
fn binary_unsigned(x: u32, y: u32, #[comptime] op: Binary) -> u32 {
    match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => select(y == 0u32, 0u32, x / select(y == 0u32, 1u32, y)),
        Binary::Rem => select(y == 0u32, 0u32, x % select(y == 0u32, 1u32, y)),
        Binary::Max => select(x > y, x, y),
        Binary::Min => select(x < y, x, y),
        Binary::Pow => power(x, y),
        Binary::Eq => truth(x == y),
        Binary::Ne => truth(x != y),
        Binary::Lt => truth(x < y),
        Binary::Le => truth(x <= y),
        Binary::Gt => truth(x > y),
        Binary::Ge => truth(x >= y),
        _ => 0u32.runtime(),
    }
}

#[cube]
fn binary_bool(x: u32, y: u32, #[comptime] op: Binary) -> u32 {
    match op {
        Binary::And | Binary::Min | Binary::Mul => x & y,
        Binary::Xor => x ^ y,
        Binary::Eq => truth(x == y),
        Binary::Ne => truth(x != y),
        Binary::Lt => truth(x < y),
        Binary::Le => truth(x <= y),
        Binary::Gt => truth(x > y),
        Binary::Ge => truth(x >= y),
        _ => x | y,
    }
}

/// `x^y` modulo 2^32.
#[cube]
fn power(x: u32, y: u32) -> u32 {
    let mut base = x;
    let mut rest = y;
    let mut result = 1u32;
    while rest != 0u32 {
        if (rest & 1u32) == 1u32 {
            result *= base;
        }
        base *= base;
        rest >>= 1u32;
    }
    result
}

#[cube]
fn convert(x: u32, #[comptime] from: DType, #[comptime] to: DType) -> u32 {
    match comptime!((from, to)) {
        (DType::F32, DType::I32) => u32::reinterpret(math::to_i32(float(x))),
        (DType::F32, DType::U32) => math::to_u32(float(x)),
        (DType::F32, DType::Bool) => truth((x & 0x7fff_ffffu32) != 0u32),
        (DType::I32, DType::F32) => bits(f32::cast_from(i32::reinterpret(x))),
        (DType::U32 | DType::Bool, DType::F32) => bits(f32::cast_from(x)),
        (DType::I32 | DType::U32, DType::Bool) => truth(x != 0u32),
        // On the way to a narrower float, which f64 lets round once: so does f32 if it is rounded to odd.
        (DType::U32, DType::F64) => bits(f32::cast_from(odd(x))),
        (DType::I32, DType::F64) => {
            let sign = x & 0x8000_0000u32;
            let magnitude = select(sign != 0u32, 0u32 - x, x);
            bits(f32::cast_from(odd(magnitude))) | sign
        }
        _ => x,
    }
}

/// An integer with at most 24 significant bits, the last of which says whether any was lost.
#[cube]
fn odd(x: u32) -> u32 {
    let mut drop = 0u32.runtime();
    if x >= 0x100_0000u32 {
        drop = 8u32 - x.leading_zeros();
    }
    let kept = (x >> drop) << drop;
    let lost = select(kept != x, 1u32, 0u32);
    kept | (lost << drop)
}

#[cube]
fn random(
    scalars: &[u32],
    regs: &Sequence<u32>,
    i: u32,
    #[comptime] distribution: Distribution,
    #[comptime] key: u32,
    #[comptime] step: Option<usize>,
) -> u32 {
    let low = scalars[comptime!((key * ENTRY + 2) as usize)];
    let high = scalars[comptime!(((key + 1) * ENTRY + 2) as usize)];
    let micro = scalars[comptime!(((key + 2) * ENTRY + 2) as usize)];
    let step = match comptime!(step) {
        Some(r) => *regs.index(r),
        None => 0u32.runtime(),
    };
    let words = philox::block(low, high, i >> 2u32, 0u32.runtime(), step, micro);
    match comptime!(distribution) {
        Distribution::Bits => philox::word(&words, i & 3u32),
        Distribution::Uniform => bits(math::unit(philox::word(&words, i & 3u32))),
        Distribution::Normal => {
            let first = i & 2u32;
            let a = philox::word(&words, first);
            let b = philox::word(&words, first + 1u32);
            bits(math::normal_number(a, b, (i & 1u32) == 1u32))
        }
    }
}

/// Rounds to a neighbour at random: away from zero where the noise is smaller than the way from the neighbour nearer to zero.
#[cube]
fn round_stochastic(x: u32, noise: f32, #[comptime] to: DType) -> u32 {
    let magnitude = x & 0x7fff_ffffu32;
    let sign = x & 0x8000_0000u32;
    // The neighbour nearer to zero is what rounding gives, or the value before that.
    let near = words::round(magnitude, to, true);
    let pattern = words::narrow(near, to);
    let down = select(near > magnitude, pattern - 1u32, pattern);
    let low = float(words::widen(down, to));
    let high = float(words::widen(down + 1u32, to));
    let value = float(magnitude);
    let share = (value - low) / (high - low);
    let up = noise < share;
    let result = bits(select(up, high, low));
    let top = comptime!((to.max_finite() as f32).to_bits());
    let result = select(magnitude >= top, top.runtime(), result);
    let result = select(bits(low) == magnitude, magnitude, result);
    let special = words::round(magnitude, to, false);
    let result = select(magnitude >= 0x7f80_0000u32, special, result);
    result | sign
}

/// What a reduction of nothing gives.
#[cube]
pub(crate) fn identity(#[comptime] op: ReduceOp, #[comptime] ty: DType) -> u32 {
    comptime!(start(op, ty)).runtime()
}

fn start(op: ReduceOp, ty: DType) -> u32 {
    match (op, ty) {
        (ReduceOp::Sum | ReduceOp::Mean, _) => 0,
        (ReduceOp::Prod, DType::F32) => 1f32.to_bits(),
        (ReduceOp::Prod, _) => 1,
        (ReduceOp::Max, DType::F32) => f32::NEG_INFINITY.to_bits(),
        (ReduceOp::Max, DType::I32) => i32::MIN as u32,
        (ReduceOp::Max, _) => 0,
        (ReduceOp::Min, DType::F32) => f32::INFINITY.to_bits(),
        (ReduceOp::Min, DType::I32) => i32::MAX as u32,
        (ReduceOp::Min, DType::Bool) => 1,
        (ReduceOp::Min, _) => u32::MAX,
    }
}

fn binary_of(op: ReduceOp) -> Binary {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => Binary::Add,
        ReduceOp::Prod => Binary::Mul,
        ReduceOp::Max => Binary::Max,
        ReduceOp::Min => Binary::Min,
    }
}

/// Joins two values of a reduction.
#[cube]
pub(crate) fn combine(x: u32, y: u32, #[comptime] op: ReduceOp, #[comptime] ty: DType) -> u32 {
    let op = comptime!(binary_of(op));
    match comptime!(ty) {
        DType::F32 => binary_float(float(x), float(y), op),
        DType::I32 => binary_signed(i32::reinterpret(x), i32::reinterpret(y), op),
        DType::U32 => binary_unsigned(x, y, op),
        _ => binary_bool(x, y, op),
    }
}

/// Whether `x` comes before `y` in an order in which NaN comes first.
#[cube]
pub(crate) fn before(x: u32, y: u32, #[comptime] ty: DType, #[comptime] largest: bool) -> bool {
    let op = comptime!(if largest { Binary::Gt } else { Binary::Lt });
    match comptime!(ty) {
        DType::F32 => {
            let less = binary_float(float(x), float(y), op) != 0u32;
            let x_nan = is_nan(float(x));
            let y_nan = is_nan(float(y));
            (x_nan | less) & !y_nan
        }
        DType::I32 => binary_signed(i32::reinterpret(x), i32::reinterpret(y), op) != 0u32,
        _ => binary_unsigned(x, y, op) != 0u32,
    }
}
