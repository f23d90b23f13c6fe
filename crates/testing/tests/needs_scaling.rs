//! A deep plain network whose gradients vanish in f16: without a loss scale it stalls, with one it trains as in f32. `-- --nocapture` prints the table.
use bimetal::prelude::*;
use bimetal_cpu::CpuBackend;
use bimetal_testing::random::Gen;

const INPUTS: usize = 8;
const WIDTH: usize = 24;
const DEPTH: usize = 10;
const CLASSES: usize = 3;
const ROWS: usize = 128;
const STEPS: usize = 200;
const SEEDS: u64 = 3;
/// The unit of the loss: as if it were a mean over very many items, or one small term among others. Adam does not mind; f16 does.
const UNIT: f64 = 1e-5;

/// Rows `[ROWS, INPUTS]` and their classes: the nearest of three fixed points.
fn batch(g: &mut Gen, device: &Device) -> (Tensor, Tensor) {
    let mut points = Gen::new(7);
    let draw = |g: &mut Gen, n: usize| -> Vec<f32> {
        (0..n).map(|_| g.unit() as f32 * 2.0 - 1.0).collect()
    };
    let points = draw(&mut points, CLASSES * INPUTS);
    let x = draw(g, ROWS * INPUTS);
    let class = |row: &[f32]| {
        let distance = |c: &usize| -> f32 {
            let point = &points[c * INPUTS..(c + 1) * INPUTS];
            row.iter().zip(point).map(|(x, p)| (x - p) * (x - p)).sum()
        };
        (0..CLASSES)
            .min_by(|a, b| distance(a).total_cmp(&distance(b)))
            .unwrap() as i32
    };
    let y: Vec<i32> = x.chunks(INPUTS).map(class).collect();
    (
        Tensor::from_slice(&x, &[ROWS, INPUTS], device),
        Tensor::from_slice(&y, &[ROWS], device),
    )
}

/// The losses of a training of hidden layers without normalisation or shortcuts, at PyTorch's initial values: each makes gradients smaller.
fn losses(policy: &str, scale: &str, seed: u64) -> Vec<f32> {
    let device = Device::new(CpuBackend::new(Some(1)));
    let store = ParamStore::new(&device, policy.parse::<PolicyMap>().unwrap()).seed(seed);
    let root = store.root();
    let mut net = Sequential::new();
    for i in 0..DEPTH {
        let inputs = if i == 0 { INPUTS } else { WIDTH };
        net = net
            .then(Linear::new(&root.at("hidden").at(i), inputs, WIDTH))
            .then(Activation::Tanh);
    }
    let net = net.then(Linear::new(&root.at("head"), WIDTH, CLASSES));
    let scaler = LossScaler::new(scale.parse().unwrap(), &device).unwrap();
    let mut optimizer = Adam::new(2e-3).eps(1e-12);
    let params = store.trainable_slots().unwrap();
    let mut g = Gen::new(seed + 100);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (x, y) = batch(&mut g, &device);
        let cx = store.train();
        let loss = cross_entropy(&net.forward(&x, &cx), &y) * UNIT;
        let grads = scaler.scale(&loss).grad(&params).unwrap().unscale();
        let step = optimizer.step(cx, grads).unwrap();
        losses.push(step.loss().unwrap() / UNIT as f32);
    }
    losses
}

/// The mean losses of the first and the last twenty steps.
fn ends(losses: &[f32]) -> [f32; 2] {
    let mean = |l: &[f32]| l.iter().sum::<f32>() / l.len() as f32;
    [mean(&losses[..20]), mean(&losses[STEPS - 20..])]
}

#[test]
fn a_loss_scale_is_what_makes_it_train() {
    println!("policy         scale     first losses         last losses          mean of the last");
    let run = |policy: &str, scale: &str| {
        let ends: Vec<[f32; 2]> = (0..SEEDS)
            .map(|seed| ends(&losses(policy, scale, seed)))
            .collect();
        let list = |i: usize| {
            ends.iter()
                .map(|e| format!("{:.3}", e[i]))
                .collect::<Vec<_>>()
                .join("  ")
        };
        let mean = ends.iter().map(|e| e[1]).sum::<f32>() / SEEDS as f32;
        println!(
            "{policy:13}  {scale:7}  {:19}  {:19}  {mean:.3}",
            list(0),
            list(1)
        );
        (ends, mean)
    };
    let (ends, mean) = run("float32", "none");
    let noise = ends.iter().map(|e| (e[1] - mean).powi(2)).sum::<f32>() / (SEEDS - 1) as f32;
    let noise = noise.sqrt();
    for [first, last] in &ends {
        assert!(*last < 0.5 * first, "float32 did not learn: {ends:?}");
    }
    let (unscaled, _) = run("mixed_float16", "none");
    for [first, last] in unscaled {
        assert!(
            last > 0.9 * first,
            "the network trains without a scale: {first} to {last}"
        );
    }
    for scale in ["1024", "dynamic"] {
        let (_, scaled) = run("mixed_float16", scale);
        assert!(
            (scaled - mean).abs() <= noise,
            "{scale}: {scaled} is not {mean} within {noise}"
        );
    }
    println!("noise of the seeds (standard deviation of float32): {noise:.3}");
}
