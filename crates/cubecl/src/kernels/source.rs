//! What products multiply: matrices whose elements lie somewhere in a buffer, at strides or as the patches of a convolution.
use crate::code::Loc;
use crate::interpret::place;
use crate::words::{self, Buffers};
use bimetal_tensor::DType;
use bimetal_tensor::graph::Conv2d;
use cubecl::prelude::*;

/// A batch of matrices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operand {
    pub(super) binding: usize,
    pub(super) dtype: DType,
    /// What the elements are rounded to.
    pub(super) compute: DType,
    pub(super) layout: Layout,
}

/// How the linear index over `[batch, rows, columns]` becomes a place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    Strided(Loc),
    /// `[image and group, (channel, tap), place of the result]`: the input under each tap of each window.
    Windows(Sizes),
    /// `[image and group, (output, tap), place of the input]`: the result's gradient that reaches each place through each tap.
    Reached(Sizes),
    /// `[group, (image, place of the result), (channel, tap)]`: the windows, for the gradient of the weight.
    Taps(Sizes),
}

/// Sizes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    pub(super) n: u32,
    pub(super) groups: u32,
    /// Channels and outputs of a group.
    pub(super) c: u32,
    pub(super) o: u32,
    pub(super) h: u32,
    pub(super) w: u32,
    pub(super) oh: u32,
    pub(super) ow: u32,
    pub(super) kh: u32,
    pub(super) kw: u32,
    stride: [u32; 2],
    dilation: [u32; 2],
    /// At top and left.
    pad: [u32; 2],
}

impl Sizes {
    /// Of an input `[n, c, h, w]`, a weight and a result.
    pub(super) fn new(
        conv: &Conv2d,
        x: &[usize],
        weight: &[usize],
        y: &[usize],
    ) -> Result<Sizes, String> {
        let (&[n, _, h, w], &[o, c, kh, kw], &[_, _, oh, ow]) = (x, weight, y) else {
            return Err("a convolution takes tensors of four axes".into());
        };
        let groups = conv.groups.max(1);
        Ok(Sizes {
            n: n as u32,
            groups,
            c: c as u32,
            o: o as u32 / groups,
            h: h as u32,
            w: w as u32,
            oh: oh as u32,
            ow: ow as u32,
            kh: kh as u32,
            kw: kw as u32,
            stride: conv.stride,
            dilation: conv.dilation,
            pad: [conv.padding[0], conv.padding[2]],
        })
    }
}

/// Element `i` of an operand as a register; 0 where a window lies in the padding.
#[cube]
pub(super) fn element(buffers: &Buffers, i: u32, #[comptime] o: Operand) -> u32 {
    let value = match comptime!(o.layout.clone()) {
        Layout::Strided(loc) => {
            let at = place(i, loc);
            words::load(buffers, comptime!(o.binding), at, comptime!(o.dtype))
        }
        Layout::Windows(s) => {
            let p = i % comptime!(s.oh * s.ow);
            let k = (i / comptime!(s.oh * s.ow)) % comptime!(s.c * s.kh * s.kw);
            let plane = i / comptime!(s.oh * s.ow * s.c * s.kh * s.kw) * comptime!(s.c)
                + k / comptime!(s.kh * s.kw);
            window(
                buffers,
                plane,
                p,
                k % comptime!(s.kh * s.kw),
                comptime!(o.clone()),
                s,
            )
        }
        Layout::Taps(s) => {
            let kk = comptime!(s.c * s.kh * s.kw);
            let k = i % kk;
            let p = (i / kk) % comptime!(s.oh * s.ow);
            let n = (i / comptime!(kk * s.oh * s.ow)) % comptime!(s.n);
            let group = i / comptime!(kk * s.oh * s.ow * s.n);
            let plane =
                (n * comptime!(s.groups) + group) * comptime!(s.c) + k / comptime!(s.kh * s.kw);
            window(
                buffers,
                plane,
                p,
                k % comptime!(s.kh * s.kw),
                comptime!(o.clone()),
                s,
            )
        }
        Layout::Reached(s) => {
            let x = i % comptime!(s.w);
            let y = (i / comptime!(s.w)) % comptime!(s.h);
            let k = (i / comptime!(s.h * s.w)) % comptime!(s.o * s.kh * s.kw);
            let plane = i / comptime!(s.h * s.w * s.o * s.kh * s.kw) * comptime!(s.o)
                + k / comptime!(s.kh * s.kw);
            let v = k % comptime!(s.kw);
            let u = (k / comptime!(s.kw)) % comptime!(s.kh);
            // Wraps where the tap lies beyond the edge, and is then too large.
            let top = y + comptime!(s.pad[0]) - u * comptime!(s.dilation[0]);
            let left = x + comptime!(s.pad[1]) - v * comptime!(s.dilation[1]);
            let oy = top / comptime!(s.stride[0]);
            let ox = left / comptime!(s.stride[1]);
            let inside = (oy < comptime!(s.oh))
                & (ox < comptime!(s.ow))
                & (oy * comptime!(s.stride[0]) == top)
                & (ox * comptime!(s.stride[1]) == left);
            let at = (plane * comptime!(s.oh) + oy) * comptime!(s.ow) + ox;
            let value = words::load(
                buffers,
                comptime!(o.binding),
                select(inside, at, 0u32),
                comptime!(o.dtype),
            );
            select(inside, value, 0u32)
        }
    };
    if comptime!(o.compute != o.dtype && o.compute.is_float() && o.compute.size() < 4) {
        words::round(value, comptime!(o.compute), false)
    } else {
        value
    }
}

/// The input under tap `t` of the window at place `p`.
#[cube]
fn window(
    buffers: &Buffers,
    plane: u32,
    p: u32,
    t: u32,
    #[comptime] o: Operand,
    #[comptime] s: Sizes,
) -> u32 {
    let y = (p / comptime!(s.ow)) * comptime!(s.stride[0])
        + (t / comptime!(s.kw)) * comptime!(s.dilation[0])
        - comptime!(s.pad[0]);
    let x = (p % comptime!(s.ow)) * comptime!(s.stride[1])
        + (t % comptime!(s.kw)) * comptime!(s.dilation[1])
        - comptime!(s.pad[1]);
    let at = (plane * comptime!(s.h) + y) * comptime!(s.w) + x;
    if comptime!(s.pad[0] == 0 && s.pad[1] == 0 && s.fits()) {
        words::load(buffers, comptime!(o.binding), at, comptime!(o.dtype))
    } else {
        let inside = (y < comptime!(s.h)) & (x < comptime!(s.w));
        let value = words::load(
            buffers,
            comptime!(o.binding),
            select(inside, at, 0u32),
            comptime!(o.dtype),
        );
        select(inside, value, 0u32)
    }
}

impl Sizes {
    /// Whether no window reaches over the lower or the right edge.
    fn fits(&self) -> bool {
        let last = |o: u32, k: u32, axis: usize| {
            o.saturating_sub(1) * self.stride[axis] + k.saturating_sub(1) * self.dilation[axis]
        };
        last(self.oh, self.kh, 0) < self.h + self.pad[0]
            && last(self.ow, self.kw, 1) < self.w + self.pad[1]
    }
}
