//! Reductions: rows, columns, or few long rows cut into pieces. How a reduction is cut depends on its shape alone.
mod arg;
mod columns;
pub(crate) mod fold;

pub(crate) use arg::ArgReduce;

use super::code::{CHUNK, Code};
use super::cx::{Compile, Cx, Kernel};
use super::frame::Frame;
use super::view::{Arg, Block};
use bimetal_kernels::par;
use bimetal_tensor::graph::ReduceOp;
use bimetal_tensor::plan::{Fused, Instr, register};
use bimetal_tensor::{DType, ErrorKind, Result, Shape, Strides};
use columns::Columns;
use fold::{Fold, by_type};

/// Elements of a task, about.
const TASK: usize = 16 * 1024;
/// Blocks of a piece of a long row: a power of two, so that the tree is the same with and without pieces.
const PIECE: usize = 16;
/// Tasks from which on rows are not cut into pieces.
const ENOUGH: usize = 64;

/// A reduction of the trailing axes of a domain.
pub(crate) struct Reduce {
    op: ReduceOp,
    acc: DType,
    prologue: Code,
    epilogue: Code,
    kept: usize,
    len: usize,
    columns: Option<Columns>,
}

impl Reduce {
    pub(crate) fn new(
        domain: &Shape,
        kept: usize,
        prologue: &Fused,
        op: ReduceOp,
        acc: DType,
        epilogue: &Fused,
        cx: &Compile<'_>,
    ) -> Result<Reduce> {
        cx.check(kept <= domain.rank(), "more kept axes than there are")?;
        cx.check(fold::is_accumulator(acc), "no accumulator of this dtype")?;
        let outer = Shape::new(&domain[..kept]).unwrap_or(Shape::scalar());
        let mut fused = prologue.clone();
        with_acc_type(&mut fused, acc);
        let (walked, columns) = match Columns::choose(domain, kept, &fused) {
            Some(c) => {
                let shape = permute(domain, &c.order, &mut fused);
                (shape, Some(c))
            }
            None => (*domain, None),
        };
        let prologue = Code::new(&fused, &walked, cx)?;
        cx.check(
            prologue.output_type(0) == Some(acc),
            "the value to be reduced is not of the accumulator's dtype",
        )?;
        Ok(Reduce {
            op,
            acc,
            prologue,
            epilogue: Code::new(epilogue, &outer, cx)?,
            kept: outer.numel(),
            len: domain[kept..].iter().product(),
            columns,
        })
    }

    /// Rows `k`, one after the other, to `out`.
    fn rows<T: Fold>(&self, frame: &mut Frame<'_>, k: std::ops::Range<usize>, out: &mut [T]) {
        let n = self.len;
        let mut spare = Vec::new();
        if n <= CHUNK && n > 0 {
            // Several rows in a block.
            let many = CHUNK / n;
            for first in k.clone().step_by(many) {
                let count = many.min(k.end - first);
                let b = Block::linear(first * n, count * n);
                // SAFETY: the rows lie in the domain; the prologue reads no accumulator and gives values of type `T`.
                let v = unsafe {
                    let v = frame.value(&b, Arg::NONE, 0);
                    fold::values::<T>(v, b.cols, &mut spare)
                };
                let out = &mut out[first - k.start..][..count];
                for (o, row) in out.iter_mut().zip(v.chunks_exact(n)) {
                    *o = fold::run(self.op, row);
                }
            }
            return;
        }
        let mut parts = Vec::with_capacity(par::pieces(n, CHUNK));
        for row in k.clone() {
            parts.clear();
            self.parts(frame, row, 0..n, &mut parts, &mut spare);
            out[row - k.start] = fold::tree(self.op, &mut parts);
        }
    }

    /// The results of the blocks of part of a row.
    fn parts<T: Fold>(
        &self,
        frame: &mut Frame<'_>,
        row: usize,
        range: std::ops::Range<usize>,
        parts: &mut Vec<T>,
        spare: &mut Vec<T>,
    ) {
        for at in range.clone().step_by(CHUNK) {
            let b = Block::linear(row * self.len + at, CHUNK.min(range.end - at));
            // SAFETY: as in `rows`.
            let v = unsafe {
                let v = frame.value(&b, Arg::NONE, 0);
                fold::values::<T>(v, b.cols, spare)
            };
            parts.push(fold::run(self.op, v));
        }
    }

    /// Divides where the mean is wanted, and runs the epilogue over results `first..`.
    fn finish<T: Fold>(&self, frame: &mut Frame<'_>, first: usize, results: &mut [T]) {
        if self.op == ReduceOp::Mean {
            for v in results.iter_mut() {
                *v = v.divided(self.len);
            }
        }
        for at in (0..results.len()).step_by(CHUNK) {
            let n = CHUNK.min(results.len() - at);
            let acc = Arg::dense(results[at..].as_ptr().cast());
            // SAFETY: the block lies in the kept domain, `acc` has its values, and tasks have no results in common.
            unsafe { frame.run(&Block::linear(first + at, n), acc) };
        }
    }

    fn run_as<T: Fold>(&self, cx: &Cx<'_>) {
        if let Some(c) = &self.columns {
            return self.run_columns::<T>(c, cx);
        }
        let (kept, n) = (self.kept, self.len.max(1));
        let per_task = (TASK / n).max(1);
        let per_task = if n <= CHUNK {
            per_task.next_multiple_of(CHUNK / n)
        } else {
            per_task
        };
        let tasks = par::pieces(kept, per_task);
        if tasks < ENOUGH && n > PIECE * CHUNK {
            return self.run_pieces::<T>(cx);
        }
        par::for_each(tasks, |t| {
            let k = par::piece(kept, per_task, t);
            let mut out = vec![T::identity(self.op); k.len()];
            let mut frame = Frame::new(&self.prologue, cx);
            self.rows(&mut frame, k.clone(), &mut out);
            drop(frame);
            self.finish(&mut Frame::new(&self.epilogue, cx), k.start, &mut out);
        });
    }

    /// Few long rows: all pieces of all rows in parallel.
    fn run_pieces<T: Fold>(&self, cx: &Cx<'_>) {
        let pieces = par::pieces(self.len, PIECE * CHUNK);
        let mut all = vec![T::identity(self.op); pieces * self.kept];
        let out = Shared(all.as_mut_ptr());
        par::for_each(all.len(), |t| {
            let (row, p) = (t / pieces, t % pieces);
            let mut frame = Frame::new(&self.prologue, cx);
            let mut parts = Vec::with_capacity(PIECE);
            let range = par::piece(self.len, PIECE * CHUNK, p);
            self.parts(&mut frame, row, range, &mut parts, &mut Vec::new());
            // SAFETY: each task writes its own element.
            unsafe { *out.at(t) = fold::tree(self.op, &mut parts) };
        });
        let mut results: Vec<T> = all
            .chunks_exact_mut(pieces)
            .map(|row| fold::tree(self.op, row))
            .collect();
        self.finish(&mut Frame::new(&self.epilogue, cx), 0, &mut results);
    }
}

/// A pointer that tasks write disjoint elements behind.
struct Shared<T>(*mut T);
// SAFETY: tasks write disjoint elements.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
impl<T> Shared<T> {
    fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// Lets the prologue give values of the accumulator's dtype.
fn with_acc_type(fused: &mut Fused, acc: DType) {
    let Some(&r) = fused.program.outputs.first() else {
        return;
    };
    let Some(instr) = fused.program.instrs.get(r as usize) else {
        return;
    };
    let from = instr.dtype(&fused.inputs);
    if from != acc && register(acc) == acc {
        fused.program.outputs[0] = fused.program.instrs.len() as u16;
        fused.program.instrs.push(Instr::Convert {
            a: r,
            from,
            to: acc,
        });
    }
}

/// The domain with its axes in another order, and the program on it.
fn permute(domain: &Shape, order: &[usize], fused: &mut Fused) -> Shape {
    let mut shape = *domain;
    for (i, axis) in order.iter().enumerate() {
        shape = shape.with(i, domain[*axis]);
    }
    for a in &mut fused.inputs {
        let strides: Vec<isize> = order.iter().map(|axis| a.strides[*axis]).collect();
        a.strides = Strides::new(&strides);
    }
    for instr in &mut fused.program.instrs {
        if let Instr::Iota { axis } = instr {
            let at = order.iter().position(|o| o == &(*axis as usize));
            *axis = at.unwrap_or(0) as u8;
        }
    }
    shape
}

impl Kernel for Reduce {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        fn run<T: Fold>(r: &Reduce, cx: &Cx<'_>) {
            r.run_as::<T>(cx);
        }
        by_type!(self.acc, run(self, cx));
        Ok(())
    }

    fn work(&self) -> usize {
        self.kept * (self.len * (self.prologue.cost() + 1) + self.epilogue.cost())
    }
}
