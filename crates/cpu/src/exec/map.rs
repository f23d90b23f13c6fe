//! Element-wise kernels.
use super::code::{CHUNK, Code};
use super::cx::{Compile, Cx, Kernel};
use super::frame::Frame;
use super::view::{Arg, Block};
use bimetal_kernels::par;
use bimetal_tensor::plan::{Access, Fused};
use bimetal_tensor::{ErrorKind, Result, Shape};

/// Elements of a task, about.
const TASK: usize = 16 * 1024;
/// Rows and columns of a tile: a row is two cache lines of f32.
const TILE: usize = 32;

/// How a domain is cut into blocks and tasks; it depends on the program's accesses alone.
enum Walk {
    /// In memory order: whole rows where the innermost runs are short, parts of a row where they are long.
    Rows {
        numel: usize,
        /// The row length, or the whole domain.
        row: usize,
        block: usize,
        task: usize,
    },
    /// Tiles of two axes, so that an operand stored transposed is read along its memory too.
    Tiles {
        /// Sizes of the tiled axes; the second is the last one.
        size: [usize; 2],
        /// Elements from one index of the first tiled axis to the next, and of the axes before it.
        pitch: usize,
        /// Indices of all other axes.
        others: usize,
        /// Bands of tiles in a task.
        together: usize,
    },
}

impl Walk {
    fn rows(numel: usize, run: Option<usize>) -> Walk {
        let row = run.unwrap_or(numel).max(1);
        let (block, task) = if run.is_some() && row <= CHUNK {
            // A long row alone: what is broadcast along it is then read where it lies.
            let block = if row >= 256 { row } else { CHUNK / row * row };
            (block, TASK.div_ceil(block) * block)
        } else {
            // Parts of nearly equal size.
            let parts = row.div_ceil(CHUNK);
            let block = row.div_ceil(parts).next_multiple_of(16).min(CHUNK);
            (block.max(1), TASK)
        };
        Walk::Rows {
            numel,
            row,
            block,
            task,
        }
    }

    fn tiles(domain: &Shape, axis: usize) -> Walk {
        let last = last_axis(domain).unwrap_or(0);
        let size = [domain[axis], domain[last]];
        Walk::Tiles {
            size,
            pitch: domain[axis + 1..].iter().product(),
            others: domain.numel() / (size[0] * size[1]),
            together: (TASK / (TILE * size[1])).max(1),
        }
    }

    fn tasks(&self) -> usize {
        match self {
            Walk::Rows { numel, task, .. } => par::pieces(*numel, *task),
            Walk::Tiles {
                size,
                others,
                together,
                ..
            } => par::pieces(others * par::pieces(size[0], TILE), *together),
        }
    }

    /// Calls `f` with the blocks of task `t`.
    fn blocks(&self, t: usize, mut f: impl FnMut(Block)) {
        match *self {
            Walk::Rows {
                numel,
                row,
                block,
                task,
            } => {
                let range = par::piece(numel, task, t);
                let mut at = range.start;
                while at < range.end {
                    let mut n = block.min(range.end - at);
                    if row > block {
                        n = n.min(row - at % row);
                    }
                    f(Block::linear(at, n));
                    at += n;
                }
            }
            Walk::Tiles {
                size: [rows, cols],
                pitch,
                others,
                together,
            } => {
                let bands = par::pieces(rows, TILE);
                for band in par::piece(others * bands, together, t) {
                    let (other, band) = (band / bands, band % bands);
                    let band = par::piece(rows, TILE, band);
                    // The axes between the two tiled ones come first in `other`.
                    let between = pitch / cols;
                    let base = other / between * rows * pitch + other % between * cols;
                    for col in (0..cols).step_by(TILE) {
                        let start = base + band.start * pitch + col;
                        let width = TILE.min(cols - col);
                        f(Block {
                            start,
                            rows: band.len(),
                            cols: width,
                            pitch,
                        });
                    }
                }
            }
        }
    }
}

/// The last axis with more than one element.
fn last_axis(domain: &Shape) -> Option<usize> {
    (0..domain.rank()).rev().find(|a| domain[*a] > 1)
}

/// The axis along which an input lies in memory that is walked with long steps along the last axis.
fn turned_axis(domain: &Shape, inputs: &[Access]) -> Option<usize> {
    let last = last_axis(domain)?;
    if domain[last] < 8 || domain.numel() < 2 * CHUNK {
        return None;
    }
    inputs
        .iter()
        .filter(|a| a.strides[last].unsigned_abs() > 1)
        .find_map(|a| (0..last).find(|i| domain[*i] >= 8 && a.strides[*i] == 1))
}

/// An element-wise program over a domain.
pub(crate) struct Map {
    code: Code,
    walk: Walk,
    numel: usize,
}

impl Map {
    pub(crate) fn new(domain: &Shape, fused: &Fused, cx: &Compile<'_>) -> Result<Map> {
        let mut code = Code::new(fused, domain, cx)?;
        let walk = match turned_axis(domain, &fused.inputs) {
            Some(axis) => {
                code.tile(fused, axis, last_axis(domain).unwrap_or(0));
                Walk::tiles(domain, axis)
            }
            None => {
                code.ask_ahead();
                Walk::rows(domain.numel(), code.run())
            }
        };
        Ok(Map {
            code,
            walk,
            numel: domain.numel(),
        })
    }
}

impl Kernel for Map {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        par::for_each(self.walk.tasks(), |t| {
            let mut frame = Frame::new(&self.code, cx);
            // SAFETY: blocks lie in the domain, and tasks have no element in common.
            self.walk.blocks(t, |b| unsafe { frame.run(&b, Arg::NONE) });
        });
        Ok(())
    }

    fn work(&self) -> usize {
        self.numel * self.code.cost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_one_block() {
        let shape = |d: &[usize]| Shape::new(d).unwrap();
        let walks = [
            Walk::rows(100_003, None),
            Walk::rows(70 * 1000, Some(70)),
            Walk::rows(5 * 3001, Some(3001)),
            Walk::tiles(&shape(&[100, 70]), 0),
            Walk::tiles(&shape(&[9, 40, 33]), 0),
            Walk::tiles(&shape(&[9, 40, 33, 1]), 1),
        ];
        for (i, n) in [100_003, 70_000, 15_005 - 2, 7000, 9 * 40 * 33, 9 * 40 * 33]
            .into_iter()
            .enumerate()
        {
            let n = if i == 2 { 5 * 3001 } else { n };
            let mut seen = vec![0; n];
            for t in 0..walks[i].tasks() {
                walks[i].blocks(t, |b| {
                    assert!(b.len() <= CHUNK);
                    for r in 0..b.rows {
                        for c in 0..b.cols {
                            seen[b.start + r * b.pitch + c] += 1;
                        }
                    }
                });
            }
            assert!(seen.iter().all(|s| *s == 1), "walk {i}");
        }
    }
}
