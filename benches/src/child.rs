//! A process that measures one row and prints it.
use crate::catalog::find;
use crate::clock::{self, Effort, median, thread_ms, times};
use crate::machine;
use crate::options::{dtype, dtype_name, number, positive};
use crate::row::Row;
use crate::timed::timed_cpu;
use bimetal::{DType, Error};

/// The word that makes this program a child.
pub(crate) const ROW: &str = "row";
/// The word that makes this program measure the machine.
pub(crate) const MACHINE: &str = "machine";

/// Runs that tell the host's time, at most; fewer where they are slow.
const HOST_RUNS: usize = 20;
const HOST_SECONDS: f64 = 0.5;

/// `row NAME VARIANT DTYPE THREADS SECONDS`: measures and prints one row. 0 seconds stand for a quick look.
pub(crate) fn row(words: &[String]) -> Result<(), String> {
    let [name, variant, dtype_word, threads, seconds] = words else {
        return Err("`row` takes a name, a variant, a dtype, threads and seconds".into());
    };
    let work = find(name, variant).ok_or_else(|| format!("there is no {name} `{variant}`"))?;
    let dtype = dtype(dtype_word)?;
    let threads = number("threads", threads)?;
    let effort = match positive("seconds", seconds)? {
        0.0 => Effort::QUICK,
        seconds => Effort::seconds(seconds),
    };
    let base = clock::peak_rss_mb();
    let row = measure(&work, dtype, threads, effort).map_err(|e| e.to_string())?;
    let row = Row {
        base_rss_mb: base,
        ..row
    };
    println!("{}", row.json()?);
    Ok(())
}

fn measure(work: &crate::Work, dtype: DType, threads: usize, effort: Effort) -> Result<Row, Error> {
    let device = bimetal::device("cpu", Some(threads))?;
    let mut case = work.build(dtype, &device)?;
    let before = device.plans_compiled();
    let t = times(effort, &mut case.run)?;
    let saved = device.memory().saved;
    let mut row = Row {
        name: work.name.into(),
        variant: work.variant.clone(),
        dtype: dtype_name(dtype).into(),
        threads,
        cpu_ms: Some(t.cpu),
        cpu_ms_min: Some(t.cpu_min),
        wall_ms: Some(t.wall),
        wall_ms_min: Some(t.wall_min),
        flops: work.flops(),
        bytes: Some(work.bytes(dtype, case.parameters, saved)),
        saved_bytes: work.trains().then_some(saved as f64),
        peak_rss_mb: clock::peak_rss_mb(),
        plans_compiled: work
            .trains()
            .then(|| device.plans_compiled().saturating_sub(before)),
        params: work.trains().then_some(case.parameters as u64),
        samples: Some(t.samples as u64),
        load: clock::load(),
        peer: "bimetal".into(),
        rounds: 1,
        ..Row::default()
    };
    drop(case);
    drop(device);
    row.host_us = Some(host_us(work, dtype, threads, t.wall)?);
    Ok(row)
}

/// What a run costs outside of its plans, on a device that counts the time inside of them.
fn host_us(work: &crate::Work, dtype: DType, threads: usize, wall_ms: f64) -> Result<f64, Error> {
    let (device, inside) = timed_cpu(threads);
    let mut case = work.build(dtype, &device)?;
    (case.run)()?;
    let runs = (HOST_SECONDS * 1e3 / wall_ms) as usize;
    let mut host = Vec::new();
    for _ in 0..runs.clamp(2, HOST_RUNS) {
        let (all, plans) = (thread_ms(), inside.ms());
        (case.run)()?;
        host.push((thread_ms() - all - (inside.ms() - plans)) * 1e3);
    }
    Ok(median(&host))
}

/// `machine THREADS SECONDS`: measures and prints the machine's limits as two numbers.
pub(crate) fn machine(words: &[String]) -> Result<(), String> {
    let [threads, seconds] = words else {
        return Err("`machine` takes threads and seconds".into());
    };
    let quick = positive("seconds", seconds)? == 0.0;
    let limits = machine::measure(number("threads", threads)?, quick);
    println!("{} {}", limits.gflops, limits.gbs);
    Ok(())
}
