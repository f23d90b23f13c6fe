//! Builds the program of a group: registers, loads, and the rounding that each node's dtype asks for.
use super::ir::{INode, Ir, Src};
use super::view::View;
use crate::eval::trace::{IdMap, Val};
use crate::graph::{Binary, Literal, Op, RandomKey, Unary};
use crate::plan::{Access, Fused, Instr, Number, Reg, register};
use crate::{CastMode, DType, Error, Result, Shape, Strides};

/// Builds one program over a domain.
pub(crate) struct Builder<'a> {
    ir: &'a Ir,
    inline: &'a [bool],
    /// The shape by which operands are addressed, and the axes of it that make the kernel's domain, in order.
    shape: Shape,
    axes: Vec<usize>,
    pub fused: Fused,
    regs: IdMap<Val, Reg>,
    loads: IdMap<(Val, View), Reg>,
    folded: IdMap<(Val, View), Reg>,
}

impl<'a> Builder<'a> {
    pub fn new(ir: &'a Ir, inline: &'a [bool], shape: Shape, axes: Vec<usize>) -> Builder<'a> {
        Builder {
            ir,
            inline,
            shape,
            axes,
            fused: Fused::default(),
            regs: IdMap::default(),
            loads: IdMap::default(),
            folded: IdMap::default(),
        }
    }

    fn push(&mut self, i: Instr) -> Reg {
        self.fused.program.instrs.push(i);
        self.fused.program.instrs.len() as Reg - 1
    }

    /// The access of a view over the kernel's domain.
    pub fn access(&self, buf: u32, view: &View, dtype: DType) -> Result<Access> {
        let v = view.reshape(self.shape).ok_or_else(|| {
            Error::other(
                "plan",
                "an operand cannot be addressed over its kernel's domain",
            )
        })?;
        let s: Vec<isize> = self.axes.iter().map(|&a| v.strides[a]).collect();
        Ok(Access {
            buf,
            offset: v.offset,
            strides: Strides::new(&s),
            dtype,
        })
    }

    /// Starts from the value the program hangs on, rounded to its node's dtype.
    pub fn accumulator(&mut self, val: Val, acc: DType) {
        let a = self.push(Instr::Acc { ty: acc });
        let dtype = self.ir.dtype(val);
        let r = self.convert(a, acc, dtype, CastMode::Nonsaturating);
        self.regs.insert(val, r);
    }

    /// The register of a computed value.
    pub fn reg(&self, val: Val) -> Option<Reg> {
        self.regs.get(&val).copied()
    }

    /// The register of an operand: computed here, a number, a folded cast, or a load.
    pub fn operand(&mut self, s: &Src, buf: &mut dyn FnMut(Src) -> u32) -> Result<Reg> {
        let id = s.val.node as usize;
        let node = &self.ir.nodes[id];
        if let Some(&r) = self.regs.get(&s.val)
            && s.view.is_dense()
            && s.view.shape.numel() == node.shape().numel()
        {
            return Ok(r);
        }
        if let Op::Scalar(l) = node.op {
            return Ok(self.number(l, node.outs[0].dtype));
        }
        if self.inline[id] {
            if let Some(&r) = self.folded.get(&(s.val, s.view)) {
                return Ok(r);
            }
            let inner = node.inputs[0];
            // The cast's own operand is a whole leaf (or a number), so the consumer's view applies to it as it is.
            let src = Src {
                val: inner.val,
                view: s.view,
            };
            let a = self.operand(&src, buf)?;
            let (from, to) = (self.ir.dtype(inner.val), node.outs[0].dtype);
            let mode = match node.op {
                Op::Cast(m) => m,
                _ => CastMode::Nonsaturating,
            };
            let from_reg = self.register_dtype(&inner, from);
            let r = self.cast(a, from_reg, from, to, mode);
            self.folded.insert((s.val, s.view), r);
            return Ok(r);
        }
        let base = self.ir.base(*s);
        let key = (base.val, base.view);
        if let Some(&r) = self.loads.get(&key) {
            return Ok(r);
        }
        let dtype = self.ir.dtype(base.val);
        let access = self.access(buf(base), &base.view, dtype)?;
        self.fused.inputs.push(access);
        let input = self.fused.inputs.len() as u8 - 1;
        let r = self.push(Instr::Load { input });
        self.loads.insert(key, r);
        Ok(r)
    }

    fn register_dtype(&self, s: &Src, dtype: DType) -> DType {
        match self.ir.nodes[s.val.node as usize].op {
            Op::Scalar(_) => dtype,
            _ => register(dtype),
        }
    }

    fn number(&mut self, l: Literal, ty: DType) -> Reg {
        let value = match l {
            Literal::Value(v) => Number::Const(v.0),
            Literal::Table(i) => Number::Table(i),
        };
        self.push(Instr::Number { value, ty })
    }

    /// Adds the instructions of an element-wise node.
    pub fn node(&mut self, id: u32, n: &INode, buf: &mut dyn FnMut(Src) -> u32) -> Result<()> {
        let mut r = Vec::with_capacity(n.inputs.len());
        for s in &n.inputs {
            r.push(self.operand(s, buf)?);
        }
        let out = n.outs[0].dtype;
        let from = n.inputs.last().map_or(out, |s| self.ir.dtype(s.val));
        let result = match &n.op {
            Op::Scalar(l) => self.number(*l, out),
            Op::Iota { axis } => {
                let at = self.axes.iter().position(|a| a == &(*axis as usize));
                match at {
                    Some(a) => self.push(Instr::Iota { axis: a as u8 }),
                    None => {
                        return Err(Error::other(
                            "plan",
                            "arange over an axis that its kernel lacks",
                        ));
                    }
                }
            }
            Op::Random { distribution, key } => {
                let RandomKey::Table(key) = *key else {
                    return Err(Error::other(
                        "plan",
                        "a random key that is not in the scalar table",
                    ));
                };
                self.push(Instr::Random {
                    distribution: *distribution,
                    key,
                    step: r.first().copied(),
                })
            }
            Op::Cast(mode) => {
                let from_reg = self.register_dtype(&n.inputs[0], from);
                self.cast(r[0], from_reg, from, out, *mode)
            }
            Op::CastStochastic => self.push(Instr::RoundStochastic {
                a: r[0],
                noise: r[1],
                to: out,
            }),
            Op::Unary(u) => {
                let a = self.push(Instr::Unary {
                    op: *u,
                    a: r[0],
                    ty: register(from),
                });
                let exact = matches!(
                    u,
                    Unary::Neg
                        | Unary::Abs
                        | Unary::Sign
                        | Unary::Relu
                        | Unary::Floor
                        | Unary::Ceil
                        | Unary::Round
                        | Unary::Trunc
                );
                self.rounded(a, out, exact)
            }
            Op::Binary(b) => {
                let ty = self.pair_type(&n.inputs[0], &n.inputs[1]);
                let a = self.push(Instr::Binary {
                    op: *b,
                    a: r[0],
                    b: r[1],
                    ty,
                });
                // A bare number is not rounded before, so even a maximum may have to be rounded after.
                let literal = n
                    .inputs
                    .iter()
                    .any(|s| matches!(self.ir.nodes[s.val.node as usize].op, Op::Scalar(_)));
                let exact = matches!(b, Binary::Max | Binary::Min) && !literal;
                self.rounded(a, out, exact)
            }
            Op::Select => {
                let a = self.push(Instr::Select {
                    c: r[0],
                    a: r[1],
                    b: r[2],
                    ty: self.pair_type(&n.inputs[1], &n.inputs[2]),
                });
                let literal = n.inputs[1..]
                    .iter()
                    .any(|s| matches!(self.ir.nodes[s.val.node as usize].op, Op::Scalar(_)));
                self.rounded(a, out, !literal)
            }
            Op::Fma => {
                let a = self.push(Instr::Fma {
                    a: r[0],
                    b: r[1],
                    c: r[2],
                    ty: register(out),
                });
                self.rounded(a, out, false)
            }
            op => {
                return Err(Error::other(
                    "plan",
                    format!("{} is not element-wise", op.name()),
                ));
            }
        };
        self.regs.insert(Val { node: id, out: 0 }, result);
        Ok(())
    }

    fn pair_type(&self, a: &Src, b: &Src) -> DType {
        let is_number = |s: &Src| matches!(self.ir.nodes[s.val.node as usize].op, Op::Scalar(_));
        register(self.ir.dtype(if is_number(a) { b.val } else { a.val }))
    }

    fn rounded(&mut self, a: Reg, dtype: DType, exact: bool) -> Reg {
        let ty = register(dtype);
        if exact || ty == dtype {
            return a;
        }
        self.push(Instr::Round {
            a,
            from: ty,
            to: dtype,
            overflow: CastMode::Nonsaturating,
        })
    }

    /// From an accumulator's register to the values of a dtype.
    fn convert(&mut self, a: Reg, from: DType, to: DType, mode: CastMode) -> Reg {
        self.cast(a, from, from, to, mode)
    }

    /// A cast: `from` is the operand's dtype, `reg` the dtype of its register.
    fn cast(&mut self, a: Reg, reg: DType, from: DType, to: DType, overflow: CastMode) -> Reg {
        if from == to && reg == register(to) {
            return a;
        }
        let target = register(to);
        match to {
            DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 => {
                // From 32-bit integers by f64, which holds them exactly: one rounding.
                let (a, reg) = match reg {
                    DType::I32 | DType::U32 => (
                        self.push(Instr::Convert {
                            a,
                            from: reg,
                            to: DType::F64,
                        }),
                        DType::F64,
                    ),
                    DType::Bool => (
                        self.push(Instr::Convert {
                            a,
                            from: reg,
                            to: DType::F32,
                        }),
                        DType::F32,
                    ),
                    _ => (a, reg),
                };
                self.push(Instr::Round {
                    a,
                    from: reg,
                    to,
                    overflow,
                })
            }
            DType::F32 if reg == DType::F64 && overflow == CastMode::Saturating => {
                self.push(Instr::Round {
                    a,
                    from: reg,
                    to,
                    overflow,
                })
            }
            DType::U8 if matches!(reg, DType::F32 | DType::F64) => {
                // Saturates like every cast from a float: limit first, NaN becomes 0 in the conversion.
                let lo = self.push(Instr::Number {
                    value: Number::Const(0.0),
                    ty: reg,
                });
                let hi = self.push(Instr::Number {
                    value: Number::Const(255.0),
                    ty: reg,
                });
                let a = self.push(Instr::Binary {
                    op: Binary::Max,
                    a,
                    b: lo,
                    ty: reg,
                });
                let a = self.push(Instr::Binary {
                    op: Binary::Min,
                    a,
                    b: hi,
                    ty: reg,
                });
                self.push(Instr::Convert {
                    a,
                    from: reg,
                    to: target,
                })
            }
            _ => {
                let a = if reg == target {
                    a
                } else {
                    self.push(Instr::Convert {
                        a,
                        from: reg,
                        to: target,
                    })
                };
                if to == DType::U8 && from != DType::Bool {
                    self.push(Instr::Round {
                        a,
                        from: target,
                        to,
                        overflow,
                    })
                } else {
                    a
                }
            }
        }
    }

    /// Stores a computed value to a buffer, dense over the kernel's domain.
    pub fn store(&mut self, reg: Reg, access: Access) {
        self.fused.program.outputs.push(reg);
        self.fused.outputs.push(access);
    }
}
