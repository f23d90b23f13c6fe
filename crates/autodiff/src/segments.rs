//! Recomputation: which nodes lie inside of which checkpoint, and the copies of them that the backward pass works with.
//!
//! The backward walk itself does not know checkpoints: it visits the nodes of the first pass, in the order it would visit them
//! without any, and only asks here for the copy to take forward values from. So gradients are the same to the bit.
use crate::walk::{Key, Var, Walk, handle, key, operands};
use bimetal_tensor::graph::{IdMap, IdSet, Op};
use bimetal_tensor::{Label, Tensor};

#[derive(Default)]
pub(crate) struct Segments<'a> {
    /// The innermost segment of each node that is in one.
    of: IdMap<Key, usize>,
    list: Vec<Segment<'a>>,
    next_number: u32,
}

struct Segment<'a> {
    /// The checkpoint node.
    node: &'a Tensor,
    parent: Option<usize>,
    inputs: IdSet<Var>,
    /// The nodes inside, those of segments inside included, operands first.
    members: Vec<&'a Tensor>,
    copies: Option<Copies>,
}

#[derive(Default)]
struct Copies {
    inputs: IdMap<Var, Tensor>,
    nodes: IdMap<Key, Tensor>,
}

impl<'a> Segments<'a> {
    /// Of a graph without checkpoints.
    pub fn none() -> Segments<'a> {
        Segments::default()
    }

    /// A node is inside of a segment if every way from the outputs to it leads through the segment's results and through none of
    /// its inputs. What the closure took from outside without listing it is thus shared as soon as it is used elsewhere.
    pub fn find(outputs: &[&'a Tensor], border: &IdSet<Var>) -> Segments<'a> {
        let walk = Walk::with_checkpoints(outputs, border);
        let mut s = Segments::default();
        let mut place: IdMap<Key, Option<usize>> = IdMap::default();
        let mut highest = 0;
        for t in outputs {
            place.insert(key(t), None);
        }
        for node in walk.order.iter().rev().map(|&i| walk.nodes[i]) {
            highest = highest.max(node.label().segment());
            let here = place.get(&key(node)).copied().flatten();
            if let Some(i) = here {
                s.of.insert(key(node), i);
                let mut up = here;
                while let Some(i) = up {
                    s.list[i].members.push(node);
                    up = s.list[i].parent;
                }
            }
            let inner = match node.op() {
                Op::Checkpoint { results } => {
                    let inputs = node.inputs()[*results as usize..].iter().map(handle);
                    s.list.push(Segment {
                        node,
                        parent: here,
                        inputs: inputs.collect(),
                        members: Vec::new(),
                        copies: None,
                    });
                    Some(s.list.len() - 1)
                }
                _ => here,
            };
            for t in operands(node) {
                let mut level = inner;
                while let Some(i) = level
                    && s.list[i].inputs.contains(&handle(t))
                {
                    level = s.list[i].parent;
                }
                let joined = match place.get(&key(t)) {
                    Some(other) => s.common(*other, level),
                    None => level,
                };
                place.insert(key(t), joined);
            }
        }
        for segment in &mut s.list {
            segment.members.reverse();
        }
        // Second derivatives: copies made for the first ones keep numbers of their own.
        s.next_number = highest + 1;
        s
    }

    /// The innermost segment around both.
    fn common(&self, a: Option<usize>, b: Option<usize>) -> Option<usize> {
        let mut a = a;
        while let Some(i) = a {
            let mut c = b;
            while let Some(j) = c {
                if i == j {
                    return a;
                }
                c = self.list[j].parent;
            }
            a = self.list[i].parent;
        }
        None
    }

    /// The node whose values the backward pass may use for `node`, whose results' gradient `arrived`.
    pub fn forward(&mut self, node: &Tensor, arrived: &Tensor) -> Tensor {
        let level = self.of.get(&key(node)).copied();
        let mut missing = Vec::new();
        let mut up = level;
        while let Some(i) = up {
            if self.list[i].copies.is_none() {
                missing.push(i);
            }
            up = self.list[i].parent;
        }
        for i in missing.into_iter().rev() {
            self.copy(i, arrived);
        }
        self.value(level, node)
    }

    /// The tensor that has the value of `t` at a level of recomputation.
    fn value(&self, mut level: Option<usize>, t: &Tensor) -> Tensor {
        while let Some(i) = level {
            if let Some(c) = &self.list[i].copies {
                if let Some(t) = c.inputs.get(&handle(t)) {
                    return t.clone();
                }
                if let Some(copy) = c.nodes.get(&key(t)) {
                    return copy.output(t.output_index());
                }
            }
            level = self.list[i].parent;
        }
        t.clone()
    }

    fn copy(&mut self, i: usize, arrived: &Tensor) {
        let number = self.next_number;
        self.next_number += 1;
        Label::with_segment(number, || {
            let (node, parent) = (self.list[i].node, self.list[i].parent);
            let outer = &node.inputs()[operands(node).len()..];
            let values: Vec<Tensor> = outer.iter().map(|t| self.value(parent, t)).collect();
            let held = match values.is_empty() {
                true => Vec::new(),
                false => node
                    .label()
                    .inherit(|| Tensor::barrier(&values.iter().collect::<Vec<_>>(), arrived)),
            };
            self.list[i].copies = Some(Copies {
                inputs: outer.iter().map(handle).zip(held).collect(),
                nodes: IdMap::default(),
            });
            let members = std::mem::take(&mut self.list[i].members);
            for m in members {
                let copy = self.again(i, m);
                if let Some(c) = &mut self.list[i].copies {
                    c.nodes.insert(key(m), copy);
                }
            }
        });
    }

    /// A copy of a node; values and state are shared.
    fn again(&self, i: usize, m: &Tensor) -> Tensor {
        if let (Op::Random { distribution, key }, true, Some(device), Ok(shape)) =
            (m.op(), m.inputs().is_empty(), m.device(), m.shape())
        {
            // Drawn again rather than kept: the same key gives the same numbers.
            return m
                .label()
                .inherit(|| Tensor::random(*distribution, &shape, *key, None, device));
        }
        let inputs: Vec<Tensor> = m.inputs().iter().map(|t| self.value(Some(i), t)).collect();
        m.with_inputs(&inputs)
    }
}
