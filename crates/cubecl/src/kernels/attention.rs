//! Scaled dot-product attention without a matrix of scores (Dao et al. 2022, Rabe and Staats 2021): each unit has a query, or a key, in its registers and
//! walks over the others; the statistics of softmax are f32 and kept up to date on the way.
use super::Launch;
use super::common::{Build, spread};
use crate::code::ENTRY;
use crate::math::{self, bits, float};
use crate::philox;
use crate::plan::{Bound, Cx};
use crate::words::{self, Atomics, Buffers};
use bimetal_tensor::graph::{AttentionSpec, Composite};
use bimetal_tensor::plan::{Meta, Strided};
use bimetal_tensor::{DType, ErrorKind};
use cubecl::prelude::*;

/// The largest head: a unit keeps four rows of it.
const LARGEST: usize = 128;

/// An operand `[batch, time, head, d]`; d lies together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Heads {
    binding: usize,
    dtype: DType,
    offset: u32,
    strides: [u32; 3],
    /// Of a result: whether rows share words.
    shared: bool,
}

/// Sizes and operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sizes {
    h: u32,
    tq: u32,
    tk: u32,
    d: u32,
    /// The bits of the factor on the scores.
    scale: u32,
    causal: bool,
    mask: Option<usize>,
    dropout: Option<Dropout>,
    q: Heads,
    k: Heads,
    v: Heads,
    dy: Heads,
    lse: Option<usize>,
    y: Option<Heads>,
    dq: Option<Heads>,
    dk: Option<Heads>,
    dv: Option<Heads>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Dropout {
    rate: u32,
    key: u32,
    step: Option<usize>,
}

#[cube]
fn row(b: u32, t: u32, h: u32, #[comptime] x: Heads) -> u32 {
    comptime!(x.offset)
        + b * comptime!(x.strides[0])
        + t * comptime!(x.strides[1])
        + h * comptime!(x.strides[2])
}

#[cube]
fn at(buffers: &Buffers, place: u32, #[comptime] x: Heads) -> f32 {
    float(words::load(
        buffers,
        comptime!(x.binding),
        place,
        comptime!(x.dtype),
    ))
}

/// A row of `d` elements in registers.
#[cube]
fn read(
    buffers: &Buffers,
    b: u32,
    t: u32,
    h: u32,
    #[comptime] x: Heads,
    #[comptime] d: u32,
) -> Array<f32> {
    let start = row(b, t, h, comptime!(x.clone()));
    let mut values = Array::<f32>::new(comptime!(d as usize));
    for i in 0..d {
        values[i as usize] = at(buffers, start + i, comptime!(x.clone()));
    }
    values
}

#[cube]
fn zeros(#[comptime] d: u32) -> Array<f32> {
    let mut values = Array::<f32>::new(comptime!(d as usize));
    for i in 0..d {
        values[i as usize] = 0.0f32;
    }
    values
}

/// The product of a row in registers with one in memory.
#[cube]
fn dot(
    buffers: &Buffers,
    values: &Array<f32>,
    start: u32,
    #[comptime] x: Heads,
    #[comptime] d: u32,
) -> f32 {
    let mut sum = 0.0f32;
    for i in 0..d {
        sum += values[i as usize] * at(buffers, start + i, comptime!(x.clone()));
    }
    sum
}

#[cube]
fn write(
    buffers: &mut Buffers,
    atomics: &Atomics,
    values: &Array<f32>,
    start: u32,
    factor: f32,
    #[comptime] x: Heads,
    #[comptime] d: u32,
) {
    let dtype = comptime!(x.dtype);
    let per = comptime!(4 / dtype.size() as u32);
    if comptime!(x.shared) {
        for i in 0..d {
            let value = bits(values[i as usize] * factor);
            words::store_part(atomics, comptime!(x.binding), start + i, value, dtype);
        }
    } else {
        for g in 0..comptime!(d / per) {
            let mut word = 0u32.runtime();
            #[unroll]
            for j in 0..per {
                let value = bits(values[(g * per + j) as usize] * factor);
                word |= words::pack(value, dtype) << comptime!(j * 32 / per);
            }
            let words = buffers.index_mut(comptime!(x.binding));
            words[(start / per + g) as usize] = word;
        }
    }
}

/// Whether query `i` sees key `j` of batch `b`.
#[cube]
fn visible(buffers: &Buffers, b: u32, i: u32, j: u32, #[comptime] s: Sizes) -> bool {
    let mut seen = true;
    if comptime!(s.causal) {
        seen = j + comptime!(s.tq) <= i + comptime!(s.tk);
    }
    if comptime!(s.mask.is_some()) {
        let mask = comptime!(s.mask.unwrap_or(0));
        let place = b * comptime!(s.tk) + j;
        seen = seen & (words::load(buffers, mask, place, DType::Bool) != 0u32);
    }
    seen
}

/// What the probability of a pair is multiplied with: 0 where it is dropped.
#[cube]
fn kept(
    buffers: &Buffers,
    scalars: &[u32],
    head: u32,
    i: u32,
    j: u32,
    #[comptime] s: Sizes,
) -> f32 {
    if comptime!(s.dropout.is_some()) {
        let drop = comptime!(s.dropout.clone().unwrap());
        let low = scalars[comptime!((drop.key * ENTRY + 2) as usize)];
        let high = scalars[comptime!(((drop.key + 1) * ENTRY + 2) as usize)];
        let micro = scalars[comptime!(((drop.key + 2) * ENTRY + 2) as usize)];
        let step = if comptime!(drop.step.is_some()) {
            words::load(
                buffers,
                comptime!(drop.step.unwrap_or(0)),
                0u32.runtime(),
                DType::U32,
            )
        } else {
            0u32.runtime()
        };
        let n = (head * comptime!(s.tq) + i) * comptime!(s.tk) + j;
        let block = philox::block(low, high, n >> 2u32, 0u32.runtime(), step, micro);
        let u = math::unit(philox::word(&block, n & 3u32));
        let rate = comptime!(f32::from_bits(drop.rate));
        select(u >= rate, comptime!(1.0 / (1.0 - rate)).runtime(), 0.0f32)
    } else {
        1.0f32.runtime()
    }
}

#[cube(launch_unchecked)]
fn forward_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    scalars: &[u32],
    rows: u32,
    #[comptime] s: Sizes,
) {
    let n = ABSOLUTE_POS as u32;
    if n >= rows {
        terminate!();
    }
    let d = comptime!(s.d);
    let i = n % comptime!(s.tq);
    let head = n / comptime!(s.tq);
    let h = head % comptime!(s.h);
    let b = head / comptime!(s.h);
    let q = read(&buffers, b, i, h, comptime!(s.q.clone()), d);
    let mut out = zeros(d);
    let mut top = float(0xff80_0000u32.runtime());
    let mut sum = 0.0f32;
    for j in 0..comptime!(s.tk) {
        if visible(&buffers, b, i, j, comptime!(s.clone())) {
            let ks = row(b, j, h, comptime!(s.k.clone()));
            let score = dot(&buffers, &q, ks, comptime!(s.k.clone()), d)
                * comptime!(f32::from_bits(s.scale));
            let higher = select(score > top, score, top);
            // Before the first key there is nothing to shift, and afterwards no infinity to subtract.
            let shift = select(bits(top) == 0xff80_0000u32, 0.0f32, math::exp(top - higher));
            let same = bits(higher) == 0xff80_0000u32;
            let e = select(same, 0.0f32, math::exp(score - higher));
            sum = sum * shift + e;
            let factor = e * kept(&buffers, scalars, head, i, j, comptime!(s.clone()));
            let vs = row(b, j, h, comptime!(s.v.clone()));
            for c in 0..d {
                let v = at(&buffers, vs + c, comptime!(s.v.clone()));
                out[c as usize] = out[c as usize] * shift + factor * v;
            }
            top = higher;
        }
    }
    let norm = select(sum == 0.0f32, 1.0f32, sum);
    if comptime!(s.y.is_some()) {
        let y = comptime!(s.y.clone().unwrap());
        let start = row(b, i, h, comptime!(y.clone()));
        write(&mut buffers, &atomics, &out, start, 1.0f32 / norm, y, d);
    }
    if comptime!(s.lse.is_some()) {
        let lse = math::log(sum) + select(sum == 0.0f32, 0.0f32, top);
        let words = buffers.index_mut(comptime!(s.lse.unwrap_or(0)));
        words[n as usize] = bits(lse);
    }
}

/// The gradient of the queries, and for the other kernel the product of each row's result with its gradient.
#[cube(launch_unchecked)]
fn query_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    scalars: &[u32],
    deltas: &mut [u32],
    rows: u32,
    #[comptime] s: Sizes,
) {
    let n = ABSOLUTE_POS as u32;
    if n >= rows {
        terminate!();
    }
    let d = comptime!(s.d);
    let i = n % comptime!(s.tq);
    let head = n / comptime!(s.tq);
    let h = head % comptime!(s.h);
    let b = head / comptime!(s.h);
    let dy = read(&buffers, b, i, h, comptime!(s.dy.clone()), d);
    let y = comptime!(s.y.clone().unwrap());
    let ys = row(b, i, h, comptime!(y.clone()));
    let delta = dot(&buffers, &dy, ys, y, d);
    deltas[n as usize] = bits(delta);
    if comptime!(s.dq.is_some()) {
        let q = read(&buffers, b, i, h, comptime!(s.q.clone()), d);
        let lse = float(words::load(
            &buffers,
            comptime!(s.lse.unwrap_or(0)),
            n,
            DType::F32,
        ));
        let mut grad = zeros(d);
        for j in 0..comptime!(s.tk) {
            if visible(&buffers, b, i, j, comptime!(s.clone())) {
                let ks = row(b, j, h, comptime!(s.k.clone()));
                let vs = row(b, j, h, comptime!(s.v.clone()));
                let score = dot(&buffers, &q, ks, comptime!(s.k.clone()), d);
                let p = math::exp(score * comptime!(f32::from_bits(s.scale)) - lse);
                let dp = dot(&buffers, &dy, vs, comptime!(s.v.clone()), d)
                    * kept(&buffers, scalars, head, i, j, comptime!(s.clone()));
                let ds = p * (dp - delta);
                for c in 0..d {
                    grad[c as usize] += ds * at(&buffers, ks + c, comptime!(s.k.clone()));
                }
            }
        }
        let to = comptime!(s.dq.clone().unwrap());
        let start = row(b, i, h, comptime!(to.clone()));
        write(
            &mut buffers,
            &atomics,
            &grad,
            start,
            comptime!(f32::from_bits(s.scale)).runtime(),
            to,
            d,
        );
    }
}

/// The gradients of keys and values.
#[cube(launch_unchecked)]
fn key_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    scalars: &[u32],
    deltas: &[u32],
    rows: u32,
    #[comptime] s: Sizes,
) {
    let n = ABSOLUTE_POS as u32;
    if n >= rows {
        terminate!();
    }
    let d = comptime!(s.d);
    let j = n % comptime!(s.tk);
    let head = n / comptime!(s.tk);
    let h = head % comptime!(s.h);
    let b = head / comptime!(s.h);
    let k = read(&buffers, b, j, h, comptime!(s.k.clone()), d);
    let v = read(&buffers, b, j, h, comptime!(s.v.clone()), d);
    let mut dk = zeros(d);
    let mut dv = zeros(d);
    for i in 0..comptime!(s.tq) {
        if visible(&buffers, b, i, j, comptime!(s.clone())) {
            let place = head * comptime!(s.tq) + i;
            let qs = row(b, i, h, comptime!(s.q.clone()));
            let ds = row(b, i, h, comptime!(s.dy.clone()));
            let lse = float(words::load(
                &buffers,
                comptime!(s.lse.unwrap_or(0)),
                place,
                DType::F32,
            ));
            let score = dot(&buffers, &k, qs, comptime!(s.q.clone()), d);
            let p = math::exp(score * comptime!(f32::from_bits(s.scale)) - lse);
            let factor = kept(&buffers, scalars, head, i, j, comptime!(s.clone()));
            let dp = dot(&buffers, &v, ds, comptime!(s.dy.clone()), d) * factor;
            let grad = p * (dp - float(deltas[place as usize]));
            let share = p * factor;
            for c in 0..d {
                dk[c as usize] += grad * at(&buffers, qs + c, comptime!(s.q.clone()));
                dv[c as usize] += share * at(&buffers, ds + c, comptime!(s.dy.clone()));
            }
        }
    }
    if comptime!(s.dk.is_some()) {
        let to = comptime!(s.dk.clone().unwrap());
        let start = row(b, j, h, comptime!(to.clone()));
        write(
            &mut buffers,
            &atomics,
            &dk,
            start,
            comptime!(f32::from_bits(s.scale)).runtime(),
            to,
            d,
        );
    }
    if comptime!(s.dv.is_some()) {
        let to = comptime!(s.dv.clone().unwrap());
        let start = row(b, j, h, comptime!(to.clone()));
        write(&mut buffers, &atomics, &dv, start, 1.0f32.runtime(), to, d);
    }
}

/// Attention or its gradient.
pub(super) struct Attention {
    sizes: Sizes,
    bound: Bound,
    queries: usize,
    keys: usize,
    grad: bool,
}

/// Whether these operands have a kernel.
pub(super) fn native(composite: &Composite, inputs: &[Meta]) -> bool {
    let (Composite::Attention(_) | Composite::AttentionGrad(_)) = composite else {
        return false;
    };
    let (Some(q), Some(k)) = (inputs.first(), inputs.get(1)) else {
        return false;
    };
    let heads = if matches!(composite, Composite::Attention(_)) {
        3
    } else {
        4
    };
    let float = |m: &Meta| m.dtype.is_float() && m.dtype != DType::F64 && m.shape.numel() > 0;
    let pairs = q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1];
    inputs.iter().take(heads).all(float)
        && q.shape[3] <= LARGEST
        && pairs < (u32::MAX - 1024) as usize
}

fn heads(s: &Strided, buffer: impl FnOnce(usize) -> usize, shared: bool) -> Heads {
    let a = &s.access;
    let stride = |axis: usize| a.strides[axis] as i32 as u32;
    Heads {
        binding: buffer(a.buf as usize),
        dtype: a.dtype,
        offset: a.offset as u32,
        strides: [stride(0), stride(1), stride(2)],
        shared,
    }
}

impl Attention {
    pub(super) fn new(
        b: &Build<'_>,
        spec: &AttentionSpec,
        grad: bool,
        random: Option<u32>,
        inputs: &[Strided],
        outputs: &[Option<Strided>],
    ) -> Result<Attention, String> {
        let (&[batch, tq, h, d], Some(&tk)) = (&inputs[0].shape[..], inputs[1].shape.get(1)) else {
            return Err("attention takes tensors of four axes".into());
        };
        let mut bound = Bound::default();
        let read = |n: usize, bound: &mut Bound| {
            heads(&inputs[n], |buf| bound.buffer(b.same_place(buf)), false)
        };
        let [q, k, v] = [0, 1, 2].map(|n| read(n, &mut bound));
        let write = |n: usize, bound: &mut Bound| {
            outputs.get(n).and_then(Option::as_ref).map(|s| {
                let per = 4 / s.access.dtype.size();
                let words = |v: usize| v.is_multiple_of(per);
                let strides = (0..3).all(|i| words(s.access.strides[i].unsigned_abs()));
                let shared = !(words(d) && words(s.access.offset) && strides);
                let bind = |buf| match shared {
                    true => bound.atomic(buf),
                    false => bound.buffer(buf),
                };
                heads(s, bind, shared)
            })
        };
        let (y, dq, dk, dv, dy, lse, extra) = if grad {
            let y = read(3, &mut bound);
            let lse = Some(bound.buffer(b.same_place(inputs[4].access.buf as usize)));
            let dy = read(5, &mut bound);
            let [dq, dk, dv] = [0, 1, 2].map(|n| write(n, &mut bound));
            (Some(y), dq, dk, dv, dy, lse, 6)
        } else {
            let y = write(0, &mut bound);
            let lse = outputs.get(1).and_then(Option::as_ref);
            let lse = lse.map(|s| bound.buffer(s.access.buf as usize));
            (y, None, None, None, q.clone(), lse, 3)
        };
        let mut extra = inputs[extra..].iter();
        let mut bind = |s: &Strided| bound.buffer(b.same_place(s.access.buf as usize));
        let mask = match spec.key_mask {
            true => Some(bind(extra.next().ok_or("attention without its mask")?)),
            false => None,
        };
        let dropout = spec.dropout.map(|drop| Dropout {
            rate: (drop.rate.0 as f32).to_bits(),
            key: random.unwrap_or(0) + 1,
            step: extra.next().map(&mut bind),
        });
        Ok(Attention {
            queries: batch * h * tq,
            keys: batch * h * tk,
            sizes: Sizes {
                h: h as u32,
                tq: tq as u32,
                tk: tk as u32,
                d: d as u32,
                scale: (spec.scale.0 as f32).to_bits(),
                causal: spec.causal,
                mask,
                dropout,
                q,
                k,
                v,
                dy,
                lse,
                y,
                dq,
                dk,
                dv,
            },
            bound,
            grad,
        })
    }
}

impl Launch for Attention {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        let client = &cx.device.client;
        let (count, dim) = spread(cx, self.queries, 1);
        let rows = self.queries as u32;
        // SAFETY: rows lie in the operands, whose sizes and strides the scheduler has checked.
        unsafe {
            let (buffers, atomics) = cx.bind(&self.bound);
            if !self.grad {
                let s = self.sizes.clone();
                forward_kernel::launch_unchecked(
                    client,
                    count,
                    dim,
                    buffers,
                    atomics,
                    cx.scalars(),
                    rows,
                    s,
                );
                return Ok(());
            }
            let handle = cx.scratch(4 * self.queries);
            let deltas = || BufferArg::from_raw_parts(handle.clone(), self.queries);
            let s = self.sizes.clone();
            query_kernel::launch_unchecked(
                client,
                count,
                dim,
                buffers,
                atomics,
                cx.scalars(),
                deltas(),
                rows,
                s,
            );
            if self.sizes.dk.is_some() || self.sizes.dv.is_some() {
                let (buffers, atomics) = cx.bind(&self.bound);
                let (count, dim) = spread(cx, self.keys, 1);
                let (rows, s) = (self.keys as u32, self.sizes.clone());
                key_kernel::launch_unchecked(
                    client,
                    count,
                    dim,
                    buffers,
                    atomics,
                    cx.scalars(),
                    deltas(),
                    rows,
                    s,
                );
            }
        }
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}
