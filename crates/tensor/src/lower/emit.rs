//! From groups to kernels.
use super::fuse::{Fusion, Group, NONE};
use super::ir::{INode, Ir, Src};
use super::program::Builder;
use super::view::View;
use crate::eval::trace::{IdMap, Val};
use crate::graph::{Composite, Op, RandomKey};
use crate::plan::{Access, BufId, Dense, Fused, Kernel, MatOperand, Meta, Strided, register};
use crate::{DType, Error, Result, Shape, Strides};
use std::cell::RefCell;

/// Whether a cast of a leaf can be done by rounding while an operand is packed: to a narrower float, from f32 or equal.
pub(crate) fn foldable(from: DType, to: DType) -> bool {
    from == DType::F32 && matches!(to, DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2)
}

/// A kernel with the group it came from.
pub(crate) struct Emitted {
    pub kernel: Kernel,
    pub group: u32,
    pub node: u32,
}

/// Buffers by value: numbered on first use.
#[derive(Default)]
pub(crate) struct Buffers {
    pub of: IdMap<Val, BufId>,
    pub values: Vec<Val>,
}

impl Buffers {
    pub fn get(&mut self, v: Val) -> BufId {
        *self.of.entry(v).or_insert_with(|| {
            self.values.push(v);
            self.values.len() as BufId - 1
        })
    }
}

pub(crate) struct Emitter<'a> {
    pub fusion: &'a Fusion<'a>,
    pub buffers: RefCell<Buffers>,
    pub out: Vec<Emitted>,
}

impl<'a> Emitter<'a> {
    fn ir(&self) -> &'a Ir {
        self.fusion.ir
    }

    fn buf(&self, s: Src) -> BufId {
        let b = self.ir().base(s);
        self.buffers.borrow_mut().get(b.val)
    }

    fn out_buf(&self, node: u32, out: u32) -> BufId {
        self.buffers.borrow_mut().get(Val { node, out })
    }

    fn dense(&self, s: Src) -> Dense {
        Dense {
            buf: self.buf(s),
            shape: s.view.shape,
            dtype: self.ir().dtype(s.val),
        }
    }

    fn dense_out(&self, node: u32, out: u32) -> Dense {
        let m = self.ir().nodes[node as usize].outs[out as usize];
        Dense {
            buf: self.out_buf(node, out),
            shape: m.shape,
            dtype: m.dtype,
        }
    }

    fn strided(&self, s: Src) -> Strided {
        let mut view = self.ir().base(s).view;
        if view.is_dense() {
            // Whatever the strides of axes with one element.
            view = View::dense(view.shape);
        }
        Strided {
            access: Access {
                buf: self.buf(s),
                offset: view.offset,
                strides: view.strides,
                dtype: self.ir().dtype(s.val),
            },
            shape: s.view.shape,
        }
    }

    fn strided_out(&self, node: u32, out: u32) -> Strided {
        let Meta { shape, dtype } = self.ir().nodes[node as usize].outs[out as usize];
        let (buf, view) = match self.placed(Val { node, out }) {
            Some((concat, view)) => (self.out_buf(concat, 0), view),
            None => (self.out_buf(node, out), View::dense(shape)),
        };
        Strided {
            access: Access {
                buf,
                offset: view.offset,
                strides: view.strides,
                dtype,
            },
            shape,
        }
    }

    /// The concatenation that alone wants a gradient of attention, and where in its result the gradient lies: it is computed there.
    fn placed(&self, v: Val) -> Option<(u32, View)> {
        let (ir, fusion) = (self.ir(), self.fusion);
        let producer = &ir.nodes[v.node as usize];
        let Op::Composite(Composite::AttentionGrad(_)) = producer.op else {
            return None;
        };
        let users = |c: &&u32| ir.nodes[**c as usize].inputs.iter().any(|s| s.val == v);
        let mut users = fusion.consumers[v.node as usize].iter().filter(users);
        let (&user, None) = (users.next()?, users.next()) else {
            return None;
        };
        let node = &ir.nodes[user as usize];
        let Op::Concat { axis } = node.op else {
            return None;
        };
        let (axis, shape) = (axis as usize, producer.outs[v.out as usize].shape);
        let place = node.inputs.iter().position(|s| s.val == v)?;
        let s = node.inputs[place];
        let alone = node.inputs.iter().filter(|s| s.val == v).count() == 1;
        let whole = s.view.is_dense() && s.view.shape.numel() == shape.numel();
        if fusion.requested[v.node as usize] || !alone || !whole {
            return None;
        }
        let before = node.inputs[..place].iter().map(|s| s.view.shape[axis]);
        let part = View::dense(node.shape()).slice(axis, before.sum(), 1, s.view.shape);
        let view = part.reshape(shape).filter(View::has_rows)?;
        Some((user, view))
    }

    /// Whether anybody outside of the node's kernel reads this output.
    fn wanted(&self, node: u32, out: u32) -> bool {
        let v = Val { node, out };
        let requested = self
            .ir()
            .outputs
            .iter()
            .chain(self.ir().writes.iter().map(|(_, s)| s))
            .any(|s| s.val == v);
        requested
            || self.fusion.consumers[node as usize].iter().any(|&c| {
                self.ir().nodes[c as usize]
                    .inputs
                    .iter()
                    .any(|s| s.val == v)
            })
    }

    fn push(&mut self, kernel: Kernel, group: u32, node: u32) {
        self.out.push(Emitted {
            kernel,
            group,
            node,
        });
    }

    /// Emits the kernels of a group.
    pub fn group(&mut self, number: u32) -> Result<()> {
        let fusion = self.fusion;
        let g = &fusion.groups[number as usize];
        let Some(root) = g.root else {
            let Some(&last) = g.nodes.last() else {
                return Ok(());
            };
            let domain = g.domain.unwrap_or(Shape::scalar());
            let fused = self.epilogue(g, None, domain, (0..domain.rank()).collect(), &|s| s)?;
            if domain.numel() > 0 {
                self.push(Kernel::Map { domain, fused }, number, last);
            }
            return Ok(());
        };
        let node = &self.ir().nodes[root as usize];
        let kernel = match &node.op {
            Op::Barrier => return Ok(()),
            Op::Reduce { .. } => self.reduce(g, root, node)?,
            Op::Matmul(_) => self.matmul(g, root, node)?,
            Op::Conv2d(_) => self.conv(g, root, node)?,
            Op::Concat { axis } => return self.concat(number, root, node, *axis as usize),
            Op::Pad { axis, before, .. } => {
                let out = self.dense_out(root, 0);
                self.push(Kernel::Zero { output: out.buf }, number, root);
                return self.store_slice(
                    number,
                    root,
                    node.inputs[0],
                    *axis as usize,
                    *before,
                    &out,
                );
            }
            _ => self.plain(root, node)?,
        };
        self.push(kernel, number, root);
        Ok(())
    }

    /// The element-wise nodes of a group as a program; `acc` is the root's value and accumulator dtype.
    fn epilogue(
        &self,
        g: &Group,
        acc: Option<(Val, DType)>,
        shape: Shape,
        axes: Vec<usize>,
        domain: &dyn Fn(Shape) -> Shape,
    ) -> Result<Fused> {
        let mut b = Builder::new(self.ir(), &self.fusion.inline, shape, axes);
        if let Some((val, ty)) = acc {
            b.accumulator(val, ty);
        }
        let mut buf = |s: Src| self.buf(s);
        for &n in &g.nodes {
            b.node(n, &self.ir().nodes[n as usize], &mut buf)?;
        }
        let group = self.fusion.group_of[g.all().next().unwrap_or(0) as usize];
        let members = acc
            .map(|(v, _)| v.node)
            .into_iter()
            .chain(g.nodes.iter().copied());
        let dense = domain(shape).strides();
        for n in members {
            let outside = |&c: &u32| {
                self.fusion.group_of[c as usize] != group
                    || g.prologue.contains(&c)
                    || !self.register_use(n, c)
            };
            let stored = self.fusion.requested[n as usize]
                || self.fusion.consumers[n as usize].iter().any(outside);
            if stored && let Some(r) = b.reg(Val { node: n, out: 0 }) {
                let dtype = self.ir().nodes[n as usize].outs[0].dtype;
                let access = Access {
                    buf: self.out_buf(n, 0),
                    offset: 0,
                    strides: dense,
                    dtype,
                };
                b.store(r, access);
            }
        }
        Ok(b.fused)
    }

    /// Whether consumer `c` of `n` in the same group takes every use of it from a register.
    fn register_use(&self, n: u32, c: u32) -> bool {
        self.ir().nodes[c as usize]
            .inputs
            .iter()
            .filter(|s| s.val.node == n)
            .all(|s| self.fusion.is_register(s))
    }

    fn reduce(&self, g: &Group, root: u32, node: &INode) -> Result<Kernel> {
        let Op::Reduce { op, axes } = &node.op else {
            return Err(Error::other("plan", "not a reduction"));
        };
        let s = node.inputs[0];
        let from = s.view.shape;
        let kept: Vec<usize> = (0..from.rank()).filter(|&a| !axes.contains(a)).collect();
        let gone = (0..from.rank()).filter(|&a| axes.contains(a));
        let order: Vec<usize> = kept.iter().copied().chain(gone).collect();
        let pick = |shape: &Shape, order: &[usize]| {
            Shape::new(&order.iter().map(|&a| shape[a]).collect::<Vec<_>>())
                .unwrap_or(Shape::scalar())
        };
        let dtype = node.outs[0].dtype;
        let acc = register(dtype);
        let mut b = Builder::new(self.ir(), &self.fusion.inline, from, order.clone());
        let mut buf = |s: Src| self.buf(s);
        for &n in &g.prologue {
            b.node(n, &self.ir().nodes[n as usize], &mut buf)?;
        }
        let r = b.operand(&s, &mut buf)?;
        b.fused.program.outputs.push(r);
        let prologue = b.fused;
        let out = node.shape();
        let kept_shape = pick(&out, &kept);
        let val = Val { node: root, out: 0 };
        let epilogue = self.epilogue(g, Some((val, acc)), out, kept.clone(), &|_| kept_shape)?;
        Ok(Kernel::Reduce {
            domain: pick(&from, &order),
            kept: kept.len(),
            prologue,
            op: *op,
            acc,
            epilogue,
        })
    }

    fn operand(&self, s: Src) -> MatOperand {
        let access = |s: Src, dtype: DType, buf: BufId| Access {
            buf,
            offset: s.view.offset,
            strides: s.view.strides,
            dtype,
        };
        let p = &self.ir().nodes[s.val.node as usize];
        if self.fusion.inline[s.val.node as usize]
            && self.fusion.group_of[s.val.node as usize] == NONE
        {
            let leaf = p.inputs[0].val;
            let buf = self.buffers.borrow_mut().get(leaf);
            return MatOperand {
                access: access(s, self.ir().dtype(leaf), buf),
                compute: p.outs[0].dtype,
            };
        }
        let base = self.ir().base(s);
        let dtype = self.ir().dtype(base.val);
        MatOperand {
            access: access(base, dtype, self.buf(s)),
            compute: dtype,
        }
    }

    fn matmul(&self, g: &Group, root: u32, node: &INode) -> Result<Kernel> {
        let Op::Matmul(precision) = node.op else {
            return Err(Error::other("plan", "not a matmul"));
        };
        let out = node.shape();
        let r = out.rank();
        let dtype = node.outs[0].dtype;
        let wide = node
            .inputs
            .iter()
            .any(|s| self.ir().dtype(s.val) == DType::F64);
        let acc = if wide {
            DType::F64
        } else {
            register(if dtype.is_float() { DType::F32 } else { dtype })
        };
        let val = Val { node: root, out: 0 };
        Ok(Kernel::Matmul {
            batch: Shape::new(&out[..r - 2]).unwrap_or(Shape::scalar()),
            m: out[r - 2],
            n: out[r - 1],
            k: node.inputs[0].view.shape[r - 1],
            a: self.operand(node.inputs[0]),
            b: self.operand(node.inputs[1]),
            precision,
            acc,
            epilogue: self.epilogue(g, Some((val, acc)), out, (0..r).collect(), &|s| s)?,
        })
    }

    /// A convolution's weight: a folded cast of a leaf, or a buffer.
    fn weight(&self, s: Src) -> (Dense, DType) {
        let p = &self.ir().nodes[s.val.node as usize];
        if self.fusion.inline[s.val.node as usize]
            && self.fusion.group_of[s.val.node as usize] == NONE
        {
            let leaf = p.inputs[0].val;
            let dense = Dense {
                buf: self.buffers.borrow_mut().get(leaf),
                shape: s.view.shape,
                dtype: self.ir().dtype(leaf),
            };
            return (dense, p.outs[0].dtype);
        }
        let d = self.dense(s);
        (d.clone(), d.dtype)
    }

    fn conv(&self, g: &Group, root: u32, node: &INode) -> Result<Kernel> {
        let Op::Conv2d(conv) = node.op else {
            return Err(Error::other("plan", "not a convolution"));
        };
        let out = node.shape();
        let acc = register(node.outs[0].dtype);
        let (weight, weight_compute) = self.weight(node.inputs[1]);
        let val = Val { node: root, out: 0 };
        Ok(Kernel::Conv2d {
            conv,
            input: self.dense(node.inputs[0]),
            weight,
            weight_compute,
            shape: out,
            epilogue: self.epilogue(g, Some((val, acc)), out, (0..out.rank()).collect(), &|s| s)?,
        })
    }

    /// Writes an operand into a slice of a bigger buffer.
    fn store_slice(
        &mut self,
        group: u32,
        root: u32,
        s: Src,
        axis: usize,
        start: usize,
        out: &Dense,
    ) -> Result<()> {
        let domain = s.view.shape;
        if domain.numel() == 0 {
            return Ok(());
        }
        let mut b = Builder::new(
            self.ir(),
            &self.fusion.inline,
            domain,
            (0..domain.rank()).collect(),
        );
        let r = b.operand(&s, &mut |s: Src| self.buf(s))?;
        let strides = out.shape.strides();
        b.store(
            r,
            Access {
                buf: out.buf,
                offset: start * strides[axis] as usize,
                strides: Strides::new(&strides),
                dtype: out.dtype,
            },
        );
        let fused = b.fused;
        self.push(Kernel::Map { domain, fused }, group, root);
        Ok(())
    }

    fn concat(&mut self, group: u32, root: u32, node: &INode, axis: usize) -> Result<()> {
        let out = self.dense_out(root, 0);
        let mut start = 0;
        for s in &node.inputs {
            if self.placed(s.val).is_none() {
                self.store_slice(group, root, *s, axis, start, &out)?;
            }
            start += s.view.shape[axis];
        }
        Ok(())
    }

    fn plain(&self, root: u32, node: &INode) -> Result<Kernel> {
        let input = |i: usize| self.dense(node.inputs[i]);
        let output = || self.dense_out(root, 0);
        let optional = |i: u32| self.wanted(root, i).then(|| self.dense_out(root, i));
        let parts = |shape: &Shape, axis: usize| -> (usize, usize) {
            (
                shape[..axis].iter().product(),
                shape[axis + 1..].iter().product(),
            )
        };
        Ok(match &node.op {
            Op::ArgReduce { op, axis } => {
                let s = self.ir().base(node.inputs[0]);
                let axis = *axis as usize;
                let n = s.view.shape.rank();
                let order: Vec<usize> = (0..n).filter(|&a| a != axis).chain([axis]).collect();
                let domain: Vec<usize> = order.iter().map(|&a| s.view.shape[a]).collect();
                let strides: Vec<isize> = order.iter().map(|&a| s.view.strides[a]).collect();
                Kernel::ArgReduce {
                    domain: Shape::new(&domain).unwrap_or(Shape::scalar()),
                    input: Access {
                        buf: self.buf(s),
                        offset: s.view.offset,
                        strides: Strides::new(&strides),
                        dtype: self.ir().dtype(s.val),
                    },
                    op: *op,
                    output: self.out_buf(root, 0),
                }
            }
            Op::Conv2dGradInput(conv) => {
                let (weight, weight_compute) = self.weight(node.inputs[0]);
                Kernel::Conv2dGradInput {
                    conv: *conv,
                    weight,
                    weight_compute,
                    grad: input(1),
                    output: output(),
                }
            }
            Op::Conv2dGradWeight(conv) => Kernel::Conv2dGradWeight {
                conv: *conv,
                input: input(0),
                grad: input(1),
                output: output(),
            },
            Op::MaxPool2d(pool) => Kernel::MaxPool2d {
                pool: *pool,
                input: input(0),
                values: optional(0),
                indices: optional(1),
            },
            Op::MaxPool2dGrad(pool) => Kernel::MaxPool2dGrad {
                pool: *pool,
                indices: input(0),
                grad: input(1),
                output: output(),
            },
            Op::AvgPool2d(pool) => Kernel::AvgPool2d {
                pool: *pool,
                input: input(0),
                output: output(),
            },
            Op::AvgPool2dGrad(pool) => Kernel::AvgPool2dGrad {
                pool: *pool,
                grad: input(0),
                output: output(),
            },
            Op::Take { axis } => {
                let shape = node.inputs[0].view.shape;
                let (outer, inner) = parts(&shape, *axis as usize);
                Kernel::Take {
                    outer,
                    inner,
                    size: shape[*axis as usize],
                    input: input(0),
                    index: input(1),
                    output: output(),
                }
            }
            Op::TakeGrad { axis } => {
                let shape = node.shape();
                let (outer, inner) = parts(&shape, *axis as usize);
                Kernel::TakeGrad {
                    outer,
                    inner,
                    size: shape[*axis as usize],
                    index: input(0),
                    update: input(1),
                    output: output(),
                }
            }
            Op::GatherAlong { axis } => Kernel::GatherAlong {
                axis: *axis as usize,
                input: input(0),
                index: input(1),
                output: output(),
            },
            Op::ScatterAlong { axis } => Kernel::ScatterAlong {
                axis: *axis as usize,
                index: input(0),
                update: input(1),
                output: output(),
            },
            Op::CumSum { axis, reverse } => {
                let (outer, inner) = parts(&node.shape(), *axis as usize);
                Kernel::CumSum {
                    outer,
                    size: node.shape()[*axis as usize],
                    inner,
                    reverse: *reverse,
                    input: input(0),
                    output: output(),
                }
            }
            Op::Sort { descending } => Kernel::Sort {
                descending: *descending,
                input: input(0),
                values: optional(0),
                indices: optional(1),
            },
            Op::AllReduce { sequence } => Kernel::AllReduce {
                sequence: *sequence,
                input: input(0),
                output: output(),
            },
            Op::Composite(c) => Kernel::Composite {
                composite: *c,
                random: random_of(c),
                inputs: node.inputs.iter().map(|s| self.strided(*s)).collect(),
                outputs: (0..node.outs.len() as u32)
                    .map(|i| self.wanted(root, i).then(|| self.strided_out(root, i)))
                    .collect(),
            },
            Op::Custom(c) => Kernel::Custom {
                custom: c.clone(),
                inputs: (0..node.inputs.len()).map(input).collect(),
                outputs: (0..node.outs.len() as u32)
                    .map(|i| self.dense_out(root, i))
                    .collect(),
            },
            op => {
                return Err(Error::other(
                    "plan",
                    format!("`{}` cannot be evaluated here", op.name()),
                ));
            }
        })
    }
}

fn random_of(c: &Composite) -> Option<u32> {
    match c {
        Composite::Attention(s) | Composite::AttentionGrad(s) => match s.dropout?.key {
            RandomKey::Table(i) => Some(i),
            RandomKey::Value { .. } => None,
        },
        _ => None,
    }
}
