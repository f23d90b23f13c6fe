//! The order of kernels: dependencies first, state writes last and in place where nothing can notice.
use super::emit::{Buffers, Emitted};
use super::fuse::{Fusion, NONE};
use super::memory::touched;
use crate::eval::trace::{IdMap, Val};
use crate::graph::{Composite, Op};
use crate::plan::{Access, BufId, Fused, Instr, Kernel, Meta, Program};
use crate::{Result, Shape};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The groups in an order in which every operand is there when it is read; otherwise as they were built.
pub(crate) fn order(f: &Fusion<'_>) -> Vec<u32> {
    let n = f.groups.len();
    let mut waits = vec![0u32; n];
    let mut next: Vec<Vec<u32>> = vec![Vec::new(); n];
    for (g, group) in f.groups.iter().enumerate() {
        let mut deps: Vec<u32> = Vec::new();
        for id in group.all() {
            for s in &f.ir.nodes[id as usize].inputs {
                let d = f.group_of[s.val.node as usize];
                if d != NONE && d != g as u32 {
                    deps.push(d);
                }
            }
        }
        deps.sort_unstable();
        deps.dedup();
        waits[g] = deps.len() as u32;
        for d in deps {
            next[d as usize].push(g as u32);
        }
    }
    let key = |g: u32| Reverse((f.groups[g as usize].all().max().unwrap_or(0), g));
    let mut ready: BinaryHeap<_> = (0..n as u32)
        .filter(|&g| waits[g as usize] == 0 && f.groups[g as usize].all().next().is_some())
        .map(key)
        .collect();
    let mut out = Vec::with_capacity(n);
    while let Some(Reverse((_, g))) = ready.pop() {
        out.push(g);
        for &m in &next[g as usize] {
            waits[m as usize] -= 1;
            if waits[m as usize] == 0 {
                ready.push(key(m));
            }
        }
    }
    out
}

/// Kernels with the state writers last.
pub(crate) struct Writes {
    pub kernels: Vec<Emitted>,
    pub first_write: usize,
    /// Values that are computed straight into their slot.
    pub direct: HashMap<Val, u32>,
    /// Values to be copied into a slot at the end.
    pub copies: Vec<(u32, Val)>,
}

/// Decides which state is written in place and orders the writers behind everything that reads the old state.
pub(crate) fn writes(
    f: &Fusion<'_>,
    buffers: &mut Buffers,
    kernels: Vec<Emitted>,
) -> Result<Writes> {
    let ir = f.ir;
    let mut slot_buf: IdMap<u32, BufId> = IdMap::default();
    for (i, v) in buffers.values.iter().enumerate() {
        if matches!(ir.nodes[v.node as usize].op, Op::Read)
            && let Some(&slot) = ir.leaf_of.get(&v.node)
        {
            slot_buf.insert(slot, i as BufId);
        }
    }
    // Candidates: values wanted by their one slot only.
    let mut wanted: IdMap<BufId, u32> = IdMap::default();
    for (slot, s) in &ir.writes {
        let once = ir.writes.iter().filter(|(_, o)| o.val == s.val).count() == 1;
        let asked = ir.outputs.iter().any(|o| o.val == s.val);
        if once && !asked {
            wanted.insert(buffers.get(s.val), *slot);
        }
    }
    let uses: Vec<(Vec<BufId>, Vec<BufId>)> = kernels.iter().map(|k| touched(&k.kernel)).collect();
    for (r, _) in &uses {
        for b in r {
            wanted.remove(b);
        }
    }
    let mut is_writer: Vec<bool> = kernels
        .iter()
        .zip(&uses)
        .map(|(k, (r, w))| {
            !w.is_empty()
                && w.iter().all(|b| {
                    wanted
                        .get(b)
                        .is_some_and(|slot| in_place(&k.kernel, *b, slot_buf.get(slot).copied(), r))
                })
        })
        .collect();
    // Writers wait for the other writers that still read what they overwrite; a cycle is broken by a copy.
    let writers = |is_writer: &[bool]| {
        (0..kernels.len())
            .filter(|&i| is_writer[i])
            .collect::<Vec<_>>()
    };
    let mut sorted: Vec<usize> = Vec::new();
    let mut left = writers(&is_writer);
    while !left.is_empty() {
        let overwrites = |i: usize| -> Vec<BufId> {
            uses[i]
                .1
                .iter()
                .filter_map(|b| wanted.get(b).and_then(|s| slot_buf.get(s)).copied())
                .collect()
        };
        let free: Vec<usize> = left
            .iter()
            .copied()
            .filter(|&i| {
                let over = overwrites(i);
                left.iter()
                    .all(|&j| j == i || !uses[j].0.iter().any(|b| over.contains(b)))
            })
            .collect();
        if free.is_empty() {
            is_writer[left[0]] = false;
            left.remove(0);
            continue;
        }
        left.retain(|i| !free.contains(i));
        sorted.extend(free);
    }
    // A writer demoted after others were sorted only leaves; the order of the rest stands.
    sorted.retain(|&i| is_writer[i]);
    let mut direct: HashMap<Val, u32> = HashMap::new();
    for &i in &sorted {
        for b in &uses[i].1 {
            if let Some(&slot) = wanted.get(b) {
                direct.insert(buffers.values[*b as usize], slot);
            }
        }
    }
    let copies = ir
        .writes
        .iter()
        .filter(|(_, s)| !direct.contains_key(&s.val))
        .map(|(slot, s)| (*slot, s.val))
        .collect();
    let mut slots: Vec<Option<Emitted>> = kernels.into_iter().map(Some).collect();
    let mut out: Vec<Emitted> = Vec::with_capacity(slots.len());
    for (i, s) in slots.iter_mut().enumerate() {
        if !is_writer[i] {
            out.extend(s.take());
        }
    }
    let first_write = out.len();
    for i in sorted {
        out.extend(slots[i].take());
    }
    Ok(Writes {
        kernels: out,
        first_write,
        direct,
        copies,
    })
}

/// Whether a kernel may write `out` into the slot whose old value lies in `old`, given that it reads `reads`.
fn in_place(k: &Kernel, out: BufId, old: Option<BufId>, reads: &[BufId]) -> bool {
    let Some(old) = old else {
        return true;
    };
    if !reads.contains(&old) {
        return true;
    }
    match k {
        Kernel::Map { domain, fused } => {
            let aligned = |a: &Access| a.is_dense(domain);
            fused.inputs.iter().filter(|a| a.buf == old).all(aligned)
                && fused.outputs.iter().filter(|a| a.buf == out).all(aligned)
        }
        Kernel::Composite {
            composite: Composite::OptimUpdate { rule, .. },
            inputs,
            outputs,
            ..
        } => {
            let each = 2 + rule.moments();
            let place = outputs
                .iter()
                .position(|o| o.as_ref().is_some_and(|d| d.access.buf == out));
            let Some(place) = place else {
                return false;
            };
            let (param, part) = (place / (each - 1), place % (each - 1));
            let mine = 4 + param * each + if part == 0 { 0 } else { part + 1 };
            inputs
                .iter()
                .enumerate()
                .all(|(i, d)| d.access.buf != old || i == mine)
        }
        _ => false,
    }
}

/// A kernel that copies a dense buffer.
pub(crate) fn copy_kernel(from: BufId, to: BufId, meta: Meta, node: u32) -> Emitted {
    let domain = Shape::new(&[meta.shape.numel()]).unwrap_or(Shape::scalar());
    let access = |buf| Access {
        buf,
        offset: 0,
        strides: domain.strides(),
        dtype: meta.dtype,
    };
    Emitted {
        kernel: Kernel::Map {
            domain,
            fused: Fused {
                program: Program {
                    instrs: vec![Instr::Load { input: 0 }],
                    outputs: vec![0],
                },
                inputs: vec![access(from)],
                outputs: vec![access(to)],
            },
        },
        group: NONE,
        node,
    }
}
