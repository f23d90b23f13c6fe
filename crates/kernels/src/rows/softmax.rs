//! Softmax and log-softmax over rows.
use super::access::{Rows, RowsMut, block_rows, for_blocks};
use crate::simd::isa::{Isa, map, map2, pick};
use crate::simd::{BLOCK, Tree, exp_neg, log_f32, simd_level, whole, whole2};

/// What is subtracted before the exponential: the maximum, but 0 where all elements are minus infinity.
#[inline(always)]
pub fn shift(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// The maximum of a row without NaN. With one it is some element or NaN, which is enough here: the sum of
/// exponentials becomes NaN all the same.
#[inline(always)]
pub fn row_max(x: &[f32]) -> f32 {
    whole(
        x,
        f32::NEG_INFINITY,
        |v| v,
        |a: f32, b: f32| if a > b { a } else { b },
    )
}

#[inline(always)]
pub fn row_sum(x: &[f32]) -> f32 {
    whole(x, 0.0, |v| v, |a: f32, b: f32| a + b)
}

#[inline(always)]
fn softmax_row<I: Isa>(y: &mut [f32], x: &[f32]) {
    let m = shift(row_max(x));
    let mut sum = Tree::new(0.0, |a: f32, b: f32| a + b);
    for (y, x) in y.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
        map(y, x, |v: f32| exp_neg::<I>(v - m));
        sum.push(row_sum(y));
    }
    let r = 1.0 / sum.finish();
    for v in y {
        *v *= r;
    }
}

#[inline(always)]
fn log_softmax_row<I: Isa>(y: &mut [f32], x: &[f32]) {
    let m = shift(row_max(x));
    let mut sum = Tree::new(0.0, |a: f32, b: f32| a + b);
    for (y, x) in y.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
        map(y, x, |v: f32| exp_neg::<I>(v - m));
        sum.push(row_sum(y));
    }
    let log_sum = log_f32::<I>(sum.finish());
    map(y, x, |v: f32| (v - m) - log_sum);
}

#[inline(always)]
fn softmax_grad_row(dx: &mut [f32], y: &[f32], dy: &[f32]) {
    let dot = whole2(y, dy, |y: f32, dy: f32| y * dy);
    map2(dx, y, dy, |y: f32, dy: f32| y * (dy - dot));
}

#[inline(always)]
fn log_softmax_grad_row<I: Isa>(dx: &mut [f32], y: &[f32], dy: &[f32]) {
    let sum = row_sum(dy);
    map2(dx, y, dy, |y: f32, dy: f32| dy - exp_neg::<I>(y) * sum);
}

/// One function per row from x to y.
fn forward(x: Rows, mut y: RowsMut, f: fn(&mut [f32], &[f32])) {
    let (cols, step) = (x.cols(), block_rows(x.cols()));
    for_blocks(y.blocks(step), |block, mut y| {
        let (mut sx, mut sy) = (vec![0.0; cols], vec![0.0; cols]);
        for row in 0..y.count() {
            x.ahead(block * step + row + 1);
            let x = x.row(block * step + row, &mut sx);
            y.write(row, 0..cols, &mut sy, |y| f(y, x));
        }
    });
}

/// One function per row from y and dy to dx.
fn backward(y: Rows, dy: Rows, mut dx: RowsMut, f: fn(&mut [f32], &[f32], &[f32])) {
    let (cols, step) = (y.cols(), block_rows(y.cols()));
    for_blocks(dx.blocks(step), |block, mut dx| {
        let mut scratch = vec![0.0; 3 * cols];
        let (sy, rest) = scratch.split_at_mut(cols);
        let (sdy, sdx) = rest.split_at_mut(cols);
        for row in 0..dx.count() {
            let y = y.row(block * step + row, sy);
            let dy = dy.row(block * step + row, sdy);
            dx.write(row, 0..cols, sdx, |dx| f(dx, y, dy));
        }
    });
}

/// `y = exp(x - max) / sum exp(x - max)` for each row; a row of minus infinities gives NaN.
///
/// `x` and `y` have one shape and any dtypes.
pub fn softmax(x: Rows, y: RowsMut) {
    let f = pick!(simd_level(), fn(y: &mut [f32], x: &[f32]) { softmax_row::<I>(y, x) });
    forward(x, y, f);
}

/// `dx = y (dy - sum y dy)` for each row, from the result `y` of [`softmax`].
pub fn softmax_grad(y: Rows, dy: Rows, dx: RowsMut) {
    let f = pick!(simd_level(), fn(dx: &mut [f32], y: &[f32], dy: &[f32]) {
        softmax_grad_row(dx, y, dy)
    });
    backward(y, dy, dx, f);
}

/// `y = x - max - log sum exp(x - max)` for each row.
pub fn log_softmax(x: Rows, y: RowsMut) {
    let f = pick!(simd_level(), fn(y: &mut [f32], x: &[f32]) { log_softmax_row::<I>(y, x) });
    forward(x, y, f);
}

/// `dx = dy - exp(y) sum dy` for each row, from the result `y` of [`log_softmax`].
pub fn log_softmax_grad(y: Rows, dy: Rows, dx: RowsMut) {
    let f = pick!(simd_level(), fn(dx: &mut [f32], y: &[f32], dy: &[f32]) {
        log_softmax_grad_row::<I>(dx, y, dy)
    });
    backward(y, dy, dx, f);
}
