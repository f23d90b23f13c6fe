//! Element-wise kernels.
use super::code::{CHUNK, Code, Frame};
use super::cx::{Compile, Cx, Kernel};
use super::view::{Arg, Block};
use crate::par;
use bimetal_tensor::plan::Fused;
use bimetal_tensor::{ErrorKind, Result, Shape};

/// Elements of a task, about.
const TASK: usize = 16 * 1024;

/// A domain cut into blocks: whole rows where the innermost runs are short, parts of a row where they are long.
pub(crate) struct Walk {
    numel: usize,
    /// The row length, or the whole domain.
    row: usize,
    block: usize,
    task: usize,
}

impl Walk {
    /// Blocks of at most `most` elements over `numel` elements whose runs are `run` long.
    pub(crate) fn new(numel: usize, run: Option<usize>, most: usize) -> Walk {
        let row = run.unwrap_or(numel).max(1);
        let (block, task) = if run.is_some() && row <= most {
            let block = most / row * row;
            (block, TASK.div_ceil(block) * block)
        } else {
            // Parts of nearly equal size.
            let parts = row.div_ceil(most);
            let block = row.div_ceil(parts).next_multiple_of(16).min(most);
            (block, TASK)
        };
        Walk {
            numel,
            row,
            block: block.max(1),
            task,
        }
    }

    /// The number of tasks.
    pub(crate) fn tasks(&self) -> usize {
        par::pieces(self.numel, self.task)
    }

    /// Calls `f` with the blocks of task `t`.
    pub(crate) fn blocks(&self, t: usize, mut f: impl FnMut(Block)) {
        let range = par::piece(self.numel, self.task, t);
        let mut at = range.start;
        while at < range.end {
            let mut n = self.block.min(range.end - at);
            if self.row > self.block {
                n = n.min(self.row - at % self.row);
            }
            f(Block::linear(at, n));
            at += n;
        }
    }
}

/// An element-wise program over a domain.
pub(crate) struct Map {
    code: Code,
    walk: Walk,
}

impl Map {
    pub(crate) fn new(domain: &Shape, fused: &Fused, cx: &Compile<'_>) -> Result<Map> {
        let code = Code::new(fused, domain, cx)?;
        let walk = Walk::new(domain.numel(), code.run(), CHUNK);
        Ok(Map { code, walk })
    }
}

impl Kernel for Map {
    fn run(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        par::for_each(self.walk.tasks(), |t| {
            let mut frame = Frame::new(&self.code, cx);
            // SAFETY: blocks lie in the domain, and tasks have no element in common.
            self.walk.blocks(t, |b| unsafe { frame.run(&b, Arg::NONE) });
        });
        Ok(())
    }

    fn work(&self) -> usize {
        self.walk.numel * self.code.cost()
    }
}
