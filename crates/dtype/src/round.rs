//! Rounding to the values of an element type without leaving f64 or f32.

use super::minifloat::{MiniFloat, f64_to_f32_odd, round, round_stochastic};
use super::{CastMode, DType, F8E4M3, F8E5M2};
use half::{bf16, f16};

/// The value that a non-saturating cast of `value` to `to` gives, as f64.
///
/// Floats round once to nearest even; integers truncate toward zero, saturate and make NaN 0 (the
/// bounds of `I64` are then themselves rounded to f64); `Bool` is 0 or 1.
pub fn round_f64(value: f64, to: DType) -> f64 {
    match to {
        DType::F64 => value,
        DType::F32 => value as f32 as f64,
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => {
            round_f32(f64_to_f32_odd(value), to) as f64
        }
        DType::Bool => (value != 0.0) as u8 as f64,
        DType::U8 => value as u8 as f64,
        DType::U32 => value as u32 as f64,
        DType::I32 => value as i32 as f64,
        DType::I64 => value as i64 as f64,
    }
}

/// The value that a non-saturating cast of `value` to `to` gives, as f32.
///
/// As [`round_f64`]; the bounds of `U32`, `I32` and `I64` are themselves rounded to f32. In a loop
/// over many values [`round_f32_slice`] is faster.
#[inline]
pub fn round_f32(value: f32, to: DType) -> f32 {
    match to {
        DType::F32 | DType::F64 => value,
        DType::F16 => round::<f16, false>(value),
        DType::BF16 => round::<bf16, false>(value),
        DType::F8E4M3 => round::<F8E4M3, false>(value),
        DType::F8E5M2 => round::<F8E5M2, false>(value),
        DType::Bool => (value != 0.0) as u8 as f32,
        DType::U8 => value as u8 as f32,
        DType::U32 => value as u32 as f32,
        DType::I32 => value as i32 as f32,
        DType::I64 => value as i64 as f32,
    }
}

/// Replaces every value by what a cast to `to` in this mode gives, as f32: [`round_f32`] in bulk.
pub fn round_f32_slice(values: &mut [f32], to: DType, mode: CastMode) {
    // The choice of type and mode stands outside the loops, so that they vectorise.
    match to {
        DType::F32 | DType::F64 => {}
        DType::F16 => each::<f16>(values, mode),
        DType::BF16 => each::<bf16>(values, mode),
        DType::F8E4M3 => each::<F8E4M3>(values, mode),
        DType::F8E5M2 => each::<F8E5M2>(values, mode),
        _ => values.iter_mut().for_each(|v| *v = round_f32(*v, to)),
    }
}

fn each<F: MiniFloat>(values: &mut [f32], mode: CastMode) {
    match mode {
        CastMode::Nonsaturating => values.iter_mut().for_each(|v| *v = round::<F, false>(*v)),
        CastMode::Saturating => values.iter_mut().for_each(|v| *v = round::<F, true>(*v)),
    }
}

/// Rounds every value to one of the two neighbouring values of `to` (an 8- or 16-bit float), at random: away from zero if `noise`, uniform in
/// [0, 1), is smaller than the distance to the neighbour nearer to zero, in units of the distance between both. So the mean over all noise is the value.
///
/// What `to` can hold stays as it is. Beyond the largest finite value of `to` a finite value becomes that, an infinity or NaN what a cast makes of it. Other
/// dtypes round as [`round_f32_slice`]. Uses as many values as both slices have.
pub fn round_stochastic_slice(values: &mut [f32], noise: &[f32], to: DType) {
    fn each<F: MiniFloat>(values: &mut [f32], noise: &[f32]) {
        for (v, noise) in values.iter_mut().zip(noise) {
            *v = round_stochastic::<F>(*v, *noise);
        }
    }
    match to {
        DType::F16 => each::<f16>(values, noise),
        DType::BF16 => each::<bf16>(values, noise),
        DType::F8E4M3 => each::<F8E4M3>(values, noise),
        DType::F8E5M2 => each::<F8E5M2>(values, noise),
        _ => round_f32_slice(values, to, CastMode::Nonsaturating),
    }
}
