//! Averages of the weights in the Trainer.
mod common;

use bimetal_layers::ParamStore;
use bimetal_optim::{Adam, Ema, Optimizer};
use bimetal_train::Trainer;
use common::{Net, Scratch, bytes_of, device, loader, restless, store};

fn trainer(store: &ParamStore) -> Trainer {
    Trainer::new(store, Adam::new(0.01))
        .ema(Ema::new(0.9).warmup())
        .loss_scale(restless())
        .progress(false)
}

fn optimizer_bytes(optimizer: &dyn Optimizer) -> Vec<Vec<u8>> {
    let state = optimizer.state();
    state.iter().map(|s| s.to_bytes().unwrap()).collect()
}

#[test]
fn the_average_is_evaluated_and_survives_a_resume() {
    let device = device();
    let straight = store(&device, "mixed_float16");
    let net = Net::new(&straight);
    let mut whole = trainer(&straight);
    let report = whole.fit(&net, loader(48), None, 4).unwrap();
    assert!(report.skipped > 0 && report.applied > 0, "{report}");

    let scratch = Scratch::new("ema");
    let parts = store(&device, "mixed_float16");
    let again = Net::new(&parts);
    let _ = trainer(&parts)
        .checkpoint(&scratch.0)
        .fit(&again, loader(48), None, 2)
        .unwrap();
    let parts = store(&device, "mixed_float16");
    let again = Net::new(&parts);
    let mut second = trainer(&parts).checkpoint(&scratch.0).resume(true);
    let _ = second.fit(&again, loader(48), None, 4).unwrap();
    assert_eq!(bytes_of(&parts), bytes_of(&straight));
    let averages = optimizer_bytes(whole.optimizer());
    assert_eq!(optimizer_bytes(second.optimizer()), averages);
    let names: Vec<_> = whole
        .optimizer()
        .state()
        .iter()
        .map(|s| s.name().to_string())
        .collect();
    assert!(
        names.contains(&"optim/head.weight/ema".to_string()),
        "{names:?}"
    );

    let before = bytes_of(&straight);
    let plain = whole.evaluate(&net, loader(48)).unwrap();
    let average = whole
        .with_average(|t| t.evaluate(&net, loader(48)))
        .unwrap()
        .unwrap();
    assert_ne!(plain.get("loss"), average.get("loss"));
    assert!(average.get("loss").unwrap().is_finite());
    assert_eq!(bytes_of(&straight), before);
}

#[test]
fn without_averages_there_is_an_error() {
    let device = device();
    let store = store(&device, "float32");
    let net = Net::new(&store);
    let mut plain = Trainer::new(&store, Adam::new(0.01)).progress(false);
    let _ = plain.fit(&net, loader(24), None, 1).unwrap();
    let e = plain.with_average(|_| ()).unwrap_err().to_string();
    assert!(e.contains("`.ema(0.999)`"), "{e}");
    let mut bad = Trainer::new(&store, Adam::new(0.01))
        .ema(1.0)
        .progress(false);
    let e = bad.fit(&net, loader(24), None, 1).unwrap_err().to_string();
    assert!(e.contains("the decay is 1;"), "{e}");
}
