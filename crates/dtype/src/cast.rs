//! Casts between all pairs of element types.

use super::element::Wide;
use super::{DType, DTypeError, Element, F8E4M3, F8E5M2};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// What a cast to an 8- or 16-bit float makes of values beyond its range; other targets ignore it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CastMode {
    /// Infinity, or NaN in `F8E4M3`, which has no infinity: as IEEE 754, PyTorch and `ml_dtypes`.
    #[default]
    Nonsaturating,
    /// The largest finite value of its sign, for infinities too; NaN stays NaN.
    Saturating,
}

/// Casts a dense buffer of `from` elements to a dense buffer of `to` elements.
///
/// - To a float: rounded once, to nearest even, from the exact source value, whatever the source.
/// - From a float to an integer: truncated toward zero, saturated at the bounds; NaN gives 0.
/// - From an integer to an integer: wraps (two's complement), as in PyTorch and NumPy.
/// - To `Bool`: whether the value differs from 0, so NaN is true. From `Bool`: 0 or 1.
/// - Between equal types: the bytes are copied in either mode (`Bool` is normalised to 0 and 1).
///
/// Both buffers may have any alignment. Fails if `src` does not hold whole elements or `dst` does
/// not hold as many as `src`.
pub fn cast_slice(
    src: &[u8],
    from: DType,
    dst: &mut [u8],
    to: DType,
    mode: CastMode,
) -> Result<(), DTypeError> {
    if !src.len().is_multiple_of(from.size()) {
        return Err(DTypeError::Length {
            dtype: from,
            found: src.len(),
            expected: None,
        });
    }
    let expected = src.len() / from.size() * to.size();
    if dst.len() != expected {
        return Err(DTypeError::Length {
            dtype: to,
            found: dst.len(),
            expected: Some(expected),
        });
    }
    if from == to && to != DType::Bool {
        dst.copy_from_slice(src);
        return Ok(());
    }
    if mode == CastMode::Nonsaturating && hardware_f16(src, from, dst, to) {
        return Ok(());
    }
    match from {
        DType::Bool => cast_from::<bool>(src, dst, to, mode),
        DType::U8 => cast_from::<u8>(src, dst, to, mode),
        DType::U32 => cast_from::<u32>(src, dst, to, mode),
        DType::I32 => cast_from::<i32>(src, dst, to, mode),
        DType::I64 => cast_from::<i64>(src, dst, to, mode),
        DType::F8E4M3 => cast_from::<F8E4M3>(src, dst, to, mode),
        DType::F8E5M2 => cast_from::<F8E5M2>(src, dst, to, mode),
        DType::F16 => cast_from::<f16>(src, dst, to, mode),
        DType::BF16 => cast_from::<bf16>(src, dst, to, mode),
        DType::F32 => cast_from::<f32>(src, dst, to, mode),
        DType::F64 => cast_from::<f64>(src, dst, to, mode),
    }
    Ok(())
}

/// Casts between `F16` and `F32` by the processor's conversion instructions where it has them; says
/// whether it did. The bits are those of the portable loops.
fn hardware_f16(src: &[u8], from: DType, dst: &mut [u8], to: DType) -> bool {
    match (from, to) {
        (DType::F16, DType::F32) => {
            if let (Ok(src), Ok(dst)) = (
                bytemuck::try_cast_slice::<u8, f16>(src),
                bytemuck::try_cast_slice_mut::<u8, f32>(dst),
            ) {
                src.convert_to_f32_slice(dst);
                return true;
            }
        }
        (DType::F32, DType::F16) => {
            if let (Ok(src), Ok(dst)) = (
                bytemuck::try_cast_slice::<u8, f32>(src),
                bytemuck::try_cast_slice_mut::<u8, f16>(dst),
            ) {
                dst.convert_from_f32_slice(src);
                return true;
            }
        }
        _ => {}
    }
    false
}

fn cast_from<S: Element>(src: &[u8], dst: &mut [u8], to: DType, mode: CastMode) {
    match to {
        DType::Bool => cast::<S, bool, false>(src, dst),
        DType::U8 => cast::<S, u8, false>(src, dst),
        DType::U32 => cast::<S, u32, false>(src, dst),
        DType::I32 => cast::<S, i32, false>(src, dst),
        DType::I64 => cast::<S, i64, false>(src, dst),
        DType::F8E4M3 => cast_mini::<S, F8E4M3>(src, dst, mode),
        DType::F8E5M2 => cast_mini::<S, F8E5M2>(src, dst, mode),
        DType::F16 => cast_mini::<S, f16>(src, dst, mode),
        DType::BF16 => cast_mini::<S, bf16>(src, dst, mode),
        DType::F32 => cast::<S, f32, false>(src, dst),
        DType::F64 => cast::<S, f64, false>(src, dst),
    }
}

fn cast_mini<S: Element, T: Element>(src: &[u8], dst: &mut [u8], mode: CastMode) {
    match mode {
        CastMode::Nonsaturating => cast::<S, T, false>(src, dst),
        CastMode::Saturating => cast::<S, T, true>(src, dst),
    }
}

fn cast<S: Element, T: Element, const SATURATE: bool>(src: &[u8], dst: &mut [u8]) {
    let from = src.chunks_exact(size_of::<S>());
    let to = dst.chunks_exact_mut(size_of::<T>());
    for (from, to) in from.zip(to) {
        S::load(from).widen().narrow::<T, SATURATE>().store(to);
    }
}
