//! Against the definition in f64, at every level, for all options.

use super::*;
use crate::gemm::Level;
use crate::testutil::{Data, Rng, on_threads};
use bimetal_dtype::round_f64;

/// `[batch, heads, time, d]` in one of the orders that occur, with gaps.
struct Tensor {
    data: Data,
    strides: [usize; 3],
}

impl Tensor {
    fn new(rng: &mut Rng, spec: &Attention<'_>, time: usize, dtype: DType, filled: bool) -> Tensor {
        let d = spec.d;
        let (strides, size) = match rng.below(3) {
            0 => (
                [spec.heads * time * d, time * d, d],
                spec.batch * spec.heads * time * d,
            ),
            // Time before heads, as one part of a packed projection.
            1 => (
                [time * 3 * spec.heads * d, d, 3 * spec.heads * d],
                spec.batch * time * 3 * spec.heads * d,
            ),
            _ => (
                [time * spec.heads * d, d, spec.heads * d],
                spec.batch * time * spec.heads * d,
            ),
        };
        let value = |rng: &mut Rng| if filled { rng.normal() } else { f64::NAN };
        let values: Vec<f64> = (0..size).map(|_| value(rng)).collect();
        Tensor {
            data: Data::new(dtype, &values),
            strides,
        }
    }

    fn read(&self) -> Heads {
        Heads {
            ptr: self.data.ptr(),
            dtype: self.data.dtype,
            round_to: None,
            strides: self.strides.map(|s| s as isize),
        }
    }

    fn write(&mut self) -> HeadsMut {
        HeadsMut {
            ptr: self.data.ptr_mut(),
            dtype: self.data.dtype,
            strides: self.strides,
        }
    }

    /// The matrix `[time, d]` of a head.
    fn head(&self, batch: usize, head: usize, time: usize, d: usize) -> Vec<Vec<f64>> {
        let [b, h, t] = self.strides;
        let at = |i: usize, j: usize| self.data.get(batch * b + head * h + i * t + j);
        (0..time)
            .map(|i| (0..d).map(|j| at(i, j)).collect())
            .collect()
    }
}

/// Drops about a third, and scales the rest.
fn drop_a_third(row: usize, first: usize, out: &mut [f32]) {
    for (j, f) in out.iter_mut().enumerate() {
        let dropped = Rng((row * 100_003 + first + j) as u64).below(3) == 0;
        *f = if dropped { 0.0 } else { 1.5 };
    }
}

fn factor(spec: &Attention<'_>, row: usize, key: usize) -> f64 {
    let mut f = [1.0];
    if let Some(dropout) = spec.dropout {
        dropout(row, key, &mut f);
    }
    f[0] as f64
}

/// y, log-sum-exp and the gradients of one head.
struct Reference {
    y: Vec<Vec<f64>>,
    lse: Vec<f64>,
    grads: [Vec<Vec<f64>>; 3],
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], from: &[f64], factor: f64) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from * factor;
    }
}

fn reference(spec: &Attention<'_>, index: usize, [q, k, v, dy]: &[Vec<Vec<f64>>; 4]) -> Reference {
    let batch = index / spec.heads;
    let zeros = |n: usize| vec![vec![0.0; spec.d]; n];
    let mut out = Reference {
        y: zeros(spec.tq),
        lse: vec![f64::NEG_INFINITY; spec.tq],
        grads: [zeros(spec.tq), zeros(spec.tk), zeros(spec.tk)],
    };
    for i in 0..spec.tq {
        let sees = |j: usize| {
            let past = !spec.causal || j + spec.tq <= i + spec.tk;
            past && spec.key_mask.is_none_or(|m| m[batch * spec.tk + j] != 0)
        };
        let keys: Vec<usize> = (0..spec.tk).filter(|j| sees(*j)).collect();
        let scores: Vec<f64> = keys
            .iter()
            .map(|&j| dot(&q[i], &k[j]) * spec.scale as f64)
            .collect();
        if keys.is_empty() {
            continue;
        }
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        out.lse[i] = top + sum.ln();
        let p: Vec<f64> = scores.iter().map(|s| (s - top).exp() / sum).collect();
        let f: Vec<f64> = keys
            .iter()
            .map(|&j| factor(spec, index * spec.tq + i, j))
            .collect();
        let dp: Vec<f64> = keys
            .iter()
            .zip(&f)
            .map(|(&j, f)| f * dot(&dy[i], &v[j]))
            .collect();
        let mean = dot(&p, &dp);
        for (at, &j) in keys.iter().enumerate() {
            add(&mut out.y[i], &v[j], p[at] * f[at]);
            let ds = p[at] * (dp[at] - mean) * spec.scale as f64;
            add(&mut out.grads[0][i], &k[j], ds);
            add(&mut out.grads[1][j], &q[i], ds);
            add(&mut out.grads[2][j], &dy[i], p[at] * f[at]);
        }
    }
    out
}

fn random_spec<'a>(rng: &mut Rng, mask: &'a [u8]) -> Attention<'a> {
    let mut size = |n: usize| match rng.below(10) {
        0 => 0,
        1 => 1,
        _ => 1 + rng.below(n),
    };
    let (tq, tk) = (size(70), size(110));
    let spec = Attention {
        batch: size(3),
        heads: size(3),
        tq,
        tk: if size(2) == 1 { tq } else { tk },
        d: size(40),
        scale: 0.3,
        causal: false,
        key_mask: None,
        dropout: None,
    };
    Attention {
        causal: rng.below(2) == 0,
        key_mask: (rng.below(2) == 0).then_some(mask),
        dropout: (rng.below(3) == 0).then_some(&drop_a_third),
        ..spec
    }
}

/// Inputs q, k, v, dy, then y, and the gradients; and the log-sum-exp.
struct Run {
    inputs: [Tensor; 4],
    y: Tensor,
    grads: [Tensor; 3],
    lse: Vec<f32>,
}

fn run(rng: &mut Rng, level: Level, spec: &Attention<'_>, dtype: DType) -> Run {
    let times = [spec.tq, spec.tk, spec.tk, spec.tq];
    let inputs = times.map(|time| Tensor::new(rng, spec, time, dtype, true));
    let mut y = Tensor::new(rng, spec, spec.tq, dtype, false);
    let grads = [0, 1, 2].map(|i| Tensor::new(rng, spec, times[i], dtype, false));
    let lse = vec![f32::NAN; spec.batch * spec.heads * spec.tq];
    let mut out = Run {
        grads,
        lse,
        y: Tensor {
            data: Data::new(dtype, &[]),
            strides: [0; 3],
        },
        inputs,
    };
    let [q, k, v, dy] = [0, 1, 2, 3].map(|i| out.inputs[i].read());
    // SAFETY: every view covers an array of this test that outlives the call.
    unsafe {
        forward::run(level, spec, [q, k, v], y.write(), out.lse.as_mut_ptr());
        let inputs = backward::Inputs {
            q,
            k,
            v,
            y: y.read(),
            dy,
        };
        let grads = out.grads.each_mut().map(Tensor::write);
        backward::run(level, spec, &inputs, out.lse.as_ptr(), grads);
    }
    out.y = y;
    out
}

#[test]
fn forward_and_gradients() {
    let mut rng = Rng(31);
    for &level in Level::available() {
        for trial in 0..80 {
            let mask: Vec<u8> = (0..400).map(|_| (rng.below(3) > 0) as u8).collect();
            let spec = random_spec(&mut rng, &mask);
            let dtype = [DType::F32, DType::F32, DType::F16, DType::BF16][trial % 4];
            let eps = [2e-5, 2e-5, 4e-3, 3e-2][trial % 4];
            let out = run(&mut rng, level, &spec, dtype);
            for index in 0..spec.batch * spec.heads {
                let (b, h) = (index / spec.heads, index % spec.heads);
                let times = [spec.tq, spec.tk, spec.tk, spec.tq];
                let inputs = [0, 1, 2, 3].map(|i| out.inputs[i].head(b, h, times[i], spec.d));
                let want = reference(&spec, index, &inputs);
                let text = format!(
                    "{level:?} trial {trial} {dtype:?} {} {} {} causal {} mask {} drop {}",
                    spec.tq,
                    spec.tk,
                    spec.d,
                    spec.causal,
                    spec.key_mask.is_some(),
                    spec.dropout.is_some()
                );
                let check = |name: &str, got: Vec<Vec<f64>>, want: &[Vec<f64>]| {
                    for (i, (got, want)) in got.iter().zip(want).enumerate() {
                        for (got, want) in got.iter().zip(want) {
                            let close = (got - want).abs() <= eps * (want.abs() + 1.0);
                            assert!(close, "{text} {name}[{i}]: {got} {want}");
                        }
                    }
                };
                check("y", out.y.head(b, h, spec.tq, spec.d), &want.y);
                for (i, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
                    check(
                        name,
                        out.grads[i].head(b, h, times[i], spec.d),
                        &want.grads[i],
                    );
                }
                for (i, want) in want.lse.iter().enumerate() {
                    let got = out.lse[index * spec.tq + i] as f64;
                    let close = got == *want || (got - want).abs() <= 1e-5 * (want.abs() + 1.0);
                    assert!(close, "{text} lse[{i}]: {got} {want}");
                }
            }
        }
    }
}

/// Scores beyond the range of f16 and masked keys with values as large: nothing overflows.
#[test]
fn large_scores_and_masked_keys_in_half_precision() {
    let mask = [1u8, 1, 0, 0];
    let spec = Attention {
        batch: 1,
        heads: 1,
        tq: 2,
        tk: 4,
        d: 2,
        scale: 1.0,
        causal: false,
        key_mask: Some(&mask),
        dropout: None,
    };
    let strides = [8, 8, 2];
    let tensor = |values: &[f64]| Tensor {
        data: Data::new(DType::F16, values),
        strides,
    };
    let q = tensor(&[300.0, 300.0, 1.0, 1.0]);
    let k = tensor(&[
        300.0,
        300.0,
        200.0,
        200.0,
        6e4,
        6e4,
        f64::NAN,
        f64::INFINITY,
    ]);
    let v = tensor(&[1.0, 2.0, 3.0, 4.0, 6e4, 6e4, 5.0, 5.0]);
    let mut y = tensor(&[9.0; 4]);
    let mut lse = [0.0f32; 2];
    // SAFETY: every view covers an array of this test that outlives the call.
    unsafe {
        attention(
            &spec,
            q.read(),
            k.read(),
            v.read(),
            y.write(),
            lse.as_mut_ptr(),
        )
    };
    assert_eq!(y.data.values(), [1.0, 2.0, 1.0, 2.0]);
    assert_eq!(lse, [180_000.0, 600.0]);
}

/// Queries whose keys are all masked give 0 and take part in no gradient.
#[test]
fn blind_queries_give_zero() {
    let mut rng = Rng(33);
    let mask = [0u8; 30];
    let spec = Attention {
        batch: 1,
        heads: 2,
        tq: 20,
        tk: 30,
        d: 5,
        scale: 1.0,
        causal: false,
        key_mask: Some(&mask),
        dropout: None,
    };
    let out = run(&mut rng, simd_level(), &spec, DType::F16);
    for head in 0..2 {
        for (tensor, time) in [(&out.y, 20), (&out.grads[0], 20), (&out.grads[1], 30)] {
            assert!(
                tensor
                    .head(0, head, time, 5)
                    .concat()
                    .iter()
                    .all(|v| *v == 0.0)
            );
        }
    }
    assert!(out.lse.iter().all(|v| *v == f32::NEG_INFINITY));
}

/// A NaN is not hidden by the running maximum.
#[test]
fn nan_reaches_the_result() {
    let mut rng = Rng(34);
    let spec = Attention {
        batch: 1,
        heads: 1,
        tq: 3,
        tk: 90,
        d: 4,
        scale: 1.0,
        causal: false,
        key_mask: None,
        dropout: None,
    };
    let mut tensors = [3, 90, 90, 3].map(|t| Tensor::new(&mut rng, &spec, t, DType::F32, true));
    let mut values = tensors[0].data.values();
    values[tensors[0].strides[2]] = f64::NAN;
    tensors[0].data = Data::new(DType::F32, &values);
    let mut lse = [0.0f32; 3];
    let [q, k, v, y] = &mut tensors;
    // SAFETY: every view covers an array of this test that outlives the call.
    unsafe {
        attention(
            &spec,
            q.read(),
            k.read(),
            v.read(),
            y.write(),
            lse.as_mut_ptr(),
        )
    };
    let rows = y.head(0, 0, 3, 4);
    assert!(rows[0].iter().chain(&rows[2]).all(|v| v.is_finite()));
    assert!(rows[1].iter().all(|v| v.is_nan()) && lse[1].is_nan());
}

#[test]
fn same_bits_for_any_number_of_threads() {
    for seed in 0..12 {
        let mask: Vec<u8> = (0..400).map(|i| (i % 5 > 0) as u8).collect();
        let spec = random_spec(&mut Rng(seed + 40), &mask);
        let bits = |threads| {
            let mut rng = Rng(seed);
            on_threads(threads, || {
                let out = run(&mut rng, simd_level(), &spec, DType::F32);
                let grads = out.grads.iter().flat_map(|g| g.data.bytes().to_vec());
                let lse = out.lse.iter().flat_map(|v| v.to_ne_bytes());
                out.y
                    .data
                    .bytes()
                    .iter()
                    .copied()
                    .chain(grads)
                    .chain(lse)
                    .collect::<Vec<u8>>()
            })
        };
        let one = bits(1);
        assert_eq!(one, bits(2));
        assert_eq!(one, bits(3));
    }
}

/// Rounding while packing gives the bits of rounded copies.
#[test]
fn round_to_equals_a_cast_copy() {
    let mut rng = Rng(35);
    let spec = Attention {
        batch: 2,
        heads: 2,
        tq: 30,
        tk: 50,
        d: 12,
        scale: 0.2,
        causal: true,
        key_mask: None,
        dropout: None,
    };
    let inputs = [30, 50, 50].map(|t| Tensor::new(&mut rng, &spec, t, DType::F32, true));
    let copies = inputs.each_ref().map(|t| {
        let values: Vec<f64> = t
            .data
            .values()
            .into_iter()
            .map(|v| round_f64(v, DType::BF16))
            .collect();
        Tensor {
            data: Data::new(DType::BF16, &values),
            strides: t.strides,
        }
    });
    let mut out = [0, 1].map(|_| Tensor {
        data: Data::new(DType::F32, &[0.0; 1440]),
        strides: [720, 360, 12],
    });
    let mut lse = [[0.0f32; 120]; 2];
    let rounded = inputs.each_ref().map(|t| Heads {
        round_to: Some(DType::BF16),
        ..t.read()
    });
    let copied = copies.each_ref().map(Tensor::read);
    for (i, [q, k, v]) in [rounded, copied].into_iter().enumerate() {
        // SAFETY: every view covers an array of this test that outlives the call.
        unsafe { attention(&spec, q, k, v, out[i].write(), lse[i].as_mut_ptr()) };
    }
    assert_eq!(out[0].data.bytes(), out[1].data.bytes());
    assert_eq!(lse[0], lse[1]);
}
