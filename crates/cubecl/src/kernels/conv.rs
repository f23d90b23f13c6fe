//! Convolutions and their gradients, element by element.
use super::Launch;
use super::common::{Build, GROUP, Runs, Slab, emit, get, put, spread};
use crate::code::Code;
use crate::interpret::run;
use crate::math::{bits, float};
use crate::plan::{Bound, Cx};
use crate::words::{self, Atomics, Buffers};
use bimetal_tensor::graph::Conv2d;
use bimetal_tensor::plan::{Dense, Fused};
use bimetal_tensor::{DType, ErrorKind, Shape};
use cubecl::prelude::*;

/// Units that share one element of a weight's gradient.
const SHARE: u32 = 64;

/// Sizes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sizes {
    n: u32,
    c: u32,
    h: u32,
    w: u32,
    o: u32,
    oh: u32,
    ow: u32,
    kh: u32,
    kw: u32,
    /// Channels and outputs of a group.
    cg: u32,
    og: u32,
    stride: [u32; 2],
    dilation: [u32; 2],
    /// At top and left.
    pad: [u32; 2],
    x: Slab,
    weight: Slab,
    weight_compute: DType,
    y: Slab,
    guarded: bool,
}

impl Sizes {
    fn new(
        conv: &Conv2d,
        x: &Shape,
        weight: &Shape,
        y: &Shape,
        [xs, ws, ys]: [Slab; 3],
        weight_compute: DType,
        guarded: bool,
    ) -> Result<Sizes, String> {
        if x.rank() != 4 || weight.rank() != 4 || y.rank() != 4 || conv.groups == 0 {
            return Err("a convolution takes tensors of four axes".into());
        }
        Ok(Sizes {
            n: x[0] as u32,
            c: x[1] as u32,
            h: x[2] as u32,
            w: x[3] as u32,
            o: y[1] as u32,
            oh: y[2] as u32,
            ow: y[3] as u32,
            kh: weight[2] as u32,
            kw: weight[3] as u32,
            cg: weight[1] as u32,
            og: weight[0] as u32 / conv.groups,
            stride: conv.stride,
            dilation: conv.dilation,
            pad: [conv.padding[0], conv.padding[2]],
            x: xs,
            weight: ws,
            weight_compute,
            y: ys,
            guarded,
        })
    }
}

#[cube]
fn weight_at(buffers: &Buffers, at: u32, #[comptime] s: Sizes) -> f32 {
    let value = get(buffers, at, comptime!(s.weight.clone()));
    let to = comptime!(s.weight_compute);
    if comptime!(to != s.weight.dtype && to.is_float() && to.size() < 4) {
        float(words::round(value, to, false))
    } else {
        float(value)
    }
}

/// One element of the result.
#[cube]
fn forward(buffers: &Buffers, i: u32, #[comptime] s: Sizes) -> f32 {
    let ox = i % comptime!(s.ow);
    let oy = (i / comptime!(s.ow)) % comptime!(s.oh);
    let o = (i / comptime!(s.ow * s.oh)) % comptime!(s.o);
    let n = i / comptime!(s.ow * s.oh * s.o);
    let first = (o / comptime!(s.og)) * comptime!(s.cg);
    let mut total = 0.0f32;
    for c in 0..comptime!(s.cg) {
        let plane = (n * comptime!(s.c) + first + c) * comptime!(s.h * s.w);
        let taps = (o * comptime!(s.cg) + c) * comptime!(s.kh * s.kw);
        let mut part = 0.0f32;
        for u in 0..comptime!(s.kh) {
            // Wraps where the tap lies in the padding above, and is then too large.
            let y = oy * comptime!(s.stride[0]) + u * comptime!(s.dilation[0]) - comptime!(s.pad[0]);
            if y < comptime!(s.h) {
                for v in 0..comptime!(s.kw) {
                    let x = ox * comptime!(s.stride[1]) + v * comptime!(s.dilation[1])
                        - comptime!(s.pad[1]);
                    if x < comptime!(s.w) {
                        let value = get(buffers, plane + y * comptime!(s.w) + x, comptime!(s.x.clone()));
                        let weight =
                            weight_at(buffers, taps + u * comptime!(s.kw) + v, comptime!(s.clone()));
                        part += float(value) * weight;
                    }
                }
            }
        }
        total += part;
    }
    total
}

/// One element of the input's gradient.
#[cube]
fn input_grad(buffers: &Buffers, i: u32, #[comptime] s: Sizes) -> f32 {
    let x = i % comptime!(s.w);
    let y = (i / comptime!(s.w)) % comptime!(s.h);
    let c = (i / comptime!(s.w * s.h)) % comptime!(s.c);
    let n = i / comptime!(s.w * s.h * s.c);
    let group = c / comptime!(s.cg);
    let within = c % comptime!(s.cg);
    let mut total = 0.0f32;
    for k in 0..comptime!(s.og) {
        let o = group * comptime!(s.og) + k;
        let plane = (n * comptime!(s.o) + o) * comptime!(s.oh * s.ow);
        let taps = (o * comptime!(s.cg) + within) * comptime!(s.kh * s.kw);
        let mut part = 0.0f32;
        for u in 0..comptime!(s.kh) {
            let top = y + comptime!(s.pad[0]) - u * comptime!(s.dilation[0]);
            let oy = top / comptime!(s.stride[0]);
            if oy < comptime!(s.oh) && oy * comptime!(s.stride[0]) == top {
                for v in 0..comptime!(s.kw) {
                    let left = x + comptime!(s.pad[1]) - v * comptime!(s.dilation[1]);
                    let ox = left / comptime!(s.stride[1]);
                    if ox < comptime!(s.ow) && ox * comptime!(s.stride[1]) == left {
                        let value =
                            get(buffers, plane + oy * comptime!(s.ow) + ox, comptime!(s.y.clone()));
                        let weight =
                            weight_at(buffers, taps + u * comptime!(s.kw) + v, comptime!(s.clone()));
                        part += float(value) * weight;
                    }
                }
            }
        }
        total += part;
    }
    total
}

#[cube(launch_unchecked)]
fn forward_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    scalars: &[u32],
    fault: &[u32],
    numel: u32,
    #[comptime] s: Sizes,
    #[comptime] epilogue: Code,
) {
    let first = ABSOLUTE_POS as u32 * comptime!(GROUP as u32);
    if first >= numel {
        terminate!();
    }
    if comptime!(s.guarded) {
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    let mut files = Sequence::<Sequence<u32>>::new();
    #[unroll]
    for j in 0..GROUP {
        let i = min(first + comptime!(j as u32), numel - 1u32);
        let acc = bits(forward(&buffers, i, comptime!(s.clone())));
        let file = run(&buffers, scalars, i, acc, comptime!(epilogue.clone()));
        files.push(file);
    }
    emit(&mut buffers, &atomics, &files, first, numel, epilogue);
}

#[cube(launch_unchecked)]
fn input_grad_kernel(mut buffers: Buffers, fault: &[u32], numel: u32, #[comptime] s: Sizes) {
    let first = ABSOLUTE_POS as u32 * comptime!(GROUP as u32);
    if first >= numel {
        terminate!();
    }
    if comptime!(s.guarded) {
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    let mut values = Sequence::<u32>::new();
    #[unroll]
    for j in 0..GROUP {
        let i = min(first + comptime!(j as u32), numel - 1u32);
        let value = bits(input_grad(&buffers, i, comptime!(s.clone())));
        values.push(value);
    }
    put(&mut buffers, &values, first, numel, comptime!(s.x.binding), comptime!(s.x.dtype));
}

/// One element of the weight's gradient for each cube.
#[cube(launch_unchecked)]
fn weight_grad_kernel(
    buffers: Buffers,
    atomics: Atomics,
    fault: &[u32],
    numel: u32,
    #[comptime] s: Sizes,
) {
    let i = CUBE_POS as u32;
    if i >= numel {
        terminate!();
    }
    if comptime!(s.guarded) {
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    let v = i % comptime!(s.kw);
    let u = (i / comptime!(s.kw)) % comptime!(s.kh);
    let within = (i / comptime!(s.kw * s.kh)) % comptime!(s.cg);
    let o = i / comptime!(s.kw * s.kh * s.cg);
    let c = (o / comptime!(s.og)) * comptime!(s.cg) + within;
    let places = comptime!(s.oh * s.ow);
    let mut total = 0.0f32;
    for n in 0..comptime!(s.n) {
        let xs = (n * comptime!(s.c) + c) * comptime!(s.h * s.w);
        let ys = (n * comptime!(s.o) + o) * places;
        let mut part = 0.0f32;
        let mut p = UNIT_POS;
        while p < places {
            let oy = p / comptime!(s.ow);
            let ox = p % comptime!(s.ow);
            let y = oy * comptime!(s.stride[0]) + u * comptime!(s.dilation[0]) - comptime!(s.pad[0]);
            let x = ox * comptime!(s.stride[1]) + v * comptime!(s.dilation[1]) - comptime!(s.pad[1]);
            if y < comptime!(s.h) && x < comptime!(s.w) {
                let value = get(&buffers, xs + y * comptime!(s.w) + x, comptime!(s.x.clone()));
                let grad = get(&buffers, ys + p, comptime!(s.y.clone()));
                part += float(value) * float(grad);
            }
            p += SHARE;
        }
        total += part;
    }
    let mut shared = Shared::<[f32]>::new_slice(SHARE as usize);
    shared[UNIT_POS as usize] = total;
    let mut half = comptime!(SHARE / 2).runtime();
    while half > 0u32 {
        sync_cube();
        if UNIT_POS < half {
            shared[UNIT_POS as usize] =
                shared[UNIT_POS as usize] + shared[(UNIT_POS + half) as usize];
        }
        half /= 2u32;
    }
    if UNIT_POS == 0u32 {
        let value = bits(shared[0]);
        words::store_part(&atomics, comptime!(s.weight.binding), i, value, comptime!(s.weight.dtype));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Forward,
    Input,
    Weight,
}

/// A convolution or one of its gradients.
pub(super) struct Conv {
    kind: Kind,
    sizes: Sizes,
    epilogue: Code,
    bound: Bound,
    numel: usize,
}

impl Conv {
    pub(super) fn forward(
        b: &Build<'_>,
        conv: &Conv2d,
        input: &Dense,
        weight: &Dense,
        weight_compute: DType,
        shape: &Shape,
        epilogue: &Fused,
    ) -> Result<Conv, String> {
        let numel = b.numel(shape)?;
        let mut bound = Bound::default();
        let (x, w) = (b.slab(input, &mut bound)?, b.slab(weight, &mut bound)?);
        let slabs = [x.clone(), w, x];
        let shapes = (&input.shape, &weight.shape);
        let sizes = Sizes::new(conv, shapes.0, shapes.1, shape, slabs, weight_compute, b.guarded())?;
        Ok(Conv {
            kind: Kind::Forward,
            epilogue: b.code(epilogue, shape, Runs::Whole, &mut bound),
            sizes,
            bound,
            numel,
        })
    }

    pub(super) fn input_grad(
        b: &Build<'_>,
        conv: &Conv2d,
        weight: &Dense,
        weight_compute: DType,
        grad: &Dense,
        output: &Dense,
    ) -> Result<Conv, String> {
        let mut bound = Bound::default();
        let slabs = [
            b.slab(output, &mut bound)?,
            b.slab(weight, &mut bound)?,
            b.slab(grad, &mut bound)?,
        ];
        let (x, w, y) = (&output.shape, &weight.shape, &grad.shape);
        Ok(Conv {
            kind: Kind::Input,
            sizes: Sizes::new(conv, x, w, y, slabs, weight_compute, b.guarded())?,
            epilogue: Code::default(),
            numel: b.numel(x)?,
            bound,
        })
    }

    pub(super) fn weight_grad(
        b: &Build<'_>,
        conv: &Conv2d,
        input: &Dense,
        grad: &Dense,
        output: &Dense,
    ) -> Result<Conv, String> {
        let mut bound = Bound::default();
        let slabs = [
            b.slab(input, &mut bound)?,
            Slab {
                binding: bound.atomic(b.same_place(output.buf as usize)),
                dtype: output.dtype,
            },
            b.slab(grad, &mut bound)?,
        ];
        let (x, w, y) = (&input.shape, &output.shape, &grad.shape);
        Ok(Conv {
            kind: Kind::Weight,
            sizes: Sizes::new(conv, x, w, y, slabs, output.dtype, b.guarded())?,
            epilogue: Code::default(),
            numel: b.numel(w)?,
            bound,
        })
    }
}

impl Launch for Conv {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        if self.numel == 0 {
            return Ok(());
        }
        let (buffers, atomics) = cx.bind(&self.bound);
        let (client, numel) = (&cx.device.client, self.numel as u32);
        let (count, dim) = spread(cx, self.numel, GROUP);
        let sizes = self.sizes.clone();
        // SAFETY: indices are computed from the sizes of the operands, which fit their buffers, and taps outside are left out.
        unsafe {
            match self.kind {
                Kind::Forward => forward_kernel::launch_unchecked(
                    client,
                    count,
                    dim,
                    buffers,
                    atomics,
                    cx.scalars(),
                    cx.fault(),
                    numel,
                    sizes,
                    self.epilogue.clone(),
                ),
                Kind::Input => input_grad_kernel::launch_unchecked(
                    client,
                    count,
                    dim,
                    buffers,
                    cx.fault(),
                    numel,
                    sizes,
                ),
                Kind::Weight => weight_grad_kernel::launch_unchecked(
                    client,
                    cx.grid(self.numel),
                    CubeDim::new_1d(SHARE),
                    buffers,
                    atomics,
                    cx.fault(),
                    numel,
                    sizes,
                ),
            }
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}
