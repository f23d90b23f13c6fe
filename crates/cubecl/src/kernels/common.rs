//! What kernels share: building their programs, and storing what programs leave.
use crate::backend::Limits;
use crate::code::{Code, Loc, Store};
use crate::interpret::place;
use crate::plan::{Bound, Cx};
use crate::words::{self, Atomics, Buffers};
use bimetal_tensor::plan::{Access, Dense, Fused, Place, Plan, register};
use bimetal_tensor::{DType, Shape};
use cubecl::prelude::*;
use cubecl::server::Handle;

/// A plan while a step of it is built.
pub(super) struct Build<'a> {
    pub(super) plan: &'a Plan,
    pub(super) step: usize,
    pub(super) limits: &'a Limits,
}

/// Elements that a unit computes together, so that what is stored fills words.
pub(super) const GROUP: usize = 4;

/// Which dense stores of small elements fill words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Runs {
    /// A unit has one element.
    Single,
    /// A unit has [`GROUP`] elements from a multiple of it, or fewer at the end of a run of this length, which starts anywhere.
    Of(usize),
    /// The same where the only run is the whole domain.
    Whole,
}

impl Build<'_> {
    /// The number of elements of a domain, which kernels count in 32 bits.
    pub(super) fn numel(&self, domain: &Shape) -> Result<usize, String> {
        let n = domain.numel();
        match n < (u32::MAX - 1024) as usize {
            true => Ok(n),
            false => Err(format!(
                "{n} elements are more than kernels count (2^32); split the tensor"
            )),
        }
    }

    /// A program over `domain`.
    pub(super) fn code(
        &self,
        fused: &Fused,
        domain: &Shape,
        runs: Runs,
        bound: &mut Bound,
    ) -> Code {
        // Both closures number bindings of the same kernel.
        let cell = std::cell::RefCell::new(bound);
        let place = |a: &Access| self.same_place(a.buf as usize);
        Code::new(
            fused,
            domain,
            |a| cell.borrow_mut().buffer(place(a)),
            |a, loc| {
                let shared = !fills(loc, runs);
                let mut bound = cell.borrow_mut();
                match shared {
                    true => (bound.atomic(place(a)), true),
                    false => (bound.buffer(place(a)), false),
                }
            },
        )
    }

    /// The first buffer in the same place: what is bound twice may be read before it is written.
    pub(super) fn same_place(&self, buf: usize) -> usize {
        let want = self.plan.buffers[buf].place;
        match want {
            Place::Arena(_) => buf,
            _ => self
                .plan
                .buffers
                .iter()
                .position(|b| b.place == want)
                .unwrap_or(buf),
        }
    }

    /// Whether the step writes state, which it must not after a fault.
    pub(super) fn guarded(&self) -> bool {
        self.step >= self.plan.first_write
    }
}

/// Whether stores to `loc` fill words.
fn fills(loc: &Loc, runs: Runs) -> bool {
    let per = 4 / loc.dtype.size();
    match runs {
        _ if per == 1 => true,
        Runs::Single => false,
        Runs::Of(run) => loc.is_dense() && run.is_multiple_of(per),
        Runs::Whole => loc.is_dense(),
    }
}

/// The index expression of an operand, as a program's load has it.
pub(super) fn loc(access: &Access, domain: &Shape, binding: usize) -> Loc {
    Loc::new(access, domain, binding)
}

/// Whether registers of `dtype` are floats.
pub(super) fn is_float(dtype: DType) -> bool {
    register(dtype) == DType::F32
}

/// Stores the results of [`GROUP`] programs for elements `i, i + 1, ...`, as far as they lie before `end`.
#[cube]
pub(super) fn emit(
    buffers: &mut Buffers,
    atomics: &Atomics,
    files: &Sequence<Sequence<u32>>,
    i: u32,
    end: u32,
    #[comptime] code: Code,
) {
    #[unroll]
    for n in 0..comptime!(code.stores.len()) {
        emit_store(
            buffers,
            atomics,
            files,
            i,
            end,
            comptime!(code.stores[n].clone()),
        );
    }
}

/// One result of them.
#[cube]
pub(super) fn emit_store(
    buffers: &mut Buffers,
    atomics: &Atomics,
    files: &Sequence<Sequence<u32>>,
    i: u32,
    end: u32,
    #[comptime] s: Store,
) {
    let count = comptime!(files.len());
    let dtype = comptime!(s.to.dtype);
    let per = comptime!(4 / dtype.size());
    if comptime!(s.shared || per == 1) {
        #[unroll]
        for j in 0..count {
            let at = i + comptime!(j as u32);
            if at < end {
                let value = *files.index(j).index(comptime!(s.register));
                let to = place(at, comptime!(s.to.clone()));
                if comptime!(s.shared) {
                    words::store_part(atomics, comptime!(s.to.binding), to, value, dtype);
                } else {
                    let words = buffers.index_mut(comptime!(s.to.binding));
                    words[to as usize] = value;
                }
            }
        }
    } else {
        #[unroll]
        for g in 0..comptime!(count / per) {
            let first = i + comptime!((g * per) as u32);
            if first < end {
                let mut word = 0u32.runtime();
                #[unroll]
                for j in 0..per {
                    let value = *files
                        .index(comptime!(g * per + j))
                        .index(comptime!(s.register));
                    word |= words::pack(value, dtype) << comptime!((j * 32 / per) as u32);
                }
                let words = buffers.index_mut(comptime!(s.to.binding));
                words[(first / comptime!(per as u32)) as usize] = word;
            }
        }
    }
}

/// Stores [`GROUP`] registers as elements `first, first + 1, ...` of a dense buffer, as far as they lie before `end`; `first` is a multiple of [`GROUP`].
#[cube]
pub(super) fn put(
    buffers: &mut Buffers,
    values: &Sequence<u32>,
    first: u32,
    end: u32,
    #[comptime] binding: usize,
    #[comptime] dtype: DType,
) {
    let per = comptime!(4 / dtype.size());
    #[unroll]
    for g in 0..comptime!(GROUP / per) {
        let at = first + comptime!((g * per) as u32);
        if at < end {
            let mut word = 0u32.runtime();
            #[unroll]
            for j in 0..per {
                let value = *values.index(comptime!(g * per + j));
                word |= words::pack(value, dtype) << comptime!((j * 32 / per) as u32);
            }
            let words = buffers.index_mut(binding);
            words[(at / comptime!(per as u32)) as usize] = word;
        }
    }
}

/// A dense operand of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slab {
    pub(super) binding: usize,
    pub(super) dtype: DType,
}

#[cube]
pub(super) fn get(buffers: &Buffers, at: u32, #[comptime] s: Slab) -> u32 {
    words::load(buffers, comptime!(s.binding), at, comptime!(s.dtype))
}

impl Build<'_> {
    /// Binds a dense operand.
    pub(super) fn slab(&self, d: &Dense, bound: &mut Bound) -> Result<Slab, String> {
        self.numel(&d.shape)?;
        Ok(Slab {
            binding: bound.buffer(self.same_place(d.buf as usize)),
            dtype: d.dtype,
        })
    }
}

/// Words that one kernel leaves for the next, in no buffer of the plan.
pub(super) struct Scratch {
    handle: Handle,
    words: usize,
}

impl Scratch {
    pub(super) fn new(cx: &Cx<'_>, words: usize) -> Scratch {
        Scratch {
            handle: cx.scratch(4 * words),
            words,
        }
    }

    /// As an argument of a launch.
    pub(super) fn arg(&self) -> BufferArg {
        // SAFETY: the handle has as many words.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.words) }
    }
}

/// Units of a cube of kernels that give each unit its own elements.
pub(super) const UNITS: u32 = 64;

/// The grid of a kernel whose units have `each` of `numel` elements.
pub(super) fn spread(cx: &Cx<'_>, numel: usize, each: usize) -> (CubeCount, CubeDim) {
    let units = UNITS.min(cx.device.limits.max_units);
    (
        cx.grid(numel.div_ceil(each * units as usize)),
        CubeDim::new_1d(units),
    )
}
