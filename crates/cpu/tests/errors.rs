//! Errors of a run come before anything is written, and memory is counted.
use bimetal_cpu::{CpuBackend, cpu};
use bimetal_tensor::{DType, Device, ErrorKind, Slot, Tensor, commit, eval};

#[test]
fn an_index_out_of_range_stops_before_state_is_written() {
    let d = cpu();
    let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3, 1], &d);
    let slot = Slot::new("w", &Tensor::zeros(&[2, 1], DType::F32, &d), &d).unwrap();
    for bad in [3i32, -1, i32::MIN] {
        let index = Tensor::from_slice(&[1i32, bad], &[2], &d);
        let taken = table.take(&index, 0);
        let error = commit(&[], &[(&slot, &(&taken + 1.0))]).unwrap_err();
        assert_eq!(
            *error.kind(),
            ErrorKind::IndexOutOfRange {
                index: bad as i64,
                size: 3
            }
        );
        assert!(error.to_string().contains("take"), "{error}");
        assert_eq!(slot.to_vec::<f32>().unwrap(), [0.0, 0.0]);
    }
    let good = table.take(&Tensor::from_slice(&[2i64, 0], &[2], &d), 0);
    commit(&[], &[(&slot, &good)]).unwrap();
    assert_eq!(slot.to_vec::<f32>().unwrap(), [3.0, 1.0]);
    // Every kernel with an index.
    let index = Tensor::from_slice(&[0i32, 9], &[2, 1], &d);
    let flat = index.reshape(&[2]);
    let target = Tensor::from_slice(&[0i32, 1], &[2], &d);
    let logits = Tensor::from_slice(&[0.5f32; 2], &[2, 1], &d);
    for t in [
        table.gather(&index, 0),
        table.narrow(0, 0, 2).scatter_add(&index, 0, 3),
        table.narrow(0, 0, 2).take_grad(&flat, 0, 3),
        logits.cross_entropy_rows(&target, -100, 0.0),
    ] {
        let e = t.eval().unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::IndexOutOfRange { .. }), "{e}");
    }
    // Ignored targets may be anything.
    let target = Tensor::from_slice(&[0i32, -100], &[2], &d);
    logits
        .cross_entropy_rows(&target, -100, 0.0)
        .eval()
        .unwrap();
}

#[test]
fn memory_is_counted_exactly() {
    let d = Device::new(CpuBackend::new(Some(1)));
    assert_eq!(d.memory().live, 0);
    let x = Tensor::from_slice(&vec![1.0f32; 1000], &[1000], &d);
    x.eval().unwrap();
    assert_eq!(d.memory().live, 4000);
    // Two temporaries at least, which a reduction separates.
    let y = (x.softmax(-1).softmax(-1) * 2.0).softmax(-1);
    eval(&[&y]).unwrap();
    let m = d.memory();
    assert_eq!(m.live, 8000);
    assert!(m.peak >= 8000 + 4000, "{m:?}");
    drop((x, y));
    assert_eq!(d.memory().live, 0);
    assert_eq!(d.memory().peak, m.peak);
}

#[test]
fn many_threads_may_evaluate_at_once() {
    let d = Device::new(CpuBackend::new(Some(2)));
    let x = Tensor::from_slice(&vec![0.5f32; 100_000], &[100, 1000], &d);
    x.eval().unwrap();
    std::thread::scope(|s| {
        for i in 0..4 {
            let x = &x;
            s.spawn(move || {
                for _ in 0..20 {
                    let y = (x * (i as f64)).softmax(-1).sum_all().item().unwrap();
                    assert!((y - 100.0).abs() < 1e-3);
                }
            });
        }
    });
}
