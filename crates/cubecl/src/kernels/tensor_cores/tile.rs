//! The parts into which a product is cut: what a cube, a plane and one instruction compute.
use crate::matrix_units::{MatrixUnits, UnitShape};

/// Sizes of a cube's part of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    /// Planes along rows and columns.
    pub(crate) planes_m: u32,
    pub(crate) planes_n: u32,
    /// Units of a plane.
    pub(crate) plane: u32,
    /// Sizes of one instruction.
    pub(crate) unit: UnitShape,
}

impl Tile {
    /// Units of a cube.
    pub(crate) fn units(&self) -> u32 {
        self.planes_m * self.planes_n * self.plane
    }

    /// Instructions of a plane along rows.
    pub(crate) fn across_m(&self) -> usize {
        (self.m / self.planes_m / self.unit[0]) as usize
    }

    /// Instructions of a plane along columns.
    pub(crate) fn across_n(&self) -> usize {
        (self.n / self.planes_n / self.unit[1]) as usize
    }

    /// Columns of a plane.
    pub(crate) fn columns(&self) -> u32 {
        self.n / self.planes_n
    }

    /// The tile for a product. A cube should have much to do between two barriers, but there must be a cube for every multiprocessor.
    pub(crate) fn choose(
        [m, n]: [u32; 2],
        batch: usize,
        unit: UnitShape,
        k: u32,
        units: &MatrixUnits,
    ) -> Tile {
        let tile = |m, n, planes_m, planes_n| Tile {
            m,
            n,
            k,
            planes_m,
            planes_n,
            plane: units.plane,
            unit,
        };
        if unit[0] < 16 {
            // Software drivers: compiling costs more than running.
            return tile(4 * unit[0], 4 * unit[1], 2, 2);
        }
        let cubes = |t: &Tile| m.div_ceil(t.m) as usize * n.div_ceil(t.n) as usize * batch;
        let large = tile(128, 128, 2, 4);
        match (m, n) {
            (..=32, 33..) => tile(32, 128, 1, 4),
            (33.., ..=32) => tile(128, 32, 4, 1),
            _ if cubes(&large) >= units.processors as usize => large,
            _ => tile(64, 64, 2, 2),
        }
    }
}
