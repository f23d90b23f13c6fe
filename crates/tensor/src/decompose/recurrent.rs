//! Steps of a long short-term memory (Hochreiter and Schmidhuber 1997), gates in PyTorch's order i, f, g, o.
use super::lift;
use crate::graph::LSTM_KEPT;
use crate::{Result, Tensor};

/// The activated gates.
fn gates(x: &Tensor) -> [Tensor; 4] {
    let x = lift(x);
    let mut parts = x.split(4, -1).into_iter();
    let mut next = || parts.next().unwrap_or_else(|| x.clone());
    [
        next().sigmoid(),
        next().sigmoid(),
        next().tanh(),
        next().sigmoid(),
    ]
}

pub(super) fn lstm_cell(x: &Tensor, c: &Tensor) -> Vec<Tensor> {
    let [i, f, g, o] = gates(x);
    let c = f * c + i * g;
    vec![o * c.tanh(), c]
}

pub(super) fn lstm_cell_grad(x: &[Tensor]) -> Vec<Tensor> {
    let [x, c, new, dh, dc] = x else {
        return Vec::new();
    };
    let [i, f, g, o] = gates(x);
    let dh = lift(dh);
    let t = new.tanh();
    let slope = |s: &Tensor| s * (1.0 - s);
    let d = dc + &dh * &o * (1.0 - t.square());
    let parts = [
        &d * &g * slope(&i),
        &d * c * slope(&f),
        &d * &i * (1.0 - g.square()),
        dh * t * slope(&o),
    ];
    let dx = Tensor::concat(&parts.iter().collect::<Vec<_>>(), -1);
    vec![dx, d * f]
}

fn stack(steps: &[Tensor]) -> Tensor {
    Tensor::stack(&steps.iter().collect::<Vec<_>>(), 1)
}

/// The whole sequence, step by step.
pub(super) fn lstm(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let [x, w, h, c] = x else {
        return Ok(Vec::new());
    };
    let dtype = x.dtype();
    let w = lift(w).t();
    let (mut h, mut c) = (h.clone(), c.clone());
    let (mut ys, mut gates, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for t in 0..x.shape()?[1] {
        if t % LSTM_KEPT == 0 {
            kept.push(c.clone());
        }
        let g = (lift(&x.index(1, t)) + lift(&h).matmul(&w)).cast(dtype);
        let parts = lstm_cell(&g, &c);
        (h, c) = (parts[0].cast(dtype), parts[1].clone());
        gates.push(g);
        ys.push(h.clone());
    }
    Ok(vec![stack(&ys), c, stack(&gates), stack(&kept)])
}

pub(super) fn lstm_grad(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let [gates, w, kept, dy, dc] = x else {
        return Ok(Vec::new());
    };
    let dtype = gates.dtype();
    let time = gates.shape()?[1];
    let w = lift(w);
    // Gates, cell state before and after of each step.
    let mut steps = Vec::with_capacity(time);
    let mut c = kept.index(1, 0);
    for t in 0..time {
        if t % LSTM_KEPT == 0 {
            c = kept.index(1, t / LSTM_KEPT);
        }
        let g = gates.index(1, t);
        let after = lstm_cell(&g, &c)[1].clone();
        steps.push([g, c, after.clone()]);
        c = after;
    }
    let mut dc = dc.clone();
    let mut recurrent: Option<Tensor> = None;
    let mut grads = Vec::with_capacity(time);
    for (t, [g, before, after]) in steps.into_iter().enumerate().rev() {
        let dh = lift(&dy.index(1, t));
        let dh = match &recurrent {
            Some(r) => dh + r,
            None => dh,
        };
        let parts = lstm_cell_grad(&[g, before, after, dh, dc]);
        let dg = parts[0].cast(dtype);
        dc = parts[1].clone();
        recurrent = Some(lift(&dg).matmul(&w));
        grads.push(dg);
    }
    grads.reverse();
    let dh = recurrent.unwrap_or_else(|| dc.clone());
    Ok(vec![stack(&grads), dh, dc])
}
