//! Scaled dot-product attention (Vaswani et al. 2017) with the whole score matrix, in f32 from the scores to the weighted sum.
use super::{device, wide};
use crate::graph::{AttentionSpec, Distribution, MatmulPrecision};
use crate::ops::shape_of;
use crate::{DType, Result, Tensor};

/// `[b, t, h, d]` to `[b, h, t, d]` and back.
fn swap(t: &Tensor) -> Tensor {
    t.transpose(1, 2)
}

/// Scores `[b, h, tq, tk]`, minus infinity where a query does not see a key.
fn scores(spec: &AttentionSpec, q: &Tensor, k: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let [b, _, tq, _] = q.dims()?;
    let [_, _, tk, _] = k.dims()?;
    let s = q.matmul_with(&k.t(), MatmulPrecision::Exact, Some(wide(q.dtype()))) * spec.scale.0;
    let mut visible: Option<Tensor> = None;
    if spec.causal {
        let device = device(q)?;
        let iota = |dims: [usize; 2], axis| -> Result<Tensor> {
            Ok(Tensor::iota(shape_of("attention", &dims)?, axis, device))
        };
        let last = iota([tq, 1], 0)? + (tk as f64 - tq as f64);
        visible = Some(iota([1, tk], 1)?.le(last));
    }
    if let Some(mask) = mask {
        let m = mask.reshape(&[b as isize, 1, 1, tk as isize]);
        visible = Some(match visible {
            Some(v) => v.logical_and(m),
            None => m,
        });
    }
    Ok(match visible {
        Some(v) => v.select(s, f64::NEG_INFINITY),
        None => s,
    })
}

/// Whether some row may see no key at all.
fn may_be_blind(spec: &AttentionSpec, tq: usize, tk: usize) -> bool {
    spec.key_mask || (spec.causal && tk < tq)
}

/// What each probability is multiplied with: 0 where it is dropped.
fn dropped(spec: &AttentionSpec, p: &Tensor, step: Option<&Tensor>) -> Result<Option<Tensor>> {
    let Some(d) = spec.dropout else {
        return Ok(None);
    };
    let shape = p.shape()?;
    let u = Tensor::random(Distribution::Uniform, &shape, d.key, step, device(p)?);
    let kept = u.ge(d.rate.0).cast(p.dtype());
    Ok(Some(kept * (1.0 / (1.0 - d.rate.0))))
}

/// The mask and the step among the inputs behind the first `n`.
fn extras<'a>(
    spec: &AttentionSpec,
    x: &'a [Tensor],
    n: usize,
) -> (Option<&'a Tensor>, Option<&'a Tensor>) {
    let mask = if spec.key_mask { x.get(n) } else { None };
    let step = spec.dropout.and(x.get(n + spec.key_mask as usize));
    (mask, step)
}

pub(super) fn attention(spec: &AttentionSpec, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let (q, k, v) = (&swap(&x[0]), &swap(&x[1]), &swap(&x[2]));
    let (mask, step) = extras(spec, x, 3);
    let w = wide(q.dtype());
    let ([b, h, tq, d], [_, _, tk, _]) = (q.dims()?, k.dims()?);
    if tk == 0 {
        let device = device(q)?;
        return Ok(vec![
            Tensor::zeros(&[b, tq, h, d], w, device),
            Tensor::full(&[b, h, tq], f64::NEG_INFINITY, w, device),
        ]);
    }
    let s = scores(spec, q, k, mask)?;
    let blind = may_be_blind(spec, tq, tk);
    // The row maximum only shifts the exponents: the result does not depend on it, nor do derivatives.
    let mut top = s.max(&[-1], true).detach();
    if blind {
        top = top.eq(f64::NEG_INFINITY).select(0.0, &top);
    }
    let e = (s - &top).exp();
    let sum = e.sum(&[-1], true);
    let lse = (sum.log() + top).squeeze(-1);
    let norm = if blind {
        sum.eq(0.0).select(1.0, &sum)
    } else {
        sum
    };
    let mut p = e / norm;
    if let Some(factor) = dropped(spec, &p, step)? {
        p = p * factor;
    }
    Ok(vec![swap(&p.matmul(&v.cast(w))), lse])
}

pub(super) fn attention_grad(spec: &AttentionSpec, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let [q, k, v, _, lse, dy, ..] = x else {
        return Ok(Vec::new());
    };
    let (q, k, v, dy) = (&swap(q), &swap(k), &swap(v), &swap(dy));
    let (mask, step) = extras(spec, x, 6);
    let w: DType = wide(q.dtype());
    let ([_, _, tq, _], [_, _, tk, _]) = (q.dims()?, k.dims()?);
    let mut lse = lse.cast(w).unsqueeze(-1);
    if may_be_blind(spec, tq, tk) {
        lse = lse.eq(f64::NEG_INFINITY).select(0.0, &lse);
    }
    let p = (scores(spec, q, k, mask)? - lse).exp();
    let factor = dropped(spec, &p, step)?;
    let drop = |t: &Tensor| match &factor {
        Some(f) => t * f,
        None => t.clone(),
    };
    let (q, k, v, dy) = (q.cast(w), k.cast(w), v.cast(w), dy.cast(w));
    let dv = drop(&p).t().matmul(&dy);
    let dp = drop(&dy.matmul(&v.t()));
    let dot = (&p * &dp).sum(&[-1], true);
    let ds = p * (dp - dot) * spec.scale.0;
    Ok(vec![
        swap(&ds.matmul(&k)),
        swap(&ds.t().matmul(&q)),
        swap(&dv),
    ])
}
