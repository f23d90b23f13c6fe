//! The walk over the unevaluated part of a graph: nodes numbered by first visit, written as a flat key that is equal in every
//! process, and beside it what a run needs (leaf values, slots, scalars).
use crate::graph::{AttentionSpec, Composite, Literal, Op, RandomKey};
use crate::plan::{Meta, random_entries};
use crate::tensor::Node;
use crate::{Buffer, Error, ErrorKind, Label, Result, Slot, Tensor};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// An output of a numbered node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Val {
    pub node: u32,
    pub out: u32,
}

/// A numbered node; its inputs and outputs are ranges of the flat lists.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FlatNode {
    pub op: Op,
    pub inputs: (u32, u32),
    pub outs: (u32, u32),
    pub segment: u32,
    pub backward: bool,
}

/// The plan key: everything a compiled plan depends on and nothing else.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Flat {
    pub nodes: Vec<FlatNode>,
    pub inputs: Vec<Val>,
    pub outs: Vec<Meta>,
    pub outputs: Vec<Val>,
    pub writes: Vec<(u32, Val)>,
    /// Slot numbers of `Read` nodes, in the order of these nodes.
    pub reads: Vec<u32>,
    pub fused: bool,
}

impl Flat {
    pub fn inputs_of(&self, n: &FlatNode) -> &[Val] {
        &self.inputs[n.inputs.0 as usize..n.inputs.1 as usize]
    }

    pub fn outs_of(&self, n: &FlatNode) -> &[Meta] {
        &self.outs[n.outs.0 as usize..n.outs.1 as usize]
    }
}

/// A traced graph.
pub(crate) struct Trace<'a> {
    pub flat: Flat,
    pub labels: Vec<&'a Label>,
    pub leaves: Vec<Buffer>,
    pub slots: Vec<Slot>,
    pub scalars: Vec<f64>,
}

/// A fast hash for small keys of our own making (multiply and rotate), such as the identities of nodes and slots.
#[derive(Default, Clone, Copy, Debug)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for c in bytes.chunks(8) {
            let mut w = [0; 8];
            w[..c.len()].copy_from_slice(c);
            self.write_u64(u64::from_le_bytes(w));
        }
    }
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(5) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_u8(&mut self, v: u8) {
        self.write_u64(v as u64);
    }
    fn write_u32(&mut self, v: u32) {
        self.write_u64(v as u64);
    }
    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
}

/// A map by the identities of nodes or slots.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// A set of the identities of nodes or slots.
pub type IdSet<K> = HashSet<K, BuildHasherDefault<IdHasher>>;

pub(crate) fn hash_of(x: &impl Hash) -> u64 {
    let mut h = IdHasher::default();
    x.hash(&mut h);
    h.finish()
}

struct Walk<'a> {
    trace: Trace<'a>,
    nodes: IdMap<usize, u32>,
    values: IdMap<(usize, u32), u32>,
    slots: IdMap<u64, u32>,
    keys: IdMap<RandomKey, u32>,
}

/// Walks from the requested tensors and the values to be written; makes room for `expected` nodes.
pub(crate) fn trace<'a>(
    outputs: &'a [&Tensor],
    writes: &'a [(&Slot, &Tensor)],
    fused: bool,
    expected: usize,
) -> Result<Trace<'a>> {
    let room = expected + expected / 8;
    let mut nodes = IdMap::default();
    nodes.reserve(room);
    let mut w = Walk {
        trace: Trace {
            flat: Flat {
                nodes: Vec::with_capacity(room),
                inputs: Vec::with_capacity(2 * room),
                outs: Vec::with_capacity(2 * room),
                fused,
                ..Flat::default()
            },
            labels: Vec::with_capacity(room),
            leaves: Vec::new(),
            slots: Vec::new(),
            scalars: Vec::new(),
        },
        nodes,
        values: IdMap::default(),
        slots: IdMap::default(),
        keys: IdMap::default(),
    };
    for t in outputs {
        let v = w.visit(t)?;
        w.trace.flat.outputs.push(v);
    }
    for (slot, t) in writes {
        let v = w.visit(t)?;
        let n = w.slot(slot);
        w.trace.flat.writes.push((n, v));
    }
    Ok(w.trace)
}

impl<'a> Walk<'a> {
    fn known(&self, t: &Tensor) -> Option<Val> {
        let p = std::sync::Arc::as_ptr(&t.node) as usize;
        if t.value().is_some()
            && let Some(&node) = self.values.get(&(p, t.out))
        {
            return Some(Val { node, out: 0 });
        }
        let &node = self.nodes.get(&p)?;
        Some(Val { node, out: t.out })
    }

    // Depth first with an explicit stack: graphs are deeper than the thread's stack.
    fn visit(&mut self, root: &'a Tensor) -> Result<Val> {
        root.check()?;
        let mut stack: Vec<(&'a Tensor, usize)> = vec![(root, 0)];
        while let Some((t, next)) = stack.pop() {
            if next == 0 {
                if self.known(t).is_some() {
                    continue;
                }
                if let Some(buffer) = t.value() {
                    self.leaf(t, buffer);
                    continue;
                }
            }
            let node: &'a Node = &t.node;
            match node.inputs.get(next) {
                Some(input) => {
                    stack.push((t, next + 1));
                    stack.push((input, 0));
                }
                None => self.push(t)?,
            }
        }
        self.known(root)
            .ok_or_else(|| Error::other("eval", "a node of the graph was not reached"))
    }

    fn leaf(&mut self, t: &'a Tensor, buffer: &Buffer) {
        let n = self.add(Op::Data, &[], &[t.meta()], &t.node);
        self.trace.leaves.push(buffer.clone());
        self.values
            .insert((std::sync::Arc::as_ptr(&t.node) as usize, t.out), n);
    }

    fn push(&mut self, t: &'a Tensor) -> Result<()> {
        let node: &'a Node = &t.node;
        let mut op = node.op.clone();
        match &mut op {
            Op::Read => {
                let Some((slot, version)) = &node.state else {
                    return Err(Error::other("read", "a read without a slot"));
                };
                slot.check()?;
                let now = slot.version();
                if now != *version {
                    return Err(Error::at(
                        "read",
                        ErrorKind::StateMoved {
                            param: slot.name().to_string(),
                            step: now,
                        },
                        node.label.clone(),
                    ));
                }
                let n = self.slot(slot);
                self.trace.flat.reads.push(n);
            }
            Op::Data => {
                return Err(Error::other("eval", "a data node has lost its value"));
            }
            Op::Scalar(l) => {
                if let Literal::Value(v) = *l
                    && ![0.0, 0.5, 1.0, 2.0].contains(&v.0.abs())
                {
                    *l = Literal::Table(self.trace.scalars.len() as u32);
                    self.trace.scalars.push(v.0);
                }
            }
            Op::Random { key, .. } => self.key(key),
            Op::Composite(
                Composite::Attention(AttentionSpec {
                    dropout: Some(d), ..
                })
                | Composite::AttentionGrad(AttentionSpec {
                    dropout: Some(d), ..
                }),
            ) => self.key(&mut d.key),
            _ => {}
        }
        let mut inputs = smallvec::SmallVec::<[Val; 8]>::new();
        for i in &node.inputs {
            match self.known(i) {
                Some(v) => inputs.push(v),
                None => return Err(Error::other("eval", "an operand was not reached")),
            }
        }
        let n = self.add(op, &inputs, &node.outs, node);
        self.nodes
            .insert(std::sync::Arc::as_ptr(&t.node) as usize, n);
        Ok(())
    }

    // Equal keys share their entries, so that a forward pass and its gradient draw the same numbers.
    fn key(&mut self, key: &mut RandomKey) {
        let scalars = &mut self.trace.scalars;
        let at = *self.keys.entry(*key).or_insert_with(|| {
            scalars.extend(random_entries(key));
            scalars.len() as u32 - 3
        });
        *key = RandomKey::Table(at);
    }

    fn add(&mut self, op: Op, inputs: &[Val], outs: &[Meta], node: &'a Node) -> u32 {
        let f = &mut self.trace.flat;
        let (i, o) = (f.inputs.len() as u32, f.outs.len() as u32);
        f.inputs.extend_from_slice(inputs);
        f.outs.extend_from_slice(outs);
        f.nodes.push(FlatNode {
            op,
            inputs: (i, f.inputs.len() as u32),
            outs: (o, f.outs.len() as u32),
            segment: node.label.segment(),
            backward: node.label.is_backward(),
        });
        self.trace.labels.push(&node.label);
        f.nodes.len() as u32 - 1
    }

    fn slot(&mut self, slot: &Slot) -> u32 {
        let slots = &mut self.trace.slots;
        *self.slots.entry(slot.id()).or_insert_with(|| {
            slots.push(slot.clone());
            slots.len() as u32 - 1
        })
    }
}
