//! The loss scale on a device: numbers of Keras' `LossScaleOptimizer`, and what went wrong elsewhere.
use bimetal_precision::{DynamicLossScale, LossScale, LossScaler};
use bimetal_tensor::{DType, Device, Slot, Tensor, commit};
use half::f16;

fn scaler(device: &Device, d: DynamicLossScale) -> LossScaler {
    LossScaler::new(LossScale::Dynamic(d), device).unwrap()
}

/// What an optimizer's step does with the scaler.
fn tick(s: &LossScaler, finite: bool) -> f32 {
    let finite = Tensor::from_slice(&[finite], &[], s.device());
    let new = s.update(&finite);
    let writes: Vec<(&Slot, &Tensor)> = new.iter().map(|(s, t)| (s, t)).collect();
    commit(&[], &writes).unwrap();
    s.current().unwrap()
}

fn counters(s: &LossScaler) -> (u32, u32) {
    let state = s.state();
    let read = |i: usize| state[i].to_vec::<u32>().unwrap()[0];
    (read(1), read(2))
}

#[test]
fn doubles_after_exactly_2000_finite_steps_in_a_row() {
    let device = bimetal_cpu::cpu();
    let s = scaler(&device, DynamicLossScale::default());
    assert_eq!(s.current().unwrap(), 32768.0);
    for _ in 0..1999 {
        assert_eq!(tick(&s, true), 32768.0);
    }
    assert_eq!(counters(&s), (1999, 0));
    assert_eq!(tick(&s, true), 65536.0);
    assert_eq!(counters(&s), (0, 0));
    // An overflow halves and starts the count afresh.
    for _ in 0..1999 {
        tick(&s, true);
    }
    assert_eq!(tick(&s, false), 32768.0);
    assert_eq!(counters(&s), (0, 1));
    for _ in 0..1999 {
        assert_eq!(tick(&s, true), 32768.0);
    }
    assert_eq!(tick(&s, true), 65536.0);
}

#[test]
fn one_plan_serves_all_updates() {
    let device = bimetal_cpu::cpu();
    let d = DynamicLossScale {
        growth_interval: 2,
        ..Default::default()
    };
    let s = scaler(&device, d);
    tick(&s, true);
    let plans = device.plans_compiled();
    for i in 0..20 {
        tick(&s, i % 3 != 0);
    }
    assert_eq!(device.plans_compiled(), plans);
}

// pytorch#40497, #99640, #96755: the scale collapses to 0.
#[test]
fn pitfall_01_the_scale_stops_at_its_minimum() {
    let device = bimetal_cpu::cpu();
    let s = scaler(&device, DynamicLossScale::default());
    let scales: Vec<f32> = (0..40).map(|_| tick(&s, false)).collect();
    assert_eq!(scales[0], 16384.0);
    assert_eq!(scales[14], 1.0);
    assert!(scales[15..].iter().all(|&x| x == 1.0), "{scales:?}");
}

// pytorch#98828, Keras 3: the scale doubles without limit until it is inf.
#[test]
fn pitfall_02_the_scale_stops_at_its_maximum() {
    let device = bimetal_cpu::cpu();
    let d = DynamicLossScale {
        growth_interval: 1,
        ..Default::default()
    };
    let s = scaler(&device, d);
    let scales: Vec<f32> = (0..200).map(|_| tick(&s, true)).collect();
    assert_eq!(scales[8], 16_777_216.0);
    assert!(scales[9..].iter().all(|&x| x == 16_777_216.0), "{scales:?}");
    // Nor is a scale that is not finite, or outside of the limits, stored by hand.
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 0.5, 33_554_432.0] {
        s.set(bad).unwrap_err();
        assert_eq!(s.current().unwrap(), 16_777_216.0);
    }
    s.set(8.0).unwrap();
    assert_eq!(s.current().unwrap(), 8.0);
}

// pytorch#157436: the scale moves several times in one step.
#[test]
fn pitfall_03_the_scale_moves_by_one_factor_at_a_time() {
    let device = bimetal_cpu::cpu();
    let d = DynamicLossScale {
        initial: 1000.0,
        growth_interval: 3,
        growth: 4.0,
        backoff: 0.25,
        min: 10.0,
        max: 5000.0,
        ..Default::default()
    };
    let s = scaler(&device, d);
    let mut old = s.current().unwrap();
    let mut x = 1u32;
    for _ in 0..300 {
        // Overflows with probability 1/4, from a linear congruence.
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let new = tick(&s, x >> 30 != 0);
        assert!([old * 0.25, old, old * 4.0].contains(&new), "{old} {new}");
        assert!((10.0..=5000.0).contains(&new));
        old = new;
    }
}

#[test]
fn hysteresis_counts_overflows_in_a_row() {
    let device = bimetal_cpu::cpu();
    let d = DynamicLossScale {
        hysteresis: 3,
        ..Default::default()
    };
    let s = scaler(&device, d);
    let scales: Vec<f32> = [false, false, true, false, false, false, false, true, false]
        .into_iter()
        .map(|finite| tick(&s, finite) / 32768.0)
        .collect();
    assert_eq!(scales, [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.25, 0.25, 0.25]);
}

// tensorflow#38357: huge losses need a scale below 1.
#[test]
fn pitfall_05_the_scale_goes_below_one_where_it_may() {
    let device = bimetal_cpu::cpu();
    let d = DynamicLossScale {
        initial: 2.0,
        min: 0.125,
        ..Default::default()
    };
    let s = scaler(&device, d);
    let scales: Vec<f32> = (0..6).map(|_| tick(&s, false)).collect();
    assert_eq!(scales, [1.0, 0.5, 0.25, 0.125, 0.125, 0.125]);
}

// tensorflow#33484: 2^16 is infinite in f16.
#[test]
fn pitfall_06_the_loss_is_scaled_in_f32() {
    let device = bimetal_cpu::cpu();
    let s = LossScaler::new(LossScale::Static(65536.0), &device).unwrap();
    let loss = Tensor::from_slice(&[f16::from_f32(3.0)], &[], &device);
    let scaled = s.scale(&loss);
    assert_eq!(scaled.scaled().dtype(), DType::F32);
    assert_eq!(scaled.scaled().item().unwrap(), 196_608.0);
    assert_eq!(scaled.loss().item().unwrap(), 3.0);
    // Such a scale may be what f16 cannot hold, and a smaller one what f16 can: both in f32.
    let f64_loss = Tensor::from_slice(&[1e300f64], &[], &device);
    assert_eq!(s.scale(&f64_loss).scaled().item().unwrap(), 1e300 * 65536.0);
}

#[test]
fn without_a_scale_nothing_is_multiplied() {
    let device = bimetal_cpu::cpu();
    let s = LossScaler::new(LossScale::None, &device).unwrap();
    assert!(s.state().is_empty());
    assert_eq!(s.current().unwrap(), 1.0);
    let loss = Tensor::from_slice(&[1.5f32], &[], &device);
    assert_eq!(s.scale(&loss).scaled().id(), loss.id());
    assert!(s.set(2.0).is_err());
}

#[test]
fn a_scale_from_a_file_is_checked() {
    let device = bimetal_cpu::cpu();
    let s = scaler(&device, DynamicLossScale::default());
    s.check_state().unwrap();
    for bad in [f32::NAN, f32::INFINITY, 0.0, -2.0, 1e9] {
        s.state()[0]
            .set(&Tensor::from_slice(&[bad], &[], &device))
            .unwrap();
        let e = s.check_state().unwrap_err().to_string();
        assert!(e.contains("the scale"), "{e}");
    }
}

#[test]
fn a_loss_that_is_no_float_scalar_is_an_error() {
    let device = bimetal_cpu::cpu();
    let s = scaler(&device, DynamicLossScale::default());
    let rows = Tensor::from_slice(&[1.0f32, 2.0], &[2], &device);
    let e = s.scale(&rows).scaled().item().unwrap_err().to_string();
    assert!(e.contains("mean_all") && e.contains("[2]"), "{e}");
    let count = Tensor::from_slice(&[1i32], &[], &device);
    let e = s.scale(&count).scaled().item().unwrap_err().to_string();
    assert!(e.contains("float"), "{e}");
}
