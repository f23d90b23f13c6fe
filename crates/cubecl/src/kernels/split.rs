//! Products whose sum is cut into parts that are computed side by side: each leaves its sums in words, which a second launch adds up and stores.
//!
//! A product of few rows and columns with a long sum, as the gradient of a convolution's weight is, would otherwise keep a few multiprocessors busy and all others idle.
use super::common::{GROUP, Scratch, emit, spread};
use crate::code::{Code, Loc, Op, Store};
use crate::interpret::{combine, run};
use crate::plan::{Bound, Cx};
use crate::words::{Atomics, Buffers};
use bimetal_tensor::DType;
use bimetal_tensor::graph::ReduceOp;
use cubecl::prelude::*;

/// How a sum is cut; the default is into one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Split {
    /// Parts, or 0 if the sum is whole.
    pub(crate) parts: u32,
    /// Steps of a part, all but the last one's.
    pub(crate) steps: u32,
    /// Matrices of the product; 0 if the sum is whole.
    pub(crate) batch: u32,
}

/// The most words that parts leave.
const MOST_WORDS: usize = 1 << 26;

impl Split {
    /// For a product of `cubes` cubes and `batch` matrices with `numel` elements in all, whose sum has `steps` steps: about `want` cubes, each of at least `least` steps.
    pub(crate) fn choose(
        cubes: usize,
        batch: usize,
        numel: usize,
        steps: u32,
        [want, least]: [usize; 2],
    ) -> Split {
        let parts = (want / cubes.max(1))
            .min(steps as usize / least.max(1))
            .min(MOST_WORDS / numel.max(1))
            .min(65535 / batch.max(1));
        if parts < 2 {
            return Split::default();
        }
        let each = steps.div_ceil(parts as u32);
        Split {
            parts: steps.div_ceil(each),
            steps: each,
            batch: batch as u32,
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.parts == 0
    }

    /// Matrices with all their parts.
    pub(crate) fn matrices(&self, batch: usize) -> usize {
        batch * self.parts.max(1) as usize
    }
}

/// The matrix that a cube computes a part of: `z` counts the matrices of the first part, then those of the next.
#[cube]
pub(crate) fn matrix(z: u32, #[comptime] s: Split) -> u32 {
    if comptime!(s.is_whole()) {
        z
    } else {
        z % comptime!(s.batch)
    }
}

/// The first step of a cube's part of the sum, and the one behind the last.
#[cube]
pub(crate) fn steps(z: u32, #[comptime] all: u32, #[comptime] s: Split) -> (u32, u32) {
    let mut first = 0u32.runtime();
    let mut end = all.runtime();
    if comptime!(!s.is_whole()) {
        first = (z / comptime!(s.batch)) * comptime!(s.steps);
        end = min(first + comptime!(s.steps), end);
    }
    (first, end)
}

/// The program of a part: it stores the sums as words behind all else that is bound.
pub(crate) fn store(binding: usize, numel: usize) -> Code {
    let to = Loc {
        binding,
        dtype: DType::U32,
        offset: 0,
        axes: vec![(numel as u32, 1)],
    };
    Code {
        ops: vec![Op::Acc],
        stores: vec![Store {
            register: 0,
            to,
            shared: false,
        }],
        result: 0,
    }
}

/// The bindings of a part: the first `operands` ones of the whole product.
pub(crate) fn operands(bound: &Bound, operands: usize) -> Bound {
    Bound {
        buffers: bound.buffers[..operands].to_vec(),
        atomics: Vec::new(),
    }
}

#[cube(launch_unchecked)]
fn join_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    words: &[u32],
    scalars: &[u32],
    fault: &[u32],
    numel: u32,
    parts: u32,
    #[comptime] ty: DType,
    #[comptime] guarded: bool,
    #[comptime] epilogue: Code,
) {
    if comptime!(guarded) {
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    let first = ABSOLUTE_POS as u32 * comptime!(GROUP as u32);
    if first >= numel {
        terminate!();
    }
    let mut sums = Array::<u32>::new(GROUP);
    #[unroll]
    for j in 0..GROUP {
        sums[j] = 0u32;
    }
    for part in 0..parts {
        #[unroll]
        for j in 0..GROUP {
            let i = min(first + comptime!(j as u32), numel - 1u32);
            let word = words[(part * numel + i) as usize];
            sums[j] = combine(sums[j], word, ReduceOp::Sum, ty);
        }
    }
    let mut files = Sequence::<Sequence<u32>>::new();
    #[unroll]
    for j in 0..GROUP {
        let i = min(first + comptime!(j as u32), numel - 1u32);
        let file = run(&buffers, scalars, i, sums[j], comptime!(epilogue.clone()));
        files.push(file);
    }
    emit(&mut buffers, &atomics, &files, first, numel, epilogue);
}

/// Adds up what `parts` parts of a product of `numel` elements left, and stores it through the epilogue.
pub(crate) fn join(
    cx: &Cx<'_>,
    bound: &Bound,
    words: &Scratch,
    numel: usize,
    parts: u32,
    float: bool,
    guarded: bool,
    epilogue: &Code,
) {
    let (buffers, atomics) = cx.bind(bound);
    let (count, dim) = spread(cx, numel, GROUP);
    // SAFETY: the words are as many as all parts have elements, and elements past the end are neither read nor stored.
    unsafe {
        join_kernel::launch_unchecked(
            &cx.device.client,
            count,
            dim,
            buffers,
            atomics,
            words.arg(),
            cx.scalars(),
            cx.fault(),
            numel as u32,
            parts,
            if float { DType::F32 } else { DType::U32 },
            guarded,
            epilogue.clone(),
        )
    };
}
