//! What is saved and loaded.
use super::support::*;
use bimetal::Device;
use bimetal::layers::ParamStore;
use bimetal::optim::{AdamW, Ema, warmup_cosine};
use bimetal::train::{Trainer, load_latest_checkpoint, load_weights};
use half::f16;

fn trainer(store: &ParamStore) -> Trainer {
    let optimizer = AdamW::new(warmup_cosine(1e-2, 1e-3, 5, 33));
    Trainer::new(store, optimizer)
        .ema(Ema::new(0.9))
        .loss_scale(restless())
        .progress(false)
}

/// Everything a run has changed, as bits, and what it says of itself.
fn everything(mut trainer: Trainer, net: &Net, steps: u64, per_epoch: u64) -> (Vec<Vec<u8>>, u64) {
    trainer = trainer.steps_per_epoch(per_epoch);
    let report = trainer.fit_steps(net, loader(83), None, steps).unwrap();
    let mut all = bits(&trainer.store().state().unwrap());
    all.extend(bits(&trainer.optimizer().state()));
    (all, report.skipped)
}

// fairseq2#1346, transformers#11663, composer#1376
pub fn pitfall_22_a_resumed_run_has_the_same_bits(device: &Device) {
    // Masters, moments, averages, statistics; the scale, its counter, the schedule, dropout and the data decide about the steps after the resume.
    let straight = seeded(device, "mixed_float16");
    let net = Net::new(&straight);
    let (want, skipped) = everything(trainer(&straight), &net, 33, 7);
    assert!(
        skipped > 8,
        "the scale should have grown into overflows again: {skipped}"
    );
    // In the middle of an epoch, of an interval of growth, and of a pass over the data.
    for cut in [13, 22] {
        let scratch = Scratch::new(&format!("resume-{cut}"));
        for steps in [cut, 33] {
            let parts = seeded(device, "mixed_float16");
            let net = Net::new(&parts);
            let trainer = trainer(&parts).checkpoint(&scratch.0).resume(true);
            let (found, again) = everything(trainer, &net, steps, 7);
            if steps == 33 {
                assert_eq!((found, again), (want.clone(), skipped));
            }
        }
    }
}

// apex#42, #388, #480
pub fn pitfall_23_masters_are_what_is_saved(device: &Device) {
    let scratch = Scratch::new("masters");
    let mixed = seeded(device, "mixed_float16");
    let net = Net::new(&mixed);
    let _ = everything(trainer(&mixed).checkpoint(&scratch.0), &net, 11, 11);
    let saved = load_latest_checkpoint(&scratch.0).unwrap().unwrap();
    let weights = |store: &ParamStore| {
        let params = store.params();
        let slots: Vec<_> = params.iter().map(|p| p.slot().unwrap().clone()).collect();
        (
            bits(&slots),
            slots.iter().flat_map(values).collect::<Vec<_>>(),
        )
    };
    let (want, numbers) = weights(&mixed);
    let fine = |v: &&f64| f16::from_f64(**v).to_f64() != **v;
    assert!(numbers.iter().filter(fine).count() > numbers.len() / 2);
    // To an f32 model and, trained there, back to a mixed one.
    let plain = seeded(device, "float32");
    let net = Net::new(&plain);
    load_weights(&plain, &saved).unwrap();
    assert_eq!(weights(&plain).0, want);
    let back = Scratch::new("masters-back");
    let _ = everything(trainer(&plain).checkpoint(&back.0), &net, 4, 4);
    let saved = load_latest_checkpoint(&back.0).unwrap().unwrap();
    let again = seeded(device, "mixed_float16");
    let _net = Net::new(&again);
    load_weights(&again, &saved).unwrap();
    assert_eq!(weights(&again).0, weights(&plain).0);
    assert_ne!(weights(&again).0, want);
}
