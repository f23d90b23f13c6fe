//! Recomputing instead of keeping: a forward value that the backward pass needs is computed again there if everything it is made
//! of is kept anyway. Element-wise work is nearly free next to memory: the output of an activation is made from its saved input, a
//! dropout mask from its random key.
use super::ir::{INode, Ir};
use crate::eval::trace::{IdMap, Val};
use crate::graph::Op;

/// The most nodes computed again for one value.
const MOST: usize = 12;

/// Gives backward consumers their own copies of forward values that need not be kept.
pub(crate) fn rematerialize(ir: &mut Ir) {
    let plan = choose(ir);
    if plan.iter().all(|p| p.is_none()) {
        return;
    }
    let old = std::mem::take(&mut ir.nodes);
    let mut new: Vec<INode> = Vec::with_capacity(old.len());
    let mut at: Vec<u32> = Vec::with_capacity(old.len());
    // Copies by node and by the segment of the consumer: segments are never mixed.
    let mut copies: IdMap<(u32, u32), u32> = IdMap::default();
    for n in &old {
        let mut node = n.clone();
        for s in &mut node.inputs {
            let p = s.val.node;
            s.val.node = match &plan[p as usize] {
                Some(parts) if n.backward => {
                    copy(&old, parts, p, n.segment, &at, &mut new, &mut copies)
                }
                _ => at[p as usize],
            };
        }
        at.push(new.len() as u32);
        new.push(node);
    }
    ir.nodes = new;
    for s in ir
        .outputs
        .iter_mut()
        .chain(ir.writes.iter_mut().map(|(_, s)| s))
    {
        s.val.node = at[s.val.node as usize];
    }
    let leaves = std::mem::take(&mut ir.leaf_of);
    ir.leaf_of = leaves
        .into_iter()
        .map(|(n, l)| (at[n as usize], l))
        .collect();
}

/// The copy of `id`, made with the forward nodes `parts` it needs (in topological order, itself last).
fn copy(
    old: &[INode],
    parts: &[u32],
    id: u32,
    segment: u32,
    at: &[u32],
    new: &mut Vec<INode>,
    copies: &mut IdMap<(u32, u32), u32>,
) -> u32 {
    for &p in parts {
        if copies.contains_key(&(p, segment)) {
            continue;
        }
        let mut node = old[p as usize].clone();
        for s in &mut node.inputs {
            let q = s.val.node;
            s.val.node = match copies.get(&(q, segment)) {
                Some(&c) if parts.contains(&q) => c,
                _ => at[q as usize],
            };
        }
        node.backward = true;
        node.segment = segment;
        copies.insert((p, segment), new.len() as u32);
        new.push(node);
    }
    copies[&(id, segment)]
}

/// For each node the forward nodes to compute again instead of keeping its value, if that saves memory.
fn choose(ir: &Ir) -> Vec<Option<Vec<u32>>> {
    let n = ir.nodes.len();
    let mut needed = vec![false; n];
    for node in ir.nodes.iter().filter(|n| n.backward) {
        for s in &node.inputs {
            needed[s.val.node as usize] |= !ir.nodes[s.val.node as usize].backward;
        }
    }
    let mut plan: Vec<Option<Vec<u32>>> = vec![None; n];
    let mut asked = vec![false; n];
    for s in ir.outputs.iter().chain(ir.writes.iter().map(|(_, s)| s)) {
        asked[s.val.node as usize] = true;
    }
    // What stays in memory for the backward pass: filled in order, so that a value may lean on the decisions before it.
    let mut kept = needed.clone();
    for id in 0..n as u32 {
        let node = &ir.nodes[id as usize];
        let candidate = needed[id as usize]
            && !asked[id as usize]
            && node.op.is_elementwise()
            && !matches!(node.op, Op::Scalar(_))
            && node.shape().numel() > 1;
        if candidate && let Some(parts) = parts(ir, id, &kept) {
            kept[id as usize] = false;
            plan[id as usize] = Some(parts);
        }
    }
    plan
}

/// The element-wise forward nodes between what is kept and `id`, in topological order.
fn parts(ir: &Ir, id: u32, kept: &[bool]) -> Option<Vec<u32>> {
    let size = ir.nodes[id as usize].shape().numel();
    let segment = ir.nodes[id as usize].segment;
    let mut parts = vec![id];
    let mut work = vec![id];
    while let Some(p) = work.pop() {
        for s in &ir.nodes[p as usize].inputs {
            let q = s.val.node;
            let node = &ir.nodes[q as usize];
            let leaf = matches!(node.op, Op::Data | Op::Read | Op::Scalar(_));
            // Statistics and other small values cost nothing to keep.
            let small = !node.op.is_elementwise() && small(ir, s.val, size);
            if leaf || kept[q as usize] || small || parts.contains(&q) {
                continue;
            }
            if !node.op.is_elementwise() || node.segment != segment || parts.len() == MOST {
                return None;
            }
            parts.push(q);
            work.push(q);
        }
    }
    parts.sort_unstable();
    Some(parts)
}

fn small(ir: &Ir, v: Val, than: usize) -> bool {
    ir.nodes[v.node as usize].outs[v.out as usize].shape.numel() * 16 <= than
}
