//! State of layers, recomputation.
use super::support::*;
use bimetal::autodiff::{checkpoint, grad};
use bimetal::layers::{
    Activation, BatchNorm2d, Dropout, Layer, LayerNorm, Linear, MultiHeadAttention,
    MultiHeadAttentionOptions, ParamStore,
};
use bimetal::optim::{Accumulator, Optimizer, Sgd};
use bimetal::precision::Policy;
use bimetal::tensor::Slot;
use bimetal::{DType, Device, Tensor};

// pytorch#90342, #88474
pub fn pitfall_26_statistics_of_a_skipped_step_are_dropped(device: &Device) {
    for micro in [1, 2] {
        let store = ParamStore::new(device, Policy::mixed_float16()).seed(1);
        let scope = store.root();
        let norm = BatchNorm2d::new(&scope.at("norm"), 2);
        let head = Linear::new(&scope.at("head"), 2, 1);
        let statistics = [norm.running_mean(), norm.running_var()];
        let statistics = statistics.map(|p| p.slot().unwrap().clone());
        assert!(statistics.iter().all(|s| s.dtype() == DType::F32));
        let scaler = dynamic(device);
        let mut optimizer = Sgd::new(0.01);
        let good = [0.25f32, 1.0, -0.5, 3.0, 2.0, -1.0, 0.0, 1.5];
        let mut run = |bad: Option<f32>| {
            let mut window = Accumulator::new();
            for part in 0..micro {
                let mut data = good;
                if let (Some(v), 0) = (bad, part) {
                    data[3] = v;
                }
                let x = Tensor::from_slice(&data, &[4, 2], device);
                let cx = window.context(store.train());
                let y = head.forward(&norm.forward(&x, &cx), &cx);
                let loss = y.cast(DType::F32).square().mean_all();
                let slots = store.trainable_slots().unwrap();
                window
                    .add(cx, scaler.scale(&loss).grad(&slots).unwrap())
                    .unwrap();
            }
            let (cx, grads) = window.finish(store.train()).unwrap();
            optimizer
                .step(cx, grads.unscale())
                .unwrap()
                .outcome()
                .unwrap()
        };
        for bad in [f32::INFINITY, f32::NAN] {
            assert!(!run(Some(bad)).is_applied());
            assert_eq!(values(&statistics[0]), [0.0, 0.0]);
            assert_eq!(values(&statistics[1]), [1.0, 1.0]);
        }
        while !run(None).is_applied() {}
        let kept = 0.9f64.powi(micro);
        let want = [0.4375, 1.125].map(|mean| mean * (1.0 - kept));
        close(&values(&statistics[0]), &want, 1e-6);
        let x = Tensor::from_slice(&good, &[4, 2], device);
        let y = norm.forward(&x, &store.eval());
        assert!(list(&y).iter().all(|v| v.is_finite()));
    }
}

// pytorch#87979, #71124, TE#787
pub fn pitfall_27_recomputation_keeps_every_bit(device: &Device) {
    for policy in [Policy::mixed_float16(), Policy::mixed_bfloat16()] {
        let store = ParamStore::new(device, policy).seed(3);
        let scope = store.root();
        let options = MultiHeadAttentionOptions {
            causal: true,
            dropout: 0.2,
            ..Default::default()
        };
        let attention = MultiHeadAttention::with(&scope.at("attention"), 16, 2, options);
        let norm = LayerNorm::new(&scope.at("norm"), 16);
        let up = Linear::new(&scope.at("up").policy("mixed_bfloat16"), 16, 32);
        let down = Linear::new(&scope.at("down"), 32, 16);
        let dropout = Dropout::new(&scope.at("dropout"), 0.3);
        let data: Vec<f32> = (0..2 * 6 * 16).map(|i| (i as f32 * 0.7).sin()).collect();
        let x = Tensor::from_slice(&data, &[2, 6, 16], device);
        let slots = store.trainable_slots().unwrap();
        let run = |recompute: bool| {
            let cx = store.train();
            let block = |t: &[Tensor]| {
                let y = &t[0] + attention.forward(&norm.forward(&t[0], &cx), &cx);
                let z = Activation::Gelu.forward(&up.forward(&y, &cx), &cx);
                y + dropout.forward(&down.forward(&z, &cx), &cx)
            };
            let mut h = x.cast(policy.compute);
            for _ in 0..2 {
                h = match recompute {
                    true => checkpoint(block, &[&h]),
                    false => block(&[h]),
                };
            }
            let loss = h.cast(DType::F32).square().mean_all();
            let reads: Vec<Tensor> = slots.iter().map(Slot::read).collect();
            let mut all = vec![loss.clone()];
            all.extend(grad(&loss, &reads.iter().collect::<Vec<_>>()).unwrap());
            let bytes: Vec<_> = all.iter().map(|t| t.to_bytes().unwrap()).collect();
            bytes
        };
        assert_eq!(run(true), run(false));
    }
}
