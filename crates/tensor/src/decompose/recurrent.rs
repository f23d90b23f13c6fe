//! One step of a long short-term memory (Hochreiter and Schmidhuber 1997), gates in PyTorch's order i, f, g, o.
use super::lift;
use crate::Tensor;

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
