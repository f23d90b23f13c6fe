//! Element-wise functions.
use super::{Grads, Node, lift, literal, none};
use bimetal_tensor::graph::{Binary, Unary};
use bimetal_tensor::{Result, Tensor};
use std::f64::consts::{FRAC_2_SQRT_PI, PI};

pub(super) fn unary(n: &Node<'_>, op: Unary, g: &Tensor) -> Result<Grads> {
    use Unary::*;
    let g = lift(g);
    let x = || lift(n.x(0));
    let y = || lift(&n.y());
    let d = match op {
        Neg => -g,
        Abs => g * x().sign(),
        Sign | Floor | Ceil | Round | Trunc => g.zeros_like(),
        Sqrt => g * 0.5 / y(),
        Rsqrt => g * -0.5 * y().square() * y(),
        Recip => -g * y().square(),
        Exp => g * y(),
        Expm1 => g * (y() + 1.0),
        Log => g / x(),
        Log1p => g / (x() + 1.0),
        Sin => g * x().cos(),
        Cos => -g * x().sin(),
        Tanh => g * (1.0 - y().square()),
        Sigmoid => g * y() * (1.0 - y()),
        Erf => g * FRAC_2_SQRT_PI * (-x().square()).exp(),
        // Of the result, so that the operand need not be kept; a NaN passes the gradient, as in PyTorch.
        Relu => n.y().le(0.0).select(0.0, g),
        Silu => g * x().unary(SiluGrad),
        Gelu => g * x().unary(GeluGrad),
        GeluTanh => g * x().unary(GeluTanhGrad),
        Softplus => g * x().sigmoid(),
        Square => g * x() * 2.0,
        GeluGrad => g * gelu_curvature(&x()),
        GeluTanhGrad => g * gelu_tanh_curvature(&x()),
        SiluGrad => g * silu_curvature(&x()),
        Not | IsFinite | IsNan => return Err(none(n.t)),
    };
    Ok(n.each(|_| Some(d.clone())))
}

/// The second derivative of `x Phi(x)`: `phi(x) (2 - x^2)`.
fn gelu_curvature(x: &Tensor) -> Tensor {
    let density = (x.square() * -0.5f64).exp() * (FRAC_2_SQRT_PI / 8f64.sqrt());
    density * (2.0 - x.square())
}

/// The second derivative of `0.5 x (1 + tanh u)` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
fn gelu_tanh_curvature(x: &Tensor) -> Tensor {
    let (c, a) = ((2.0 / PI).sqrt(), 0.044715);
    let x2 = x.square();
    let t = (x * (&x2 * (c * a) + c)).tanh();
    let u1 = &x2 * (3.0 * c * a) + c;
    let half_x_u2 = x2 * (3.0 * c * a);
    (1.0 - t.square()) * (&u1 + half_x_u2 - x * t * u1.square())
}

/// The second derivative of `x s(x)`: `s (1 - s) (2 + x (1 - 2 s))`.
fn silu_curvature(x: &Tensor) -> Tensor {
    let s = x.sigmoid();
    &s * (1.0 - &s) * (2.0 + x * (1.0 - &s * 2.0))
}

pub(super) fn binary(n: &Node<'_>, op: Binary, g: &Tensor) -> Result<Grads> {
    use Binary::*;
    let (a, b) = (n.x(0), n.x(1));
    Ok(match op {
        Add => n.each(|_| Some(g.clone())),
        Sub => n.each(|i| Some(if i == 0 { g.clone() } else { -g })),
        Mul => n.each(|i| Some(if i == 0 { g * b } else { g * a })),
        Div => n.each(|i| {
            let (g, a, b) = (lift(g), lift(a), lift(b));
            Some(match i {
                0 => g / b,
                _ => -(g * (a / &b) / b),
            })
        }),
        Max => n.each(|i| Some(extreme(g, n.x(i), n.x(1 - i), Lt))),
        Min => n.each(|i| Some(extreme(g, n.x(i), n.x(1 - i), Gt))),
        Pow => n.each(|i| Some(pow(n, lift(g), i))),
        Rem => n.each(|i| match i {
            0 => Some(g.clone()),
            _ => {
                let (a, b) = (lift(a), lift(b));
                // a = b q + rem with an integer q, which is constant.
                let q = ((a - lift(&n.y())) / b).round();
                Some(-(lift(g) * q))
            }
        }),
        _ => return Err(none(n.t)),
    })
}

/// The gradient passes to the winner; equals share it. A number is no variable to share with: a clamped value that lies on the limit keeps
/// its gradient, as in PyTorch.
fn extreme(g: &Tensor, me: &Tensor, other: &Tensor, loses: Binary) -> Tensor {
    let lost = me.binary(loses, other);
    let g = match literal(other) {
        Some(_) => g.clone(),
        None => me.eq(other).select(g * 0.5, g),
    };
    lost.select(0.0, g)
}

fn pow(n: &Node<'_>, g: Tensor, i: usize) -> Tensor {
    let (a, b) = (lift(n.x(0)), lift(n.x(1)));
    if i == 0 {
        return match literal(&b) {
            Some(0.0) => g.zeros_like(),
            Some(1.0) => g,
            Some(2.0) => g * a * 2.0,
            Some(p) => g * p * a.pow(p - 1.0),
            // x^0 is constant, also at 0.
            None => b.eq(0.0).select(0.0, g * &b * a.pow(&b - 1.0)),
        };
    }
    let y = lift(&n.y());
    match literal(&a) {
        Some(0.0) => g.zeros_like(),
        Some(v) => g * y * v.ln(),
        // 0^b is 0 for all positive b.
        None => {
            let flat = a.eq(0.0).logical_and(b.ge(0.0));
            flat.select(0.0, g * y * a.log())
        }
    }
}
