//! What a user is told of skipped steps: the error of a training that only skips, and TensorBoard.
mod common;

use bimetal_layers::{Ctx, Layer, Linear, cross_entropy};
use bimetal_optim::Adam;
use bimetal_precision::{Level, LossScale};
use bimetal_tensor::{DType, PathGuard};
use bimetal_train::{Output, TensorBatch, TensorBoard, Trainer};
use common::{Scratch, device, loader, store};

#[test]
fn a_training_that_only_skips_names_layer_operation_line_and_a_way_out() {
    let device = device();
    let scratch = Scratch::new("culprits");
    for level in [Level::Off, Level::Step] {
        let store = store(&device, "mixed_float16");
        let scope = store.root();
        let (first, head) = (
            Linear::new(&scope.at("first"), 64, 16),
            Linear::new(&scope.at("head").policy("float32"), 16, 3),
        );
        let task = |batch: &TensorBatch, cx: &Ctx| {
            let h = first.forward(&batch[0].flatten(1..=2), cx);
            let h = {
                // In range, but its gradient is not.
                let _layer = PathGuard::push("bad".into());
                let large = h.tanh() * 60_000.0;
                &h + (&large - large.detach())
            };
            let logits = head.forward(&h, cx).cast(DType::F32);
            Output::new(cross_entropy(&logits, &batch[1]))
        };
        let dir = scratch.0.join(level.to_string());
        let mut trainer = Trainer::new(&store, Adam::new(1e-3))
            .loss_scale(LossScale::Static(4096.0))
            .steps_per_execution(4)
            .max_skipped_in_a_row(6)
            .check_numerics(level)
            .callback(TensorBoard::new(&dir))
            .progress(false);
        let error = trainer.fit(&task, loader(80), None, 1).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("6 steps in a row"), "{error}");
        assert!(error.contains("`float32`"), "{error}");
        let mut events = String::new();
        for entry in std::fs::read_dir(dir.join("train")).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            events.push_str(&String::from_utf8_lossy(&bytes));
        }
        if level == Level::Off {
            assert!(error.contains("most often `first` (6 times)"), "{error}");
            assert!(
                !events.contains("skipped_step\""),
                "a culprit nobody asked for"
            );
            continue;
        }
        for part in [
            "most often `bad` (6 times)",
            "mul: ",
            "float16",
            "culprits.rs:",
            "backward",
        ] {
            assert!(error.contains(part), "no {part} in {error}");
        }
        for part in ["skipped_step", "layer `bad`, backward of ", "culprits.rs:"] {
            assert!(events.contains(part), "no {part} in the event file");
        }
    }
}
