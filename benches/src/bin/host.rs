//! What the host does for a train step, again and again on a device that runs nothing, for profilers: `host W4 [STEPS]`.
use bimetal::{DType, Error, Result};
use bimetal_bench::{find, planner};
use std::time::Instant;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let name = words.first().map_or("W4", String::as_str);
    let steps: u32 = words
        .get(1)
        .map_or(Ok(1000), |n| n.parse())
        .map_err(|_| Error::invalid("the number of steps is no number"))?;
    let work = find(name, "train")
        .ok_or_else(|| Error::invalid(format!("`{name}` is no train step; expected W1 to W6")))?;
    let mut case = work.build(DType::F32, &planner())?;
    // The first ones compile plans.
    for _ in 0..3 {
        (case.run)()?;
    }
    let start = Instant::now();
    for _ in 0..steps {
        (case.run)()?;
    }
    println!(
        "{name}: {:.1} us a step",
        start.elapsed().as_secs_f64() * 1e6 / f64::from(steps)
    );
    Ok(())
}
