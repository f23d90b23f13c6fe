//! How time and memory grow with the size of the work.
use crate::clock::{Effort, times};
use crate::kernels::{Run, adamw};
use crate::models::{Sizes, W4, gpt, mlp};
use crate::options::{Options, dtype_name};
use crate::report::say;
use crate::train::Training;
use bimetal::{DType, Device, Error, Result};
use serde::Serialize;

/// A size that grows while all others stay.
struct Series {
    /// What grows.
    axis: &'static str,
    /// Of what.
    of: &'static str,
    sizes: &'static [usize],
    build: fn(usize, DType, &Device) -> Result<Run>,
}

const SERIES: [Series; 6] = [
    Series {
        axis: "batch",
        of: "W1",
        sizes: &[32, 64, 128, 256, 512, 1024],
        build: |n, dtype, device| training(|s| mlp(s, n, 512, 2), dtype, device),
    },
    Series {
        axis: "width",
        of: "W1",
        sizes: &[128, 256, 512, 1024, 2048],
        build: |n, dtype, device| training(|s| mlp(s, 128, n, 2), dtype, device),
    },
    Series {
        axis: "depth",
        of: "W1",
        sizes: &[2, 4, 8, 16, 32],
        build: |n, dtype, device| training(|s| mlp(s, 128, 512, n), dtype, device),
    },
    Series {
        axis: "batch",
        of: "W4",
        sizes: &[2, 4, 8, 16, 32],
        build: |batch, dtype, device| training(|s| gpt(s, Sizes { batch, ..W4 }), dtype, device),
    },
    Series {
        axis: "sequence length",
        of: "W4, 4 sequences",
        sizes: &[32, 64, 128, 256, 512],
        build: |time, dtype, device| {
            let sizes = Sizes {
                batch: 4,
                time,
                ..W4
            };
            training(|s| gpt(s, sizes), dtype, device)
        },
    },
    Series {
        axis: "parameters",
        of: "W11",
        sizes: &[1 << 20, 1 << 21, 1 << 22, 1 << 23, 1 << 24],
        build: |n, dtype, device| adamw(&[n / 4; 4], dtype, device),
    },
];

fn training(
    build: impl FnOnce(&bimetal::layers::Scope) -> Result<crate::Model>,
    dtype: DType,
    device: &Device,
) -> Result<Run> {
    let mut training = Training::new(build, dtype, device)?;
    Ok(Box::new(move || training.step()))
}

/// A measured size.
#[derive(Serialize)]
struct Point {
    axis: &'static str,
    of: &'static str,
    dtype: &'static str,
    threads: usize,
    size: usize,
    cpu_ms_min: f64,
    memory_mb: f64,
}

/// How fast a series grows: time and memory go with the size to these powers.
#[derive(Serialize)]
struct Growth {
    axis: &'static str,
    of: &'static str,
    dtype: &'static str,
    threads: usize,
    time_exponent: f64,
    memory_exponent: f64,
}

/// Measures all series and prints tables; `json` gets the same as lines of JSON.
pub(crate) fn run(
    options: &Options,
    aside: bool,
    mut json: impl FnMut(&str) -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    let effort = match options.seconds {
        0.0 => Effort::QUICK,
        seconds => Effort::seconds(seconds),
    };
    for &threads in &options.threads {
        for &dtype in &options.dtypes {
            for series in &SERIES {
                let sizes = match options.quick {
                    true => &series.sizes[..2],
                    false => series.sizes,
                };
                say(
                    aside,
                    &format!(
                        "\n{} of {}, {}, {threads} thread(s)\n{:>12} {:>12} {:>12}",
                        series.axis,
                        series.of,
                        dtype_name(dtype),
                        "size",
                        "cpu ms",
                        "memory MB"
                    ),
                );
                let mut points = Vec::new();
                for &size in sizes {
                    let point = measure(series, size, dtype, threads, effort);
                    let point = point.map_err(|e| e.to_string())?;
                    say(
                        aside,
                        &format!(
                            "{size:12} {:12.3} {:12.1}",
                            point.cpu_ms_min, point.memory_mb
                        ),
                    );
                    json(&line(&point)?)?;
                    points.push(point);
                }
                let fit =
                    |f: fn(&Point) -> f64| exponent(points.iter().map(|p| (p.size as f64, f(p))));
                let growth = Growth {
                    axis: series.axis,
                    of: series.of,
                    dtype: dtype_name(dtype),
                    threads,
                    time_exponent: fit(|p| p.cpu_ms_min),
                    memory_exponent: fit(|p| p.memory_mb),
                };
                say(
                    aside,
                    &format!(
                        "{:>12} {:12.2} {:12.2}",
                        "exponent", growth.time_exponent, growth.memory_exponent
                    ),
                );
                json(&line(&growth)?)?;
            }
        }
    }
    Ok(())
}

fn line(value: &impl Serialize) -> std::result::Result<String, String> {
    serde_json::to_string(value).map_err(|e| e.to_string())
}

fn measure(
    series: &Series,
    size: usize,
    dtype: DType,
    threads: usize,
    effort: Effort,
) -> Result<Point, Error> {
    let device = bimetal::device("cpu", Some(threads))?;
    let mut run = (series.build)(size, dtype, &device)?;
    let t = times(effort, &mut run)?;
    Ok(Point {
        axis: series.axis,
        of: series.of,
        dtype: dtype_name(dtype),
        threads,
        size,
        cpu_ms_min: t.cpu_min,
        memory_mb: device.memory().peak as f64 / 1048576.0,
    })
}

/// The slope of the line through the logarithms, by least squares.
fn exponent(points: impl Iterator<Item = (f64, f64)>) -> f64 {
    let logs: Vec<(f64, f64)> = points.map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let (mx, my) = logs
        .iter()
        .fold((0.0, 0.0), |(a, b), (x, y)| (a + x / n, b + y / n));
    let (mut above, mut below) = (0.0, 0.0);
    for (x, y) in logs {
        above += (x - mx) * (y - my);
        below += (x - mx) * (x - mx);
    }
    above / below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_law_gives_its_power() {
        let cubic = [1.0, 2.0, 4.0, 8.0].map(|x: f64| (x, 5.0 * x.powi(3)));
        assert!((exponent(cubic.into_iter()) - 3.0).abs() < 1e-12);
        // Off the line by the same factor above and below: still 1.
        let noisy = [(1.0, 1.0), (10.0, 20.0), (100.0, 50.0), (1000.0, 1000.0)];
        let slope = exponent(noisy.into_iter());
        assert!((slope - 0.9398).abs() < 1e-3, "{slope}");
    }
}
