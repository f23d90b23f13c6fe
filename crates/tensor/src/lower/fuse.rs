//! Which nodes run together. A group is a chain or diamond of element-wise nodes over one domain, optionally hung on a heavy node
//! (matmul, convolution, reduction) as its epilogue; a reduction may also take a group as its prologue.
use super::ir::{INode, Ir, Src};
use crate::graph::Op;
use crate::plan::MAX_INSTRUCTIONS;
use crate::{DeviceInfo, Shape};

pub(crate) const NONE: u32 = u32::MAX;

/// Nodes that run as one kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// The heavy node, if there is one.
    pub root: Option<u32>,
    /// Element-wise nodes, in topological order.
    pub nodes: Vec<u32>,
    /// Element-wise nodes that compute what a reduction reduces, in topological order.
    pub prologue: Vec<u32>,
    /// The shape over which the element-wise nodes run.
    pub domain: Option<Shape>,
}

impl Group {
    pub fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.prologue
            .iter()
            .copied()
            .chain(self.root)
            .chain(self.nodes.iter().copied())
    }
}

pub(crate) struct Fusion<'a> {
    pub ir: &'a Ir,
    pub groups: Vec<Group>,
    /// The group of each node; `NONE` for leaves and nodes that only exist inside their consumers.
    pub group_of: Vec<u32>,
    /// Nodes that every consumer computes for itself: numbers, and casts of leaves.
    pub inline: Vec<bool>,
    /// The consumers of each node.
    pub consumers: Vec<Vec<u32>>,
    /// Whether a value of the node is asked for or written to state.
    pub requested: Vec<bool>,
    max_instructions: usize,
    max_buffers: usize,
    mark: Vec<u32>,
    stamp: u32,
}

/// A folded cast of a leaf or a number: free for element-wise kernels and for operands of products.
fn inline_node(ir: &Ir, inline: &[bool], n: &INode) -> bool {
    match n.op {
        Op::Scalar(_) => true,
        Op::Cast(_) => {
            let s = n.inputs[0];
            let p = &ir.nodes[s.val.node as usize];
            let leaf = matches!(p.op, Op::Data | Op::Read);
            let number = inline[s.val.node as usize] && matches!(p.op, Op::Scalar(_));
            number || (leaf && s.view == super::view::View::dense(p.shape()))
        }
        _ => false,
    }
}

/// Whether a consumer folds an inline producer instead of reading a buffer.
fn folds(ir: &Ir, consumer: &INode, operand: usize) -> bool {
    match consumer.op {
        Op::Matmul(_) => {
            let p = &ir.nodes[consumer.inputs[operand].val.node as usize];
            // A cast of a leaf is rounded while it is packed; numbers need a buffer.
            !matches!(
                ir.nodes[p.inputs.first().map_or(0, |s| s.val.node) as usize].op,
                Op::Scalar(_)
            ) && !p.inputs.is_empty()
                && ir.dtype(p.inputs[0].val).is_float()
                && super::emit::foldable(ir.dtype(p.inputs[0].val), p.outs[0].dtype)
        }
        Op::Conv2d(_) => {
            let s = consumer.inputs[operand];
            let p = &ir.nodes[s.val.node as usize];
            operand == 1
                && !p.inputs.is_empty()
                && super::emit::foldable(ir.dtype(p.inputs[0].val), p.outs[0].dtype)
        }
        Op::Conv2dGradInput(_) => {
            let s = consumer.inputs[operand];
            let p = &ir.nodes[s.val.node as usize];
            operand == 0
                && !p.inputs.is_empty()
                && super::emit::foldable(ir.dtype(p.inputs[0].val), p.outs[0].dtype)
        }
        Op::Reduce { .. } => true,
        ref op => op.is_elementwise(),
    }
}

impl<'a> Fusion<'a> {
    pub fn new(ir: &'a Ir, info: &DeviceInfo, fused: bool) -> Fusion<'a> {
        let n = ir.nodes.len();
        let mut f = Fusion {
            ir,
            groups: Vec::new(),
            group_of: vec![NONE; n],
            inline: vec![false; n],
            consumers: vec![Vec::new(); n],
            requested: vec![false; n],
            max_instructions: info.max_instructions.min(MAX_INSTRUCTIONS),
            max_buffers: info.max_buffers,
            mark: vec![0; n],
            stamp: 0,
        };
        let live = f.live();
        for s in ir.outputs.iter().chain(ir.writes.iter().map(|(_, s)| s)) {
            f.requested[s.val.node as usize] = true;
        }
        let mut needs_buffer = f.requested.clone();
        for (i, node) in ir.nodes.iter().enumerate() {
            if !live[i] {
                continue;
            }
            f.inline[i] = inline_node(ir, &f.inline, node);
            for (operand, s) in node.inputs.iter().enumerate() {
                let p = s.val.node as usize;
                if f.consumers[p].last() != Some(&(i as u32)) {
                    f.consumers[p].push(i as u32);
                }
                needs_buffer[p] |= f.inline[p] && !folds(ir, node, operand);
            }
        }
        for i in 0..n {
            if live[i] && (!f.inline[i] || needs_buffer[i]) {
                f.place(i as u32, fused);
            }
        }
        f
    }

    fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.ir.nodes.len()];
        for s in self
            .ir
            .outputs
            .iter()
            .chain(self.ir.writes.iter().map(|(_, s)| s))
        {
            live[s.val.node as usize] = true;
        }
        for i in (0..live.len()).rev() {
            if live[i] {
                for s in &self.ir.nodes[i].inputs {
                    live[s.val.node as usize] = true;
                }
            }
        }
        live
    }

    fn place(&mut self, id: u32, fused: bool) {
        let node = &self.ir.nodes[id as usize];
        match node.op {
            Op::Data | Op::Read => {}
            ref op if op.is_elementwise() => {
                if !(fused && self.join(id)) {
                    self.start(Group {
                        nodes: vec![id],
                        domain: Some(node.shape()),
                        ..Group::default()
                    });
                }
            }
            _ => {
                let epilogue = matches!(node.op, Op::Matmul(_) | Op::Conv2d(_) | Op::Reduce { .. });
                self.start(Group {
                    root: Some(id),
                    domain: epilogue.then(|| node.shape()),
                    ..Group::default()
                });
                if fused && matches!(node.op, Op::Reduce { .. }) {
                    self.take_prologue(id);
                }
            }
        }
    }

    fn start(&mut self, g: Group) {
        let n = self.groups.len() as u32;
        for id in g.all() {
            self.group_of[id as usize] = n;
        }
        self.groups.push(g);
    }

    /// Whether operand `s` of a node can stay in a register if its producer is in the same group.
    pub fn is_register(&self, s: &Src) -> bool {
        let p = &self.ir.nodes[s.val.node as usize];
        s.val.out == 0 && s.view.is_dense() && s.view.shape.numel() == p.shape().numel()
    }

    fn same_phase(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.ir.nodes[a as usize], &self.ir.nodes[b as usize]);
        a.backward == b.backward && a.segment == b.segment
    }

    /// Puts an element-wise node into its producers' groups, joined into one, or into as many of them as can be.
    fn join(&mut self, id: u32) -> bool {
        let mut candidates: Vec<u32> = Vec::new();
        for s in &self.ir.nodes[id as usize].inputs {
            let g = self.group_of[s.val.node as usize];
            if g != NONE
                && !candidates.contains(&g)
                && self.is_register(s)
                && !self.inline[s.val.node as usize]
                && self.groups[g as usize].domain.is_some()
                && !self.groups[g as usize].prologue.contains(&s.val.node)
                && self.same_phase(s.val.node, id)
            {
                candidates.push(g);
            }
        }
        if candidates.is_empty() {
            return false;
        }
        if self.try_merge(&candidates, id) {
            return true;
        }
        // The latest producer first: its values are the hottest.
        candidates
            .sort_unstable_by_key(|&g| std::cmp::Reverse(self.groups[g as usize].all().max()));
        candidates.iter().any(|&g| self.try_merge(&[g], id))
    }

    fn try_merge(&mut self, groups: &[u32], id: u32) -> bool {
        let roots = groups
            .iter()
            .filter(|&&g| self.groups[g as usize].root.is_some());
        if roots.count() > 1 {
            return false;
        }
        let mut nodes: Vec<u32> = groups
            .iter()
            .flat_map(|&g| self.groups[g as usize].nodes.iter().copied())
            .collect();
        nodes.push(id);
        nodes.sort_unstable();
        let root = groups.iter().find_map(|&g| self.groups[g as usize].root);
        let mut domains: Vec<Shape> = Vec::new();
        if let Some(r) = root {
            domains.push(self.ir.nodes[r as usize].shape());
        } else {
            domains.extend(
                groups
                    .iter()
                    .filter_map(|&g| self.groups[g as usize].domain),
            );
            domains.push(self.ir.nodes[id as usize].shape());
        }
        let Some(domain) = domains
            .into_iter()
            .find(|d| self.fits(&nodes, root, groups, d))
        else {
            return false;
        };
        if self.makes_cycle(groups, id) {
            return false;
        }
        let keep = groups
            .iter()
            .copied()
            .find(|&g| self.groups[g as usize].root.is_some())
            .unwrap_or(groups[0]);
        for &g in groups {
            if g != keep {
                self.groups[g as usize] = Group::default();
            }
        }
        for &n in &nodes {
            self.group_of[n as usize] = keep;
        }
        let g = &mut self.groups[keep as usize];
        g.nodes = nodes;
        g.domain = Some(domain);
        true
    }

    /// Whether every operand can be addressed over `domain`, within the device's limits.
    fn fits(&self, nodes: &[u32], root: Option<u32>, groups: &[u32], domain: &Shape) -> bool {
        let inside = |n: u32| Some(n) == root || nodes.binary_search(&n).is_ok();
        let mut loads: Vec<(u32, u32, super::view::View)> = Vec::new();
        let mut cost = 2;
        let mut stores = 0;
        for &n in nodes {
            let node = &self.ir.nodes[n as usize];
            let same = node.shape() == *domain;
            if !same && matches!(node.op, Op::Iota { .. }) {
                return false;
            }
            cost += if matches!(node.op, Op::Cast(_)) { 4 } else { 2 };
            for s in &node.inputs {
                let p = s.val.node;
                if inside(p) && !self.inline[p as usize] {
                    if self.is_register(s) {
                        continue;
                    }
                    // The kernel cannot read in another order what it is only computing.
                    return false;
                }
                if self.ir.nodes[p as usize].inputs.is_empty() && self.inline[p as usize] {
                    cost += 1;
                    continue;
                }
                let Some(v) = s.view.reshape(*domain) else {
                    return false;
                };
                let key = (p, s.val.out, v);
                if !loads.contains(&key) {
                    cost += if self.inline[p as usize] { 4 } else { 1 };
                    loads.push(key);
                }
            }
            let outside = |c: &u32| !inside(*c);
            stores += (self.requested[n as usize]
                || self.consumers[n as usize].iter().any(outside)
                || self.consumers[n as usize].is_empty()) as usize;
        }
        if let Some(r) = root {
            stores += self.consumers[r as usize].iter().any(|c| !inside(*c)) as usize;
        }
        let prologue: usize = groups
            .iter()
            .map(|&g| self.groups[g as usize].prologue.len())
            .sum();
        let operands = root.map_or(0, |r| self.ir.nodes[r as usize].inputs.len() + prologue);
        cost <= self.max_instructions && loads.len() + stores + operands <= self.max_buffers
    }

    /// Whether joining the groups and the node would make something outside both depend on them and be needed by them.
    fn makes_cycle(&mut self, groups: &[u32], id: u32) -> bool {
        let member = |f: &Self, n: u32| {
            n == id || (f.group_of[n as usize] != NONE && groups.contains(&f.group_of[n as usize]))
        };
        // What hangs on a heavy node must not be needed by it.
        for &g in groups {
            let group = &self.groups[g as usize];
            for n in group.prologue.iter().copied().chain(group.root) {
                let inner = |p: u32| Some(p) == group.root || group.prologue.contains(&p);
                let inputs = &self.ir.nodes[n as usize].inputs;
                if inputs
                    .iter()
                    .any(|s| member(self, s.val.node) && !inner(s.val.node))
                {
                    return true;
                }
            }
        }
        // If nobody outside reads the groups yet, nothing can lead back (and long chains stay linear).
        let read_outside = groups.iter().any(|&g| {
            self.groups[g as usize].all().any(|n| {
                self.consumers[n as usize]
                    .iter()
                    .any(|&c| c < id && !member(self, c))
            })
        });
        if !read_outside && groups.len() == 1 {
            return false;
        }
        self.stamp += 1;
        let stamp = self.stamp;
        let mut work: Vec<u32> = Vec::new();
        let mut visited = 0usize;
        let push_inputs = |f: &Self, n: u32, work: &mut Vec<u32>| {
            work.extend(f.ir.nodes[n as usize].inputs.iter().map(|s| s.val.node));
        };
        for &g in groups {
            for n in self.groups[g as usize].all() {
                push_inputs(self, n, &mut work);
            }
        }
        push_inputs(self, id, &mut work);
        work.retain(|&n| !member(self, n));
        while let Some(n) = work.pop() {
            if self.mark[n as usize] == stamp {
                continue;
            }
            visited += 1;
            if visited > 100_000 {
                return true;
            }
            let g = self.group_of[n as usize];
            let unit: Vec<u32> = if g == NONE {
                vec![n]
            } else {
                self.groups[g as usize].all().collect()
            };
            for u in unit {
                self.mark[u as usize] = stamp;
                for s in &self.ir.nodes[u as usize].inputs {
                    let p = s.val.node;
                    if member(self, p) {
                        return true;
                    }
                    if self.mark[p as usize] != stamp {
                        work.push(p);
                    }
                }
            }
        }
        false
    }

    /// Lets a reduction compute its operand itself if nobody else wants it.
    fn take_prologue(&mut self, id: u32) {
        let node = &self.ir.nodes[id as usize];
        let s = node.inputs[0];
        let p = s.val.node;
        let g = self.group_of[p as usize];
        if g == NONE || self.inline[p as usize] || !self.is_register(&s) || !self.same_phase(p, id)
        {
            return;
        }
        let group = &self.groups[g as usize];
        let shape = self.ir.nodes[p as usize].shape();
        let view_ok = s.view.shape == shape;
        let private = group.root.is_none()
            && group.all().all(|n| {
                !self.requested[n as usize]
                    && !matches!(
                        self.ir.nodes[n as usize].op,
                        Op::Iota { .. } | Op::Random { .. }
                    )
                    && self.consumers[n as usize].iter().all(|&c| {
                        (n == p && c == id) || (c != id && self.group_of[c as usize] == g)
                    })
            });
        // Every operand must be addressable over the reduction's own axes.
        let axes = group.nodes.iter().all(|&n| {
            self.ir.nodes[n as usize].inputs.iter().all(|s| {
                let q = s.val.node;
                let register = self.group_of[q as usize] == g
                    && self.is_register(s)
                    && !self.inline[q as usize];
                let number = self.inline[q as usize] && self.ir.nodes[q as usize].inputs.is_empty();
                register || number || s.view.reshape(shape).is_some()
            })
        });
        if !(view_ok && private && axes)
            || group.domain.is_none()
            || group.nodes.len() > self.max_instructions / 3
        {
            return;
        }
        let taken = std::mem::take(&mut self.groups[g as usize]);
        let mine = self.group_of[id as usize];
        for &n in &taken.nodes {
            self.group_of[n as usize] = mine;
        }
        self.groups[mine as usize].prologue = taken.nodes;
    }
}
