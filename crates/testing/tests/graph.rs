//! What the lazy graph promises: state, plans, errors, depth.
use bimetal_cpu::cpu;
use bimetal_tensor::{DType, ErrorKind, Slot, Tensor, commit, eval};

fn vec1(v: &[f32], d: &bimetal_tensor::Device) -> Tensor {
    Tensor::from_slice(v, &[v.len()], d)
}

#[test]
fn a_commit_is_one_transaction_over_old_values() {
    let d = cpu();
    let a = Slot::new("a", &vec1(&[1.0, 2.0], &d), &d).unwrap();
    let b = Slot::new("b", &vec1(&[3.0, 4.0], &d), &d).unwrap();
    let c = Slot::new("c", &vec1(&[0.0, 0.0], &d), &d).unwrap();
    // A swap, and a third state that reads both old values, with an output that reads a new one.
    let (ra, rb) = (a.read(), b.read());
    let new_c = &ra * 10 + &rb;
    let out = &new_c + 1;
    commit(&[&out], &[(&a, &rb), (&b, &ra), (&c, &new_c)]).unwrap();
    assert_eq!(a.to_vec::<f32>().unwrap(), [3.0, 4.0]);
    assert_eq!(b.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(c.to_vec::<f32>().unwrap(), [13.0, 24.0]);
    assert_eq!(out.to_vec::<f32>().unwrap(), [14.0, 25.0]);
}

#[test]
fn in_place_writes_read_what_was_there_before() {
    let d = cpu();
    let n = 50_000;
    let start: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let a = Slot::new("a", &vec1(&start, &d), &d).unwrap();
    // The new value reads the old one backwards: writing in place would read values already overwritten.
    let r = a.read();
    commit(&[], &[(&a, &(&r + r.flip(0)))]).unwrap();
    assert!(
        a.to_vec::<f32>()
            .unwrap()
            .iter()
            .all(|&v| v == (n - 1) as f32)
    );
    // Another reader of the old value in the same step, a reduction.
    let b = Slot::new("b", &Tensor::zeros(&[], DType::F32, &d), &d).unwrap();
    let r = a.read();
    commit(&[], &[(&a, &(&r * 0.0)), (&b, &r.max(&[], false))]).unwrap();
    assert_eq!(b.to_vec::<f32>().unwrap(), [(n - 1) as f32]);
    assert!(a.to_vec::<f32>().unwrap().iter().all(|&v| v == 0.0));
}

#[test]
fn a_read_of_state_that_moved_is_an_error_and_a_value_computed_before_stays() {
    let d = cpu();
    let a = Slot::new("layer.weight", &vec1(&[1.0], &d), &d).unwrap();
    let kept = a.read() * 2;
    kept.eval().unwrap();
    let stale = a.read() * 3;
    let snapshot = a.snapshot().unwrap();
    commit(&[], &[(&a, &(a.read() + 1))]).unwrap();
    assert_eq!(kept.item().unwrap(), 2.0);
    assert_eq!(snapshot.item().unwrap(), 1.0);
    let e = stale.item().unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::StateMoved { param, .. } if param == "layer.weight"),
        "{e}"
    );
    assert!(e.to_string().contains("snapshot"), "{e}");
    assert_eq!((a.read() * 3).item().unwrap(), 6.0);
}

#[test]
fn a_bad_index_stops_the_step_before_state_changes() {
    let d = cpu();
    let a = Slot::new("a", &vec1(&[1.0, 2.0, 3.0], &d), &d).unwrap();
    let index = Tensor::from_slice(&[0i32, 7], &[2], &d);
    let picked = a.read().take(&index, 0);
    let e = commit(&[&picked], &[(&a, &(a.read() + 1))]).unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::IndexOutOfRange { index: 7, size: 3 }),
        "{e}"
    );
    assert!(
        e.to_string().contains("graph.rs"),
        "the line of the gather is named: {e}"
    );
    assert_eq!(a.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!((a.read() + 1).to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0]);
}

#[test]
fn a_loop_compiles_its_step_once() {
    let d = cpu();
    let w = Slot::new("w", &vec1(&[0.5; 64], &d), &d).unwrap();
    let mut after_first = 0;
    for step in 0..100u32 {
        let batch: Vec<f32> = (0..64).map(|i| (i * step) as f32 * 0.01).collect();
        let x = vec1(&batch, &d);
        let key = bimetal_tensor::graph::RandomKey::Value {
            stream: 17 * step as u64,
            micro: step,
        };
        let noise = Tensor::random(
            bimetal_tensor::graph::Distribution::Uniform,
            &[64],
            key,
            None,
            &d,
        );
        let lr = 0.1 / (1.0 + step as f64);
        let loss = ((w.read() * &x + noise) * 0.3).square().mean_all();
        commit(&[&loss], &[(&w, &(w.read() - &x * lr))]).unwrap();
        if step == 0 {
            after_first = d.plans_compiled();
        }
    }
    assert_eq!(d.plans_compiled(), after_first);
}

#[test]
fn the_first_mistake_is_reported_with_its_line_and_survives() {
    let d = cpu();
    let a = Tensor::zeros(&[2, 3], DType::F32, &d);
    let b = Tensor::zeros(&[4, 5], DType::F32, &d);
    let line = line!() + 1;
    let bad = a.matmul(&b);
    let later = (bad.relu() + 1.0).sum_all();
    let e = later.item().unwrap_err();
    let text = e.to_string();
    assert!(
        text.contains("matmul") && text.contains("[2, 3]") && text.contains("[4, 5]"),
        "{text}"
    );
    assert!(text.contains(&format!("graph.rs:{line}")), "{text}");
    assert!(later.dims::<0>().is_err());
    // An invalid operand anywhere makes the whole evaluation fail, and computes nothing.
    let good = a.clone() + 1.0;
    assert!(eval(&[&good, &later]).is_err());
}

#[test]
fn a_million_nodes_on_a_small_stack() {
    std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(|| {
            let d = cpu();
            let mut y = vec1(&[1.0, 2.0], &d);
            for _ in 0..1_000_000 {
                y = y + 1;
            }
            assert_eq!(y.to_vec::<f32>().unwrap(), [1_000_001.0, 1_000_002.0]);
            drop(y);
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn scalars_are_neither_rounded_to_nor_change_the_dtype() {
    let d = cpu();
    let x = Tensor::from_slice(&[half::f16::from_f32(1e-4)], &[1], &d);
    let y = (&x + 1e-8) * 1e4;
    assert_eq!(y.dtype(), DType::F16);
    // 1e-8 is 0 in f16, yet the sum is computed in f32 with it: rounding happens once per node.
    let tiny = Tensor::from_slice(&[half::f16::from_f32(0.0)], &[1], &d);
    let z = (tiny + 1e-8).cast(DType::F32);
    assert_eq!(z.item().unwrap(), 0.0);
    let big = x.maximum(1e-8).log().item().unwrap();
    assert!((big - (1e-4f64).ln()).abs() < 0.01, "{big}");
    assert!((y.item().unwrap() - 1.0).abs() < 2e-3);
}

#[test]
fn threads_may_evaluate_and_commit_at_once() {
    let d = cpu();
    let w = Slot::new("w", &vec1(&[0.0; 1000], &d), &d).unwrap();
    std::thread::scope(|s| {
        let (w, d) = (&w, &d);
        s.spawn(move || {
            for _ in 0..200 {
                commit(&[], &[(w, &(w.read() + 1))]).unwrap();
            }
        });
        for _ in 0..2 {
            s.spawn(move || {
                for _ in 0..200 {
                    // A state may move between building and running; a value read is never a mixture.
                    match (w.read() + 0.0).to_vec::<f32>() {
                        Ok(v) => assert!(v.iter().all(|x| *x == v[0])),
                        Err(e) => assert!(matches!(e.kind(), ErrorKind::StateMoved { .. }), "{e}"),
                    }
                    assert_eq!((vec1(&[2.0], d) * 3).item().unwrap(), 6.0);
                }
            });
        }
    });
    assert_eq!(w.to_vec::<f32>().unwrap()[0], 200.0);
}

#[test]
fn what_can_be_made_from_kept_values_is_not_kept() {
    use bimetal_autodiff::grad;
    let d = cpu();
    let n = 64usize;
    let x = Tensor::from_slice(&vec![0.5f32; n * n], &[n, n], &d);
    let w1 = Tensor::from_slice(&vec![0.01f32; n * n], &[n, n], &d);
    let w2 = Tensor::from_slice(&vec![0.02f32; n * n], &[n, n], &d);
    let key = bimetal_tensor::graph::RandomKey::Value {
        stream: 3,
        micro: 0,
    };
    // GELU's input is kept, its output and the dropout mask are made again.
    let h = x.matmul(&w1).gelu();
    let keep = Tensor::random(
        bimetal_tensor::graph::Distribution::Uniform,
        &[n, n],
        key,
        None,
        &d,
    )
    .ge(0.1);
    let h = keep.select(&h, 0.0) * (1.0 / 0.9);
    let loss = h.matmul(&w2).square().mean_all();
    let g = grad(&loss, &[&w1, &w2]).unwrap();
    eval(&[&loss, &g[0], &g[1]]).unwrap();
    let kept = d.memory().saved;
    // The input of GELU and the result of the last product, of n * n floats each.
    assert_eq!(kept, 2 * n * n * 4);
}
