//! Fused programs, compiled: an interpreter over blocks whose registers stay in the L1 cache.
use super::convert;
use super::cx::{Compile, Cx};
use super::ops::{self, Stream};
use super::scratch::Scratch;
use super::view::{Arg, Block, View};
use bimetal_tensor::plan::{Fused, Instr, MAX_INSTRUCTIONS, Number, Reg};
use bimetal_tensor::{CastMode, DType, Result, Shape};

/// The most elements of a block. Values do not depend on it.
pub(crate) const CHUNK: usize = 1024;

/// A compiled program.
pub(crate) struct Code {
    instrs: Vec<Instr>,
    /// The register dtype of each instruction.
    types: Vec<DType>,
    /// Byte offset of each register's scratch.
    slots: Vec<usize>,
    /// Registers that hold one number during a whole run.
    uniform: Vec<bool>,
    pub(crate) inputs: Vec<View>,
    pub(crate) outputs: Vec<View>,
    regs: Vec<Reg>,
    /// Which output an instruction may write without a detour.
    direct: Vec<Option<usize>>,
    scratch: usize,
    shape: Shape,
    inner: Vec<usize>,
}

/// A worker's registers for one code.
pub(crate) struct Frame<'a> {
    code: &'a Code,
    cx: &'a Cx<'a>,
    args: [Arg; MAX_INSTRUCTIONS],
    cells: [u64; MAX_INSTRUCTIONS],
    base: *mut u8,
    _scratch: Scratch,
}

fn operands(i: &Instr) -> ([Reg; 3], usize) {
    match *i {
        Instr::Load { .. } | Instr::Acc { .. } | Instr::Number { .. } | Instr::Iota { .. } => {
            ([0; 3], 0)
        }
        Instr::Random { step, .. } => ([step.unwrap_or(0), 0, 0], step.is_some() as usize),
        Instr::Unary { a, .. } | Instr::Convert { a, .. } | Instr::Round { a, .. } => {
            ([a, 0, 0], 1)
        }
        Instr::Binary { a, b, .. } => ([a, b, 0], 2),
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
        for (view, r) in outputs.iter().zip(&program.outputs) {
            cx.check(
                convert::can_store(types[*r as usize], view.dtype),
                "an output register cannot be stored as its buffer's dtype",
            )?;
        }
        // A loaded value that is stored unchanged must outlive the stores before its own, which may overwrite where it came from.
        for r in &program.outputs {
            if let Instr::Load { input } = program.instrs[*r as usize] {
                let view = &mut inputs[input as usize];
                view.copied = outputs.iter().any(|o| cx.overlap(o.buf, view.buf));
            }
        }
        let mut direct = vec![None; n];
        for (o, (view, r)) in outputs.iter().zip(&program.outputs).enumerate() {
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
        let (slots, scratch) = slots(&program.instrs, &types, &program.outputs, &uniform);
        let inner = inputs
            .iter()
            .chain(&outputs)
            .filter_map(View::run)
            .collect();
        Ok(Code {
            instrs: program.instrs.clone(),
            types,
            slots,
            uniform,
            inputs,
            outputs,
            regs: program.outputs.clone(),
            direct,
            scratch,
            shape: *domain,
            inner,
        })
    }

    /// The dtype of output register `i`.
    pub(crate) fn output_type(&self, i: usize) -> Option<DType> {
        Some(self.types[*self.regs.get(i)? as usize])
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
        let mut at = *self.regs.first()? as usize;
        if let Instr::Round {
            a,
            to,
            overflow: CastMode::Nonsaturating,
            ..
        } = self.instrs[at]
            && to == view.dtype
        {
            at = a as usize;
        }
        (matches!(self.instrs[at], Instr::Acc { .. }) && view.is_dense()).then_some(view)
    }
}

/// Scratch for every register that is not uniform; a register's space is used again after its last reader.
fn slots(
    instrs: &[Instr],
    types: &[DType],
    outputs: &[Reg],
    uniform: &[bool],
) -> (Vec<usize>, usize) {
    let n = instrs.len();
    let mut last = vec![0; n];
    for (i, instr) in instrs.iter().enumerate() {
        let (ops, count) = operands(instr);
        last[i] = i;
        for r in &ops[..count] {
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

impl<'a> Frame<'a> {
    /// Registers for `code`, with the uniform ones computed.
    pub(crate) fn new(code: &'a Code, cx: &'a Cx<'a>) -> Frame<'a> {
        let mut scratch = Scratch::new(code.scratch);
        Frame {
            code,
            cx,
            args: [Arg::NONE; MAX_INSTRUCTIONS],
            cells: [0; MAX_INSTRUCTIONS],
            base: scratch.ptr(),
            _scratch: scratch,
        }
        .uniform()
    }

    fn uniform(mut self) -> Frame<'a> {
        let one = Block::linear(0, 1);
        for i in 0..self.code.instrs.len() {
            if self.code.uniform[i] {
                let dst = (&raw mut self.cells[i]).cast::<u8>();
                let was = self.step(i, &one, Arg::NONE, dst, true);
                if was.ptr != dst {
                    // SAFETY: a scalar load gives one element of the register's dtype; a cell has 8 bytes.
                    unsafe {
                        std::ptr::copy_nonoverlapping(was.ptr, dst, self.code.types[i].size())
                    };
                }
            }
        }
        self
    }

    /// The value of register `r` in the present block.
    fn arg(&self, r: Reg) -> Arg {
        let r = r as usize;
        if self.code.uniform[r] {
            Arg::splat((&raw const self.cells[r]).cast())
        } else {
            self.args[r]
        }
    }

    /// Computes output register `o`'s value for the block, without storing it. At most [`CHUNK`] elements.
    ///
    /// # Safety
    /// The block lies in the code's domain; `acc` has the block's elements if the program reads it; the buffers of `cx` are
    /// those the code was compiled for.
    pub(crate) unsafe fn value(&mut self, b: &Block, acc: Arg, o: usize) -> Arg {
        self.compute(b, acc, false);
        self.arg(self.code.regs[o])
    }

    /// Runs the program on a block and stores its outputs. At most [`CHUNK`] elements.
    ///
    /// # Safety
    /// As [`Frame::value`]; nobody else touches the outputs' elements.
    pub(crate) unsafe fn run(&mut self, b: &Block, acc: Arg) {
        self.compute(b, acc, true);
        for (o, view) in self.code.outputs.iter().enumerate() {
            let r = self.code.regs[o];
            let value = self.arg(r);
            let base = self.cx.ptr(view.buf);
            let there = self.code.direct[r as usize] == Some(o) && b.rows == 1 && !value.splat;
            if !there {
                // SAFETY: the caller's contract.
                unsafe { view.store(base, b, value, self.code.types[r as usize]) };
            }
        }
    }

    fn compute(&mut self, b: &Block, acc: Arg, store: bool) {
        debug_assert!(b.len() <= CHUNK);
        for i in 0..self.code.instrs.len() {
            if self.code.uniform[i] {
                continue;
            }
            let dst = match self.code.direct[i] {
                Some(o) if store && b.rows == 1 => {
                    let view = &self.code.outputs[o];
                    view.at(self.cx.ptr(view.buf), (view.offset + b.start) as isize)
                }
                _ => self.base.wrapping_add(self.code.slots[i]),
            };
            self.args[i] = self.step(i, b, acc, dst, false);
        }
    }

    /// One instruction. `dst` has room for the block's elements.
    fn step(&self, i: usize, b: &Block, acc: Arg, dst: *mut u8, uniform: bool) -> Arg {
        let n = b.len();
        // Where all operands are one number so is the result, and one element is computed.
        let count = |splat: bool| if splat { 1 } else { n };
        let result = |splat: bool| Arg { ptr: dst, splat };
        // SAFETY: registers have the block's elements in the dtypes that `Code::new` inferred, `dst` is scratch of its own or an
        // output that no instruction reads; operands were computed before.
        unsafe {
            match self.code.instrs[i] {
                Instr::Load { input } => {
                    let view = &self.code.inputs[input as usize];
                    view.load(self.cx.ptr(view.buf), b, dst)
                }
                Instr::Acc { .. } => acc,
                Instr::Number { value, ty } => {
                    let value = match value {
                        Number::Const(v) => v,
                        Number::Table(t) => self.cx.scalar(t),
                    };
                    let bits = ops::number(value, ty).to_ne_bytes();
                    let from = if cfg!(target_endian = "big") {
                        8 - ty.size()
                    } else {
                        0
                    };
                    std::ptr::copy_nonoverlapping(bits.as_ptr().add(from), dst, ty.size());
                    Arg::splat(dst)
                }
                Instr::Iota { axis } => {
                    self.iota(axis as usize, b, dst.cast());
                    result(false)
                }
                Instr::Random {
                    distribution,
                    key,
                    step,
                } => {
                    let step = step.map_or(0, |r| *self.arg(r).ptr.cast::<u32>());
                    let stream = Stream {
                        key: [self.cx.scalar(key) as u32, self.cx.scalar(key + 1) as u32],
                        step,
                        micro: self.cx.scalar(key + 2) as u32,
                    };
                    for row in 0..b.rows {
                        let dst = dst.add(row * b.cols * 4);
                        ops::random(distribution, stream, b.start + row * b.pitch, dst, b.cols);
                    }
                    result(false)
                }
                Instr::Unary { op, a, ty } => {
                    let a = self.arg(a);
                    ops::unary(op, ty, a, dst, count(a.splat));
                    result(a.splat || uniform)
                }
                Instr::Binary { op, a, b, ty } => {
                    let (a, b) = (self.arg(a), self.arg(b));
                    let splat = a.splat && b.splat;
                    ops::binary(op, ty, a, b, dst, count(splat));
                    result(splat)
                }
                Instr::Select { c, a, b, ty } => {
                    let (c, a, b) = (self.arg(c), self.arg(a), self.arg(b));
                    let splat = c.splat && a.splat && b.splat;
                    ops::select(ty, c, a, b, dst, count(splat));
                    result(splat)
                }
                Instr::Fma { a, b, c, ty } => {
                    let (a, b, c) = (self.arg(a), self.arg(b), self.arg(c));
                    let splat = a.splat && b.splat && c.splat;
                    ops::fma(ty, a, b, c, dst, count(splat));
                    result(splat)
                }
                Instr::Convert { a, from, to } => {
                    let a = self.arg(a);
                    ops::convert(from, to, a, dst, count(a.splat));
                    result(a.splat)
                }
                Instr::Round {
                    a,
                    from,
                    to,
                    overflow,
                } => {
                    let a = self.arg(a);
                    ops::round(from, to, overflow, a, dst, count(a.splat));
                    result(a.splat)
                }
            }
        }
    }

    /// The index along `axis` of the block's elements.
    ///
    /// # Safety
    /// `dst` has room for them.
    unsafe fn iota(&self, axis: usize, b: &Block, dst: *mut i32) {
        let shape = &self.code.shape;
        let inner: usize = shape[axis + 1..].iter().product();
        for row in 0..b.rows {
            let start = b.start + row * b.pitch;
            let (mut within, mut index) = (start % inner, start / inner % shape[axis]);
            for i in 0..b.cols {
                // SAFETY: the caller's contract.
                unsafe { *dst.add(row * b.cols + i) = index as i32 };
                within += 1;
                if within == inner {
                    within = 0;
                    index += 1;
                    if index == shape[axis] {
                        index = 0;
                    }
                }
            }
        }
    }
}
