//! The forward pass.
use super::cell::Cell;
use super::product::Packed;
use super::{ROWS, Sizes, zeros};
use crate::par;
use crate::rows::{Rows, RowsMut};
use crate::simd::round_to;
use rayon::prelude::*;

/// What a sequence starts from.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// What does not depend on the state, `[batch * time, 4 * hidden]`.
    pub gates: Rows<'a>,
    /// Recurrent weights `[4 * hidden, hidden]`.
    pub weight: &'a [f32],
    /// Hidden state `[batch, hidden]`.
    pub h: Rows<'a>,
    /// Cell state `[batch, hidden]`.
    pub c: &'a [f32],
}

/// What a sequence gives.
pub struct Outputs<'a> {
    /// Hidden states `[batch * time, hidden]`.
    pub y: RowsMut<'a>,
    /// The last cell state `[batch, hidden]`.
    pub c: &'a mut [f32],
    /// Gates before activation `[batch * time, 4 * hidden]`.
    pub gates: RowsMut<'a>,
    /// Cell states that are kept, `[batch, kept, hidden]`.
    pub cells: &'a mut [f32],
}

/// `gates(t) = gates + h(t - 1) weight^T`, and the cell on them, for all steps; the hidden state is rounded to y's dtype at each.
pub fn lstm(sizes: Sizes, start: Start, mut out: Outputs) {
    let Sizes {
        time,
        hidden: n,
        every,
        ..
    } = sizes;
    let weight = Packed::new(n, 4 * n, |k, j| start.weight[j * n + k]);
    let cell = Cell::new();
    let (round_y, round_gates) = (round_to(out.y.dtype()), round_to(out.gates.dtype()));
    let blocks = out
        .y
        .blocks(ROWS * time)
        .zip(out.gates.blocks(ROWS * time))
        .zip(out.cells.par_chunks_mut(ROWS * sizes.kept() * n))
        .zip(out.c.par_chunks_mut(ROWS * n));
    par::items(blocks, |block, (((mut y, mut gates), cells), c)| {
        let (first, rows, stride) = (block * ROWS, c.len() / n, Packed::stride(n));
        let mut h = zeros(rows * stride);
        let mut sums = zeros(rows * 4 * n);
        let mut row_scratch = zeros(2 * (4 * n));
        let (input, narrow) = row_scratch.split_at_mut(4 * n);
        c.copy_from_slice(&start.c[first * n..][..rows * n]);
        for r in 0..rows {
            let from = start.h.row(first + r, input);
            h[r * stride..][..n].copy_from_slice(from);
        }
        for t in 0..time {
            weight.multiply(&h, rows, &mut sums);
            for r in 0..rows {
                let (at, c) = (r * time + t, &mut c[r * n..][..n]);
                if t % every == 0 {
                    let kept = r * sizes.kept() + t / every;
                    cells[kept * n..][..n].copy_from_slice(c);
                }
                let input = start.gates.row(first * time + at, input);
                let h = &mut h[r * stride..][..n];
                gates.write(at, 0..4 * n, narrow, |x| {
                    (cell.add)(x, input, &sums[r * 4 * n..][..4 * n]);
                    if let Some(round) = round_gates {
                        round(x);
                    }
                    (cell.next)(h, c, x);
                });
                if let Some(round) = round_y {
                    round(h);
                }
                y.write(at, 0..n, narrow, |y| y.copy_from_slice(h));
            }
        }
    });
}
