//! What Keras does under `mixed_float16`, row by row: the same here where it is the same, measured on real Keras (`tests/golden/keras_mixed.py`), and better where
//! it is better. A row that is ignored comes later.
//!
//! Each test is a function of a device; `BIMETAL_TEST_DEVICE` names the one to run on (default `cpu`). `cargo xtask test --suite keras` prints a line for each row.
mod callbacks;
mod golden;
mod layers;
mod policies;
mod steps;
mod training;

use bimetal_testing::pitfalls::support;

fn device() -> bimetal::Device {
    let name = std::env::var("BIMETAL_TEST_DEVICE").unwrap_or("cpu".into());
    bimetal::device(&name, Some(2)).unwrap()
}

macro_rules! rows {
    ($($module:ident: $($test:ident,)*;)*) => {$($(
        #[test]
        fn $test() {
            $module::$test(&device());
        }
    )*)*};
}

rows! {
    policies:
        keras_policy_names,
        keras_inputs,
        keras_weights,
        keras_model_output,
        keras_auto_wrap,;
    layers:
        keras_dense_conv_pooling_relu_dropout_add,
        keras_softmax,
        keras_lstm,
        keras_batch_norm_layer_norm,
        keras_global_mean,
        keras_multi_head_attention,
        keras_embedding,
        keras_losses_metrics,;
    steps:
        keras_loss_scale_optimizer,
        keras_overflow,
        keras_order,
        keras_gradient_accumulation,
        keras_mirrored_strategy,;
    training:
        keras_steps_per_execution,
        keras_enable_check_numerics,
        keras_backup_and_restore,;
    callbacks:
        keras_model_checkpoint,
        keras_tensorboard,;
}

macro_rules! later {
    ($($row:ident: $why:literal,)*) => {$(
        #[test]
        #[ignore = $why]
        fn $row() {}
    )*};
}

later! {
    keras_concat: "there is no such layer yet; `Tensor::concat` keeps the dtype",
    keras_gru: "there is no such layer yet",
    keras_group_norm: "there is no such layer yet",
    keras_rms_norm: "there is no such layer yet",
    keras_regularizers: "there are none yet; decay is the optimizer's",
    keras_tensorboard_graph: "there is no such option yet",
    keras_tensorboard_profile: "there is no such option yet",
    keras_tensorboard_embeddings: "there is no such option yet",
}
