//! The interpreter of fused programs, over blocks whose registers stay in the L1 cache.
use super::code::{CHUNK, Code, Dropout};
use super::cx::Cx;
use super::ops::{self, Stream};
use super::view::{Arg, Block};
use bimetal_kernels::gemm::Scratch;
use bimetal_kernels::simd;
use bimetal_tensor::plan::{Instr, MAX_INSTRUCTIONS, Number, Reg};

/// A worker's registers for one code.
pub(crate) struct Frame<'a> {
    code: &'a Code,
    cx: &'a Cx<'a>,
    args: [Arg; MAX_INSTRUCTIONS],
    cells: [u64; MAX_INSTRUCTIONS],
    base: *mut u8,
    _scratch: Scratch,
}

impl<'a> Frame<'a> {
    /// Registers for `code`, with the uniform ones computed.
    pub(crate) fn new(code: &'a Code, cx: &'a Cx<'a>) -> Frame<'a> {
        let scratch = Scratch::take::<u8>(code.scratch);
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
        for i in self.code.once.iter().map(|i| *i as usize) {
            let dst = (&raw mut self.cells[i]).cast::<u8>();
            let was = self.step(i, &one, Arg::NONE, dst, true);
            if was.ptr != dst {
                // SAFETY: a scalar load gives one element of the register's dtype; a cell has 8 bytes.
                unsafe { std::ptr::copy_nonoverlapping(was.ptr, dst, self.code.types[i].size()) };
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
        for (k, i) in self.code.each.iter().map(|i| *i as usize).enumerate() {
            self.ask_ahead(b, k);
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

    /// Asks for a share of the next block, the `k`th of as many as there are instructions: all at once would wait for each other.
    fn ask_ahead(&self, b: &Block, k: usize) {
        let (parts, numel) = (self.code.each.len(), self.code.shape.numel());
        let next = b.start + b.cols;
        for view in self.code.ahead.iter().map(|i| &self.code.inputs[*i]) {
            let len = b.cols.min(numel.saturating_sub(next));
            let (from, to) = (len * k / parts, len * (k + 1) / parts);
            let first = view.at(self.cx.ptr(view.buf), (view.offset + next + from) as isize);
            // SAFETY: elements of a dense input over the domain; only their addresses are looked at.
            simd::prefetch(unsafe {
                std::slice::from_raw_parts(first, (to - from) * view.dtype.size())
            });
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
                    let stream = self.stream(key, step);
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
                Instr::Select { .. } if self.code.drops[i].is_some() => {
                    if let Some(drop) = &self.code.drops[i] {
                        self.drop_elements(drop, b, dst);
                    }
                    result(false)
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
                Instr::RoundStochastic { a, noise, to } => {
                    let (a, noise) = (self.arg(a), self.arg(noise));
                    let splat = a.splat && noise.splat;
                    ops::round_stochastic(to, a, noise, dst, count(splat));
                    result(splat)
                }
            }
        }
    }

    /// The random numbers with the key at `key` in the scalar table.
    ///
    /// # Safety
    /// The register `step` was computed.
    unsafe fn stream(&self, key: u32, step: Option<Reg>) -> Stream {
        // SAFETY: a register with a step holds one u32.
        let step = step.map_or(0, |r| unsafe { *self.arg(r).ptr.cast::<u32>() });
        Stream {
            key: [self.cx.scalar(key) as u32, self.cx.scalar(key + 1) as u32],
            step,
            micro: self.cx.scalar(key + 2) as u32,
        }
    }

    /// A selection by random numbers.
    ///
    /// # Safety
    /// As [`Frame::step`].
    unsafe fn drop_elements(&self, drop: &Dropout, b: &Block, dst: *mut u8) {
        let Instr::Random { key, step, .. } = self.code.instrs[drop.random as usize] else {
            return;
        };
        // SAFETY: the caller's contract; `p` and `other` are numbers, all registers are f32.
        unsafe {
            let stream = self.stream(key, step);
            let number = |r: Reg| *self.arg(r).ptr.cast::<f32>();
            let (p, other, a) = (number(drop.p), number(drop.other), self.arg(drop.a));
            for row in 0..b.rows {
                let first = b.start + row * b.pitch;
                let a = Arg {
                    ptr: a
                        .ptr
                        .wrapping_add(if a.splat { 0 } else { row * b.cols * 4 }),
                    ..a
                };
                let dst = dst.wrapping_add(row * b.cols * 4);
                ops::drop_elements(stream, first, [p, other], a, dst, b.cols);
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
