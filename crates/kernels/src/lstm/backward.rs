//! The gradients.
use super::cell::Cell;
use super::product::Packed;
use super::{ROWS, Sizes, zeros};
use crate::par;
use crate::rows::{Rows, RowsMut};
use crate::simd::round_to;
use rayon::prelude::*;

/// What the forward pass took and gave, and the gradients that arrive.
#[derive(Clone, Copy)]
pub struct Saved<'a> {
    /// Gates before activation `[batch * time, 4 * hidden]`.
    pub gates: Rows<'a>,
    /// Recurrent weights `[4 * hidden, hidden]`.
    pub weight: &'a [f32],
    /// Kept cell states `[batch, kept, hidden]`.
    pub cells: &'a [f32],
    /// Of the hidden states, `[batch * time, hidden]`.
    pub dy: Rows<'a>,
    /// Of the last cell state, `[batch, hidden]`.
    pub dc: &'a [f32],
}

/// The gradients of what the sequence started from.
pub struct Grads<'a> {
    /// Of the gates `[batch * time, 4 * hidden]`.
    pub gates: RowsMut<'a>,
    /// Of the first hidden state `[batch, hidden]`.
    pub h: RowsMut<'a>,
    /// Of the first cell state `[batch, hidden]`.
    pub c: &'a mut [f32],
}

/// The gradient of [`super::lstm`]. That of the weights is the product of the gates' with the hidden states of the steps before.
pub fn lstm_grad(sizes: Sizes, saved: Saved, mut out: Grads) {
    let Sizes {
        time,
        hidden: n,
        every,
        ..
    } = sizes;
    let weight = Packed::new(4 * n, n, |k, j| saved.weight[k * n + j]);
    let cell = Cell::new();
    let round = round_to(out.gates.dtype());
    let blocks = out
        .gates
        .blocks(ROWS * time)
        .zip(out.h.blocks(ROWS))
        .zip(out.c.par_chunks_mut(ROWS * n));
    par::items(blocks, |block, ((mut dgates, mut dh0), dc)| {
        let (first, rows, stride) = (block * ROWS, dc.len() / n, Packed::stride(4 * n));
        let mut dg = zeros(rows * stride);
        let mut dh = zeros(rows * n);
        // Of the steps of a part: activated gates, cell state before and its tanh after.
        let mut active = zeros(every * rows * 4 * n);
        let (mut before, mut tanh) = (zeros(every * rows * n), zeros(every * rows * n));
        let (mut c, mut input, mut narrow) = (zeros(n), zeros(4 * n), zeros(4 * n));
        dc.copy_from_slice(&saved.dc[first * n..][..rows * n]);
        for part in (0..sizes.kept()).rev() {
            let steps = part * every..((part + 1) * every).min(time);
            for r in 0..rows {
                let kept = (first + r) * sizes.kept() + part;
                c.copy_from_slice(&saved.cells[kept * n..][..n]);
                for t in steps.clone() {
                    let slot = (t - steps.start) * rows + r;
                    let x = saved.gates.row((first + r) * time + t, &mut input);
                    (cell.replay)(
                        &mut active[slot * 4 * n..][..4 * n],
                        &mut before[slot * n..][..n],
                        &mut tanh[slot * n..][..n],
                        &mut c,
                        x,
                    );
                }
            }
            for t in steps.clone().rev() {
                if t + 1 < time {
                    weight.multiply(&dg, rows, &mut dh);
                }
                for r in 0..rows {
                    let (at, slot) = (r * time + t, (t - steps.start) * rows + r);
                    let dy = saved.dy.row(first * time + at, &mut input[..n]);
                    let dg = &mut dg[r * stride..][..4 * n];
                    (cell.grad)(
                        dg,
                        &mut dc[r * n..][..n],
                        [dy, &dh[r * n..][..n]],
                        &active[slot * 4 * n..][..4 * n],
                        &before[slot * n..][..n],
                        &tanh[slot * n..][..n],
                    );
                    if let Some(round) = round {
                        round(dg);
                    }
                    dgates.write(at, 0..4 * n, &mut narrow, |g| g.copy_from_slice(dg));
                }
            }
        }
        weight.multiply(&dg, rows, &mut dh);
        for r in 0..rows {
            let dh = &dh[r * n..][..n];
            dh0.write(r, 0..n, &mut narrow, |d| d.copy_from_slice(dh));
        }
    });
}
