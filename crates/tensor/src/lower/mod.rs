//! The scheduler: from a traced graph to a plan.
mod emit;
mod fuse;
mod ir;
mod memory;
mod order;
mod program;
mod remat;
mod view;

use crate::eval::trace::Flat;
use crate::graph::Op;
use crate::plan::{BufDesc, Place, Plan, Step};
use crate::{Device, Error, ErrorKind, Label, Result, Support};
use emit::{Buffers, Emitter};
use fuse::Fusion;
use std::cell::RefCell;

/// An error at the first node of a dtype that the device does not compute.
fn check_dtypes(ir: &ir::Ir, labels: &[&Label], device: &Device) -> Result<()> {
    let info = device.info();
    if info.dtypes.iter().all(|(_, s)| *s != Support::No) {
        return Ok(());
    }
    for node in &ir.nodes {
        // A number takes the dtype of its partner.
        let outs = match node.op {
            Op::Scalar(_) => &[][..],
            _ => &node.outs[..],
        };
        if let Some(out) = outs.iter().find(|m| info.support(m.dtype) == Support::No) {
            let kind = ErrorKind::DType {
                detail: format!(
                    "{} ({}) does not compute in {}; cast to float32 or int32 before, or use the CPU",
                    info.name, info.kind, out.dtype
                ),
                found: vec![out.dtype],
            };
            let label = labels.get(node.origin as usize);
            return Err(match label {
                Some(l) => Error::at(node.op.name(), kind, (*l).clone()),
                None => Error::new(node.op.name(), kind),
            });
        }
    }
    Ok(())
}

/// A plan with what its outputs are.
pub(crate) struct Lowered {
    pub plan: Plan,
    /// For each requested tensor the output buffer that holds it.
    pub output_of: Vec<u32>,
}

/// Lowers a traced graph to a plan for a device.
pub(crate) fn lower(
    flat: &Flat,
    labels: &[&Label],
    scalars: usize,
    slots: usize,
    device: &Device,
) -> Result<Lowered> {
    let mut ir = ir::build(flat, device)?;
    check_dtypes(&ir, labels, device)?;
    ir.materialize_requests();
    remat::rematerialize(&mut ir);
    let ir = ir;
    let fusion = Fusion::new(&ir, device.info(), flat.fused);
    let order = order::order(&fusion);
    let mut emitter = Emitter {
        fusion: &fusion,
        buffers: RefCell::new(Buffers::default()),
        out: Vec::new(),
    };
    for g in order {
        emitter.group(g)?;
    }
    let Emitter { buffers, out, .. } = emitter;
    let mut buffers = buffers.into_inner();

    // Requested values get output buffers; equal requests share one.
    let mut output_vals = Vec::new();
    let mut output_of = Vec::new();
    for s in &ir.outputs {
        let n = output_vals
            .iter()
            .position(|v| *v == s.val)
            .unwrap_or_else(|| {
                output_vals.push(s.val);
                output_vals.len() - 1
            });
        output_of.push(n as u32);
    }
    let writes = order::writes(&fusion, &mut buffers, out)?;
    let mut descs: Vec<BufDesc> = Vec::with_capacity(buffers.values.len());
    for v in &buffers.values {
        let node = &ir.nodes[v.node as usize];
        let m = node.outs[v.out as usize];
        let place = match node.op {
            crate::graph::Op::Data => Place::Leaf(ir.leaf_of.get(&v.node).copied().unwrap_or(0)),
            crate::graph::Op::Read => Place::Slot(ir.leaf_of.get(&v.node).copied().unwrap_or(0)),
            _ => match (
                writes.direct.get(v),
                output_vals.iter().position(|o| o == v),
            ) {
                (Some(&slot), _) => Place::Slot(slot),
                (None, Some(n)) => Place::Output(n as u32),
                (None, None) => Place::Arena(0),
            },
        };
        descs.push(BufDesc {
            place,
            numel: m.shape.numel(),
            dtype: m.dtype,
        });
    }
    // Copies into state that no kernel could write directly.
    let mut emitted = writes.kernels;
    let first_write = writes.first_write;
    for (slot, val) in writes.copies {
        let from = buffers.get(val);
        let m = ir.nodes[val.node as usize].outs[val.out as usize];
        descs.push(BufDesc {
            place: Place::Slot(slot),
            numel: m.shape.numel(),
            dtype: m.dtype,
        });
        let origin = val.node;
        emitted.push(order::copy_kernel(from, descs.len() as u32 - 1, m, origin));
    }

    let mut lives: Vec<Option<(usize, usize)>> = vec![None; descs.len()];
    let mut forward_written = vec![false; descs.len()];
    let mut backward_read = vec![false; descs.len()];
    for (step, e) in emitted.iter().enumerate() {
        let backward = e.group != fuse::NONE
            && fusion.groups[e.group as usize]
                .all()
                .map(|n| &ir.nodes[n as usize])
                // What is computed again belongs to the backward pass.
                .any(|n| n.backward || n.segment != 0);
        let (r, w) = memory::touched(&e.kernel);
        for (b, write) in r
            .iter()
            .map(|b| (*b, false))
            .chain(w.iter().map(|b| (*b, true)))
        {
            let b = b as usize;
            if matches!(descs[b].place, Place::Arena(_)) {
                let l = lives[b].get_or_insert((step, step));
                l.1 = step;
            }
            forward_written[b] |= write && !backward;
            backward_read[b] |= !write && backward;
        }
    }
    let bytes: Vec<usize> = descs.iter().map(|d| d.bytes()).collect();
    let (offsets, arena_bytes) = memory::arrange(&lives, &bytes, emitted.len());
    let mut saved_bytes = 0;
    for (b, d) in descs.iter_mut().enumerate() {
        if let Place::Arena(at) = &mut d.place {
            *at = offsets[b];
        }
        if forward_written[b]
            && backward_read[b]
            && !matches!(d.place, Place::Leaf(_) | Place::Slot(_))
        {
            saved_bytes += bytes[b];
        }
    }
    let plan = Plan {
        buffers: descs,
        first_write,
        arena_bytes,
        scalars,
        leaves: ir.leaves,
        slots,
        outputs: output_vals.len(),
        saved_bytes,
        labels: labels.iter().map(|l| (*l).clone()).collect(),
        steps: emitted
            .into_iter()
            .map(|e| Step {
                node: ir.nodes[e.node as usize].origin,
                kernel: e.kernel,
            })
            .collect(),
    };
    Ok(Lowered { plan, output_of })
}
