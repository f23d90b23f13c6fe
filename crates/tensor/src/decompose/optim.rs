//! Optimizer updates by PyTorch's formulas; nothing changes unless `apply`.
use crate::graph::OptimRule;
use crate::{DType, Tensor};

/// The host numbers of an update.
pub(super) struct Numbers {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
}

/// What all parameters of one dtype share.
struct Shared {
    lr: Tensor,
    factor: Tensor,
    first: Tensor,
    correction1: Tensor,
    correction2: Tensor,
}

pub(super) fn update(rule: OptimRule, n: Numbers, x: &[Tensor]) -> Vec<Tensor> {
    let apply = &x[0];
    let mut shared: Vec<(DType, Shared)> = Vec::new();
    let mut outs = Vec::new();
    for p in x[4..].chunks(2 + rule.moments()) {
        let d = p[0].dtype();
        if !shared.iter().any(|(have, _)| *have == d) {
            shared.push((d, Shared::new(&n, &x[1], &x[2], &x[3], d)));
        }
        let Some((_, s)) = shared.iter().find(|(have, _)| *have == d) else {
            continue;
        };
        let new = match rule {
            OptimRule::Sgd { momentum, nesterov } => sgd(&n, s, p, momentum, nesterov),
            OptimRule::Adam { decoupled } => adam(&n, s, p, decoupled),
        };
        let old = p[..1].iter().chain(&p[2..]);
        // A selection keeps the old bits even where the new value is NaN.
        for (new, old) in new.iter().zip(old) {
            outs.push(apply.select(new, old));
        }
    }
    outs
}

impl Shared {
    fn new(n: &Numbers, lr: &Tensor, factor: &Tensor, step: &Tensor, d: DType) -> Shared {
        // 1 - beta^t as -expm1(t ln beta): the power itself would lose the digits of 1 - 0.999 in f32.
        let t = step.cast(d);
        let correction = |beta: f64| -(&t * beta.ln()).expm1();
        Shared {
            lr: lr.cast(d),
            factor: factor.cast(d),
            first: step.eq(1.0),
            correction1: correction(n.beta1),
            correction2: correction(n.beta2),
        }
    }
}

/// PyTorch's `SGD`: weight, gradient, buffer? gives weight, buffer?.
fn sgd(n: &Numbers, s: &Shared, p: &[Tensor], momentum: bool, nesterov: bool) -> Vec<Tensor> {
    let w = &p[0];
    let mut g = &p[1] * &s.factor;
    if n.weight_decay != 0.0 {
        g = g + w * n.weight_decay;
    }
    if !momentum {
        return vec![w - &s.lr * g];
    }
    // The first gradient starts the buffer as it is, without dampening.
    let mixed = &p[2] * n.beta1 + &g * (1.0 - n.beta2);
    let buffer = s.first.select(&g, mixed);
    let direction = if nesterov {
        g + &buffer * n.beta1
    } else {
        buffer.clone()
    };
    vec![w - &s.lr * direction, buffer]
}

/// PyTorch's `Adam` and `AdamW`: weight, gradient, m, v gives weight, m, v.
fn adam(n: &Numbers, s: &Shared, p: &[Tensor], decoupled: bool) -> Vec<Tensor> {
    let mut w = p[0].clone();
    let mut g = &p[1] * &s.factor;
    if n.weight_decay != 0.0 {
        if decoupled {
            w = w * (1.0 - &s.lr * n.weight_decay);
        } else {
            g = g + &w * n.weight_decay;
        }
    }
    let m = &p[2] + (&g - &p[2]) * (1.0 - n.beta1);
    let v = &p[3] * n.beta2 + g.square() * (1.0 - n.beta2);
    let denominator = v.sqrt() / s.correction2.sqrt() + n.eps;
    let mut change = &s.lr / &s.correction1 * (&m / &denominator);
    let no_eps = match w.dtype() {
        DType::F64 => n.eps == 0.0,
        _ => n.eps as f32 == 0.0,
    };
    if no_eps {
        // A zero gradient makes no update, whatever eps.
        change = m.eq(0.0).select(0.0, change);
    }
    vec![w - change, m, v]
}
