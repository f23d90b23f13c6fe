//! Programs for [`GROUP`] neighbours at once: what lies side by side is read together, and what is the same for all is read once.
use super::common::{GROUP, emit_store};
use crate::code::{Code, Loc, Op};
use crate::interpret::{place, step};
use crate::words::{self, Atomics, Buffers};
use cubecl::prelude::*;

/// How the elements of a group lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Neighbours {
    /// Side by side, from a multiple of the group's size on.
    Adjacent,
    /// All in one place.
    Same,
    Apart,
}

/// Groups begin at multiples of their size and lie in the domain.
fn neighbours(loc: &Loc) -> Neighbours {
    let group = GROUP as u32;
    let Some(((size, stride), outer)) = loc.axes.split_last() else {
        return Neighbours::Same;
    };
    match (size % group, *stride) {
        (0, 0) => Neighbours::Same,
        // Strides wrap, which keeps them multiples.
        (0, 1)
            if loc.offset.is_multiple_of(group)
                && outer.iter().all(|a| a.1.is_multiple_of(group)) =>
        {
            Neighbours::Adjacent
        }
        _ => Neighbours::Apart,
    }
}

fn load_of(op: &Op) -> Option<(Loc, Neighbours)> {
    match op {
        Op::Load(loc) => match neighbours(loc) {
            Neighbours::Apart => None,
            other => Some((loc.clone(), other)),
        },
        _ => None,
    }
}

/// The registers after a program ran for elements `first, first + 1, ...` of its domain, a file of them for each; `first` is a multiple of the group's size and
/// the whole group lies in the domain. `acc` has a sum for each. `wide`: the device reads several words by one instruction.
#[cube]
pub(crate) fn run_group(
    buffers: &Buffers,
    scalars: &[u32],
    first: u32,
    acc: &Sequence<u32>,
    #[comptime] wide: bool,
    #[comptime] code: Code,
) -> Sequence<Sequence<u32>> {
    let mut files = Sequence::<Sequence<u32>>::new();
    #[unroll]
    for _ in 0..GROUP {
        files.push(Sequence::<u32>::new());
    }
    #[unroll]
    for n in 0..comptime!(code.ops.len()) {
        let op = comptime!(code.ops[n].clone());
        let load = comptime!(load_of(&op));
        if comptime!(load.is_some()) {
            let (loc, how) = comptime!(load.clone().unwrap());
            let at = place(first, comptime!(loc.clone()));
            if comptime!(how == Neighbours::Same) {
                let value = words::load(buffers, comptime!(loc.binding), at, comptime!(loc.dtype));
                #[unroll]
                for j in 0..GROUP {
                    files.index_mut(j).push(value);
                }
            } else {
                let values = adjacent(buffers, at, wide, loc);
                #[unroll]
                for j in 0..GROUP {
                    files.index_mut(j).push(*values.index(j));
                }
            }
        } else {
            #[unroll]
            for j in 0..GROUP {
                let i = first + comptime!(j as u32);
                let value = step(
                    buffers,
                    scalars,
                    files.index(j),
                    i,
                    *acc.index(j),
                    comptime!(op.clone()),
                );
                files.index_mut(j).push(value);
            }
        }
    }
    files
}

/// A group's elements, from `at` on.
#[cube]
fn adjacent(
    buffers: &Buffers,
    at: u32,
    #[comptime] wide: bool,
    #[comptime] loc: Loc,
) -> Sequence<u32> {
    let size = comptime!(loc.dtype.size());
    let count = comptime!(GROUP * size / 4);
    let all = buffers.index(comptime!(loc.binding));
    let first = (at / comptime!(4 / size as u32)) as usize;
    let mut found = Sequence::<u32>::new();
    if comptime!(wide && count > 1) {
        let size!(W) = count;
        let vectors = all.as_vectorized().with_vector_size::<W>();
        let vector = vectors[first / count];
        #[unroll]
        for w in 0..count {
            found.push(vector.extract(w));
        }
    } else {
        #[unroll]
        for w in 0..count {
            found.push(all[first + w]);
        }
    }
    let per = comptime!(4 / size);
    let mut values = Sequence::<u32>::new();
    #[unroll]
    for j in 0..GROUP {
        let word = *found.index(comptime!(j / per));
        let value = words::element(word, comptime!((j % per) as u32), comptime!(loc.dtype));
        values.push(value);
    }
    values
}

/// Stores the results of a group's programs; the whole group lies in the domain.
#[cube]
pub(crate) fn emit_group(
    buffers: &mut Buffers,
    atomics: &Atomics,
    files: &Sequence<Sequence<u32>>,
    first: u32,
    #[comptime] wide: bool,
    #[comptime] code: Code,
) {
    #[unroll]
    for n in 0..comptime!(code.stores.len()) {
        let s = comptime!(code.stores[n].clone());
        let dtype = comptime!(s.to.dtype);
        let adjacent = comptime!(neighbours(&s.to) == Neighbours::Adjacent);
        let count = comptime!(GROUP * dtype.size() / 4);
        if comptime!(s.shared || !adjacent || !wide || count == 1) {
            emit_store(
                buffers,
                atomics,
                files,
                first,
                first + comptime!(GROUP as u32),
                s,
            );
        } else {
            let size!(W) = count;
            let per = comptime!(4 / dtype.size());
            let mut vector = Vector::<u32, W>::new(0u32);
            #[unroll]
            for w in 0..count {
                let mut word = 0u32.runtime();
                #[unroll]
                for j in 0..per {
                    let value = *files
                        .index(comptime!(w * per + j))
                        .index(comptime!(s.register));
                    word |= words::pack(value, dtype) << comptime!((j * 32 / per) as u32);
                }
                vector.insert(w, word);
            }
            let at = place(first, comptime!(s.to.clone())) as usize
                / comptime!(4 / dtype.size())
                / count;
            let all = buffers.index_mut(comptime!(s.to.binding));
            let vectors = all.as_vectorized_mut().with_vector_size_mut::<W>();
            vectors[at] = vector;
        }
    }
}
