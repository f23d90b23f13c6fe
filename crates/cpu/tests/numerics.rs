//! Contracts of numbers: accumulation, NaN, precision of products, updates and their decomposition.
use bimetal_cpu::cpu;
use bimetal_tensor::graph::{Attr, Composite, MatmulPrecision, OptimRule, decompose};
use bimetal_tensor::{DType, Tensor, eval};

#[test]
fn means_of_many_halves_are_right() {
    let d = cpu();
    let ones = Tensor::ones(&[65_520], DType::F16, &d);
    assert_eq!(ones.mean_all().item().unwrap(), 1.0);
    let v: Vec<f32> = (0..10_000_000)
        .map(|i| 1.0 + (i % 1000) as f32 * 1e-3)
        .collect();
    let want = v.iter().map(|x| *x as f64).sum::<f64>() / v.len() as f64;
    let x = Tensor::from_slice(&v, &[v.len()], &d);
    let got = x.mean_all().item().unwrap();
    assert!((got / want - 1.0).abs() < 1e-6, "{got} {want}");
    // The same numbers as columns.
    let got = x
        .reshape(&[2_500_000, 4])
        .sum(&[0], false)
        .sum_all()
        .item()
        .unwrap()
        / 1e7;
    assert!((got / want - 1.0).abs() < 1e-6, "{got} {want}");
    let equal = Tensor::full(&[100_000], 40_000.0, DType::F16, &d);
    assert_eq!(equal.var(&[0], 0, false).item().unwrap(), 0.0);
}

#[test]
fn rows_and_columns_are_summed_in_one_order() {
    let d = cpu();
    let v: Vec<f32> = (0..3000u64 * 150)
        .map(|i| ((i * 7919) % 1009) as f32 / 64.3)
        .collect();
    let x = Tensor::from_slice(&v, &[3000, 150], &d);
    let columns = x.sum(&[0], false).to_bytes().unwrap();
    let turned = x.t().settle().unwrap();
    let copy = Tensor::from_bytes(&turned.to_bytes().unwrap(), &[150, 3000], DType::F32, &d);
    assert_eq!(columns, copy.sum(&[1], false).to_bytes().unwrap());
}

#[test]
fn nan_wins_and_the_first_of_equals_is_found() {
    let d = cpu();
    let mut v = vec![1.0f32; 5000];
    v[77] = 3.0;
    v[3000] = 3.0;
    v[80] = -2.0;
    v[90] = -2.0;
    let x = |v: &[f32]| Tensor::from_slice(v, &[5000], &d);
    assert_eq!(x(&v).argmax(0, false).to_vec::<i32>().unwrap(), [77]);
    assert_eq!(x(&v).argmin(0, false).to_vec::<i32>().unwrap(), [80]);
    v[4000] = f32::NAN;
    v[4001] = f32::NAN;
    for t in [
        x(&v).max(&[0], false),
        x(&v).min(&[0], false),
        x(&v).sum_all(),
    ] {
        assert!(t.item().unwrap().is_nan());
    }
    assert_eq!(x(&v).argmax(0, false).to_vec::<i32>().unwrap(), [4000]);
    assert_eq!(x(&v).argmin(0, false).to_vec::<i32>().unwrap(), [4000]);
    let (sorted, order) = x(&v).sort(false);
    assert!(
        sorted.to_vec::<f32>().unwrap()[4998..]
            .iter()
            .all(|v| v.is_nan())
    );
    assert_eq!(order.to_vec::<i32>().unwrap()[..2], [80, 90]);
    let (top, at) = x(&v).topk(4);
    assert!(top.to_vec::<f32>().unwrap()[1].is_nan());
    assert_eq!(at.to_vec::<i32>().unwrap(), [4000, 4001, 77, 3000]);
}

#[test]
fn integers_and_flags_reduce() {
    let d = cpu();
    let x = Tensor::from_slice(&(0..3000i64).collect::<Vec<_>>(), &[3, 1000], &d);
    assert_eq!(
        x.sum(&[1], false).to_vec::<i64>().unwrap(),
        [499_500, 1_499_500, 2_499_500]
    );
    assert_eq!(x.max(&[0], false).to_vec::<i64>().unwrap()[17], 2017);
    let even = x
        .binary(bimetal_tensor::graph::Binary::Rem, &Tensor::scalar(2.0))
        .eq(0.0);
    assert_eq!(even.any(&[1], false).to_vec::<bool>().unwrap(), [true; 3]);
    assert_eq!(even.all(&[1], false).to_vec::<bool>().unwrap(), [false; 3]);
    let a = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3], &d);
    assert_eq!(a.matmul(&a.t()).to_vec::<i32>().unwrap(), [14, 32, 32, 77]);
}

/// The error of each product against f64, relative to the sum of magnitudes that an element adds up: half a step of the operands for each of both, and f32's own.
#[test]
fn product_precision_is_what_it_says() {
    let d = cpu();
    let (m, k, n) = (37, 129, 21);
    let data = |count: usize, by: usize| -> Vec<f32> {
        let v = (0..count).map(|i| ((i * by) % 9973) as f32 / 4986.5 - 1.0);
        v.map(|v| v * v * v).collect()
    };
    let (va, vb) = (data(m * k, 7919), data(k * n, 6007));
    let a = Tensor::from_slice(&va, &[m, k], &d);
    let b = Tensor::from_slice(&vb, &[k, n], &d);
    let worst = |p: MatmulPrecision| {
        let got = a.matmul_with(&b, p, None).to_f64_vec().unwrap();
        let mut worst = 0f64;
        for i in 0..m {
            for j in 0..n {
                let terms = (0..k).map(|q| va[i * k + q] as f64 * vb[q * n + j] as f64);
                let size: f64 = terms.clone().map(f64::abs).sum();
                worst = worst.max((got[i * n + j] - terms.sum::<f64>()).abs() / size);
            }
        }
        worst
    };
    let (full, tf32, split) = (
        worst(MatmulPrecision::Exact),
        worst(MatmulPrecision::Tf32),
        worst(MatmulPrecision::Bf16x3),
    );
    let step = |bits: i32| 2f64.powi(-bits);
    assert!(full <= step(21), "{full:e}");
    // Two operands, each wrong by at most 2^-11; more than that of 16 bits, or nothing was rounded.
    assert!(tf32 <= 2.0 * step(11) + step(21), "{tf32:e}");
    assert!(tf32 > step(16), "{tf32:e}");
    // Two rests of 2^-17, and the product that is left out, below 2^-8 times 2^-8.
    assert!(split <= 2.0 * step(17) + step(16) + step(21), "{split:e}");
    assert!(split > 2.0 * full && split < tf32 / 8.0, "{split:e}");

    let plans = d.plans_compiled();
    for p in [
        MatmulPrecision::Tf32,
        MatmulPrecision::Bf16x3,
        MatmulPrecision::Exact,
    ] {
        let _ = a.matmul_with(&b, p, None).to_bytes().unwrap();
    }
    assert_eq!(
        d.plans_compiled(),
        plans,
        "each precision has its plan already"
    );
    // What is no f32 has nothing to round.
    let half = a.cast(DType::F16);
    let rhs = b.cast(DType::F16);
    let exact = half.matmul(&rhs).to_bytes().unwrap();
    let asked = half.matmul_with(&rhs, MatmulPrecision::Bf16x3, None);
    assert_eq!(asked.to_bytes().unwrap(), exact);
}

#[test]
fn updates_have_the_bits_of_their_decomposition() {
    let d = cpu();
    let n = 20_011;
    let t = |k: u32| {
        let v: Vec<f32> = (0..n as u32)
            .map(|i| ((i * k) % 8191) as f32 / 4096.0 - 1.0)
            .collect();
        Tensor::from_slice(&v, &[n], &d)
    };
    let f = |v: f64| Tensor::full(&[], v, DType::F32, &d);
    let rules = [
        (
            OptimRule::Sgd {
                momentum: false,
                nesterov: false,
            },
            0.0,
            0.0,
        ),
        (
            OptimRule::Sgd {
                momentum: true,
                nesterov: false,
            },
            0.9,
            0.1,
        ),
        (
            OptimRule::Sgd {
                momentum: true,
                nesterov: true,
            },
            0.9,
            0.0,
        ),
        (OptimRule::Adam { decoupled: false }, 0.9, 0.999),
        (OptimRule::Adam { decoupled: true }, 0.9, 0.95),
    ];
    for (rule, beta1, beta2) in rules {
        for (decay, step, apply, eps) in [
            (0.0, 1.0, 1.0, 1e-8),
            (0.01, 1.0, 1.0, 1e-8),
            (0.01, 7.0, 1.0, 0.0),
            (0.0, 1000.0, 1.0, 1e-8),
            (0.01, 7.0, 0.0, 1e-8),
        ] {
            let c = Composite::OptimUpdate {
                rule,
                beta1: Attr(beta1),
                beta2: Attr(beta2),
                eps: Attr(eps),
                weight_decay: Attr(decay),
            };
            let mut x = vec![
                Tensor::full(&[], apply, DType::Bool, &d),
                f(3e-3),
                f(0.25),
                f(step),
                t(3),
                t(5),
            ];
            x.extend([t(11), t(13).square()].into_iter().take(rule.moments()));
            // A second parameter, smaller than a block.
            let small: Vec<Tensor> = x[4..].iter().map(|t| t.narrow(0, 100, 77)).collect();
            x.extend(small);
            let native = Tensor::composite(c, &x.iter().collect::<Vec<_>>());
            let plain = decompose(&c, &x);
            eval(&plain.iter().collect::<Vec<_>>()).unwrap();
            for (i, p) in plain.iter().enumerate() {
                let (a, b) = (native.output(i).to_bytes().unwrap(), p.to_bytes().unwrap());
                assert!(
                    a == b,
                    "{rule:?} decay {decay} step {step} apply {apply}: output {i}"
                );
                if apply == 0.0 && i == 0 {
                    assert_eq!(a, x[4].to_bytes().unwrap());
                }
            }
        }
    }
}

#[test]
fn gradient_statistics_have_the_bits_of_their_decomposition() {
    let d = cpu();
    let v: Vec<f32> = (0..70_000)
        .map(|i| ((i * 37) % 4001) as f32 / 1000.0 - 2.0)
        .collect();
    let a = Tensor::from_slice(&v, &[70, 1000], &d);
    let b = Tensor::from_slice(&v[..1500], &[1500], &d).cast(DType::F16);
    for poison in [None, Some(f32::NAN), Some(f32::INFINITY)] {
        let mut v = v[..40_000].to_vec();
        if let Some(p) = poison {
            v[39_999] = p;
        }
        let c = Tensor::from_slice(&v, &[40_000], &d);
        let x = [a.clone(), b.clone(), c];
        let native = Tensor::composite(Composite::GradStats, &x.iter().collect::<Vec<_>>());
        let plain = decompose(&Composite::GradStats, &x);
        assert_eq!(
            native.output(0).item().unwrap(),
            poison.is_none() as u8 as f64
        );
        assert_eq!(
            native.output(2).item().unwrap(),
            if poison.is_some() { 2.0 } else { -1.0 }
        );
        for (i, p) in plain.iter().enumerate() {
            let (x, y) = (native.output(i).item().unwrap(), p.item().unwrap());
            assert!(x == y || x.is_nan() && y.is_nan(), "{i}: {x} {y}");
        }
    }
}

/// The native kernel, the decomposition and a count in f64 on the host agree, for numbers of all sizes and for every dtype whose limits count.
#[test]
fn exponent_histograms_are_those_of_a_count_in_f64() {
    use bimetal_tensor::graph::{EXPONENT_BINS, bin_exponent};
    let d = cpu();
    let mut v: Vec<f32> = (0u32..40_000)
        .map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9).rotate_left(7)))
        .collect();
    // Around what f16 and bf16 can hold, where the casts round one way or the other.
    for x in [
        65504.0f32,
        65520.0,
        65519.99,
        3.3961775e38,
        6.1035156e-5,
        6.097_555e-5,
    ] {
        v.extend([x, x.next_up(), x.next_down(), -x]);
    }
    for e in [-24, -25, -26, -133, -134, -149] {
        let x = 2f64.powi(e) as f32;
        v.extend([x, x.next_up(), x.next_down(), -x]);
    }
    v.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    for to in [
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F32,
    ] {
        for from in [DType::F32, DType::BF16, DType::F16] {
            let x = Tensor::from_slice(&v, &[v.len()], &d).cast(from);
            let wide = x.to_f64_vec().unwrap();
            let rounded = Tensor::from_slice(&v, &[v.len()], &d).cast(from).cast(to);
            let rounded = rounded.to_f64_vec().unwrap();
            let mut counts = vec![0i32; 2 * EXPONENT_BINS];
            let mut lost = [0i32; 3];
            let (mut sum, mut magnitudes, mut finite) = (0.0, 0.0, 0);
            for (x, y) in wide.iter().zip(&rounded) {
                let row = (*x < 0.0) as usize * EXPONENT_BINS;
                let bin = (0..EXPONENT_BINS - 2).find(|b| match bin_exponent(*b) {
                    None => *x == 0.0,
                    Some(e) => x.abs() >= 2f64.powi(e) && x.abs() < 2f64.powi(e + 1),
                });
                let special = EXPONENT_BINS - 2 + x.is_nan() as usize;
                counts[row + bin.unwrap_or(special)] += 1;
                if x.is_finite() {
                    finite += 1;
                    sum += x;
                    magnitudes += x.abs();
                    lost[0] += (*x != 0.0 && *y == 0.0) as i32;
                    lost[1] += (*y != 0.0 && y.abs() < to.smallest_normal()) as i32;
                    lost[2] += !y.is_finite() as i32;
                }
            }
            assert!(finite > 10_000);
            let c = Composite::ExponentHistogram { to };
            let native = Tensor::composite(c, &[&x]);
            let native = [0, 1, 2].map(|i| native.output(i));
            let plain = decompose(&c, std::slice::from_ref(&x));
            for t in [&native[..], &plain] {
                assert_eq!(t[0].to_vec::<i32>().unwrap(), counts, "{from} {to}");
                assert_eq!(t[1].to_vec::<i32>().unwrap(), lost, "{from} {to}");
                let m = t[2].to_f64_vec().unwrap();
                let kept = || wide.iter().filter(|x| x.is_finite());
                assert_eq!(m[0], kept().fold(f64::INFINITY, |a, b| a.min(*b)));
                assert_eq!(m[1], kept().fold(f64::NEG_INFINITY, |a, b| a.max(*b)));
                if from == DType::F16 {
                    assert!((m[2] - sum).abs() < 1e-5 * magnitudes, "{} {sum}", m[2]);
                    assert!((m[3] / magnitudes - 1.0).abs() < 1e-5);
                }
            }
            let bits = |t: &Tensor| t.to_bytes().unwrap();
            assert_eq!(bits(&native[2]), bits(&plain[2]), "{from} {to}");
        }
    }
    let nothing = Tensor::zeros(&[0, 3], DType::F32, &d);
    let (counts, lost, m) = nothing.exponent_histogram(DType::F16);
    assert_eq!(counts.cast(DType::I32).sum_all().item().unwrap(), 0.0);
    assert_eq!(lost.to_vec::<i32>().unwrap(), [0; 3]);
    let m = m.to_vec::<f32>().unwrap();
    assert_eq!(m, [f32::INFINITY, f32::NEG_INFINITY, 0.0, 0.0, 0.0]);
}

#[test]
fn turned_operands_of_every_dtype_are_read_right() {
    let d = cpu();
    let (a, b, c) = (3usize, 50usize, 41usize);
    let v: Vec<f32> = (0..a * b * c).map(|i| (i % 113) as f32).collect();
    for dtype in DType::ALL {
        let x = Tensor::from_slice(&v, &[a, b, c], &d).cast(dtype);
        x.eval().unwrap();
        let from = x.to_f64_vec().unwrap();
        let turned = x.transpose(1, 2).flatten(0..=1).to_f64_vec().unwrap();
        let back = x.permute(&[2, 1, 0]).flatten(0..=2).to_f64_vec().unwrap();
        for (i, j, k) in (0..a * b * c).map(|n| (n / (b * c), n / c % b, n % c)) {
            let want = from[(i * b + j) * c + k];
            assert_eq!(turned[(i * c + k) * b + j], want, "{dtype}");
            assert_eq!(back[(k * b + j) * a + i], want, "{dtype}");
        }
    }
    // Beside dense operands and generated values.
    let x = Tensor::from_slice(&v, &[a * b, c], &d);
    let y = Tensor::from_slice(&v, &[c, a * b], &d);
    let z = (x.t() * 2.0 + &y).to_f64_vec().unwrap();
    for i in 0..c {
        for j in 0..a * b {
            let want = v[j * c + i] * 2.0 + v[i * a * b + j];
            assert_eq!(z[i * a * b + j], want as f64);
        }
    }
}

#[test]
fn extremes_of_columns_are_those_of_rows() {
    let d = cpu();
    let (m, n) = (300usize, 200usize);
    let mut v: Vec<f32> = (0..m * n).map(|i| ((i * 7919) % 41) as f32).collect();
    v[5 * n + 3] = f32::NAN;
    v[9 * n + 3] = f32::NAN;
    v[n + 150] = f32::INFINITY;
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::F64] {
        let x = Tensor::from_slice(&v, &[m, n], &d).cast(dtype);
        x.eval().unwrap();
        let turned = x.t().flatten(0..=1).reshape(&[n as isize, m as isize]);
        for (columns, rows) in [
            (x.argmax(0, false), turned.argmax(1, false)),
            (x.argmin(0, false), turned.argmin(1, false)),
        ] {
            let (a, b) = (
                columns.to_vec::<i32>().unwrap(),
                rows.settle().unwrap().to_vec::<i32>().unwrap(),
            );
            assert_eq!(a, b, "{dtype}");
            if dtype.is_float() {
                assert_eq!(a[3], 5, "{dtype}");
            }
        }
    }
}
