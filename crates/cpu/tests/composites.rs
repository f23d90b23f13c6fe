//! Composites with kernels against their decompositions.
use bimetal_cpu::cpu;
use bimetal_tensor::graph::{AttentionSpec, Attr, Composite, DropoutSpec, RandomKey, decompose};
use bimetal_tensor::{DType, Device, Tensor};

fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn tensor(shape: &[usize], seed: u32, dtype: DType, d: &Device) -> Tensor {
    Tensor::from_slice(&values(shape.iter().product(), seed), shape, d).cast(dtype)
}

/// Every output within `steps` units of its dtype (of f32 for what is accumulated), relative to `scale`.
fn agree(c: Composite, x: &[&Tensor], scale: f64, steps: f64) {
    let native = Tensor::composite(c, x);
    let owned: Vec<Tensor> = x.iter().map(|t| (*t).clone()).collect();
    for (i, plain) in decompose(&c, &owned).iter().enumerate() {
        let (a, b) = (
            native.output(i).to_f64_vec().unwrap(),
            plain.to_f64_vec().unwrap(),
        );
        let eps = plain.dtype().epsilon();
        for (j, (a, b)) in a.iter().zip(&b).enumerate() {
            let tol = steps * (eps * b.abs() + f32::EPSILON as f64 * scale);
            let same = a == b || a.is_nan() && b.is_nan();
            assert!(
                same || (a - b).abs() <= tol,
                "{} output {i} element {j}: {a} {b}",
                c.name()
            );
        }
    }
}

#[test]
fn batch_normalisation() {
    let d = cpu();
    let eps = 1e-5;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for shape in [&[4, 3, 8, 8][..], &[2, 5, 1500], &[3, 2, 7, 7]] {
            let c = shape[1];
            let x = tensor(shape, 1, dtype, &d) * 4.0;
            let dy = tensor(shape, 2, dtype, &d);
            let (gamma, beta) = (tensor(&[c], 3, DType::F32, &d), tensor(&[c], 4, dtype, &d));
            let norm = Composite::BatchNorm { eps: Attr(eps) };
            agree(norm, &[&x, &gamma, &beta], 4.0, 4.0);
            let stats = Tensor::composite(norm, &[&x, &gamma, &beta]);
            let (mean, rstd) = (stats.output(1), stats.output(2));
            let scale = (shape.iter().product::<usize>() / c) as f64;
            agree(
                Composite::BatchNormGrad,
                &[&x, &gamma, &mean, &rstd, &dy],
                scale.sqrt(),
                8.0,
            );
        }
    }
}

#[test]
fn rows() {
    let d = cpu();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (m, n) in [(5, 3), (70, 257), (3, 5000)] {
            let x = tensor(&[m, n], 1, dtype, &d) * 4.0;
            let dy = tensor(&[m, n], 2, dtype, &d);
            let (gamma, beta) = (tensor(&[n], 3, DType::F32, &d), tensor(&[n], 4, dtype, &d));
            let y = x.softmax(-1);
            agree(Composite::Softmax, &[&x], 0.1, 4.0);
            agree(Composite::SoftmaxGrad, &[&y, &dy], 1.0, 4.0);
            agree(Composite::LogSoftmax, &[&x], 8.0, 4.0);
            agree(
                Composite::LogSoftmaxGrad,
                &[&x.log_softmax(-1), &dy],
                8.0,
                8.0,
            );
            let norm = Composite::LayerNorm { eps: Attr(1e-5) };
            agree(norm, &[&x, &gamma, &beta], 2.0, 4.0);
            let stats = Tensor::composite(norm, &[&x, &gamma, &beta]);
            let grad = [&x, &gamma, &stats.output(1), &stats.output(2), &dy];
            agree(Composite::LayerNormGrad, &grad, 10.0, 8.0);
            let target: Vec<i32> = (0..m)
                .map(|i| if i == 1 { -7 } else { (i * 7 % n) as i32 })
                .collect();
            let target = Tensor::from_slice(&target, &[m], &d);
            for smoothing in [0.0, 0.1] {
                let (ignore_index, label_smoothing) = (-7, Attr(smoothing));
                let ce = Composite::CrossEntropy {
                    ignore_index,
                    label_smoothing,
                };
                agree(ce, &[&x, &target], 8.0, 4.0);
                let lse = Tensor::composite(ce, &[&x, &target]).output(1);
                let dloss = tensor(&[m], 5, DType::F32, &d);
                let ce = Composite::CrossEntropyGrad {
                    ignore_index,
                    label_smoothing,
                };
                agree(ce, &[&x, &target, &lse, &dloss], 1.0, 8.0);
            }
        }
    }
}

#[test]
fn attention() {
    let d = cpu();
    let (b, h, dim) = (2, 3, 8);
    let step = Tensor::full(&[], 9.0, DType::U32, &d);
    for dtype in [DType::F32, DType::BF16] {
        for (tq, tk) in [(5, 5), (40, 70), (7, 3)] {
            for (causal, key_mask, rate) in [
                (false, false, 0.0),
                (true, false, 0.3),
                (false, true, 0.0),
                (true, true, 0.3),
            ] {
                let spec = AttentionSpec {
                    scale: Attr(0.35),
                    causal,
                    key_mask,
                    dropout: (rate > 0.0).then_some(DropoutSpec {
                        rate: Attr(rate),
                        key: RandomKey::Value {
                            stream: 0xfeed_0000_beef,
                            micro: 2,
                        },
                    }),
                };
                let q = tensor(&[b, tq, h, dim], 1, dtype, &d);
                let k = tensor(&[b, tk, h, dim], 2, dtype, &d);
                let v = tensor(&[b, tk, h, dim], 3, dtype, &d);
                let dy = tensor(&[b, tq, h, dim], 4, dtype, &d);
                let mask = tensor(&[b, tk], 5, DType::F32, &d).gt(-0.4);
                let mut x = vec![&q, &k, &v];
                x.extend(key_mask.then_some(&mask));
                x.extend(spec.dropout.map(|_| &step));
                agree(Composite::Attention(spec), &x, 1.0, 8.0);
                let y = Tensor::composite(Composite::Attention(spec), &x);
                let (y, lse) = (y.output(0), y.output(1));
                let mut g = vec![&q, &k, &v, &y, &lse, &dy];
                g.extend(&x[3..]);
                // The kernel takes `dy . y` of the rounded y where the decomposition has the sum itself.
                let scale = if dtype == DType::F32 {
                    10.0
                } else {
                    10.0 * 65_536.0
                };
                agree(Composite::AttentionGrad(spec), &g, scale, 8.0);
            }
        }
    }
}
