//! Prints throughput: `cargo test -p bimetal-cpu --release speed -- --ignored --nocapture`.
use super::*;
use bimetal_dtype::DType;
use std::hint::black_box;
use std::time::Instant;

const CHUNK: usize = 1024;

/// Gigaelements per second: the best of many short runs, since the machine may be shared.
fn rate(mut f: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..200 {
        let start = Instant::now();
        for _ in 0..20 {
            f();
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    20.0 * CHUNK as f64 / best / 1e9
}

#[test]
#[ignore = "prints, asserts nothing"]
fn speed() {
    let x: Vec<f32> = (0..CHUNK).map(|i| (i as f32 - 500.0) * 0.01).collect();
    let y: Vec<f32> = (0..CHUNK).map(|i| (i as f32 + 1.0) * 0.002).collect();
    let mut d = vec![0.0; CHUNK];
    let show = |name: String, f: &dyn Fn(SimdLevel) -> f64| {
        print!("{name:24}");
        for &level in SimdLevel::available() {
            print!(" {level} {:6.2}", f(level));
        }
        println!(" Gelem/s");
    };
    for op in UnaryOp::ALL {
        show(format!("{op:?}"), &|level| {
            let (f, mut d) = (unary::unary_f32_at(level, op), d.clone());
            rate(|| f(black_box(&mut d), black_box(&x)))
        });
    }
    for op in BinaryOp::ALL {
        show(format!("{op:?}"), &|level| {
            let (f, mut d) = (binary::binary_f32_at(level, op), d.clone());
            rate(|| f(black_box(&mut d), black_box(&y), black_box(&x)))
        });
    }
    show("mul_add".into(), &|level| {
        let (f, mut d) = (binary::mul_add_f32_at(level), d.clone());
        rate(|| {
            f(
                black_box(&mut d),
                black_box(&y),
                black_box(&x),
                black_box(&y),
            )
        })
    });
    show("lt".into(), &|level| {
        let (f, mut m) = (
            <f32 as compare::Register>::compare_at(level, CmpOp::Lt),
            vec![0; CHUNK],
        );
        rate(|| f(black_box(&mut m), black_box(&x), black_box(&y)))
    });
    let mask: Vec<u8> = (0..CHUNK).map(|i| (i % 3 == 0) as u8).collect();
    show("select".into(), &|level| {
        let (f, mut d) = (<f32 as compare::Register>::select_at(level), d.clone());
        rate(|| {
            f(
                black_box(&mut d),
                black_box(&mask),
                black_box(&x),
                black_box(&y),
            )
        })
    });
    show("f32 to i32".into(), &|level| {
        let (f, mut d) = (<f32 as cast::CastTo<i32>>::cast_at(level), vec![0; CHUNK]);
        rate(|| f(black_box(&mut d), black_box(&x)))
    });
    for dtype in [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
        let mut bytes = vec![0; CHUNK * dtype.size()];
        convert::store_f32(dtype).unwrap()(&mut bytes, &x);
        show(format!("load {dtype:?}"), &|level| {
            let (f, mut d) = (convert::load_f32_at(level, dtype).unwrap(), d.clone());
            rate(|| f(black_box(&mut d), black_box(&bytes)))
        });
        show(format!("store {dtype:?}"), &|level| {
            let (f, mut b) = (convert::store_f32_at(level, dtype).unwrap(), bytes.clone());
            rate(|| f(black_box(&mut b), black_box(&x)))
        });
        show(format!("round {dtype:?}"), &|level| {
            let (f, mut d) = (convert::round_to_at(level, dtype).unwrap(), x.clone());
            rate(|| f(black_box(&mut d)))
        });
    }
    show("philox".into(), &|level| {
        let (f, mut d) = (philox::philox_at(level), vec![0; CHUNK]);
        rate(|| f([1, 2], [3, 4], 0, black_box(&mut d)))
    });
    show("uniform".into(), &|level| {
        let mut d = d.clone();
        rate(|| random::uniform_at(level, [1, 2], [3, 4], 0, black_box(&mut d)))
    });
    show("normal".into(), &|level| {
        let mut d = d.clone();
        rate(|| random::normal_at(level, [1, 2], [3, 4], 0, black_box(&mut d)))
    });
    for op in [ReduceOp::Sum, ReduceOp::SumSquares, ReduceOp::Max] {
        show(format!("reduce {op:?}"), &|level| {
            let f = reduce::reduce_f32_at(level, op);
            rate(|| {
                black_box(f(black_box(&x)));
            })
        });
    }
    show("all_finite".into(), &|level| {
        let f = reduce::all_finite_at(level);
        rate(|| {
            black_box(f(black_box(&x)));
        })
    });
    d.fill(0.0);
}
