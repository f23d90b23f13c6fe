//! `losses`: small networks trained on the device and on the CPU; their losses must agree.
use crate::device::Target;
use crate::options::Options;
use bimetal::DType;
use bimetal_bench::{Training, policy, w1, w2, w4};
use bimetal_tensor::Device;

/// Steps of each training.
const STEPS: usize = 20;

/// How far losses may lie apart, relative to the CPU's: both round, in different orders.
const TOLERANCE: f32 = 1e-2;

type Build = fn(&bimetal::prelude::Scope) -> bimetal::Result<bimetal_bench::Model>;

const NETWORKS: [(&str, Build); 3] = [("mlp", w1), ("cnn", w2), ("gpt", w4)];

/// The `losses` task.
pub fn run(mut options: Options) -> Result<(), String> {
    let backend = options.value("--backend")?.unwrap_or_else(|| "cuda".into());
    let only = options.value("--only")?;
    options.finish()?;
    let device = Target::find(&backend)?.open()?;
    println!("{}", device.info().name);
    let cpu = bimetal::cpu();
    let mut apart = Vec::new();
    for (name, build) in NETWORKS {
        if only.as_ref().is_some_and(|o| o != name) {
            continue;
        }
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (found, wanted) = (losses(build, dtype, &device)?, losses(build, dtype, &cpu)?);
            let pairs = found.iter().zip(&wanted);
            let most = pairs.fold(0f32, |m, (a, b)| match (a - b).abs() / b.abs() {
                d if d.is_nan() => f32::INFINITY,
                d => m.max(d),
            });
            let name = format!("{name} {}", policy(dtype));
            println!(
                "{name:20} {STEPS} losses from {:.4} to {:.4} (CPU {:.4}), apart by {most:.1e} at most",
                found[0],
                found[STEPS - 1],
                wanted[STEPS - 1]
            );
            if most > TOLERANCE {
                apart.push(name);
            }
        }
    }
    match apart.is_empty() {
        true => Ok(()),
        false => Err(format!("losses lie apart: {}", apart.join(", "))),
    }
}

fn losses(build: Build, dtype: DType, device: &Device) -> Result<Vec<f32>, String> {
    let text = |e: bimetal::Error| e.to_string();
    let mut training = Training::new(build, dtype, device).map_err(text)?;
    let steps = (0..STEPS).map(|_| training.step().map(|()| training.loss()));
    steps.collect::<Result<_, _>>().map_err(text)
}
