//! The finite flag of many tensors.
use bimetal_cpu::cpu;
use bimetal_tensor::{DType, Tensor};

// Without the sum of squares another loop runs, which looks at bits.
#[test]
fn the_finite_flag_alone_sees_every_element_of_every_dtype() {
    let d = cpu();
    let n = 20_000;
    for dtype in [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F64,
    ] {
        let fine: Vec<f32> = (0..n)
            .map(|i| if i % 2 == 0 { -448.0 } else { 1e-30 })
            .collect();
        let fine = Tensor::from_slice(&fine, &[n], &d).cast(dtype);
        let flag = |x: &Tensor| Tensor::grad_stats(&[&fine, x]).0.item().unwrap() != 0.0;
        assert!(flag(&fine), "{dtype}");
        for (at, bad) in [
            (0, f32::NAN),
            (n - 1, f32::NAN),
            (16_384, f32::INFINITY),
            (777, f32::NEG_INFINITY),
        ] {
            if dtype == DType::F8E4M3 && !bad.is_nan() {
                continue;
            }
            let mut v = vec![1.0f32; n];
            v[at] = bad;
            let x = Tensor::from_slice(&v, &[n], &d).cast(dtype);
            x.eval().unwrap();
            assert!(!flag(&x), "{dtype} {bad} at {at}");
            assert_eq!(Tensor::grad_stats(&[&fine, &x]).2.item().unwrap(), 1.0);
        }
    }
}
