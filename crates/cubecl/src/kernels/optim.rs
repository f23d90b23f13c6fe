//! The end of a train step over all parameters at once: whether gradients are finite and their squared norm, and the update of weights and moments.
//!
//! A launch takes as many tensors as a kernel may bind; its cubes are shared out among them by their sizes.
use super::Launch;
use super::common::Build;
use crate::math::{self, bits, float};
use crate::plan::{Bound, Cx};
use crate::words::{self, Buffers};
use bimetal_tensor::graph::{Composite, OptimRule};
use bimetal_tensor::plan::{Meta, Strided};
use bimetal_tensor::{DType, ErrorKind};
use cubecl::prelude::*;

/// Units of a cube.
const UNITS: u32 = 128;

/// Elements that a unit of an update has.
const EACH: u32 = 4;

/// Elements that a unit of a norm adds up, one after the other.
const RUN: u32 = 32;

/// The most tensors of a launch (six parameters of Adam that are updated in place): with four scalars and the fault word, what the graphics interfaces bind at least on desktop adapters.
const BINDINGS: usize = 25;

/// Whether this file has the composite's kernels for such operands.
pub(super) fn native(composite: &Composite, inputs: &[Meta]) -> bool {
    let full = |m: &Meta| m.dtype == DType::F32 && m.shape.numel() > 0;
    match composite {
        Composite::GradStats => !inputs.is_empty() && inputs.iter().all(full),
        Composite::OptimUpdate { .. } => inputs.iter().skip(1).all(full),
        _ => false,
    }
}

/// An update's rule and numbers, as bits of f32.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rule {
    rule: OptimRule,
    beta1: u32,
    rest1: u32,
    beta2: u32,
    rest2: u32,
    log1: u32,
    log2: u32,
    eps: u32,
    decay: u32,
}

/// Where the tensors of one parameter are bound; results that nobody wants are not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Param {
    x: Vec<usize>,
    y: Vec<Option<usize>>,
}

/// A launch's parameters, and where apply, lr, factor and the counter of steps are bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Chunk {
    scalars: [usize; 4],
    params: Vec<Param>,
}

/// What all elements of an update share.
#[derive(CubeType, Clone, Copy)]
struct Common {
    apply: bool,
    lr: f32,
    factor: f32,
    first: bool,
    /// `1 - beta^t` of both moments.
    correction1: f32,
    correction2: f32,
}

#[cube]
fn common(buffers: &Buffers, #[comptime] r: Rule, #[comptime] c: Chunk) -> Common {
    let apply = words::load(
        buffers,
        comptime!(c.scalars[0]),
        0u32,
        comptime!(DType::Bool),
    );
    let t = float(buffers.index(comptime!(c.scalars[3]))[0]);
    Common {
        apply: apply != 0u32,
        lr: float(buffers.index(comptime!(c.scalars[1]))[0]),
        factor: float(buffers.index(comptime!(c.scalars[2]))[0]),
        first: t == 1.0f32,
        correction1: -math::expm1(t * comptime!(f32::from_bits(r.log1))),
        correction2: -math::expm1(t * comptime!(f32::from_bits(r.log2))),
    }
}

#[cube(launch_unchecked)]
fn update_kernel(
    mut buffers: Buffers,
    fault: &[u32],
    #[comptime] r: Rule,
    #[comptime] c: Chunk,
    #[comptime] guarded: bool,
) {
    if comptime!(guarded) {
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    let all = common(&buffers, comptime!(r.clone()), comptime!(c.clone()));
    let cube = CUBE_POS as u32;
    let mut first = 0u32.runtime();
    #[unroll]
    for k in 0..comptime!(c.params.len()) {
        let p = comptime!(c.params[k].clone());
        let n = buffers.index(comptime!(p.x[0])).len() as u32;
        let cubes = n.div_ceil(comptime!(UNITS * EACH));
        if cube >= first && cube - first < cubes {
            let from = (cube - first) * comptime!(UNITS * EACH) + UNIT_POS;
            #[unroll]
            for e in 0..EACH {
                let i = from + comptime!(e * UNITS);
                if i < n {
                    element(
                        &mut buffers,
                        i,
                        &all,
                        comptime!(r.clone()),
                        comptime!(p.clone()),
                    );
                }
            }
        }
        first += cubes;
    }
}

/// One element by PyTorch's formulas, in the order of the decomposition.
#[cube]
fn element(buffers: &mut Buffers, i: u32, all: &Common, #[comptime] r: Rule, #[comptime] p: Param) {
    let at = i as usize;
    let old = float(buffers.index(comptime!(p.x[0]))[at]);
    let mut w = old;
    let mut g = float(buffers.index(comptime!(p.x[1]))[at]) * all.factor;
    let decay = comptime!(f32::from_bits(r.decay));
    match comptime!(r.rule) {
        OptimRule::Sgd { momentum, nesterov } => {
            if comptime!(decay != 0.0) {
                g += w * decay;
            }
            let mut direction = g;
            if momentum {
                let was = float(buffers.index(comptime!(p.x[2]))[at]);
                let mixed = was * comptime!(f32::from_bits(r.beta1))
                    + g * comptime!(f32::from_bits(r.rest2));
                let buffer = select(all.first, g, mixed);
                direction = if nesterov {
                    g + buffer * comptime!(f32::from_bits(r.beta1))
                } else {
                    buffer
                };
                keep(buffers, at, all.apply, buffer, was, comptime!(p.y[1]));
            }
            w -= all.lr * direction;
        }
        OptimRule::Adam { decoupled } => {
            if comptime!(decay != 0.0) {
                if decoupled {
                    w *= 1.0f32 - all.lr * decay;
                } else {
                    g += w * decay;
                }
            }
            let m0 = float(buffers.index(comptime!(p.x[2]))[at]);
            let v0 = float(buffers.index(comptime!(p.x[3]))[at]);
            let m = m0 + (g - m0) * comptime!(f32::from_bits(r.rest1));
            let v = v0 * comptime!(f32::from_bits(r.beta2))
                + (g * g) * comptime!(f32::from_bits(r.rest2));
            let denominator =
                math::sqrt(v) / math::sqrt(all.correction2) + comptime!(f32::from_bits(r.eps));
            let change = all.lr / all.correction1 * (m / denominator);
            if comptime!(r.eps == 0) {
                // A zero gradient makes no update, whatever eps.
                w -= select(m == 0.0f32, 0.0f32, change);
            } else {
                w -= change;
            }
            keep(buffers, at, all.apply, m, m0, comptime!(p.y[1]));
            keep(buffers, at, all.apply, v, v0, comptime!(p.y[2]));
        }
    }
    keep(buffers, at, all.apply, w, old, comptime!(p.y[0]));
}

/// Stores the new value of a step that applies, or else the old one.
#[cube]
fn keep(
    buffers: &mut Buffers,
    at: usize,
    apply: bool,
    new: f32,
    old: f32,
    #[comptime] binding: Option<usize>,
) {
    if comptime!(binding.is_some()) {
        let words = buffers.index_mut(comptime!(binding.unwrap_or(0)));
        words[at] = select(apply, bits(new), bits(old));
    }
}

/// A cube's part of the norm: the bits of its sum of squares, and the number of its tensor if an element is not finite.
#[cube(launch_unchecked)]
fn parts_kernel(
    buffers: Buffers,
    parts: &mut [u32],
    start: u32,
    number: u32,
    #[comptime] tensors: Vec<usize>,
) {
    let cube = CUBE_POS as u32;
    let mut first = 0u32.runtime();
    let mut bad = u32::MAX.runtime();
    let mut sum = 0.0f32.runtime();
    #[unroll]
    for k in 0..comptime!(tensors.len()) {
        let words = buffers.index(comptime!(tensors[k]));
        let n = words.len() as u32;
        let cubes = n.div_ceil(comptime!(UNITS * RUN));
        if cube >= first && cube - first < cubes {
            let mut i = (cube - first) * comptime!(UNITS * RUN) + UNIT_POS;
            let end = min(i + comptime!(UNITS * RUN) - UNIT_POS, n);
            while i < end {
                let v = float(words[i as usize]);
                sum += v * v;
                if !math::is_finite(v) {
                    bad = number + comptime!(k as u32);
                }
                i += UNITS;
            }
        }
        first += cubes;
    }
    if cube < first {
        let mut sums = Shared::new_slice(comptime!(UNITS as usize));
        let mut bads = Shared::new_slice(comptime!(UNITS as usize));
        fold(&mut sums, &mut bads, sum, bad);
        if UNIT_POS == 0u32 {
            parts[((start + cube) * 2u32) as usize] = bits(sums[0]);
            parts[((start + cube) * 2u32 + 1u32) as usize] = bads[0];
        }
    }
}

/// Sums and smallest numbers over the units of a cube, in a fixed tree.
#[cube]
fn fold(sums: &mut Shared<[f32]>, bads: &mut Shared<[u32]>, sum: f32, bad: u32) {
    let me = UNIT_POS as usize;
    sums[me] = sum;
    bads[me] = bad;
    let mut half = comptime!(UNITS / 2).runtime();
    while half > 0u32 {
        sync_cube();
        if UNIT_POS < half {
            let other = (UNIT_POS + half) as usize;
            sums[me] = sums[me] + sums[other];
            bads[me] = min(bads[me], bads[other]);
        }
        half /= 2u32;
    }
    sync_cube();
}

/// All parts together: the flag, the sum and the first tensor that is not finite.
#[cube(launch_unchecked)]
fn whole_kernel(
    mut buffers: Buffers,
    parts: &[u32],
    count: u32,
    #[comptime] y: [Option<usize>; 3],
) {
    let mut sum = 0.0f32.runtime();
    let mut bad = u32::MAX.runtime();
    let mut i = UNIT_POS;
    while i < count {
        sum += float(parts[(i * 2u32) as usize]);
        bad = min(bad, parts[(i * 2u32 + 1u32) as usize]);
        i += UNITS;
    }
    let mut sums = Shared::new_slice(comptime!(UNITS as usize));
    let mut bads = Shared::new_slice(comptime!(UNITS as usize));
    fold(&mut sums, &mut bads, sum, bad);
    if UNIT_POS == 0u32 {
        // u32::MAX is -1 as well. A scalar has a word of its own.
        let bad = bads[0];
        scalar(
            &mut buffers,
            select(bad == u32::MAX, 1u32, 0u32),
            comptime!(y[0]),
        );
        scalar(&mut buffers, bits(sums[0]), comptime!(y[1]));
        scalar(&mut buffers, bad, comptime!(y[2]));
    }
}

#[cube]
fn scalar(buffers: &mut Buffers, word: u32, #[comptime] binding: Option<usize>) {
    if comptime!(binding.is_some()) {
        let words = buffers.index_mut(comptime!(binding.unwrap_or(0)));
        words[0] = word;
    }
}

/// One launch of an update.
struct Part {
    bound: Bound,
    chunk: Chunk,
    cubes: usize,
}

pub(super) struct Update {
    parts: Vec<Part>,
    rule: Rule,
    guarded: bool,
}

/// The buffer of an operand, in its plan's first number.
fn buffer(b: &Build<'_>, s: &Strided) -> usize {
    b.same_place(s.access.buf as usize)
}

fn cubes(numel: usize, each: u32) -> usize {
    numel.div_ceil((UNITS * each) as usize)
}

impl Update {
    pub(super) fn new(
        b: &Build<'_>,
        composite: &Composite,
        inputs: &[Strided],
        outputs: &[Option<Strided>],
    ) -> Result<Update, String> {
        let &Composite::OptimUpdate {
            rule,
            beta1,
            beta2,
            eps,
            weight_decay,
        } = composite
        else {
            return Err(format!("`{}` is no update", composite.name()));
        };
        let word = |v: f64| (v as f32).to_bits();
        let (beta1, beta2) = (beta1.0, beta2.0);
        let moments = rule.moments();
        let mut parts: Vec<Part> = Vec::new();
        let params = inputs[4..].chunks(2 + moments);
        for (x, y) in params.zip(outputs.chunks(1 + moments)) {
            let numel = b.numel(&x[0].shape)?;
            let mut here: Vec<usize> = x
                .iter()
                .chain(y.iter().flatten())
                .map(|s| buffer(b, s))
                .collect();
            here.sort_unstable();
            here.dedup();
            let fits = parts
                .last()
                .is_some_and(|p| p.bound.buffers.len() + here.len() <= 4 + BINDINGS);
            if !fits {
                let mut bound = Bound::default();
                let scalars = std::array::from_fn(|i| bound.buffer(buffer(b, &inputs[i])));
                let params = Vec::new();
                parts.push(Part {
                    bound,
                    chunk: Chunk { scalars, params },
                    cubes: 0,
                });
            }
            let Some(part) = parts.last_mut() else {
                continue;
            };
            let mut bind = |s: &Strided| part.bound.buffer(buffer(b, s));
            let param = Param {
                x: x.iter().map(&mut bind).collect(),
                y: y.iter().map(|s| s.as_ref().map(&mut bind)).collect(),
            };
            part.chunk.params.push(param);
            part.cubes += cubes(numel, EACH);
        }
        Ok(Update {
            parts,
            rule: Rule {
                rule,
                beta1: word(beta1),
                rest1: word(1.0 - beta1),
                beta2: word(beta2),
                rest2: word(1.0 - beta2),
                log1: word(beta1.ln()),
                log2: word(beta2.ln()),
                eps: word(eps.0),
                decay: word(weight_decay.0),
            },
            guarded: b.guarded(),
        })
    }
}

impl Launch for Update {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        for part in &self.parts {
            let (buffers, _) = cx.bind(&part.bound);
            // SAFETY: elements lie in tensors of one size, whose number of words is theirs.
            unsafe {
                update_kernel::launch_unchecked(
                    &cx.device.client,
                    cx.grid(part.cubes),
                    CubeDim::new_1d(UNITS),
                    buffers,
                    cx.fault(),
                    self.rule.clone(),
                    part.chunk.clone(),
                    self.guarded,
                )
            };
        }
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.parts.iter().flat_map(|p| p.bound.all()).collect()
    }
}

/// The norm's share of one launch.
struct Norms {
    bound: Bound,
    tensors: Vec<usize>,
    number: usize,
    start: usize,
    cubes: usize,
}

pub(super) struct Stats {
    norms: Vec<Norms>,
    count: usize,
    bound: Bound,
    y: [Option<usize>; 3],
}

impl Stats {
    pub(super) fn new(
        b: &Build<'_>,
        inputs: &[Strided],
        outputs: &[Option<Strided>],
    ) -> Result<Stats, String> {
        let (mut norms, mut count): (Vec<Norms>, usize) = (Vec::new(), 0);
        for (number, x) in inputs.iter().enumerate() {
            let cubes = cubes(b.numel(&x.shape)?, RUN);
            if norms.last().is_none_or(|n| n.tensors.len() == BINDINGS) {
                norms.push(Norms {
                    bound: Bound::default(),
                    tensors: Vec::new(),
                    number,
                    start: count,
                    cubes: 0,
                });
            }
            if let Some(n) = norms.last_mut() {
                n.tensors.push(n.bound.buffer(buffer(b, x)));
                n.cubes += cubes;
            }
            count += cubes;
        }
        let mut bound = Bound::default();
        let y = std::array::from_fn(|i| {
            let out = outputs.get(i).and_then(Option::as_ref);
            out.map(|s| bound.buffer(buffer(b, s)))
        });
        Ok(Stats {
            norms,
            count,
            bound,
            y,
        })
    }
}

impl Launch for Stats {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        let client = &cx.device.client;
        let handle = cx.scratch(8 * self.count);
        // SAFETY: the parts are as many as there are cubes, and each has two words; a unit reads within its tensor.
        unsafe {
            let parts = || BufferArg::from_raw_parts(handle.clone(), 2 * self.count);
            for n in &self.norms {
                let (buffers, _) = cx.bind(&n.bound);
                parts_kernel::launch_unchecked(
                    client,
                    cx.grid(n.cubes),
                    CubeDim::new_1d(UNITS),
                    buffers,
                    parts(),
                    n.start as u32,
                    n.number as u32,
                    n.tensors.clone(),
                );
            }
            let (buffers, _) = cx.bind(&self.bound);
            whole_kernel::launch_unchecked(
                client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(UNITS),
                buffers,
                parts(),
                self.count as u32,
                self.y,
            );
        }
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        let norms = self.norms.iter().flat_map(|n| n.bound.all());
        norms.chain(self.bound.all()).collect()
    }
}
