//! Pairs of sizes.

/// Height and width; one number stands for both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size2d {
    /// Along the second-last axis.
    pub height: usize,
    /// Along the last axis.
    pub width: usize,
}

impl Size2d {
    /// Both, as attributes of operations hold them.
    pub(crate) fn attr(self) -> [u32; 2] {
        [self.height, self.width].map(clip)
    }
}

/// A size as an attribute; sizes beyond 32 bits fit no tensor and fail in the operation's check.
pub(crate) fn clip(n: usize) -> u32 {
    n.min(u32::MAX as usize) as u32
}

impl From<usize> for Size2d {
    fn from(n: usize) -> Size2d {
        Size2d {
            height: n,
            width: n,
        }
    }
}

impl From<(usize, usize)> for Size2d {
    fn from((height, width): (usize, usize)) -> Size2d {
        Size2d { height, width }
    }
}

impl From<[usize; 2]> for Size2d {
    fn from([height, width]: [usize; 2]) -> Size2d {
        Size2d { height, width }
    }
}
