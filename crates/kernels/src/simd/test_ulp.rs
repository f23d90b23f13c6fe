//! Measuring errors in units in the last place.

/// The distance of `got` from the exact `want` in ulps of the f32 nearest to `want`.
pub fn ulp_error(got: f32, want: f64) -> f64 {
    let near = want as f32;
    if near.is_nan() || got.is_nan() {
        return if near.is_nan() && got.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if got.is_infinite() || near.is_infinite() {
        // At the edge of overflow the largest finite value is one ulp away.
        let (a, b) = (
            got.clamp(f32::MIN, f32::MAX),
            near.clamp(f32::MIN, f32::MAX),
        );
        return if got == near {
            0.0
        } else {
            ulp_distance(a, b) as f64 + 1.0
        };
    }
    (got as f64 - want).abs() / ulp(near)
}

/// The spacing of f32 around `x`.
pub fn ulp(x: f32) -> f64 {
    let e = ((x.to_bits() >> 23) & 0xff).max(1) as i32;
    2f64.powi(e - 127 - 23)
}

fn ulp_distance(a: f32, b: f32) -> u32 {
    a.to_bits().abs_diff(b.to_bits())
}

/// Every `stride`-th bit pattern, the patterns around powers of two, and the special values.
pub fn patterns(stride: usize) -> Vec<f32> {
    let mut v: Vec<f32> = (0..=u32::MAX).step_by(stride).map(f32::from_bits).collect();
    for e in 0..=255u32 {
        for d in [0u32, 1, 2, 0x3fffff, 0x400000, 0x400001, 0x7fffff] {
            for sign in [0, 1 << 31] {
                v.push(f32::from_bits(sign | (e << 23) | d));
            }
        }
    }
    v
}
