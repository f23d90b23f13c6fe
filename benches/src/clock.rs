//! Time and memory of this process.
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Instant;

fn milliseconds(t: Timespec) -> f64 {
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

/// CPU time of all threads of this process so far, in milliseconds.
pub fn process_ms() -> f64 {
    milliseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// CPU time of the calling thread so far, in milliseconds.
pub fn thread_ms() -> f64 {
    milliseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// The most memory this process has held, in MiB, where the system tells it.
pub fn peak_rss_mb() -> Option<f64> {
    // Not `ru_maxrss`: that one survives `exec`, so that a child would report its parent's.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Processes that want to run, averaged over a minute, where the system tells it.
pub fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// How long something is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Runs before the first that counts.
    pub warm_up: usize,
    /// About how long the runs that count shall take.
    pub seconds: f64,
    /// At least so many samples.
    pub samples: usize,
}

impl Effort {
    /// Two samples and no more: for a look, or a test.
    pub const QUICK: Effort = Effort {
        warm_up: 1,
        seconds: 0.0,
        samples: 2,
    };

    /// At least five samples, in about `seconds`.
    pub fn seconds(seconds: f64) -> Effort {
        Effort {
            warm_up: 4,
            seconds,
            samples: 5,
        }
    }
}

/// Medians and minima, in milliseconds a run.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// CPU time of the process.
    pub cpu: f64,
    /// The least CPU time.
    pub cpu_min: f64,
    /// Time on the wall.
    pub wall: f64,
    /// The least time on the wall.
    pub wall_min: f64,
    /// The number of samples.
    pub samples: usize,
}

/// A sample shorter than this is made of several runs, so that reading the clocks does not count.
const SHORTEST_MS: f64 = 0.2;
const MOST_SAMPLES: f64 = 2000.0;

/// Repeats `run` and says how long it took.
///
/// # Errors
/// The first error of `run`.
pub fn times<E>(effort: Effort, mut run: impl FnMut() -> Result<(), E>) -> Result<Times, E> {
    for _ in 0..effort.warm_up {
        run()?;
    }
    let mut sample = |runs: usize| -> Result<(f64, f64), E> {
        let (wall, cpu) = (Instant::now(), process_ms());
        for _ in 0..runs {
            run()?;
        }
        let cpu = process_ms() - cpu;
        let wall = wall.elapsed().as_secs_f64() * 1e3;
        Ok((cpu / runs as f64, wall / runs as f64))
    };
    let (_, estimate) = sample(1)?;
    let runs = (SHORTEST_MS / estimate.max(1e-6)).ceil().max(1.0);
    let most = (effort.seconds * 1e3 / (estimate * runs)).min(MOST_SAMPLES) as usize;
    let samples = effort.samples.max(most);
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        let (c, w) = sample(runs as usize)?;
        cpu.push(c);
        wall.push(w);
    }
    Ok(Times {
        cpu: median(&cpu),
        cpu_min: least(&cpu),
        wall: median(&wall),
        wall_min: least(&wall),
        samples,
    })
}

/// The middle value; of an even number of values the mean of the two in the middle. NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (n, half) if n % 2 == 1 => sorted[half],
        (_, half) => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// The least value; infinity of none.
pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(least(&[3.0, 1.0, 2.0]), 1.0);
    }

    #[test]
    fn runs_are_counted_and_errors_passed_on() {
        let mut runs = 0;
        let t = times(Effort::QUICK, || {
            runs += 1;
            // Longer than the shortest sample, so that each sample is one run.
            std::thread::sleep(std::time::Duration::from_millis(1));
            Ok::<(), ()>(())
        });
        let t = t.unwrap();
        assert_eq!((t.samples, runs), (2, 1 + 1 + 2));
        assert!(t.wall >= 1.0 && t.wall_min <= t.wall, "{t:?}");
        assert_eq!(times(Effort::QUICK, || Err(7)).unwrap_err(), 7);
    }

    #[test]
    fn work_takes_cpu_time_and_waiting_does_not() {
        let (p, t) = (process_ms(), thread_ms());
        let mut x = 1u64;
        while thread_ms() - t < 2.0 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(process_ms() - p >= 2.0);
    }
}
