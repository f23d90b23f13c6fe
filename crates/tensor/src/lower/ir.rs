//! The graph inside the scheduler: composites that the device does not run are decomposed, views are folded into their consumers,
//! equal nodes are merged.
use super::view::View;
use crate::eval::trace::{Flat, IdMap, Val};
use crate::graph::{Op, decompose};
use crate::plan::Meta;
use crate::{Device, Error, Result, Shape, Tensor};
use smallvec::SmallVec;

/// An operand: a view of a node's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Src {
    pub val: Val,
    pub view: View,
}

pub(crate) type Srcs = SmallVec<[Src; 2]>;
pub(crate) type Metas = SmallVec<[Meta; 1]>;

/// A node that computes (never a view).
#[derive(Clone, Debug)]
pub(crate) struct INode {
    pub op: Op,
    pub inputs: Srcs,
    pub outs: Metas,
    pub segment: u32,
    pub backward: bool,
    /// The node of the traced graph whose label stands for this one.
    pub origin: u32,
}

impl INode {
    pub fn shape(&self) -> Shape {
        self.outs[0].shape
    }
}

#[derive(Clone, Copy)]
struct Place {
    segment: u32,
    backward: bool,
    origin: u32,
}

type CseKey = (Op, Srcs, Metas, u32, bool);

/// The nodes in topological order, with what is asked for.
pub(crate) struct Ir {
    pub nodes: Vec<INode>,
    pub outputs: Vec<Src>,
    pub writes: Vec<(u32, Src)>,
    /// Leaf number of `Data` nodes, slot number of `Read` nodes.
    pub leaf_of: IdMap<u32, u32>,
    pub leaves: usize,
    device: Device,
    merged: IdMap<CseKey, u32>,
}

/// Lowers a traced graph for a device.
pub(crate) fn build(flat: &Flat, device: &Device) -> Result<Ir> {
    let mut ir = Ir {
        nodes: Vec::new(),
        outputs: Vec::new(),
        writes: Vec::new(),
        leaf_of: IdMap::default(),
        leaves: 0,
        device: device.clone(),
        merged: IdMap::default(),
    };
    let mut map: Vec<SmallVec<[Src; 1]>> = Vec::with_capacity(flat.nodes.len());
    let mut reads = flat.reads.iter();
    let mut slot_nodes: IdMap<u32, u32> = IdMap::default();
    for (number, n) in flat.nodes.iter().enumerate() {
        let place = Place {
            segment: n.segment,
            backward: n.backward,
            origin: number as u32,
        };
        let inputs: Srcs = flat
            .inputs_of(n)
            .iter()
            .map(|v| map[v.node as usize][v.out as usize])
            .collect();
        let outs = flat.outs_of(n);
        let srcs = match n.op {
            Op::Data => {
                let id = ir.push(n.op.clone(), Srcs::new(), outs, place);
                ir.leaf_of.insert(id, ir.leaves as u32);
                ir.leaves += 1;
                ir.srcs(id)
            }
            Op::Read => {
                let slot = *reads
                    .next()
                    .ok_or_else(|| Error::other("read", "a read without a slot number"))?;
                let id = match slot_nodes.get(&slot) {
                    Some(&id) => id,
                    None => {
                        let id = ir.push(n.op.clone(), Srcs::new(), outs, place);
                        ir.leaf_of.insert(id, slot);
                        slot_nodes.insert(slot, id);
                        id
                    }
                };
                ir.srcs(id)
            }
            _ => ir.emit(&n.op, inputs, outs, place)?,
        };
        map.push(srcs);
    }
    let at = |v: &Val| map[v.node as usize][v.out as usize];
    ir.outputs = flat.outputs.iter().map(at).collect();
    ir.writes = flat.writes.iter().map(|(s, v)| (*s, at(v))).collect();
    Ok(ir)
}

impl Ir {
    fn srcs(&self, id: u32) -> SmallVec<[Src; 1]> {
        let outs = &self.nodes[id as usize].outs;
        (0..outs.len())
            .map(|i| Src {
                val: Val {
                    node: id,
                    out: i as u32,
                },
                view: View::dense(outs[i].shape),
            })
            .collect()
    }

    fn push(&mut self, op: Op, inputs: Srcs, outs: &[Meta], at: Place) -> u32 {
        self.nodes.push(INode {
            op,
            inputs,
            outs: outs.iter().copied().collect(),
            segment: at.segment,
            backward: at.backward,
            origin: at.origin,
        });
        self.nodes.len() as u32 - 1
    }

    /// The node, or an equal one that is there already.
    fn merge(&mut self, op: Op, inputs: Srcs, outs: &[Meta], at: Place) -> u32 {
        if matches!(op, Op::AllReduce { .. } | Op::Custom(_) | Op::Barrier) {
            return self.push(op, inputs, outs, at);
        }
        let key = (
            op,
            inputs,
            outs.iter().copied().collect::<Metas>(),
            at.segment,
            at.backward,
        );
        if let Some(&id) = self.merged.get(&key) {
            return id;
        }
        let id = self.push(key.0.clone(), key.1.clone(), outs, at);
        self.merged.insert(key, id);
        id
    }

    pub fn dtype(&self, v: Val) -> crate::DType {
        self.nodes[v.node as usize].outs[v.out as usize].dtype
    }

    /// The operand as a dense array of its own: a copy unless it is one.
    fn dense(&mut self, s: Src, at: Place) -> Src {
        if s.view.is_dense()
            && s.view.shape.numel()
                == self.nodes[s.val.node as usize].outs[s.val.out as usize]
                    .shape
                    .numel()
        {
            return s;
        }
        self.copy(s, at)
    }

    fn copy(&mut self, s: Src, at: Place) -> Src {
        let meta = Meta {
            shape: s.view.shape,
            dtype: self.dtype(s.val),
        };
        let id = self.merge(
            Op::Cast(Default::default()),
            Srcs::from_iter([s]),
            &[meta],
            at,
        );
        self.srcs(id)[0]
    }

    fn reshape(&mut self, s: Src, shape: Shape, at: Place) -> Src {
        if let Some(view) = s.view.reshape(shape) {
            return Src { view, ..s };
        }
        let c = self.copy(s, at);
        Src {
            view: View::dense(shape),
            ..c
        }
    }

    fn emit(
        &mut self,
        op: &Op,
        inputs: Srcs,
        outs: &[Meta],
        at: Place,
    ) -> Result<SmallVec<[Src; 1]>> {
        let one = |view: View| {
            SmallVec::from_iter([Src {
                val: inputs[0].val,
                view,
            }])
        };
        let shape = outs[0].shape;
        Ok(match op {
            Op::Detach => one(inputs[0].view),
            Op::Reshape => SmallVec::from_iter([self.reshape(inputs[0], shape, at)]),
            Op::Permute(axes) => one(inputs[0].view.permute(axes, shape)),
            Op::Broadcast => one(inputs[0].view.broadcast(shape)),
            Op::Slice { axis, start, step } => {
                one(inputs[0].view.slice(*axis as usize, *start, *step, shape))
            }
            Op::Checkpoint { results } => inputs.iter().take(*results as usize).copied().collect(),
            Op::Barrier => self.barrier(inputs, outs, at),
            Op::Composite(c) => {
                let metas: Vec<Meta> = inputs
                    .iter()
                    .map(|s| Meta {
                        shape: s.view.shape,
                        dtype: self.dtype(s.val),
                    })
                    .collect();
                if self.device.backend().native(c, &metas) {
                    let apart = |i: usize, s: &Src| i < 3 && c.is_attention() && s.view.has_rows();
                    let inputs = inputs.into_iter().enumerate();
                    let inputs = inputs
                        .map(|(i, s)| if apart(i, &s) { s } else { self.dense(s, at) })
                        .collect();
                    let id = self.merge(op.clone(), inputs, outs, at);
                    self.srcs(id)
                } else {
                    let p = self.placeholders(&metas);
                    let results = decompose(c, &p);
                    self.splice(&p, &results, &inputs, outs, at)?
                }
            }
            Op::Custom(c) if !(c.0.has_host_kernel() && self.device.info().kind == "cpu") => {
                let metas: Vec<Meta> = inputs
                    .iter()
                    .map(|s| Meta {
                        shape: s.view.shape,
                        dtype: self.dtype(s.val),
                    })
                    .collect();
                let p = self.placeholders(&metas);
                let results = c.0.decompose(&p).ok_or_else(|| {
                    Error::device(
                        c.name(),
                        format!(
                            "has neither a decomposition nor a kernel for `{}`",
                            self.device.info().kind
                        ),
                    )
                })?;
                self.splice(&p, &results, &inputs, outs, at)?
            }
            // The step that a draw depends on is a scalar beside elements of any shape.
            Op::Random { .. } => {
                let spread = |s: Src| Src {
                    view: s.view.broadcast(shape),
                    ..s
                };
                let inputs = inputs.into_iter().map(spread).collect();
                let id = self.merge(op.clone(), inputs, outs, at);
                self.srcs(id)
            }
            op if op.is_elementwise()
                || matches!(
                    op,
                    Op::Reduce { .. }
                        | Op::ArgReduce { .. }
                        | Op::Matmul(_)
                        | Op::Concat { .. }
                        | Op::Pad { .. }
                ) =>
            {
                let id = self.merge(op.clone(), inputs, outs, at);
                self.srcs(id)
            }
            _ => {
                let inputs = inputs.into_iter().map(|s| self.dense(s, at)).collect();
                let id = self.merge(op.clone(), inputs, outs, at);
                self.srcs(id)
            }
        })
    }

    // A barrier's results are new names for the same buffers; whoever reads them depends on the barrier's last input.
    fn barrier(&mut self, inputs: Srcs, outs: &[Meta], at: Place) -> SmallVec<[Src; 1]> {
        let last = inputs.len().saturating_sub(1);
        let inputs: Srcs = inputs
            .iter()
            .enumerate()
            .map(|(i, s)| if i < last { self.dense(*s, at) } else { *s })
            .collect();
        let id = self.push(Op::Barrier, inputs, outs, at);
        self.srcs(id)
    }

    fn placeholders(&self, metas: &[Meta]) -> Vec<Tensor> {
        metas
            .iter()
            .enumerate()
            .map(|(i, m)| Tensor::placeholder(i as u32, &m.shape, m.dtype, &self.device))
            .collect()
    }

    /// Puts the graph of `results` over placeholders into this one.
    fn splice(
        &mut self,
        placeholders: &[Tensor],
        results: &[Tensor],
        inputs: &[Src],
        outs: &[Meta],
        at: Place,
    ) -> Result<SmallVec<[Src; 1]>> {
        let mut done: IdMap<(usize, u32), Src> = IdMap::default();
        let id = |t: &Tensor| std::sync::Arc::as_ptr(&t.node) as usize;
        for (p, s) in placeholders.iter().zip(inputs) {
            done.insert((id(p), 0), *s);
        }
        for (r, want) in results.iter().zip(outs) {
            r.check()?;
            if r.meta() != *want {
                return Err(Error::other(
                    "decompose",
                    format!(
                        "a decomposition gave {:?} where {want:?} was expected",
                        r.meta()
                    ),
                ));
            }
            let mut stack: Vec<(&Tensor, usize)> = vec![(r, 0)];
            while let Some((t, next)) = stack.pop() {
                if next == 0 && done.contains_key(&(id(t), t.out)) {
                    continue;
                }
                if let Some(i) = t.inputs().get(next) {
                    stack.push((t, next + 1));
                    stack.push((i, 0));
                    continue;
                }
                let srcs: Srcs = t
                    .inputs()
                    .iter()
                    .filter_map(|i| done.get(&(id(i), i.out)).copied())
                    .collect();
                let made = self.emit(t.op(), srcs, &t.node.outs, at)?;
                for (i, s) in made.into_iter().enumerate() {
                    done.insert((id(t), i as u32), s);
                }
            }
        }
        results
            .iter()
            .map(|r| {
                done.get(&(id(r), r.out))
                    .copied()
                    .ok_or_else(|| Error::other("decompose", "a result was not reached"))
            })
            .collect()
    }

    /// Makes every requested value a dense array that is no leaf: results own their buffers, state is written from buffers.
    pub fn materialize_requests(&mut self) {
        for i in 0..self.outputs.len() {
            self.outputs[i] = self.own(self.outputs[i]);
        }
        for i in 0..self.writes.len() {
            self.writes[i].1 = self.own(self.writes[i].1);
        }
    }

    fn own(&mut self, s: Src) -> Src {
        let n = &self.nodes[s.val.node as usize];
        let at = Place {
            segment: n.segment,
            backward: n.backward,
            origin: n.origin,
        };
        if matches!(n.op, Op::Data | Op::Read | Op::Barrier | Op::Scalar(_)) {
            return self.copy(s, at);
        }
        self.dense(s, at)
    }

    /// The buffer behind an operand: barriers are looked through.
    pub fn base(&self, mut s: Src) -> Src {
        while let Op::Barrier = self.nodes[s.val.node as usize].op {
            let inner = self.nodes[s.val.node as usize].inputs[s.val.out as usize];
            // A barrier's values were made dense when it was built, so a dense view passes through.
            s = Src {
                val: inner.val,
                view: s.view,
            };
        }
        s
    }
}
