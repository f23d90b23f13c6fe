//! Programs and accesses as the compile-time arguments of kernels: what is known when a plan is compiled becomes code.
use bimetal_tensor::graph::{Binary, Distribution, Unary};
use bimetal_tensor::plan::{Access, Fused, Instr, Number, Reg};
use bimetal_tensor::{CastMode, DType, Shape};

/// One instruction; it writes the register of its own number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Load(Loc),
    Acc,
    /// A constant, as the bits of its register.
    Const(u32),
    /// A word of the scalar table.
    Scalar(u32),
    /// The index along an axis of this size, with so many elements behind it.
    Iota {
        size: u32,
        inner: u32,
    },
    Random {
        distribution: Distribution,
        /// The first of three entries of the scalar table, counting that of zeros.
        key: u32,
        step: Option<usize>,
    },
    Unary(Unary, usize, DType),
    Binary(Binary, usize, usize, DType),
    Select(usize, usize, usize),
    Fma(usize, usize, usize, DType),
    Convert {
        a: usize,
        from: DType,
        to: DType,
    },
    Round {
        a: usize,
        to: DType,
        saturating: bool,
    },
    RoundStochastic {
        a: usize,
        noise: usize,
        to: DType,
    },
    /// The register is not needed.
    Nop,
}

/// How a linear index of a domain becomes a place in a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Loc {
    /// The number of the binding.
    pub(crate) binding: usize,
    pub(crate) dtype: DType,
    pub(crate) offset: u32,
    /// Sizes and strides of the axes, outermost first, joined where they continue each other; strides wrap.
    pub(crate) axes: Vec<(u32, u32)>,
}

impl Loc {
    pub(crate) fn new(access: &Access, domain: &Shape, binding: usize) -> Loc {
        let mut axes: Vec<(usize, isize)> = Vec::new();
        for axis in 0..domain.rank() {
            let (n, s) = (domain[axis], access.strides[axis]);
            match axes.last_mut() {
                _ if n == 1 => {}
                Some(last) if last.1 == s * n as isize => *last = (last.0 * n, s),
                _ => axes.push((n, s)),
            }
        }
        let axes = axes
            .iter()
            .map(|a| (a.0 as u32, a.1 as i32 as u32))
            .collect();
        Loc {
            binding,
            dtype: access.dtype,
            offset: access.offset as u32,
            axes,
        }
    }

    /// Whether element `i` of the domain is element `i` of the buffer.
    pub(crate) fn is_dense(&self) -> bool {
        self.offset == 0 && (self.axes.is_empty() || (self.axes.len() == 1 && self.axes[0].1 == 1))
    }
}

/// Where a value goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) register: usize,
    pub(crate) to: Loc,
    /// Whether the binding is one of those whose words several threads write.
    pub(crate) shared: bool,
}

/// A program over a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Code {
    pub(crate) ops: Vec<Op>,
    pub(crate) stores: Vec<Store>,
    /// The register that a reduction folds: the only output of a prologue.
    pub(crate) result: usize,
}

/// Words of an entry of the scalar table: as f32, as i32, as u32.
pub(crate) const ENTRY: u32 = 4;

/// The scalar table in the words of its registers, behind an entry of zeros: a number whose value no compiler of kernels knows.
pub(crate) fn scalar_words(scalars: &[f64]) -> Vec<u32> {
    let words = |v: &f64| {
        [
            (*v as f32).to_bits(),
            *v as i32 as u32,
            *v as u32,
            (*v != 0.0) as u32,
        ]
    };
    let zero = [0; ENTRY as usize];
    zero.into_iter()
        .chain(scalars.iter().flat_map(words))
        .collect()
}

fn operands(i: &Instr) -> Vec<Reg> {
    match *i {
        Instr::Load { .. } | Instr::Acc { .. } | Instr::Number { .. } | Instr::Iota { .. } => {
            vec![]
        }
        Instr::Random { step, .. } => step.into_iter().collect(),
        Instr::Unary { a, .. } | Instr::Convert { a, .. } | Instr::Round { a, .. } => vec![a],
        Instr::Binary { a, b, .. } | Instr::RoundStochastic { a, noise: b, .. } => vec![a, b],
        Instr::Select { c, a, b, .. } => vec![c, a, b],
        Instr::Fma { a, b, c, .. } => vec![a, b, c],
    }
}

/// The register that a rounding to `dtype` rounds.
fn unrounded(instr: &Instr, dtype: DType) -> Option<Reg> {
    match *instr {
        Instr::Round {
            a,
            from: DType::F32,
            to,
            overflow: CastMode::Nonsaturating,
        } if to == dtype && dtype.is_float() => Some(a),
        _ => None,
    }
}

impl Code {
    /// A program over `domain`; `bind` numbers the bindings of inputs, and of outputs with whether words of theirs are shared.
    pub(crate) fn new(
        fused: &Fused,
        domain: &Shape,
        mut read: impl FnMut(&Access) -> usize,
        mut write: impl FnMut(&Access, &Loc) -> (usize, bool),
    ) -> Code {
        let program = &fused.program;
        let mut needed = vec![false; program.instrs.len()];
        // Storing rounds: what was rounded for its buffer need not be rounded twice.
        let stored = |(n, r): (usize, &Reg)| match fused.outputs.get(n) {
            Some(access) => unrounded(&program.instrs[*r as usize], access.dtype).unwrap_or(*r),
            None => *r,
        };
        let outputs: Vec<Reg> = program.outputs.iter().enumerate().map(stored).collect();
        for r in &outputs {
            needed[*r as usize] = true;
        }
        for (i, instr) in program.instrs.iter().enumerate().rev() {
            if needed[i] {
                operands(instr)
                    .iter()
                    .for_each(|r| needed[*r as usize] = true);
            }
        }
        let ops = program
            .instrs
            .iter()
            .zip(&needed)
            .map(|(instr, needed)| match needed {
                true => op(instr, &fused.inputs, domain, &mut read),
                false => Op::Nop,
            });
        let ops = ops.collect();
        let stores = fused.outputs.iter().zip(&outputs).map(|(access, r)| {
            let mut to = Loc::new(access, domain, 0);
            let (binding, shared) = write(access, &to);
            to.binding = binding;
            Store {
                register: *r as usize,
                to,
                shared,
            }
        });
        let stores = stores.collect();
        Code {
            ops,
            stores,
            result: outputs.last().map_or(0, |r| *r as usize),
        }
    }
}

fn op(
    instr: &Instr,
    inputs: &[Access],
    domain: &Shape,
    read: &mut impl FnMut(&Access) -> usize,
) -> Op {
    let r = |reg: Reg| reg as usize;
    match *instr {
        Instr::Load { input } => {
            let access = &inputs[input as usize];
            Op::Load(Loc::new(access, domain, read(access)))
        }
        Instr::Acc { .. } => Op::Acc,
        Instr::Number { value, ty } => match value {
            Number::Const(v) => Op::Const(match ty {
                DType::F32 => (v as f32).to_bits(),
                DType::I32 => v as i32 as u32,
                DType::U32 => v as u32,
                _ => (v != 0.0) as u32,
            }),
            Number::Table(t) => Op::Scalar(
                (t + 1) * ENTRY
                    + match ty {
                        DType::F32 => 0,
                        DType::I32 => 1,
                        DType::U32 => 2,
                        _ => 3,
                    },
            ),
        },
        Instr::Iota { axis } => {
            let axis = axis as usize;
            Op::Iota {
                size: domain[axis] as u32,
                inner: domain[axis + 1..].iter().product::<usize>() as u32,
            }
        }
        Instr::Random {
            distribution,
            key,
            step,
        } => Op::Random {
            distribution,
            key: key + 1,
            step: step.map(r),
        },
        Instr::Unary { op, a, ty } => Op::Unary(op, r(a), ty),
        Instr::Binary { op, a, b, ty } => Op::Binary(op, r(a), r(b), ty),
        Instr::Select { c, a, b, .. } => Op::Select(r(c), r(a), r(b)),
        Instr::Fma { a, b, c, ty } => Op::Fma(r(a), r(b), r(c), ty),
        Instr::Convert { a, from, to } => Op::Convert { a: r(a), from, to },
        Instr::Round {
            a, to, overflow, ..
        } => Op::Round {
            a: r(a),
            to,
            saturating: overflow == CastMode::Saturating,
        },
        Instr::RoundStochastic { a, noise, to } => Op::RoundStochastic {
            a: r(a),
            noise: r(noise),
            to,
        },
    }
}
