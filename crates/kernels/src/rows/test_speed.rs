//! Prints processor times of one thread (Linux): `RAYON_NUM_THREADS=1 cargo test -p bimetal-cpu rows_speed -- --ignored --nocapture`.
use super::test_softmax::{bytes, random};
use super::*;
use bimetal_dtype::DType;

/// Nanoseconds this thread has run: other load on the machine does not count.
fn ran() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// Milliseconds, the mean of many runs (the clock of the kernel ticks in milliseconds).
fn mean_ms(mut f: impl FnMut() + Send) -> f64 {
    rayon::scope(|_| {
        f();
        let (start, mut runs) = (ran(), 0.0);
        while ran() - start < 3e8 {
            f();
            runs += 1.0;
        }
        (ran() - start) * 1e-6 / runs
    })
}

#[test]
#[ignore = "prints, asserts nothing"]
fn rows_speed() {
    for dtype in [DType::F32, DType::BF16] {
        let (rows, cols) = (4096, 1024);
        let x = bytes(dtype, &random(dtype, rows * cols, 1, 2.0));
        let (mut y, gamma) = (x.clone(), vec![1.0; cols]);
        let (mut mean, mut rstd) = (vec![0.0; rows], vec![0.0; rows]);
        let (mut dgamma, mut dbeta) = (vec![0.0; cols], vec![0.0; cols]);
        let xr = Rows::new(dtype, &x, cols).unwrap();
        let g = Some(&gamma[..]);
        let fwd = mean_ms(|| {
            let y = RowsMut::new(dtype, &mut y, cols).unwrap();
            layer_norm(xr, g, g, 1e-5, y, &mut mean, &mut rstd);
        });
        let bwd = mean_ms(|| {
            let dx = RowsMut::new(dtype, &mut y, cols).unwrap();
            let args = NormGrad {
                x: xr,
                dy: xr,
                gamma: g,
                rstd: &rstd,
            };
            layer_norm_grad(args, &mean, dx, Some(&mut dgamma), Some(&mut dbeta));
        });
        println!("{dtype:?} layer norm 4096x1024: forward {fwd:.2} ms, backward {bwd:.2} ms");
        let fwd = mean_ms(|| softmax(xr, RowsMut::new(dtype, &mut y, cols).unwrap()));
        println!("{dtype:?} softmax 4096x1024: {fwd:.2} ms");
        let (rows, cols) = (1024, 30_522);
        let x = bytes(dtype, &random(dtype, rows * cols, 1, 5.0));
        let mut dx = x.clone();
        let targets: Vec<i32> = (0..rows as i32).collect();
        let (mut loss, mut lse) = (vec![0.0; rows], vec![0.0; rows]);
        let ce = CrossEntropy {
            logits: Rows::new(dtype, &x, cols).unwrap(),
            targets: Targets::I32(&targets),
            ignore_index: None,
            label_smoothing: 0.0,
        };
        let fwd = mean_ms(|| assert!(cross_entropy(ce, &mut loss, &mut lse).is_none()));
        let bwd = mean_ms(|| {
            let dx = RowsMut::new(dtype, &mut dx, cols).unwrap();
            cross_entropy_grad(ce, &lse, &loss, dx);
        });
        println!("{dtype:?} cross-entropy 1024x30522: forward {fwd:.2} ms, backward {bwd:.2} ms");
    }
}
