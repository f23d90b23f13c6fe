//! Seconds of something that a device does.
use super::text;
use bimetal_tensor::Device;
use std::time::Instant;

/// How often and how long a batch of runs is.
#[derive(Clone, Copy)]
pub struct Effort {
    batches: usize,
    seconds: f64,
}

impl Effort {
    /// Five batches of a twentieth of a second.
    pub const FULL: Effort = Effort {
        batches: 5,
        seconds: 0.05,
    };
    /// One batch of one run.
    pub const TINY: Effort = Effort {
        batches: 1,
        seconds: 0.0,
    };
}

/// Seconds of one run: the median of batches, each of as many as fill their time and waited for at its end. Kernels are compiled before.
pub fn seconds(
    device: &Device,
    effort: Effort,
    run: &mut dyn FnMut() -> Result<(), String>,
) -> Result<f64, String> {
    let mut batch = |times: usize| {
        let start = Instant::now();
        for _ in 0..times {
            run()?;
        }
        device.sync().map_err(text)?;
        Ok::<f64, String>(start.elapsed().as_secs_f64() / times as f64)
    };
    batch(2)?;
    let times = ((effort.seconds / batch(1)?.max(1e-9)) as usize).clamp(1, 500);
    let mut all = (0..effort.batches)
        .map(|_| batch(times))
        .collect::<Result<Vec<f64>, String>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}
