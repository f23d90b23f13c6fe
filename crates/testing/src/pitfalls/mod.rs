//! What goes wrong in mixed-precision training elsewhere, one test or more for each kind of fault: a test fails if the protection against its fault is taken out.
//!
//! Each test is a function of a device, which panics where it fails; every one wants a device of its own, so that none sees the settings and the memory of another.
#![allow(clippy::unwrap_used, clippy::panic)]
use bimetal::Device;

pub mod checkpoints;
pub mod gradients;
pub mod half;
pub mod layers;
pub mod replicas;
pub mod scale;
pub mod support;
pub mod types;
pub mod weights;

/// A test, which panics where it fails.
pub type Test = fn(&Device);

/// All tests, by name.
pub fn all() -> Vec<(&'static str, Test)> {
    macro_rules! table {
        ($($module:ident: $($test:ident,)*;)*) => {
            vec![$($((stringify!($test), $module::$test as Test),)*)*]
        };
    }
    crate::each_pitfall!(table)
}

/// Gives the list of tests, by module, to a macro.
#[macro_export]
macro_rules! each_pitfall {
    ($with:ident) => {
        $with! {
                scale:
                    pitfall_01_the_scale_stops_at_its_minimum_and_the_training_with_an_error,
                    pitfall_01_the_trainer_stops_and_names_the_layer,
                    pitfall_02_the_scale_stops_at_its_maximum_and_is_never_infinite,
                    pitfall_03_the_scale_moves_once_a_step,
                    pitfall_04_a_skipped_step_says_so_with_its_culprit,
                    pitfall_04_skipped_steps_are_counted_where_the_user_looks,
                    pitfall_05_the_smallest_scale_may_be_below_one,
                    pitfall_06_the_loss_is_scaled_in_f32,;
                types:
                    pitfall_07_scaled_gradients_can_only_be_unscaled,
                    pitfall_07_steps_and_windows_take_one_kind_only,;
                replicas:
                    pitfall_08_a_nan_on_one_replica_skips_the_step_on_all,
                    pitfall_29_replicas_keep_one_scale_and_the_same_weights,
                    pitfall_30_the_decision_is_part_of_the_reduction,
                    pitfall_30_a_replica_that_fails_ends_the_others_wait,;
                gradients:
                    pitfall_09_clipped_gradients_are_those_of_the_unscaled_run,
                    pitfall_10_clipping_and_accumulation_compose,
                    pitfall_10_one_bad_micro_batch_drops_the_window,
                    pitfall_11_a_gradient_penalty_does_not_see_the_scale,
                    pitfall_13_a_half_parameter_without_a_master_is_named,
                    pitfall_15_no_derivative_is_an_error,
                    pitfall_15_every_operation_has_its_derivative,;
                half:
                    pitfall_12_norms_of_half_gradients_are_f32,
                    pitfall_14_repeated_rows_of_an_embedding_add_up_in_f32,
                    pitfall_24_masks_are_finite_in_half_precision,
                    pitfall_25_means_and_variances_do_not_overflow,
                    pitfall_28_attention_with_dropout_has_its_softmax_in_f32,;
                weights:
                    pitfall_16_a_zero_gradient_makes_no_update,
                    pitfall_16_the_default_eps_is_not_zero,
                    pitfall_17_a_thousand_small_updates_arrive,
                    pitfall_18_averages_of_half_weights_move,
                    pitfall_19_schedule_averages_and_counter_move_on_applied_steps_only,
                    pitfall_20_the_fused_step_is_the_plain_one_and_respects_the_flag,
                    pitfall_21_evaluation_leaves_no_stale_weights,
                    pitfall_21_memory_stays_flat,;
                checkpoints:
                    pitfall_22_a_resumed_run_has_the_same_bits,
                    pitfall_23_masters_are_what_is_saved,;
                layers:
                    pitfall_26_statistics_of_a_skipped_step_are_dropped,
                    pitfall_27_recomputation_keeps_every_bit,;
        }
    };
}
