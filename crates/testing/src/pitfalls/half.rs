//! Operations and layers in half precision.
use super::support::*;
use bimetal::autodiff::grad;
use bimetal::layers::{
    Embedding, GlobalAvgPool2d, Layer, MultiHeadAttention, MultiHeadAttentionOptions, ParamStore,
    mse,
};
use bimetal::precision::{LossScale, LossScaler, Policy};
use bimetal::tensor::Slot;
use bimetal::{DType, Device, Tensor};

// NeMo-Automodel#825, mxnet#11403
pub fn pitfall_12_norms_of_half_gradients_are_f32(device: &Device) {
    let n = 4096;
    let scaler = LossScaler::new(LossScale::None, device).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        // 300^2 is beyond f16, and 4096 of them have the norm 300 * 64.
        let zeros = Tensor::zeros(&[n], dtype, device);
        let w = Slot::new("w", &zeros, device).unwrap();
        let g = Tensor::full(&[n], 300.0, dtype, device);
        let loss = scaler.scale(&Tensor::zeros(&[], DType::F32, device));
        let grads = loss.with_gradients(vec![(w.clone(), Some(g))]).unwrap();
        let grads = grads.unscale();
        assert_eq!(grads.norm().dtype(), DType::F32);
        assert_eq!(grads.norm().item().unwrap(), 300.0 * 64.0);
        assert_eq!(grads.finite().item().unwrap(), 1.0);
        let clipped = grads.clip_global_norm(64.0).get(&w).unwrap();
        close(&list(&clipped), &vec![1.0; n], 1e-6);
    }
}

// mxnet#17703
pub fn pitfall_14_repeated_rows_of_an_embedding_add_up_in_f32(device: &Device) {
    // Added one by one in f16 it would be 2048; rounded to f16 at the end, 5000.
    let count = 5001;
    let index = Tensor::zeros(&[count], DType::I32, device);
    let store = ParamStore::new(device, Policy::mixed_float16());
    let layer = Embedding::new(&store.root().at("embed"), 2, 3);
    let y = layer.forward(&index, &store.train());
    assert_eq!(y.dtype(), DType::F16);
    let table = layer.weight().slot().unwrap();
    let g = grad(&y.cast(DType::F32).sum_all(), &[&table.read()]).unwrap();
    assert_eq!(g[0].dtype(), DType::F32);
    assert_eq!(list(&g[0]), [5001.0, 5001.0, 5001.0, 0.0, 0.0, 0.0]);
    let table = Tensor::ones(&[2, 1], DType::F16, device);
    let taken = table.take(&index, 0).cast(DType::F32);
    let g = grad(&taken.sum_all(), &[&table]).unwrap();
    assert_eq!(list(&g[0]), [5000.0, 0.0]);
}

/// Self-attention of `x` whose projections are the identity: queries, keys and values are `x`, exactly.
fn attend(
    device: &Device,
    policy: Policy,
    x: &Tensor,
    key_mask: Option<&Tensor>,
    options: MultiHeadAttentionOptions,
) -> (Vec<f64>, Vec<f64>) {
    let store = ParamStore::new(device, policy).seed(5);
    let width = x.shape().unwrap()[2];
    let layer = MultiHeadAttention::with(&store.root().at("attention"), width, 1, options);
    let iota = |axis: isize| Tensor::arange(width, device).unsqueeze(axis);
    let one = iota(0).eq(iota(1)).cast(DType::F32);
    let packed = Tensor::concat(&[&one, &one, &one], 0);
    let param = |path: &str| store.param(&format!("attention.{path}")).unwrap();
    param("in_proj_weight").set(&packed).unwrap();
    param("out_proj.weight").set(&one).unwrap();
    let y = layer.attend(x, None, key_mask, &store.train());
    let score = match y.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    // The last column alone: of the others only scores are made.
    let last = y.narrow(2, width - 1, 1).cast(score);
    let g = grad(&last.square().sum_all(), &[x]).unwrap();
    (list(&y), list(&g[0]))
}

// apex#93, #1052, fairseq#3575
pub fn pitfall_24_masks_are_finite_in_half_precision(device: &Device) {
    let n = 5;
    let data: Vec<f32> = (0..2 * n * 4)
        .map(|i| ((i * 7 % 11) as f32 - 5.0) / 4.0)
        .collect();
    let x = Tensor::from_slice(&data, &[2, n, 4], device);
    // The keys of the second sequence are all hidden.
    let seen: Vec<bool> = (0..2 * n).map(|i| i < n - 1).collect();
    let mask = Tensor::from_slice(&seen, &[2, n], device);
    for causal in [false, true] {
        let options = MultiHeadAttentionOptions {
            causal,
            ..Default::default()
        };
        let run = |policy| attend(device, policy, &x, Some(&mask), options);
        let exact = reference(device);
        let (x, mask) = (x.to_device(&exact), mask.to_device(&exact));
        let (want, want_g) = attend(&exact, Policy::float64(), &x, Some(&mask), options);
        assert!(want[n * 4..].iter().all(|v| *v == 0.0));
        for policy in [Policy::mixed_float16(), Policy::mixed_bfloat16()] {
            let (y, g) = run(policy);
            close(&y, &want, 0.02);
            close(&g, &want_g, 0.1);
        }
    }
    // What users write by hand.
    let logits = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 1.0], &[2, 2], device).cast(DType::F16);
    let keep = Tensor::from_slice(&[true, false, true, true], &[2, 2], device);
    for hidden in [-1e9, f64::NEG_INFINITY] {
        let p = keep.select(&logits, hidden).softmax(-1);
        let v = list(&p);
        assert_eq!((v[0], v[1]), (1.0, 0.0));
        let g = grad(&p.cast(DType::F32).square().sum_all(), &[&logits]).unwrap();
        assert!(list(&g[0]).iter().all(|g| g.is_finite()));
    }
}

// pytorch#12115, #44350, numpy#7930, burn#4770
pub fn pitfall_25_means_and_variances_do_not_overflow(device: &Device) {
    let ones = Tensor::ones(&[65_520], DType::F16, device);
    assert_eq!(ones.mean_all().item().unwrap(), 1.0);
    assert_eq!(mse(&ones, &(&ones * 3.0)).item().unwrap(), 4.0);
    for v in [0.1, 3.3, 65504.0] {
        let x = Tensor::full(&[40_000], v, DType::F16, device);
        assert_eq!(x.var(&[0], 1, false).item().unwrap(), 0.0, "{v}");
    }
    let image = Tensor::full(&[1, 1, 200, 200], 65504.0, DType::F16, device);
    let store = ParamStore::new(device, Policy::mixed_float16());
    let pooled = GlobalAvgPool2d.forward(&image, &store.eval());
    assert_eq!(pooled.dtype(), DType::F16);
    assert_eq!(list(&pooled), [65504.0]);
    let g = grad(&ones.mean_all().cast(DType::F32), &[&ones]).unwrap();
    assert!(
        list(&g[0])
            .iter()
            .all(|v| (v * 65_520.0 - 1.0).abs() < 1e-2)
    );
}

// Keras
pub fn pitfall_28_attention_with_dropout_has_its_softmax_in_f32(device: &Device) {
    // Scores beyond 2,048, where f16 has even numbers only, and values that tell them apart.
    let pair = |i: usize| [56.0 + (i % 4) as f32 / 32.0, [1.0, -1.0, 0.5][i % 3]];
    let data: Vec<f32> = (0..16).flat_map(pair).collect();
    let x = Tensor::from_slice(&data, &[1, 16, 2], device);
    for dropout in [0.0, 0.25] {
        let options = MultiHeadAttentionOptions {
            dropout,
            ..Default::default()
        };
        let exact = reference(device);
        let (want, want_g) = attend(
            &exact,
            Policy::float64(),
            &x.to_device(&exact),
            None,
            options,
        );
        let (y, g) = attend(device, Policy::mixed_float16(), &x, None, options);
        assert!(dropout == 0.0 || want.iter().any(|v| (v - want[0]).abs() > 1.0));
        close(&y, &want, 1e-3);
        let largest = want_g.iter().fold(0.0, |top, g| g.abs().max(top));
        let share = |g: Vec<f64>| g.iter().map(|g| g / largest).collect::<Vec<_>>();
        close(&share(g), &share(want_g.clone()), 0.01);
    }
}
