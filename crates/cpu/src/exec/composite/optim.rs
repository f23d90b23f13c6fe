//! Optimizer updates: one sweep over all parameters, in the order of operations of the decomposition, so that both give the same bits.
use crate::exec::cx::{Compile, Cx, Kernel, Operand};
use bimetal_kernels::gemm::Scratch;
use bimetal_kernels::par;
use bimetal_kernels::simd::isa::pick;
use bimetal_kernels::simd::{self, UnaryOp};
use bimetal_tensor::graph::OptimRule;
use bimetal_tensor::{DType, ErrorKind, Result};
use std::ops::Range;

/// Elements of a block: with weight, gradient and moments it stays in the L2 cache.
const BLOCK: usize = 8 * 1024;

/// An update of many parameters, skipped as a whole unless the first input says so.
pub(crate) struct Update {
    rule: OptimRule,
    beta1: f64,
    beta2: f64,
    eps: f32,
    weight_decay: f64,
    /// apply, lr, factor, step.
    scalars: Vec<Operand>,
    params: Vec<Param>,
    /// Parameters and ranges that a task works on.
    tasks: Vec<Vec<(usize, Range<usize>)>>,
}

struct Param {
    grad: usize,
    /// Weight and moments: where the old values are, and where the new ones go.
    state: Vec<(usize, Option<usize>)>,
}

/// The numbers of one run.
#[derive(Clone, Copy)]
struct Numbers {
    lr: f32,
    factor: f32,
    first: bool,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    eps: f32,
    /// Weight decay, or what the weight is multiplied with if it is decoupled.
    decay: f32,
    has_decay: bool,
    /// `lr / (1 - beta1^t)` and the root of `1 - beta2^t`.
    lr1: f32,
    root2: f32,
}

impl Update {
    pub(crate) fn new(
        rule: OptimRule,
        [beta1, beta2, eps, weight_decay]: [f64; 4],
        x: Vec<Operand>,
        y: Vec<Option<Operand>>,
        cx: &Compile<'_>,
    ) -> Result<Update> {
        let each = 2 + rule.moments();
        cx.check(
            x.len() >= 4 && (x.len() - 4) / each * (each - 1) == y.len(),
            "an update has the wrong number of operands",
        )?;
        cx.check(
            x[1..]
                .iter()
                .chain(y.iter().flatten())
                .all(|d| d.dtype == DType::F32),
            "an operand of an update is not f32",
        )?;
        let mut params = Vec::new();
        let mut tasks = vec![Vec::new()];
        let mut room = BLOCK;
        for (p, (x, y)) in x[4..]
            .chunks_exact(each)
            .zip(y.chunks_exact(each - 1))
            .enumerate()
        {
            let n = x[0].numel;
            let same = x.iter().chain(y.iter().flatten()).all(|d| d.numel == n);
            cx.check(same, "operands of an update have different sizes")?;
            let old = [0].into_iter().chain(2..each).map(|i| x[i].buf);
            let new = y.iter().map(|d| d.as_ref().map(|d| d.buf));
            let state: Vec<_> = old.zip(new).collect();
            for (i, (_, new)) in state.iter().enumerate() {
                let Some(new) = new else { continue };
                let foreign = x[1].buf;
                let others = state
                    .iter()
                    .enumerate()
                    .filter(|(j, _)| *j != i)
                    .map(|(_, s)| s.0);
                let alone = [foreign]
                    .into_iter()
                    .chain(others)
                    .all(|b| !cx.overlap(b, *new));
                cx.check(
                    alone,
                    "a result of an update shares memory with a foreign operand",
                )?;
            }
            params.push(Param {
                grad: x[1].buf,
                state,
            });
            let mut at = 0;
            while at < n {
                let len = room.min(n - at);
                if let Some(t) = tasks.last_mut() {
                    t.push((p, at..at + len));
                }
                at += len;
                room -= len;
                if room == 0 {
                    room = BLOCK;
                    tasks.push(Vec::new());
                }
            }
        }
        Ok(Update {
            rule,
            beta1,
            beta2,
            eps: eps as f32,
            weight_decay,
            scalars: x[..4].to_vec(),
            params,
            tasks,
        })
    }

    fn numbers(&self, cx: &Cx<'_>) -> Numbers {
        // SAFETY: the scalars are f32 and nobody writes them meanwhile.
        let scalar = |i: usize| unsafe { *cx.ptr(self.scalars[i].buf).cast::<f32>() };
        let (lr, factor, step) = (scalar(1), scalar(2), scalar(3));
        // 1 - beta^t without loss of digits.
        let correction = |beta: f64| {
            let mut e = [0.0f32];
            simd::unary_f32(UnaryOp::Expm1)(&mut e, &[step * beta.ln() as f32]);
            -e[0]
        };
        let wd = self.weight_decay as f32;
        let decoupled = matches!(self.rule, OptimRule::Adam { decoupled: true });
        Numbers {
            lr,
            factor,
            first: step == 1.0,
            beta1: self.beta1 as f32,
            rest1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            rest2: (1.0 - self.beta2) as f32,
            eps: self.eps,
            decay: if decoupled { 1.0 - lr * wd } else { wd },
            has_decay: self.weight_decay != 0.0,
            lr1: lr / correction(self.beta1),
            root2: correction(self.beta2).sqrt(),
        }
    }
}

type Step = fn(&Numbers, &[f32], [&mut [f32]; 3]);

/// `state` is weight and moments, as many as there are; the rest is empty.
fn step(rule: OptimRule, n: &Numbers) -> Step {
    macro_rules! body {
        (|$n:ident, $w:ident, $g:ident, $m:ident, $v:ident| $body:block) => {
            pick!(simd::simd_level(), fn(numbers: &Numbers, grad: &[f32], state: [&mut [f32]; 3]) {
                let $n = *numbers;
                let [w, m, v] = state;
                let len = grad.len();
                let (w, m, v) = (&mut w[..len], &mut m[..len], &mut v[..len]);
                for i in 0..len {
                    let ($w, $g, $m, $v) = (&mut w[i], grad[i], &mut m[i], &mut v[i]);
                    $body
                }
            })
        };
    }
    macro_rules! sgd {
        ($decay:literal, $first:literal, $nesterov:literal) => {
            pick!(simd::simd_level(), fn(numbers: &Numbers, grad: &[f32], state: [&mut [f32]; 3]) {
                let n = *numbers;
                let [w, m, _] = state;
                for ((w, g), m) in w.iter_mut().zip(grad).zip(m.iter_mut()) {
                    let mut g = g * n.factor;
                    if $decay {
                        g += *w * n.decay;
                    }
                    *m = if $first { g } else { *m * n.beta1 + g * n.rest2 };
                    let d = if $nesterov { g + *m * n.beta1 } else { *m };
                    *w -= n.lr * d;
                }
            })
        };
    }
    macro_rules! adam {
        ($decoupled:literal, $decay:literal, $eps:literal) => {
            body!(|n, w, g, m, v| {
                let mut g = g * n.factor;
                let mut x = *w;
                if $decay && $decoupled {
                    x *= n.decay;
                } else if $decay {
                    g += x * n.decay;
                }
                *m += (g - *m) * n.rest1;
                *v = *v * n.beta2 + g * g * n.rest2;
                let change = n.lr1 * (*m / (v.sqrt() / n.root2 + n.eps));
                // A zero gradient makes no update, whatever eps.
                let change = if $eps || *m != 0.0 { change } else { 0.0 };
                *w = x - change;
            })
        };
    }
    let eps = n.eps != 0.0;
    match (rule, n.has_decay) {
        (
            OptimRule::Sgd {
                momentum: false, ..
            },
            decay,
        ) => {
            let plain = pick!(simd::simd_level(), fn(numbers: &Numbers, grad: &[f32], state: [&mut [f32]; 3]) {
                let n = *numbers;
                let [w, ..] = state;
                for (w, g) in w.iter_mut().zip(grad) {
                    *w -= n.lr * (g * n.factor);
                }
            });
            let decayed = pick!(simd::simd_level(), fn(numbers: &Numbers, grad: &[f32], state: [&mut [f32]; 3]) {
                let n = *numbers;
                let [w, ..] = state;
                for (w, g) in w.iter_mut().zip(grad) {
                    *w -= n.lr * (g * n.factor + *w * n.decay);
                }
            });
            if decay { decayed } else { plain }
        }
        (OptimRule::Sgd { nesterov, .. }, decay) => match (decay, n.first, nesterov) {
            (false, false, false) => sgd!(false, false, false),
            (false, false, true) => sgd!(false, false, true),
            (false, true, false) => sgd!(false, true, false),
            (false, true, true) => sgd!(false, true, true),
            (true, false, false) => sgd!(true, false, false),
            (true, false, true) => sgd!(true, false, true),
            (true, true, false) => sgd!(true, true, false),
            (true, true, true) => sgd!(true, true, true),
        },
        (OptimRule::Adam { decoupled }, decay) => match (decoupled, decay, eps) {
            (true, true, true) => adam!(true, true, true),
            (true, true, false) => adam!(true, true, false),
            (false, true, true) => adam!(false, true, true),
            (false, true, false) => adam!(false, true, false),
            (_, false, true) => adam!(false, false, true),
            (_, false, false) => adam!(false, false, false),
        },
    }
}

impl Kernel for Update {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        // SAFETY: a Bool is one byte.
        let apply = unsafe { *cx.ptr(self.scalars[0].buf) != 0 };
        let numbers = self.numbers(cx);
        let step = step(self.rule, &numbers);
        par::for_each(self.tasks.len(), |t| {
            for (p, range) in &self.tasks[t] {
                let param = &self.params[*p];
                let n = range.len();
                let spare = Scratch::take::<u8>(3 * BLOCK * 4);
                let mut state: [&mut [f32]; 3] = [&mut [], &mut [], &mut []];
                for (i, (old, new)) in param.state.iter().enumerate() {
                    let old = cx.ptr(*old).cast::<f32>().wrapping_add(range.start);
                    let to = match new {
                        Some(b) => cx.ptr(*b).cast::<f32>().wrapping_add(range.start),
                        // Nobody asks for it.
                        None => spare.ptr::<f32>().wrapping_add(i * BLOCK),
                    };
                    // SAFETY: the range lies in both buffers, which are equal or apart; ranges of tasks do not overlap.
                    unsafe {
                        if old != to {
                            std::ptr::copy_nonoverlapping(old, to, n);
                        }
                        state[i] = std::slice::from_raw_parts_mut(to, n);
                    }
                }
                if apply {
                    let grad = cx.ptr(param.grad).cast::<f32>().wrapping_add(range.start);
                    // SAFETY: the gradient is only read, and shares memory with no result.
                    let grad = unsafe { std::slice::from_raw_parts(grad, n) };
                    step(&numbers, grad, state);
                }
            }
        });
        Ok(())
    }

    fn work(&self) -> usize {
        let all = self.tasks.iter().flatten();
        all.map(|(_, r)| 4 * r.len()).sum()
    }
}
