//! Stochastic rounding of tensors: unbiased, and the same whenever it is drawn again.
use bimetal_cpu::{CpuBackend, cpu};
use bimetal_tensor::graph::RandomKey;
use bimetal_tensor::{DType, Device, Tensor};

const NARROW: [DType; 4] = [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];

fn key(stream: u64) -> RandomKey {
    RandomKey::Value { stream, micro: 0 }
}

/// The mean over many draws is the value: within five standard errors of the binomial distribution of the two neighbours.
#[test]
fn the_mean_is_the_value() {
    let d = cpu();
    let n = 40_000;
    for (i, to) in NARROW.into_iter().enumerate() {
        // Between neighbours of all kinds: subnormal, around 1 and at a power of two, large.
        let small = to.smallest_subnormal() as f32;
        for (k, v) in [0.3 * small, 2.7 * small, -0.999, 1.01, 100.3]
            .into_iter()
            .enumerate()
        {
            let x = Tensor::full(&[n], f64::from(v), DType::F32, &d);
            let y = x.cast_stochastic(to, key((10 * i + k) as u64), None);
            assert_eq!(y.dtype(), to);
            let got = y.to_f64_vec().unwrap();
            let (low, high) = got
                .iter()
                .fold((f64::MAX, f64::MIN), |(l, h), y| (l.min(*y), h.max(*y)));
            let value = f64::from(v);
            assert!(low < value && value < high, "{v} in {to}: {low} to {high}");
            assert!(got.iter().all(|y| *y == low || *y == high));
            let p = (value - low) / (high - low);
            let ups = got.iter().filter(|y| **y == high).count() as f64;
            let error = 5.0 * (n as f64 * p * (1.0 - p)).sqrt();
            assert!(
                (ups - n as f64 * p).abs() <= error,
                "{v} in {to}: {ups} of {n} at {p}"
            );
        }
    }
}

/// A weight of 1 that gets 0.001 a thousand times: lost by rounding to nearest, kept by chance.
#[test]
fn small_changes_add_up() {
    let d = cpu();
    let steps = 1000;
    let mut nearest = Tensor::ones(&[512], DType::BF16, &d);
    let mut chance = nearest.clone();
    for t in 0..steps {
        let step = Tensor::from_slice(&[t as u32], &[], &d);
        nearest = (nearest.cast(DType::F32) + 0.001)
            .cast(DType::BF16)
            .detach();
        let sum = chance.cast(DType::F32) + 0.001;
        chance = sum.cast_stochastic(DType::BF16, key(7), Some(&step));
        if t % 50 == 49 {
            bimetal_tensor::eval(&[&nearest, &chance]).unwrap();
        }
    }
    let mean = |t: &Tensor| t.cast(DType::F32).mean_all().item().unwrap();
    assert_eq!(mean(&nearest), 1.0);
    assert!((mean(&chance) - 2.0).abs() < 0.02, "{}", mean(&chance));
}

#[test]
fn the_same_key_and_step_round_the_same_on_any_number_of_threads() {
    let draw = |threads: usize, stream: u64, t: u32| {
        let d = Device::new(CpuBackend::new(Some(threads)));
        let x: Vec<f32> = (0..70_001).map(|i| (i as f32 * 0.37).sin()).collect();
        let x = Tensor::from_slice(&x, &[70_001], &d);
        let t = Tensor::from_slice(&[t], &[], &d);
        x.cast_stochastic(DType::BF16, key(stream), Some(&t))
            .to_bytes()
            .unwrap()
    };
    assert_eq!(draw(1, 3, 5), draw(4, 3, 5));
    assert_ne!(draw(1, 3, 5), draw(1, 3, 6));
    assert_ne!(draw(1, 3, 5), draw(1, 4, 5));
    // Keys are no part of a plan.
    let d = cpu();
    let x = Tensor::full(&[100], 0.3, DType::F32, &d);
    let _ = x
        .cast_stochastic(DType::F16, key(1), None)
        .to_bytes()
        .unwrap();
    let plans = d.plans_compiled();
    let _ = x
        .cast_stochastic(DType::F16, key(2), None)
        .to_bytes()
        .unwrap();
    assert_eq!(d.plans_compiled(), plans);
}

#[test]
fn wrong_dtypes_are_errors() {
    let d = cpu();
    let x = Tensor::ones(&[3], DType::F32, &d);
    for (x, to) in [
        (x.clone(), DType::F32),
        (x.clone(), DType::I32),
        (x.cast(DType::I32), DType::BF16),
    ] {
        let y = x.cast_stochastic(to, key(1), None);
        let message = y.to_bytes().unwrap_err().to_string();
        assert!(message.contains("use `cast` for others"), "{message}");
    }
}
