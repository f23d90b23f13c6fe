//! Against the definition in f64, at every level.

use super::*;
use crate::testutil::{Data, Rng, on_threads};
use bimetal_dtype::round_f64;

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn random_pool(rng: &mut Rng) -> Pool2d {
    let mut two = |low: usize, n: usize| [low + rng.below(n), low + rng.below(n)];
    Pool2d {
        planes: two(0, 9)[0],
        kernel: two(1, 4),
        stride: two(1, 4),
        padding: [two(0, 3), two(0, 3)],
        input: two(0, 40),
        count_include_pad: two(0, 2)[0] == 0,
    }
}

/// Every window of a plane as (output, elements of x in it).
fn windows(pool: &Pool2d) -> Vec<Vec<usize>> {
    let [oh, ow] = pool.output();
    let [h, w] = pool.input;
    let mut out = Vec::new();
    for (y, x) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
        let mut window = Vec::new();
        for (u, v) in (0..pool.kernel[0]).flat_map(|u| (0..pool.kernel[1]).map(move |v| (u, v))) {
            let i = (y * pool.stride[0] + u).wrapping_sub(pool.padding[0][0]);
            let j = (x * pool.stride[1] + v).wrapping_sub(pool.padding[1][0]);
            if i < h && j < w {
                window.push(i * w + j);
            }
        }
        out.push(window);
    }
    out
}

fn divisor(pool: &Pool2d, window: &[usize]) -> f64 {
    match pool.count_include_pad {
        true => (pool.kernel[0] * pool.kernel[1]) as f64,
        false => window.len() as f64,
    }
}

fn same(got: f64, want: f64) -> bool {
    got == want || got.is_nan() && want.is_nan()
}

#[test]
fn maxima_their_indices_and_gradients() {
    let mut rng = Rng(21);
    for &level in Level::available() {
        for trial in 0..60 {
            let mut pool = random_pool(&mut rng);
            if trial % 3 == 0 {
                // The windows that halve an image have a path of their own.
                (pool.kernel, pool.stride, pool.padding) = ([2; 2], [2; 2], [[0; 2]; 2]);
            }
            let (big, small) = pool.sizes();
            let dtype = FLOATS[trial % 4];
            // Few different values, so that there are ties; sometimes NaN and infinities.
            let special = [f64::NAN, f64::NEG_INFINITY, f64::INFINITY];
            let values: Vec<f64> = (0..pool.planes * big)
                .map(|_| match rng.below(40) {
                    i @ 0..3 if trial % 2 == 0 => special[i],
                    _ => rng.below(5) as f64 - 2.0,
                })
                .collect();
            let x = Data::new(dtype, &values);
            let mut y = Data::new(dtype, &vec![7.0; pool.planes * small]);
            let mut at = vec![-1i32; pool.planes * small];
            let dy: Vec<f64> = (0..at.len()).map(|_| rng.below(9) as f64 - 4.0).collect();
            let dy = Data::new(dtype, &dy);
            let mut dx = Data::new(dtype, &vec![7.0; pool.planes * big]);
            // SAFETY: every view covers an array of this test that outlives the call.
            unsafe {
                max_at(level, &pool, dtype, x.ptr(), y.ptr_mut(), at.as_mut_ptr());
                max_grad_at(level, &pool, dtype, at.as_ptr(), dy.ptr(), dx.ptr_mut());
            }
            let mut grads = vec![0.0; pool.planes * big];
            for p in 0..pool.planes {
                for (o, window) in windows(&pool).into_iter().enumerate() {
                    let mut want = (f64::NEG_INFINITY, window.first().copied().unwrap_or(0));
                    for i in window {
                        let value = values[p * big + i];
                        if value > want.0 || value.is_nan() && !want.0.is_nan() {
                            want = (value, i);
                        }
                    }
                    let o = p * small + o;
                    assert!(same(y.get(o), want.0), "{level:?} {pool:?} {dtype:?}");
                    assert_eq!(at[o] as usize, want.1, "{level:?} {pool:?} {dtype:?}");
                    if want.1 < big {
                        grads[p * big + want.1] += dy.get(o);
                    }
                }
            }
            assert_eq!(dx.values(), grads, "{level:?} {pool:?} {dtype:?}");
        }
    }
}

#[test]
fn either_result_of_a_maximum_may_be_left_out() {
    let pool = Pool2d {
        planes: 2,
        input: [4, 6],
        kernel: [2, 2],
        stride: [2, 2],
        padding: [[0; 2]; 2],
        count_include_pad: true,
    };
    let values: Vec<f64> = (0..48).map(|i| ((i * 7) % 11) as f64).collect();
    let x = Data::new(DType::F16, &values);
    let mut both = (Data::new(DType::F16, &[0.0; 12]), [0i32; 12]);
    let mut alone = (Data::new(DType::F16, &[0.0; 12]), [0i32; 12]);
    let none = std::ptr::null_mut();
    // SAFETY: every view covers an array of this test that outlives the call.
    unsafe {
        max_pool2d(
            &pool,
            DType::F16,
            x.ptr(),
            both.0.ptr_mut(),
            both.1.as_mut_ptr(),
        );
        max_pool2d(&pool, DType::F16, x.ptr(), alone.0.ptr_mut(), none);
        max_pool2d(
            &pool,
            DType::F16,
            x.ptr(),
            none.cast(),
            alone.1.as_mut_ptr(),
        );
    }
    assert_eq!(both.0.bytes(), alone.0.bytes());
    assert_eq!(both.1, alone.1);
    assert!(both.1.iter().any(|&i| i > 0));
}

#[test]
fn means_and_their_gradients() {
    let mut rng = Rng(22);
    for &level in Level::available() {
        for trial in 0..60 {
            let pool = random_pool(&mut rng);
            let (big, small) = pool.sizes();
            let dtype = FLOATS[trial % 4];
            let mut draw = |n: usize| -> Data {
                let values: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
                Data::new(dtype, &values)
            };
            let (x, dy) = (draw(pool.planes * big), draw(pool.planes * small));
            let mut y = Data::new(dtype, &vec![7.0; pool.planes * small]);
            let mut dx = Data::new(dtype, &vec![7.0; pool.planes * big]);
            // SAFETY: every view covers an array of this test that outlives the call.
            unsafe {
                avg_at(level, &pool, dtype, x.ptr(), y.ptr_mut());
                avg_grad_at(level, &pool, dtype, dy.ptr(), dx.ptr_mut());
            }
            let mut grads = vec![0.0; pool.planes * big];
            let eps = match dtype {
                DType::F16 => 1e-3,
                DType::BF16 => 8e-3,
                DType::F32 => 1e-6,
                _ => 1e-14,
            };
            for p in 0..pool.planes {
                for (o, window) in windows(&pool).into_iter().enumerate() {
                    let divisor = divisor(&pool, &window);
                    let o = p * small + o;
                    let sum: f64 = window.iter().map(|i| x.get(p * big + i)).sum();
                    let want = round_f64(sum / divisor, dtype);
                    let close = (y.get(o) - want).abs() <= eps * (want.abs() + 1.0);
                    assert!(
                        close || same(y.get(o), want),
                        "{level:?} {pool:?} {dtype:?}"
                    );
                    for i in window {
                        grads[p * big + i] += dy.get(o) / divisor;
                    }
                }
            }
            for (got, want) in dx.values().into_iter().zip(grads) {
                let close = (got - want).abs() <= eps * (want.abs() + 1.0);
                assert!(close, "{level:?} {pool:?} {dtype:?}: {got} {want}");
            }
        }
    }
}

/// Forty thousand equal values in f16: their sum overflows, their mean does not.
#[test]
fn a_mean_does_not_overflow_in_half_precision() {
    let pool = Pool2d {
        planes: 1,
        input: [200, 200],
        kernel: [200, 200],
        stride: [1, 1],
        padding: [[0; 2]; 2],
        count_include_pad: false,
    };
    let x = Data::new(DType::F16, &vec![3.0; 40_000]);
    let mut y = Data::new(DType::F16, &[0.0]);
    // SAFETY: every view covers an array of this test that outlives the call.
    unsafe { avg_pool2d(&pool, DType::F16, x.ptr(), y.ptr_mut()) };
    assert_eq!(y.get(0), 3.0);
}

#[test]
fn same_bits_for_any_number_of_threads() {
    let mut rng = Rng(23);
    let pool = Pool2d {
        planes: 50,
        input: [33, 47],
        kernel: [3, 3],
        stride: [2, 2],
        padding: [[1; 2]; 2],
        count_include_pad: false,
    };
    let (big, small) = pool.sizes();
    let values: Vec<f64> = (0..50 * big).map(|_| rng.normal()).collect();
    let x = Data::new(DType::F32, &values);
    let run = |threads| {
        on_threads(threads, || {
            let mut y = Data::new(DType::F32, &vec![0.0; 50 * small]);
            let mut dx = Data::new(DType::F32, &vec![0.0; 50 * big]);
            // SAFETY: every view covers an array of this test that outlives the call.
            unsafe {
                avg_pool2d(&pool, DType::F32, x.ptr(), y.ptr_mut());
                avg_pool2d_grad(&pool, DType::F32, y.ptr(), dx.ptr_mut());
            }
            [y.bytes(), dx.bytes()].concat()
        })
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
}
