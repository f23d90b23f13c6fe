//! The graph behind some tensors in topological order. Iterative: a graph may be a chain of a million nodes.
use bimetal_tensor::Tensor;
use bimetal_tensor::graph::{NodeId, Op};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

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

/// Nodes in topological order, operands first; equal graphs are walked in equal order.
pub(crate) struct Walk<'a> {
    pub nodes: Vec<&'a Tensor>,
    pub index: HashMap<Key, usize>,
    /// Whether there are checkpoint nodes.
    pub checkpoints: bool,
}

impl<'a> Walk<'a> {
    /// The graph of `roots` without what lies behind `stop`. Checkpoint nodes are nodes like others.
    pub fn with_checkpoints(roots: &[&'a Tensor], stop: &HashSet<Var>) -> Walk<'a> {
        walk(roots, stop, |t| t)
    }

    /// As if no node were a checkpoint: the order is that of the same graph without them.
    pub fn new(roots: &[&'a Tensor], stop: &HashSet<Var>) -> Walk<'a> {
        walk(roots, stop, source)
    }

    fn enter(
        &mut self,
        t: &'a Tensor,
        stop: &HashSet<Var>,
        resolve: &impl Fn(&'a Tensor) -> &'a Tensor,
        stack: &mut Vec<(&'a Tensor, usize)>,
    ) {
        self.checkpoints |= matches!(t.op(), Op::Checkpoint { .. });
        let t = resolve(t);
        if stop.contains(&handle(t)) {
            return;
        }
        // A node gets its true number when it is left; until then it is only asked for membership.
        if let Entry::Vacant(e) = self.index.entry(key(t)) {
            e.insert(usize::MAX);
            stack.push((t, 0));
        }
    }

    pub fn at(&self, t: &Tensor) -> Option<usize> {
        self.index.get(&key(t)).copied()
    }
}

fn walk<'a>(
    roots: &[&'a Tensor],
    stop: &HashSet<Var>,
    resolve: impl Fn(&'a Tensor) -> &'a Tensor,
) -> Walk<'a> {
    let mut w = Walk {
        nodes: Vec::new(),
        index: HashMap::new(),
        checkpoints: false,
    };
    let mut stack: Vec<(&'a Tensor, usize)> = Vec::new();
    for root in roots {
        w.enter(root, stop, &resolve, &mut stack);
        while let Some((t, next)) = stack.last_mut() {
            let t: &'a Tensor = t;
            if let Some(input) = operands(t).get(*next) {
                *next += 1;
                w.enter(input, stop, &resolve, &mut stack);
            } else {
                w.index.insert(key(t), w.nodes.len());
                w.nodes.push(t);
                stack.pop();
            }
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
