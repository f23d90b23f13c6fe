//! `bench`: what products, kernels and train steps reach on a device, as shares of what it could.
mod gemm;
mod kernels;
mod results;
mod steps;
mod timing;

use crate::device::Target;
use crate::options::Options;
use results::Results;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What is measured, and how long.
pub struct Plan {
    /// Fewer sizes.
    quick: bool,
    /// Sizes that a software adapter does in seconds: that everything runs is seen, no speed.
    tiny: bool,
    /// What has not begun by then is left out.
    end: Option<Instant>,
}

impl Plan {
    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// The `bench` task.
pub fn run(mut options: Options) -> Result<(), String> {
    let file = options.value("--json")?.map(PathBuf::from);
    let backend = options.value("--backend")?.unwrap_or_else(|| "cuda".into());
    let only = options.value("--only")?;
    let seconds = options.value("--seconds")?;
    let (probe, quick) = (options.flag("--probe"), options.flag("--quick"));
    let tiny = options.flag("--tiny");
    options.finish()?;
    let end = match seconds.map(|s| s.parse()) {
        None => None,
        Some(Ok(seconds)) => Some(Instant::now() + Duration::from_secs(seconds)),
        Some(Err(_)) => return Err("`--seconds` needs a whole number".into()),
    };
    let plan = Plan { quick, tiny, end };
    let target = match Target::find(&backend) {
        Ok(target) => target,
        // Who asks whether there is a device is told; who wants numbers has none.
        Err(e) if probe => {
            println!("none: {e}");
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let device = target.json()?;
    println!("device: {device}");
    if probe {
        return Ok(());
    }
    let mut results = Results::new(device, file);
    type Part = fn(&Target, &Plan, &mut Results) -> Result<(), String>;
    let parts: [(&str, Part); 3] = [
        ("gemm", gemm::run),
        ("kernels", kernels::run),
        ("steps", steps::run),
    ];
    if let Some(name) = &only
        && !parts.iter().any(|(part, _)| part == name)
    {
        return Err(format!("`--only {name}` is none of gemm, kernels, steps"));
    }
    for (name, part) in parts {
        if only.as_ref().is_none_or(|o| o == name) {
            part(&target, &plan, &mut results)?;
        }
    }
    Ok(())
}

/// A message.
fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// A share in percent, or a dash.
fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |s| format!("{:.1}", 100.0 * s))
}
