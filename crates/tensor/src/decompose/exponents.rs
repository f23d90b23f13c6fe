//! Exponents of elements, counted. A definition, not a way to compute it: each element is compared with every power of two.
use super::device;
use crate::graph::{EXPONENT_BINS, LOWEST_EXPONENT, RoundingLimits};
use crate::{DType, Device, Result, Tensor};

/// The number of finite exponents.
const EXPONENTS: usize = EXPONENT_BINS - 3;

pub(super) fn histogram(x: &Tensor, to: DType) -> Result<Vec<Tensor>> {
    let (device, n) = (device(x)?, x.meta().shape.numel());
    let full = |shape: &[usize], value: f64, dtype| Tensor::full(shape, value, dtype, device);
    if n == 0 {
        let extremes = [f64::INFINITY, f64::NEG_INFINITY].map(|v| full(&[1], v, DType::F32));
        let sums = full(&[3], 0.0, DType::F32);
        return Ok(vec![
            full(&[2, EXPONENT_BINS], 0.0, DType::I32),
            full(&[3], 0.0, DType::I32),
            Tensor::concat(&[&extremes[0], &extremes[1], &sums], 0),
        ]);
    }
    let x = x.cast(DType::F32).reshape(&[n as isize, 1]);
    let (a, finite) = (x.abs(), x.is_finite());
    let powers = powers(device);
    let count = |mask: Tensor| mask.cast(DType::I32).sum(&[0], false);
    let signs = [x.gt(0.0), x.lt(0.0)].map(|sign| {
        let at_least = count(a.ge(&powers).logical_and(sign.logical_and(&finite)));
        let above = at_least.narrow(0, 1, EXPONENTS - 1).pad(0, 0, 1);
        (at_least - above, sign)
    });
    let nothing = full(&[1], 0.0, DType::I32);
    let rows = [
        Tensor::concat(
            &[
                &count(x.eq(0.0)),
                &signs[0].0,
                &count(x.eq(f64::INFINITY)),
                &count(x.is_nan()),
            ],
            0,
        ),
        Tensor::concat(
            &[
                &nothing,
                &signs[1].0,
                &count(x.eq(f64::NEG_INFINITY)),
                &nothing,
            ],
            0,
        ),
    ];
    let limits = RoundingLimits::of(to);
    let becomes_zero = a.le(limits.zero_to as f64);
    let lost = [
        becomes_zero.logical_and(a.gt(0.0)),
        becomes_zero
            .logical_not()
            .logical_and(a.lt(limits.subnormal_below as f64)),
        a.ge(limits.overflow_from as f64).logical_and(&finite),
    ]
    .map(count);
    let kept = finite.select(&x, 0.0);
    let moments = [
        finite.select(&x, f64::INFINITY).min(&[0], false),
        finite.select(&x, f64::NEG_INFINITY).max(&[0], false),
        kept.sum(&[0], false),
        kept.abs().sum(&[0], false),
        kept.square().sum(&[0], false),
    ];
    Ok(vec![
        Tensor::stack(&rows.each_ref(), 0),
        Tensor::concat(&lost.each_ref(), 0),
        Tensor::concat(&moments.each_ref(), 0),
    ])
}

/// The powers of two that f32 holds, `[1, EXPONENTS]`, ascending: products of exact factors, since no function gives them exactly.
fn powers(device: &Device) -> Tensor {
    let index = Tensor::arange(EXPONENTS, device);
    let one = index.cast(DType::F32) * 0.0 + 1.0;
    let mut product = &one * 2f64.powi(LOWEST_EXPONENT);
    let mut rest = index;
    // The largest factor first: the product never leaves the range.
    for step in [64, 64, 64, 64, 32, 16, 8, 4, 2, 1] {
        let has = rest.ge(step);
        product = product * has.select(&one * 2f64.powi(step), &one);
        rest = &rest - has.cast(DType::I32) * step;
    }
    product.unsqueeze(0)
}
