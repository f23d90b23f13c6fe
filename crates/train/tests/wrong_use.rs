//! Mistakes in a task: one clear error that points at the user's line, and parameters as they were.

use bimetal_data::{Array, InMemory, Loader};
use bimetal_layers::{Ctx, Layer, Linear, ParamStore, cross_entropy};
use bimetal_optim::Sgd;
use bimetal_tensor::Tensor;
use bimetal_train::{Output, TensorBatch, Trainer};

/// What a run with `output` of logits `[8, 3]` and targets `[8]` says, and whether the parameters are as before.
fn run(output: fn(Tensor, &Tensor) -> Output) -> Result<(), String> {
    let store = ParamStore::new(&bimetal_cpu::cpu(), "float32").seed(0);
    let net = Linear::new(&store.root().at("net"), 4, 3);
    let x = (0..64).map(|i| (i % 7) as f32).collect();
    let y = (0..16).map(|i| i % 3).collect();
    let arrays = vec![
        Array::from_vec::<f32>(x, &[16, 4]).unwrap(),
        Array::from_vec::<i32>(y, &[16]).unwrap(),
    ];
    let loader = Loader::new(InMemory::new(arrays).unwrap()).batch(8);
    let before = net.weight().read().to_f64_vec().unwrap();
    let task = |b: &TensorBatch, cx: &Ctx| output(net.forward(&b[0], cx), &b[1]);
    let mut trainer = Trainer::new(&store, Sgd::new(0.1)).progress(false);
    match trainer.fit(&task, loader, None, 1) {
        Ok(_) => Ok(()),
        Err(error) => {
            assert_eq!(before, net.weight().read().to_f64_vec().unwrap());
            Err(error.to_string())
        }
    }
}

#[test]
fn accuracy_does_not_broadcast_its_targets() {
    let plain = |l: Tensor, y: &Tensor| Output::new(cross_entropy(&l, y)).accuracy(&l, y);
    run(plain).unwrap();
    let text = run(|l, y| Output::new(cross_entropy(&l, y)).accuracy(&l, &y.unsqueeze(1)));
    let text = text.unwrap_err();
    for part in ["accuracy", "[8, 3]", "[8, 1]", "wrong_use.rs"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn names_of_metrics_are_used_once() {
    for name in ["loss", "share"] {
        let text = match name {
            "loss" => run(|l, y| Output::new(cross_entropy(&l, y)).metric("loss", l.sum_all())),
            _ => run(|l, y| {
                let output = Output::new(cross_entropy(&l, y)).metric("share", l.mean_all());
                output.metric("share", l.sum_all())
            }),
        };
        let text = text.unwrap_err();
        assert!(text.contains(&format!("`{name}` is taken")), "{text}");
        assert!(text.contains("wrong_use.rs"), "{text}");
    }
}

#[test]
fn a_loss_of_another_shape_names_the_line_that_built_it() {
    let text = run(|l, _| Output::new(l.sum(&[0], false))).unwrap_err();
    assert!(text.contains("8 rows") && text.contains("[3]"), "{text}");
    assert!(text.contains("wrong_use.rs"), "{text}");
}

#[test]
fn a_loss_without_parameters_names_the_line_that_built_it() {
    let text = run(|_, y| Output::new(y.cast(bimetal_tensor::DType::F32).mean_all())).unwrap_err();
    assert!(text.contains("none of the parameters"), "{text}");
    assert!(text.contains("wrong_use.rs"), "{text}");
}
