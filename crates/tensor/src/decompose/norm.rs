//! Layer and batch normalisation, two passes: the variance is the mean square of the centred values, so that equal values have
//! variance 0 whatever their size.
use super::{lift, wide};
use crate::{Result, Tensor};

pub(super) fn layer_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f64) -> Vec<Tensor> {
    let x = lift(x);
    let mean = x.mean(&[-1], true);
    let d = &x - &mean;
    let rstd = (d.square().mean(&[-1], true) + eps).rsqrt();
    let y = d * &rstd * gamma.cast(x.dtype()) + beta.cast(x.dtype());
    vec![y, mean, rstd]
}

pub(super) fn layer_norm_grad(x: &[Tensor]) -> Vec<Tensor> {
    let [x, gamma, mean, rstd, dy] = x else {
        return Vec::new();
    };
    let w = wide(x.dtype());
    let (dy, rstd) = (dy.cast(w), rstd.cast(w));
    let n = (x.cast(w) - mean.cast(w)) * &rstd;
    let g = &dy * gamma.cast(w);
    let dx = (&g - g.mean(&[-1], true) - &n * (&g * &n).mean(&[-1], true)) * rstd;
    let d = &gamma.meta().shape;
    vec![dx, (&dy * n).sum_to(d), dy.sum_to(d)]
}

/// All axes of `[n, c, ..]` but 1.
fn batch_axes(rank: usize) -> Vec<isize> {
    (0..rank as isize).filter(|&i| i != 1).collect()
}

/// `[c]` in the rank of x, to broadcast along axis 1.
fn channels(t: &Tensor, rank: usize) -> Tensor {
    let mut dims = vec![1isize; rank];
    dims[1] = -1;
    t.reshape(&dims)
}

pub(super) fn batch_norm(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    eps: f64,
) -> Result<Vec<Tensor>> {
    let x = lift(x);
    let (w, rank) = (x.dtype(), x.rank()?);
    let axes = batch_axes(rank);
    let mean = x.mean(&axes, true);
    let d = &x - &mean;
    let var = d.square().mean(&axes, true);
    let rstd = (&var + eps).rsqrt();
    let y = d * &rstd * channels(&gamma.cast(w), rank) + channels(&beta.cast(w), rank);
    let flat = |t: Tensor| t.reshape(&[-1]);
    Ok(vec![y, flat(mean), flat(rstd), flat(var)])
}

pub(super) fn batch_norm_grad(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let [x, gamma, mean, rstd, dy] = x else {
        return Ok(Vec::new());
    };
    let (w, rank) = (wide(x.dtype()), x.rank()?);
    let axes = batch_axes(rank);
    let wide_channels = |t: &Tensor| channels(&t.cast(w), rank);
    let (dy, rstd) = (dy.cast(w), wide_channels(rstd));
    let n = (x.cast(w) - wide_channels(mean)) * &rstd;
    let dn = &dy * &n;
    let dx =
        (&dy - dy.mean(&axes, true) - n * dn.mean(&axes, true)) * (rstd * wide_channels(gamma));
    Ok(vec![dx, dn.sum(&axes, false), dy.sum(&axes, false)])
}
