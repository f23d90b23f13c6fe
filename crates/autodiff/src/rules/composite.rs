//! Composites and operations of users' crates: a gradient operation where there is one, else the derivative of the decomposition.
use super::{Grads, Node, none, reshape_to};
use crate::contribution::Contribution;
use crate::engine;
use crate::walk::{Var, var};
use bimetal_tensor::graph::{Composite, CustomHandle, IdSet, decompose};
use bimetal_tensor::{Error, Result, Shape, Tensor};

pub(super) fn composite(n: &Node<'_>, c: &Composite) -> Result<Grads> {
    let x = n.t.inputs();
    let out = |i: usize| n.t.output(i);
    // Statistics beside the result have gradients of their own only in second derivatives.
    let only_first = n.cots.iter().skip(1).all(Option::is_none);
    if matches!(c, Composite::Lstm) && n.cots[2..].iter().all(Option::is_none) {
        return lstm(n);
    }
    let native = match (c, &n.cots[0]) {
        (Composite::Softmax, Some(dy)) => Some((Composite::SoftmaxGrad, vec![out(0), dy.clone()])),
        (Composite::LogSoftmax, Some(dy)) => {
            Some((Composite::LogSoftmaxGrad, vec![out(0), dy.clone()]))
        }
        (Composite::LayerNorm { .. }, Some(dy)) if only_first => Some((
            Composite::LayerNormGrad,
            vec![x[0].clone(), x[1].clone(), out(1), out(2), dy.clone()],
        )),
        (Composite::BatchNorm { .. }, Some(dy)) if only_first => Some((
            Composite::BatchNormGrad,
            vec![x[0].clone(), x[1].clone(), out(1), out(2), dy.clone()],
        )),
        (
            Composite::CrossEntropy {
                ignore_index,
                label_smoothing,
            },
            Some(dy),
        ) if only_first => Some((
            Composite::CrossEntropyGrad {
                ignore_index: *ignore_index,
                label_smoothing: *label_smoothing,
            },
            vec![x[0].clone(), x[1].clone(), out(1), dy.clone()],
        )),
        (Composite::Attention(spec), Some(dy)) if only_first => {
            let mut inputs = x[..3].to_vec();
            inputs.extend([out(0), out(1), dy.clone()]);
            inputs.extend_from_slice(&x[3..]);
            Some((Composite::AttentionGrad(*spec), inputs))
        }
        (Composite::LstmCell, _) => {
            let cot = |i: usize| n.cots[i].clone().unwrap_or_else(|| out(i).zeros_like());
            let inputs = vec![x[0].clone(), x[1].clone(), out(1), cot(0), cot(1)];
            Some((Composite::LstmCellGrad, inputs))
        }
        _ => None,
    };
    match native {
        Some((c, inputs)) => {
            let t = Tensor::composite(c, &inputs.iter().collect::<Vec<_>>());
            t.check()?;
            // Its results belong to the first operands.
            let count = t.output_count();
            Ok(n.each(|i| (i < count).then(|| t.output(i))))
        }
        None => through(n, &decompose(c, x)),
    }
}

/// The gradient of a sequence; that of the recurrent weights is one product over all steps.
fn lstm(n: &Node<'_>) -> Result<Grads> {
    let x = n.t.inputs();
    let out = |i: usize| n.t.output(i);
    let cot = |i: usize| n.cots[i].clone().unwrap_or_else(|| out(i).zeros_like());
    let inputs = [out(2), x[1].clone(), out(3), cot(0), cot(1)];
    let t = Tensor::composite(Composite::LstmGrad, &inputs.iter().collect::<Vec<_>>());
    t.check()?;
    let shape = x[0].shape()?;
    Ok(n.each(|i| match i {
        0 => Some(t.output(0)),
        1 => {
            // The hidden state before each step.
            let first = x[2].unsqueeze(1);
            let before = match shape[1] {
                1 => first,
                time => Tensor::concat(&[&first, &out(0).narrow(1, 0, time - 1)], 1),
            };
            let flat = |t: &Tensor, cols: usize| {
                reshape_to(t, Shape::new(&[shape[0] * shape[1], cols]).unwrap_or(shape))
            };
            let grad = flat(&t.output(0), shape[2])
                .t()
                .matmul(&flat(&before, shape[2] / 4));
            Some(grad.cast(x[1].dtype()))
        }
        i => Some(t.output(i - 1)),
    }))
}

pub(super) fn custom(n: &Node<'_>, c: &CustomHandle) -> Result<Grads> {
    let inputs = n.t.inputs();
    let outputs: Vec<Tensor> = (0..n.t.output_count()).map(|i| n.t.output(i)).collect();
    if let Some(grads) = c.0.vjp(inputs, &outputs, n.cots) {
        if grads.len() != inputs.len() {
            return Err(Error::argument(
                c.name(),
                format!(
                    "`vjp` must return one entry for each of the {} operands, found {}",
                    inputs.len(),
                    grads.len()
                ),
            ));
        }
        return Ok(grads.into_iter().map(|g| g.map(Into::into)).collect());
    }
    match c.0.decompose(inputs) {
        Some(parts) if parts.len() == outputs.len() => through(n, &parts),
        Some(parts) => Err(Error::argument(
            c.name(),
            format!(
                "`decompose` must return {} results, found {}",
                outputs.len(),
                parts.len()
            ),
        )),
        None => Err(none(n.t)),
    }
}

/// The derivative of a decomposition with respect to the node's operands.
fn through(n: &Node<'_>, parts: &[Tensor]) -> Result<Grads> {
    let inputs = n.t.inputs();
    let mut outputs = Vec::new();
    let mut cots = Vec::new();
    for (t, g) in parts.iter().zip(n.cots) {
        t.check()?;
        if let Some(g) = g {
            outputs.push(t);
            cots.push(g.clone());
        }
    }
    // One variable may be several operands: it gets its gradient once.
    let mut seen: IdSet<Var> = IdSet::default();
    let wrt: Vec<usize> = (0..inputs.len())
        .filter(|&i| n.needs[i] && seen.insert(var(&inputs[i])))
        .collect();
    let variables: Vec<&Tensor> = wrt.iter().map(|&i| &inputs[i]).collect();
    let found = engine::run(&outputs, &cots, &variables, inputs)?;
    let mut grads: Grads = inputs.iter().map(|_| None).collect();
    for (i, g) in wrt.into_iter().zip(found) {
        grads[i] = g.map(Contribution::from);
    }
    Ok(grads)
}
