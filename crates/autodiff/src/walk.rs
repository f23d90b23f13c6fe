//! The graph behind some tensors in topological order. Iterative: a graph may be a chain of a million nodes.
use bimetal_tensor::Tensor;
use bimetal_tensor::graph::{IdMap, IdSet, NodeId, Op};
use std::collections::hash_map::Entry;

/// What identifies a node: every `read` of a slot makes a node, but all of them are the same variable.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Node(NodeId),
    Slot(u64),
}

/// One output of a node.
pub(crate) type Var = (Key, usize);

pub(crate) fn key(t: &Tensor) -> Key {
    match t.slot() {
        Some(s) => Key::Slot(s.id()),
        None => Key::Node(t.id()),
    }
}

/// The output a handle stands for.
pub(crate) fn handle(t: &Tensor) -> Var {
    (key(t), t.output_index())
}

/// The tensor whose value `t` passes on: a checkpoint node is a name for the results of its segment.
pub(crate) fn source(t: &Tensor) -> &Tensor {
    let mut t = t;
    while let Op::Checkpoint { .. } = t.op() {
        match t.inputs().get(t.output_index()) {
            Some(s) => t = s,
            None => break,
        }
    }
    t
}

/// The variable behind a handle.
pub(crate) fn var(t: &Tensor) -> Var {
    handle(source(t))
}

/// The inputs that a node computes its value from.
pub(crate) fn operands(t: &Tensor) -> &[Tensor] {
    match t.op() {
        Op::Checkpoint { results } => &t.inputs()[..(*results as usize).min(t.inputs().len())],
        _ => t.inputs(),
    }
}

/// A graph with its nodes numbered; equal graphs get equal numbers.
#[derive(Default)]
pub(crate) struct Walk<'a> {
    /// The nodes by number.
    pub nodes: Vec<&'a Tensor>,
    /// The numbers in topological order, operands first.
    pub order: Vec<usize>,
    /// Whether there are checkpoint nodes.
    pub checkpoints: bool,
    numbers: IdMap<Key, usize>,
    /// Where the operands of each node begin in `edges`.
    first: Vec<usize>,
    edges: Vec<usize>,
}

/// The number of what lies behind the border.
const OUTSIDE: usize = usize::MAX;

impl<'a> Walk<'a> {
    /// The graph of `roots` without what lies behind `border`. Checkpoint nodes are nodes like others.
    pub fn with_checkpoints(roots: &[&'a Tensor], border: &IdSet<Var>) -> Walk<'a> {
        walk(roots, border, |t| t)
    }

    /// As if no node were a checkpoint: the order is that of the same graph without them.
    pub fn new(roots: &[&'a Tensor], border: &IdSet<Var>) -> Walk<'a> {
        walk(roots, border, source)
    }

    /// The number of a node of this graph.
    pub fn number(&self, t: &Tensor) -> Option<usize> {
        self.numbers.get(&key(t)).copied()
    }

    /// The number of operand `k` of node `i`, `None` if it lies on the border.
    pub fn operand(&self, i: usize, k: usize) -> Option<usize> {
        self.edges
            .get(self.first[i] + k)
            .copied()
            .filter(|&j| j != OUTSIDE)
    }

    /// Numbers the node unless it has a number.
    fn enter(&mut self, t: &'a Tensor, border: &IdSet<Var>, stack: &mut Vec<Frame>) -> usize {
        if border.contains(&handle(t)) {
            return OUTSIDE;
        }
        let next = self.nodes.len();
        match self.numbers.entry(key(t)) {
            Entry::Occupied(e) => *e.get(),
            Entry::Vacant(e) => {
                e.insert(next);
                self.nodes.push(t);
                self.first.push(self.edges.len());
                let count = operands(t).len();
                self.edges.resize(self.edges.len() + count, OUTSIDE);
                stack.push((next, 0));
                next
            }
        }
    }
}

/// A node being walked and its next operand.
type Frame = (usize, usize);

fn walk<'a>(
    roots: &[&'a Tensor],
    border: &IdSet<Var>,
    resolve: impl Fn(&'a Tensor) -> &'a Tensor,
) -> Walk<'a> {
    let mut w = Walk::default();
    let mut stack: Vec<Frame> = Vec::new();
    for root in roots {
        w.checkpoints |= matches!(root.op(), Op::Checkpoint { .. });
        w.enter(resolve(root), border, &mut stack);
        while let Some((i, k)) = stack.pop() {
            let Some(input) = operands(w.nodes[i]).get(k) else {
                w.order.push(i);
                continue;
            };
            stack.push((i, k + 1));
            w.checkpoints |= matches!(input.op(), Op::Checkpoint { .. });
            let j = w.enter(resolve(input), border, &mut stack);
            let edge = w.first[i] + k;
            w.edges[edge] = j;
        }
    }
    w
}

/// Whether the gradient of a node's results has a way to its operand number `i`.
pub(crate) fn passes(node: &Tensor, i: usize) -> bool {
    match node.op() {
        Op::Detach => false,
        // The last operand only says when.
        Op::Barrier => i + 1 < node.inputs().len(),
        _ => node.inputs()[i].dtype().is_float(),
    }
}
