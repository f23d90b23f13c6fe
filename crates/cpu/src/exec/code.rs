//! Fused programs, compiled: which instructions run when, and where their registers lie.
use super::convert;
use super::cx::Compile;
use super::view::View;
use bimetal_tensor::graph::{Binary, Distribution};
use bimetal_tensor::plan::{Fused, Instr, MAX_INSTRUCTIONS, Program, Reg};
use bimetal_tensor::{CastMode, DType, Result, Shape};

/// The most elements of a block. Values do not depend on it.
pub(crate) const CHUNK: usize = 1024;

/// Bytes from which on an input is in no cache of a core.
const FAR: usize = 8 << 20;

/// A compiled program.
pub(crate) struct Code {
    pub(super) instrs: Vec<Instr>,
    /// The register dtype of each instruction.
    pub(super) types: Vec<DType>,
    /// Byte offset of each register's scratch.
    pub(super) slots: Vec<usize>,
    /// Registers that hold one number during a whole run.
    pub(super) uniform: Vec<bool>,
    pub(crate) inputs: Vec<View>,
    pub(crate) outputs: Vec<View>,
    pub(super) regs: Vec<Reg>,
    /// The instructions of a whole run, and those of every block.
    pub(super) once: Vec<Reg>,
    pub(super) each: Vec<Reg>,
    /// The selections by a random number, which are one instruction.
    pub(super) drops: Vec<Option<Dropout>>,
    /// Which output an instruction may write without a detour.
    pub(super) direct: Vec<Option<usize>>,
    /// Dense inputs that are asked for a block ahead.
    pub(super) ahead: Vec<usize>,
    pub(super) scratch: usize,
    pub(super) shape: Shape,
    inner: Vec<usize>,
}

/// `random >= p ? a : other`, where `p` and `other` are one number each: a dropout. The random numbers need not be written anywhere.
#[derive(Clone, Copy)]
pub(super) struct Dropout {
    /// The instruction that draws.
    pub(super) random: Reg,
    pub(super) p: Reg,
    pub(super) a: Reg,
    pub(super) other: Reg,
    step: Option<Reg>,
}

impl Dropout {
    fn find(instrs: &[Instr], i: usize, uniform: &[bool]) -> Option<Dropout> {
        let Instr::Select {
            c,
            a,
            b: other,
            ty: DType::F32,
        } = instrs[i]
        else {
            return None;
        };
        let Instr::Binary {
            op: Binary::Ge,
            a: random,
            b: p,
            ty: DType::F32,
        } = instrs[c as usize]
        else {
            return None;
        };
        let Instr::Random {
            distribution: Distribution::Uniform,
            step,
            ..
        } = instrs[random as usize]
        else {
            return None;
        };
        let fits = uniform[p as usize] && uniform[other as usize] && !uniform[a as usize];
        fits.then_some(Dropout {
            random,
            p,
            a,
            other,
            step,
        })
    }

    fn operands(&self) -> Operands {
        match self.step {
            Some(step) => vec![self.p, self.a, self.other, step],
            None => vec![self.p, self.a, self.other],
        }
    }
}

/// The registers that an instruction reads.
type Operands = Vec<Reg>;

fn operands(i: &Instr) -> ([Reg; 3], usize) {
    match *i {
        Instr::Load { .. } | Instr::Acc { .. } | Instr::Number { .. } | Instr::Iota { .. } => {
            ([0; 3], 0)
        }
        Instr::Random { step, .. } => ([step.unwrap_or(0), 0, 0], step.is_some() as usize),
        Instr::Unary { a, .. } | Instr::Convert { a, .. } | Instr::Round { a, .. } => {
            ([a, 0, 0], 1)
        }
        Instr::Binary { a, b, .. } | Instr::RoundStochastic { a, noise: b, .. } => ([a, b, 0], 2),
        Instr::Select { c, a, b, .. } => ([c, a, b], 3),
        Instr::Fma { a, b, c, .. } => ([a, b, c], 3),
    }
}

impl Code {
    /// Compiles a program over `domain`.
    pub(crate) fn new(fused: &Fused, domain: &Shape, cx: &Compile<'_>) -> Result<Code> {
        let program = &fused.program;
        let n = program.instrs.len();
        cx.check(
            n <= MAX_INSTRUCTIONS,
            "the program has too many instructions",
        )?;
        let mut inputs = cx.views(&fused.inputs, domain)?;
        let outputs = cx.views(&fused.outputs, domain)?;
        let mut types = Vec::with_capacity(n);
        let mut uniform = Vec::with_capacity(n);
        for (i, instr) in program.instrs.iter().enumerate() {
            let (ops, count) = operands(instr);
            let ops = &ops[..count];
            cx.check(
                ops.iter().all(|r| (*r as usize) < i),
                "an instruction reads a later one",
            )?;
            if let Instr::Load { input } = instr {
                cx.check((*input as usize) < inputs.len(), "an input is missing")?;
            }
            types.push(instr.dtype(&fused.inputs));
            uniform.push(match instr {
                Instr::Load { input } => inputs[*input as usize].is_scalar(),
                Instr::Number { .. } => true,
                Instr::Acc { .. } | Instr::Iota { .. } | Instr::Random { .. } => false,
                _ => ops.iter().all(|r| uniform[*r as usize]),
            });
        }
        for r in &program.outputs {
            cx.check((*r as usize) < n, "an output register is missing")?;
        }
        let drops: Vec<Option<Dropout>> = (0..n)
            .map(|i| Dropout::find(&program.instrs, i, &uniform))
            .collect();
        let reads: Vec<Operands> = program
            .instrs
            .iter()
            .zip(&drops)
            .map(|(instr, drop)| match drop {
                Some(drop) => drop.operands(),
                None => {
                    let (ops, count) = operands(instr);
                    ops[..count].to_vec()
                }
            })
            .collect();
        for (view, r) in outputs.iter().zip(&program.outputs) {
            cx.check(
                convert::can_store(types[*r as usize], view.dtype),
                "an output register cannot be stored as its buffer's dtype",
            )?;
        }
        let regs: Vec<Reg> = outputs
            .iter()
            .zip(&program.outputs)
            .map(|(view, r)| unrounded(program, *r, view.dtype))
            .chain(program.outputs.iter().skip(outputs.len()).copied())
            .collect();
        // A loaded value that is stored unchanged must outlive the stores before its own, which may overwrite where it came from.
        for r in &regs {
            if let Instr::Load { input } = program.instrs[*r as usize] {
                let view = &mut inputs[input as usize];
                view.copied = outputs.iter().any(|o| cx.overlap(o.buf, view.buf));
            }
        }
        let mut direct = vec![None; n];
        for (o, (view, r)) in outputs.iter().zip(&regs).enumerate() {
            let r = *r as usize;
            let computed = !matches!(program.instrs[r], Instr::Load { .. } | Instr::Acc { .. });
            let alone = inputs.iter().all(|i| !cx.overlap(i.buf, view.buf))
                && outputs
                    .iter()
                    .enumerate()
                    .all(|(p, v)| p == o || !cx.overlap(v.buf, view.buf));
            if computed
                && alone
                && !uniform[r]
                && direct[r].is_none()
                && view.is_dense()
                && view.dtype == types[r]
            {
                direct[r] = Some(o);
            }
        }
        let (slots, scratch) = slots(&reads, &types, &regs, &uniform);
        let (once, each) = needed(&reads, &regs)
            .into_iter()
            .partition(|i| uniform[*i as usize]);
        let inner = inputs
            .iter()
            .chain(&outputs)
            .filter_map(View::run)
            .collect();
        Ok(Code {
            instrs: program.instrs.clone(),
            types,
            slots,
            inputs,
            outputs,
            once,
            each,
            uniform,
            regs,
            drops,
            direct,
            ahead: Vec::new(),
            scratch,
            shape: *domain,
            inner,
        })
    }

    /// For a program whose blocks follow each other: inputs much larger than the caches are asked for a block ahead. The processor's own prefetching stops at
    /// the end of a page, which is a block of f32.
    pub(crate) fn ask_ahead(&mut self) {
        let numel = self.shape.numel();
        let long = |view: &View| view.is_dense() && numel * view.dtype.size() >= FAR;
        self.ahead = (0..self.inputs.len())
            .filter(|i| long(&self.inputs[*i]))
            .collect();
    }

    /// Lets blocks be tiles whose rows lie along axis `rows` of the domain and whose columns lie along `cols`.
    pub(crate) fn tile(&mut self, fused: &Fused, rows: usize, cols: usize) {
        for (view, access) in self.inputs.iter_mut().zip(&fused.inputs) {
            view.tile = Some([access.strides[rows], access.strides[cols]]);
        }
    }

    /// The dtype of output register `i`.
    pub(crate) fn output_type(&self, i: usize) -> Option<DType> {
        Some(self.types[*self.regs.get(i)? as usize])
    }

    /// The operand whose elements are the first output register as they lie in memory, in the order of the domain.
    pub(crate) fn bare_load(&self) -> Option<&View> {
        let r = *self.regs.first()?;
        match self.instrs[r as usize] {
            Instr::Load { input } => {
                let view = &self.inputs[input as usize];
                (view.is_dense() && convert::is_register(view.dtype)).then_some(view)
            }
            _ => None,
        }
    }

    /// The number of instructions, as a measure of the work per element.
    pub(crate) fn cost(&self) -> usize {
        self.instrs.len() + self.outputs.len()
    }

    /// The longest run in memory order of the strided accesses, if there are any.
    pub(crate) fn run(&self) -> Option<usize> {
        self.inner.iter().copied().max()
    }
}

impl Code {
    /// The only output if it is the value the program hangs on, unchanged but for rounding to its buffer's dtype, stored densely.
    pub(crate) fn stores_acc(&self) -> Option<&View> {
        let [view] = &self.outputs[..] else {
            return None;
        };
        let at = *self.regs.first()? as usize;
        (matches!(self.instrs[at], Instr::Acc { .. }) && view.is_dense()).then_some(view)
    }
}

/// The register that gives the same bytes in a buffer of `dtype` as register `r`: stores round themselves.
fn unrounded(program: &Program, r: Reg, dtype: DType) -> Reg {
    match program.instrs[r as usize] {
        Instr::Round {
            a,
            from: DType::F32,
            to,
            overflow: CastMode::Nonsaturating,
        } if to == dtype => a,
        _ => r,
    }
}

/// The instructions that outputs depend on, in order.
fn needed(reads: &[Operands], outputs: &[Reg]) -> Vec<Reg> {
    let mut used = vec![false; reads.len()];
    for r in outputs {
        used[*r as usize] = true;
    }
    for i in (0..reads.len()).rev() {
        if used[i] {
            reads[i].iter().for_each(|r| used[*r as usize] = true);
        }
    }
    (0..reads.len() as Reg)
        .filter(|i| used[*i as usize])
        .collect()
}

/// Scratch for every register that is not uniform; a register's space is used again after its last reader.
fn slots(
    reads: &[Operands],
    types: &[DType],
    outputs: &[Reg],
    uniform: &[bool],
) -> (Vec<usize>, usize) {
    let n = reads.len();
    let mut last = vec![0; n];
    for (i, operands) in reads.iter().enumerate() {
        last[i] = i;
        for r in operands {
            last[*r as usize] = i;
        }
    }
    for r in outputs {
        last[*r as usize] = n;
    }
    let mut slots = vec![0; n];
    let mut end = 0;
    let mut free: Vec<(usize, usize)> = Vec::new();
    for i in 0..n {
        if !uniform[i] {
            let size = CHUNK * types[i].size();
            slots[i] = match free.iter().position(|(_, s)| *s == size) {
                Some(at) => free.swap_remove(at).0,
                None => {
                    end += size;
                    end - size
                }
            };
        }
        for j in 0..=i {
            if last[j] == i && !uniform[j] {
                free.push((slots[j], CHUNK * types[j].size()));
                last[j] = usize::MAX;
            }
        }
    }
    (slots, end)
}
