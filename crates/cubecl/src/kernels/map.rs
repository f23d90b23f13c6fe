//! Element-wise programs.
use super::Launch;
use super::common::{Build, GROUP, Runs, emit};
use super::group::{emit_group, run_group};
use crate::code::Code;
use crate::interpret::run;
use crate::plan::{Bound, Cx};
use crate::words::{Atomics, Buffers};
use bimetal_tensor::plan::{BufId, Fused};
use bimetal_tensor::{ErrorKind, Shape};
use cubecl::prelude::*;

/// Units of a cube.
const UNITS: u32 = 256;

#[cube(launch_unchecked)]
fn map_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    scalars: &[u32],
    fault: &[u32],
    numel: u32,
    #[comptime] code: Code,
    #[comptime] cut: Cut,
    #[comptime] guarded: bool,
) {
    let group = comptime!(cut.group());
    let first = ABSOLUTE_POS as u32 * comptime!(group as u32);
    if first >= numel {
        terminate!();
    }
    if comptime!(guarded) {
        // An index was outside of its axis: the step does not apply.
        if fault[0] != 0u32 {
            terminate!();
        }
    }
    if comptime!(cut == Cut::Groups || cut == Cut::WideGroups) {
        let mut none = Sequence::<u32>::new();
        #[unroll]
        for _ in 0..GROUP {
            none.push(0u32.runtime());
        }
        let wide = comptime!(cut == Cut::WideGroups);
        let files = run_group(
            &buffers,
            scalars,
            first,
            &none,
            wide,
            comptime!(code.clone()),
        );
        emit_group(&mut buffers, &atomics, &files, first, wide, code);
    } else {
        let mut files = Sequence::<Sequence<u32>>::new();
        #[unroll]
        for j in 0..group {
            // Past the end the last element is computed again, and not stored.
            let i = min(first + comptime!(j as u32), numel - 1u32);
            let file = run(&buffers, scalars, i, 0u32, comptime!(code.clone()));
            files.push(file);
        }
        emit(&mut buffers, &atomics, &files, first, numel, code);
    }
}

/// What of a domain one unit has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cut {
    One,
    /// [`GROUP`] elements, fewer at the end.
    Ragged,
    /// [`GROUP`] elements.
    Groups,
    /// The same on a device that reads several words by one instruction.
    WideGroups,
}

impl Cut {
    fn group(self) -> usize {
        match self {
            Cut::One => 1,
            _ => GROUP,
        }
    }
}

/// An element-wise program over a domain.
pub(super) struct Map {
    code: Code,
    bound: Bound,
    numel: usize,
    cut: Cut,
    guarded: bool,
}

impl Map {
    pub(super) fn new(b: &Build<'_>, domain: &Shape, fused: &Fused) -> Result<Map, String> {
        let numel = b.numel(domain)?;
        let mut bound = Bound::default();
        let code = b.code(fused, domain, Runs::Whole, &mut bound);
        let small = code.stores.iter().any(|s| s.to.dtype.size() < 4);
        let wide = b.limits.matrix.wide_loads;
        let cut = match (numel.is_multiple_of(GROUP), small) {
            (true, _) if wide => Cut::WideGroups,
            (true, true) => Cut::Groups,
            (false, true) => Cut::Ragged,
            (_, false) => Cut::One,
        };
        Ok(Map {
            code,
            bound,
            numel,
            cut,
            guarded: b.guarded(),
        })
    }
}

impl Launch for Map {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        if self.numel == 0 {
            return Ok(());
        }
        let units = UNITS.min(cx.device.limits.max_units);
        let cubes = self.numel.div_ceil(self.cut.group() * units as usize);
        let (buffers, atomics) = cx.bind(&self.bound);
        // SAFETY: accesses lie in their buffers, as the scheduler made them, and units past the end stop.
        unsafe {
            map_kernel::launch_unchecked(
                &cx.device.client,
                cx.grid(cubes),
                CubeDim::new_1d(units),
                buffers,
                atomics,
                cx.scalars(),
                cx.fault(),
                self.numel as u32,
                self.code.clone(),
                self.cut,
                self.guarded,
            )
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }
}

#[cube(launch_unchecked)]
fn zero_kernel(words: &mut [u32], count: u32) {
    let i = ABSOLUTE_POS as u32;
    if i < count {
        words[i as usize] = 0u32;
    }
}

/// Zeros in a whole buffer.
pub(super) struct Zero {
    buffer: usize,
}

impl Zero {
    pub(super) fn new(buffer: BufId) -> Zero {
        Zero {
            buffer: buffer as usize,
        }
    }
}

impl Launch for Zero {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        let count = cx.words(self.buffer);
        let units = UNITS.min(cx.device.limits.max_units);
        // SAFETY: units past the end do nothing.
        unsafe {
            zero_kernel::launch_unchecked(
                &cx.device.client,
                cx.grid(count.div_ceil(units as usize)),
                CubeDim::new_1d(units),
                cx.buffer(self.buffer),
                count as u32,
            )
        };
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        vec![self.buffer]
    }
}
