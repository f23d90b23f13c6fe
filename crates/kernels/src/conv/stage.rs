//! Images as values of the accumulator type with their padding, so that windows are mere offsets.

use super::View4;
use crate::gemm::{Dst, Isa, Level, Real, Scratch, by_level};
use crate::par;
use std::ops::Range;

/// Values that are staged at a time.
/// Few in tests, so that small cases have several chunks.
pub const CHUNK_VALUES: usize = if cfg!(test) { 1 << 12 } else { 4 << 20 };

/// The layout of staged images: `[image, channel, row, phase, column]`, where column x of the padded
/// image is column `x / phases` of phase `x % phases`. So the columns that a strided convolution
/// reads for one element of its window lie together.
#[derive(Clone, Copy)]
pub struct Layout {
    pub channels: usize,
    pub size: [usize; 2],
    pub padding: [[usize; 2]; 2],
    pub phases: usize,
}

impl Layout {
    pub fn phase(&self) -> usize {
        (self.size[1] + self.padding[1][0] + self.padding[1][1]).div_ceil(self.phases)
    }

    pub fn row(&self) -> usize {
        self.phase() * self.phases
    }

    pub fn plane(&self) -> usize {
        self.row() * (self.size[0] + self.padding[0][0] + self.padding[0][1])
    }

    pub fn image(&self) -> usize {
        self.plane() * self.channels
    }

    /// Images to stage at a time.
    pub fn images(&self, batch: usize) -> usize {
        (CHUNK_VALUES / self.image().max(1)).clamp(1, batch.max(1))
    }

    /// Offset of padded row y and column x of a plane.
    pub fn at(&self, y: usize, x: usize) -> usize {
        y * self.row() + x % self.phases * self.phase() + x / self.phases
    }
}

/// Staged images.
pub struct Staged<T> {
    /// The first value of the first image.
    pub ptr: *const T,
    /// Values from one image to the next, one channel to the next, one row to the next.
    pub strides: [usize; 3],
    /// The memory, unless the images are used where they lie.
    _own: Option<Scratch>,
}

/// Stages some images of x.
///
/// # Safety
/// `x` readable for these images with the sizes of `layout`; it outlives the result.
pub unsafe fn stage<T: Real>(
    level: Level,
    x: &View4,
    images: Range<usize>,
    layout: &Layout,
) -> Staged<T> {
    let strides = x.strides.map(usize::try_from);
    if x.elements().is_plain::<T>()
        && layout.padding == [[0; 2]; 2]
        && layout.phases == 1
        && let [Ok(image), Ok(channel), Ok(row), Ok(1)] = strides
    {
        let ptr = x.at([images.start, 0, 0, 0]).cast();
        return Staged {
            ptr,
            strides: [image, channel, row],
            _own: None,
        };
    }
    let planes = images.len() * layout.channels;
    let own = Scratch::take::<T>(planes * layout.plane());
    let dst = Dst(own.ptr::<T>());
    // Small planes go several to a task.
    let together = (1 << 14) / layout.plane().max(1) + 1;
    par::for_each(par::pieces(planes, together), |t| {
        for p in par::piece(planes, together, t) {
            let (image, channel) = (p / layout.channels, p % layout.channels);
            let src = x.at([images.start + image, channel, 0, 0]);
            // SAFETY: each task writes its own planes.
            unsafe { plane(level, x, src, layout, dst.at(p * layout.plane())) }
        }
    });
    let strides = [layout.image(), layout.plane(), layout.row()];
    Staged {
        ptr: own.ptr(),
        strides,
        _own: Some(own),
    }
}

by_level!(
    /// One plane with its padding.
    fn plane<T: Real>(x: &View4, src: *const u8, layout: &Layout, dst: *mut T) = plane_body
);

#[inline(always)]
unsafe fn plane_body<I: Isa, T: Real>(x: &View4, src: *const u8, layout: &Layout, dst: *mut T) {
    let (row, [height, width]) = (layout.row(), layout.size);
    let [[top, _], [left, _]] = layout.padding;
    if layout.padding == [[0; 2]; 2]
        && layout.phases == 1
        && x.strides[3] == 1
        && x.strides[2] == width as isize
    {
        // SAFETY: the plane is one row in both.
        return unsafe {
            x.elements()
                .load::<I, T>(src, x.strides[3], height * width, dst)
        };
    }
    let spread = (layout.phases > 1).then(|| Scratch::take::<T>(width));
    // SAFETY: rows of the source, and a plane of the destination, of these sizes.
    unsafe {
        // Zeros everywhere: planes are small and stay in the cache until they are filled.
        std::slice::from_raw_parts_mut(dst, layout.plane()).fill(T::default());
        for y in 0..height {
            let src = src.wrapping_offset(y as isize * x.strides[2] * x.dtype.size() as isize);
            let dst = dst.add((top + y) * row);
            match &spread {
                None => x
                    .elements()
                    .load::<I, T>(src, x.strides[3], width, dst.add(left)),
                Some(values) => {
                    let values = values.ptr::<T>();
                    x.elements().load::<I, T>(src, x.strides[3], width, values);
                    for phase in 0..layout.phases {
                        // The first column of the image in this phase.
                        let skip = (phase + layout.phases - left % layout.phases) % layout.phases;
                        let dst = dst.add(layout.at(0, left + skip));
                        for (j, i) in (skip..width).step_by(layout.phases).enumerate() {
                            *dst.add(j) = *values.add(i);
                        }
                    }
                }
            }
        }
    }
}
