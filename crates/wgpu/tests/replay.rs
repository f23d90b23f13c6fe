//! Recorded steps are the launched ones: the same losses, weights and counters.
use bimetal::precision::DynamicLossScale;
use bimetal::prelude::*;

/// Losses and final weights of a training with dropout, batches of their own for each step and a scale that overflows at first; a device's plans are recorded or not.
fn train(replay: bool, steps: usize) -> (Vec<f32>, Vec<Vec<u8>>, u64) {
    let device = bimetal_wgpu::wgpu().unwrap();
    assert!(device.set_replay(replay));
    let store = ParamStore::new(&device, "mixed_float16").seed(3);
    let scope = store.root();
    let net = Sequential::new()
        .then(Linear::new(&scope.at("a"), 24, 40))
        .then(LayerNorm::new(&scope.at("norm"), 40))
        .then(Activation::Gelu)
        .then(Dropout::new(&scope.at("dropout"), 0.2))
        .then(Linear::new(&scope.at("b"), 40, 5));
    let params = store.trainable_slots().unwrap();
    let scale = DynamicLossScale {
        initial: 16_777_216.0,
        growth_interval: 4,
        ..DynamicLossScale::default()
    };
    let scaler = LossScaler::new(LossScale::Dynamic(scale), &device).unwrap();
    let mut optimizer = AdamW::new(1e-2);
    optimizer.init(&params).unwrap();
    let mut losses = Vec::new();
    for step in 0..steps {
        let x: Vec<f32> = (0..16 * 24)
            .map(|i| ((i * 7 + step * 13) % 29) as f32 / 14.0 - 1.0)
            .collect();
        let y: Vec<i32> = (0..16).map(|i| (i + step as i32) % 5).collect();
        let x = Tensor::from_slice(&x, &[16, 24], &device);
        let y = Tensor::from_slice(&y, &[16], &device);
        let cx = store.train();
        let loss = cross_entropy(&net.forward(&x, &cx), &y);
        let grads = scaler.scale(&loss).grad(&params).unwrap().unscale();
        let handle = optimizer.step(cx, grads.clip_global_norm(1.0)).unwrap();
        losses.push(handle.loss().unwrap());
    }
    let weights = params.iter().map(|p| p.to_bytes().unwrap()).collect();
    (losses, weights, device.replays())
}

#[test]
fn a_training_that_is_replayed_has_the_same_bits() {
    if let Err(e) = bimetal_wgpu::wgpu() {
        println!("skipped: no adapter: {e}");
        return;
    }
    let (losses, weights, none) = train(false, 14);
    let (again, same, replays) = train(true, 14);
    assert_eq!(none, 0);
    assert!(replays >= 8, "{replays} of 14 steps were replayed");
    assert_eq!(losses, again);
    assert!(weights == same);
    // Weights move: the comparison says something.
    assert!(losses.windows(2).all(|w| w[0] != w[1]));
}

/// A leaf that was the same for several runs and is another one then.
#[test]
fn a_leaf_that_changes_late_is_seen() {
    let Ok(device) = bimetal_wgpu::wgpu() else {
        println!("skipped: no adapter");
        return;
    };
    device.set_replay(true);
    let leaf = |v: f32| Tensor::from_slice(&[v; 8], &[8], &device);
    let (mut a, b) = (leaf(1.0), leaf(10.0));
    for i in 0..12 {
        if i == 6 {
            a = leaf(5.0);
        }
        let want = if i < 6 { 12.0 } else { 20.0 };
        assert_eq!(
            (&a * 2.0 + &b).to_vec::<f32>().unwrap(),
            [want; 8],
            "run {i}"
        );
    }
    assert!(device.replays() > 0);
}
