//! One measured row, as a line of JSON.
use crate::clock::{least, median};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A row: medians, and minima where the name says so. What does not apply or was not measured is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// The workload: `W1` to `W11`.
    pub name: String,
    /// `train`, or what a kernel does and on which shape.
    pub variant: String,
    /// `f32`, `bf16` or `f16`.
    pub dtype: String,
    /// Threads of the device.
    pub threads: usize,
    /// CPU time of the process for one run, in milliseconds.
    pub cpu_ms: Option<f64>,
    /// The least CPU time.
    pub cpu_ms_min: Option<f64>,
    /// Time on the wall for one run, in milliseconds.
    pub wall_ms: Option<f64>,
    /// The least time on the wall.
    pub wall_ms_min: Option<f64>,
    /// Floating-point operations of all products in one run.
    pub flops: Option<f64>,
    /// Bytes that must pass through memory in one run.
    pub bytes: Option<f64>,
    /// f32 multiply-adds of this machine with so many threads, 10^9 operations per second.
    pub peak_gflops: Option<f64>,
    /// Memory traffic of this machine with so many threads, 10^9 bytes per second.
    pub bandwidth_gbs: Option<f64>,
    /// `flops` per time as a share of the peak.
    pub peak_share: Option<f64>,
    /// `bytes` per time as a share of the bandwidth.
    pub bandwidth_share: Option<f64>,
    /// Bytes that the forward pass keeps for the backward pass.
    pub saved_bytes: Option<f64>,
    /// The most memory that the process held, in MiB.
    pub peak_rss_mb: Option<f64>,
    /// Plans compiled for the steps.
    pub plans_compiled: Option<u64>,
    /// CPU time of the host around the plans of one run, in microseconds: tracing, plan lookup, dispatch.
    pub host_us: Option<f64>,
    /// Elements of all parameters.
    pub params: Option<u64>,
    /// Memory of the process before its work began, in MiB: of a peer, after it was imported.
    pub base_rss_mb: Option<f64>,
    /// Samples of each round.
    pub samples: Option<u64>,
    /// Rounds.
    pub rounds: usize,
    /// Processes that wanted to run while this was measured.
    pub load: Option<f64>,
    /// Who was measured: `bimetal` or a peer.
    pub peer: String,
    /// Our time as a share of others', medians over the rounds: of a peer's by its name, of our own f32 (`f32`), of one thread (`1 thread`).
    pub ratios: BTreeMap<String, f64>,
    /// Why there are no times.
    pub error: Option<String>,
}

impl Row {
    /// The time that counts, in milliseconds: CPU time of one thread, else time on the wall.
    pub fn ms(&self) -> Option<f64> {
        if self.threads == 1 {
            self.cpu_ms
        } else {
            self.wall_ms
        }
    }

    /// The rows of several rounds as one: medians of medians, minima of minima.
    pub fn merge(rounds: &[Row]) -> Option<Row> {
        let mut row = rounds.last()?.clone();
        let all = |f: fn(&Row) -> Option<f64>| rounds.iter().filter_map(f).collect::<Vec<_>>();
        let middle = |f| Some(median(&all(f))).filter(|m| m.is_finite());
        let minimum = |f| Some(least(&all(f))).filter(|m| m.is_finite());
        row.cpu_ms = middle(|r| r.cpu_ms);
        row.cpu_ms_min = minimum(|r| r.cpu_ms_min);
        row.wall_ms = middle(|r| r.wall_ms);
        row.wall_ms_min = minimum(|r| r.wall_ms_min);
        row.peak_rss_mb = middle(|r| r.peak_rss_mb);
        row.host_us = middle(|r| r.host_us);
        row.load = middle(|r| r.load);
        row.rounds = rounds.len();
        Some(row)
    }

    /// Adds what the machine can do, and the shares of it.
    pub fn with_limits(mut self, gflops: f64, gbs: f64) -> Row {
        let share =
            |work: Option<f64>, ms: Option<f64>, limit: f64| Some(work? / (ms? * limit * 1e6));
        self.peak_gflops = Some(gflops);
        self.bandwidth_gbs = Some(gbs);
        self.peak_share = share(self.flops, self.ms(), gflops);
        self.bandwidth_share = share(self.bytes, self.ms(), gbs);
        self
    }

    /// The row as a line of JSON.
    ///
    /// # Errors
    /// None that a caller could cause.
    pub fn json(&self) -> Result<String, String> {
        serde_json::to_string(self).map_err(|e| e.to_string())
    }

    /// The least time that this machine's limits allow, in milliseconds.
    pub fn roofline_ms(&self) -> Option<f64> {
        let of = |work: Option<f64>, limit: Option<f64>| Some(work? / (limit? * 1e6));
        let flops = of(self.flops, self.peak_gflops);
        let bytes = of(self.bytes, self.bandwidth_gbs);
        flops.into_iter().chain(bytes).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cpu: f64, wall: f64) -> Row {
        Row {
            threads: 1,
            cpu_ms: Some(cpu),
            cpu_ms_min: Some(cpu / 2.0),
            wall_ms: Some(wall),
            flops: Some(2e6),
            bytes: Some(4e6),
            ..Row::default()
        }
    }

    #[test]
    fn rounds_merge_to_medians_and_minima() {
        let merged = Row::merge(&[row(3.0, 9.0), row(1.0, 7.0), row(2.0, 8.0)]).unwrap();
        assert_eq!((merged.cpu_ms, merged.wall_ms), (Some(2.0), Some(8.0)));
        assert_eq!((merged.cpu_ms_min, merged.rounds), (Some(0.5), 3));
        assert_eq!(merged.host_us, None);
    }

    #[test]
    fn shares_are_of_the_time_that_counts() {
        let one = row(1.0, 4.0).with_limits(10.0, 8.0);
        assert_eq!(
            (one.peak_share, one.bandwidth_share),
            (Some(0.2), Some(0.5))
        );
        assert_eq!(one.roofline_ms(), Some(0.5));
        let two = Row {
            threads: 2,
            ..row(1.0, 4.0)
        };
        assert_eq!(two.with_limits(10.0, 8.0).peak_share, Some(0.05));
    }
}
