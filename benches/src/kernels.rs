//! Single operations and their gradients.
use crate::models::{indices, normal};
use bimetal::autodiff::vjp;
use bimetal::prelude::*;
use bimetal::tensor::commit;
use bimetal::tensor::graph::{Attr, Composite, OptimRule};

/// Something to be repeated.
pub type Run = Box<dyn FnMut() -> Result<()>>;

fn normal_in(shape: &[usize], stream: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    Ok(normal(shape, stream, device)?.cast(dtype).settle()?)
}

/// `[m, k] x [k, n]`; `layout` says of both operands whether they lie as they are (`N`) or transposed (`T`).
pub fn gemm(layout: &str, [m, n, k]: [usize; 3], dtype: DType, device: &Device) -> Result<Run> {
    let operand = |transposed: bool, rows: usize, columns: usize, stream| {
        let shape = if transposed {
            [columns, rows]
        } else {
            [rows, columns]
        };
        let stored = normal_in(&shape, stream, dtype, device)?;
        Ok::<_, Error>(if transposed { stored.t() } else { stored })
    };
    let a = operand(layout.starts_with('T'), m, k, 1)?;
    let b = operand(layout.ends_with('T'), k, n, 2)?;
    Ok(Box::new(move || Ok(a.matmul(&b).eval()?)))
}

/// W8: dropout of the GELU of a sum with a bias, on `[rows, columns]`; the mask is drawn anew in each run.
pub fn bias_gelu_dropout(
    [rows, columns]: [usize; 2],
    backward: bool,
    dtype: DType,
    device: &Device,
) -> Result<Run> {
    let x = normal_in(&[rows, columns], 1, dtype, device)?;
    let bias = normal_in(&[columns], 2, dtype, device)?;
    let dy = normal_in(&[rows, columns], 3, dtype, device)?;
    let store = ParamStore::new(device, crate::train::policy(dtype));
    let dropout = Dropout::new(&store.root().at("dropout"), 0.1);
    let mut turn = 0;
    Ok(Box::new(move || {
        turn += 1;
        let cx = store.train().with_micro(turn);
        let y = dropout.forward(&(&x + &bias).gelu(), &cx);
        run(&y, &dy, &[&x, &bias], backward)
    }))
}

/// W9: LayerNorm of `[rows, columns]`; gamma and beta in f32.
pub fn layer_norm(
    [rows, columns]: [usize; 2],
    backward: bool,
    dtype: DType,
    device: &Device,
) -> Result<Run> {
    let x = normal_in(&[rows, columns], 1, dtype, device)?;
    let dy = normal_in(&[rows, columns], 2, dtype, device)?;
    let gamma = Tensor::ones(&[columns], DType::F32, device).settle()?;
    let beta = Tensor::zeros(&[columns], DType::F32, device).settle()?;
    Ok(Box::new(move || {
        let y = x.layer_norm(&gamma, &beta, 1e-5);
        run(&y, &dy, &[&x, &gamma, &beta], backward)
    }))
}

/// W10: the mean cross-entropy of logits `[rows, columns]`, and its gradient.
pub fn softmax_cross_entropy(
    [rows, columns]: [usize; 2],
    dtype: DType,
    device: &Device,
) -> Result<Run> {
    let x = normal_in(&[rows, columns], 1, dtype, device)?;
    let y = indices(columns, &[rows], device);
    Ok(Box::new(move || {
        let loss = cross_entropy(&x, &y);
        let dx = grad(&loss, &[&x])?;
        Ok(eval(&[&loss, &dx[0]])?)
    }))
}

/// The result, and with `backward` the gradients too. The result is always asked for: a pass that needs it not could leave it out.
fn run(y: &Tensor, dy: &Tensor, wrt: &[&Tensor], backward: bool) -> Result<()> {
    let mut wanted = vec![y.clone()];
    if backward {
        wanted.extend(vjp(&[y], &[dy], wrt)?.into_iter().flatten());
    }
    Ok(eval(&wanted.iter().collect::<Vec<_>>())?)
}

/// The sizes of W11's parameters: 25 million elements, large and small ones.
pub fn w11_sizes() -> Vec<usize> {
    let groups = [(4_000_000, 5), (500_000, 8), (10_000, 100)];
    let all = groups.iter().map(|&(size, count)| vec![size; count]);
    all.flatten().collect()
}

/// W11: one update of AdamW (1e-3, decay 0.01) on parameters of `sizes`, f32 with gradients in `dtype`. Whether all is finite, the gradients' norm (clipped at 1) and the
/// loss scale are inputs.
pub fn adamw(sizes: &[usize], dtype: DType, device: &Device) -> Result<Run> {
    let mut slots = Vec::new();
    let mut grads = Vec::new();
    for (i, &size) in sizes.iter().enumerate() {
        let zeros = Tensor::zeros(&[size], DType::F32, device);
        let initial = normal(&[size], 2 * i as u64, device)?;
        for (name, value) in [("p", &initial), ("m", &zeros), ("v", &zeros)] {
            slots.push(Slot::new(format!("{i}/{name}"), value, device)?);
        }
        grads.push(normal_in(&[size], 2 * i as u64 + 1, dtype, device)?);
    }
    let number = |v| Ok::<_, Error>(Tensor::full(&[], v, DType::F32, device).settle()?);
    let (lr, norm, scale) = (number(1e-3)?, number(5000.0)?, number(65536.0)?);
    let finite = Tensor::full(&[], 1.0, DType::Bool, device).settle()?;
    let composite = Composite::OptimUpdate {
        rule: OptimRule::Adam { decoupled: true },
        beta1: Attr(0.9),
        beta2: Attr(0.999),
        eps: Attr(1e-8),
        weight_decay: Attr(0.01),
    };
    let step = Slot::new("step", &number(0.0)?, device)?;
    Ok(Box::new(move || {
        let next = step.read() + 1;
        let factor = (1 / &norm).minimum(1) / &scale;
        let mut inputs = vec![finite.clone(), lr.clone(), factor, next.clone()];
        for (state, grad) in slots.chunks(3).zip(&grads) {
            inputs.push(state[0].read());
            inputs.push(grad.cast(DType::F32));
            inputs.extend(state[1..].iter().map(Slot::read));
        }
        let new = Tensor::composite(composite, &inputs.iter().collect::<Vec<_>>());
        let new: Vec<Tensor> = (0..slots.len()).map(|i| new.output(i)).collect();
        let mut writes: Vec<(&Slot, &Tensor)> = slots.iter().zip(&new).collect();
        writes.push((&step, &next));
        Ok(commit(&[], &writes)?)
    }))
}
