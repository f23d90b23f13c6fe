//! The progress line of a training run.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::Logs;

const BAR: usize = 20;

/// Shows where training stands: one line redrawn on a terminal, a line now and then elsewhere.
///
/// `Epoch 2/5 [########............] 120/300 loss 0.1234 | 1500 samples/s ETA 0:32 | scale 32768 skipped 2`
///
/// Failures to write are ignored: a closed terminal must not end training.
pub struct Progress {
    out: Box<dyn Write + Send>,
    terminal: bool,
    interval: Duration,
    epochs: usize,
    epoch: usize,
    total: Option<usize>,
    first: usize,
    started: Instant,
    drawn: Option<Instant>,
    /// Whether the cursor stands in a line that is to be redrawn.
    open: bool,
}

/// Where an epoch stands.
#[derive(Clone, Copy, Debug)]
pub struct ProgressState<'a> {
    /// Batches of this epoch done.
    pub batch: usize,
    /// Samples seen in this epoch by this process.
    pub samples: u64,
    /// Loss and metrics.
    pub logs: &'a Logs,
    /// The loss scale, `None` without scaling.
    pub scale: Option<f32>,
    /// Steps skipped in this run.
    pub skipped: u64,
}

impl Progress {
    /// Writes to standard error: ten times a second on a terminal, every ten seconds otherwise.
    pub fn stderr(epochs: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self::new(Box::new(std::io::stderr()), terminal, epochs)
    }

    /// Writes to `out`, which is or is not a terminal.
    pub fn new(out: Box<dyn Write + Send>, terminal: bool, epochs: usize) -> Self {
        Self {
            out,
            terminal,
            interval: Duration::from_millis(if terminal { 100 } else { 10_000 }),
            epochs,
            epoch: 0,
            total: None,
            first: 0,
            started: Instant::now(),
            drawn: None,
            open: false,
        }
    }

    /// Sets the time from one drawing to the next.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Starts an epoch (from 0) of `total` batches, of which `first` were done before this process.
    pub fn begin_epoch(&mut self, epoch: usize, total: Option<usize>, first: usize) {
        (self.epoch, self.total, self.first) = (epoch, total, first);
        self.started = Instant::now();
        self.drawn = None;
    }

    /// Draws the line if it is time to.
    pub fn update(&mut self, state: &ProgressState<'_>) {
        let since = self.drawn.unwrap_or(self.started);
        let due = since.elapsed() >= self.interval || (self.terminal && self.drawn.is_none());
        if due {
            self.drawn = Some(Instant::now());
            self.draw(&self.line(state, self.started.elapsed()));
        }
    }

    /// Ends the epoch with a line that stays; `state.logs` holds the epoch's results with those of validation, and
    /// `seconds` is the time that training alone took.
    pub fn end_epoch(&mut self, state: &ProgressState<'_>, seconds: Duration) {
        let line = self.summary(state, seconds);
        self.println(&line);
    }

    /// Writes a line of text above the progress line.
    pub fn println(&mut self, text: &str) {
        let clear = if self.open { "\r\x1b[K" } else { "" };
        self.open = false;
        let _ = writeln!(self.out, "{clear}{text}");
        let _ = self.out.flush();
    }

    fn draw(&mut self, line: &str) {
        if self.terminal {
            // Switching wrapping off for the line makes it safe in any width without asking for the width.
            let _ = write!(self.out, "\r\x1b[?7l{line}\x1b[K\x1b[?7h");
            self.open = true;
        } else {
            let _ = writeln!(self.out, "{line}");
        }
        let _ = self.out.flush();
    }

    fn line(&self, state: &ProgressState<'_>, elapsed: Duration) -> String {
        let mut line = self.head(state);
        let done = state.batch.saturating_sub(self.first);
        let seconds = elapsed.as_secs_f64();
        line.push_str(&format!(" | {}", rate(state.samples, seconds)));
        if let (Some(total), true) = (self.total, done > 0) {
            let left = total.saturating_sub(state.batch) as f64;
            line.push_str(&format!(" ETA {}", clock(seconds / done as f64 * left)));
        }
        self.tail(line, state)
    }

    fn summary(&self, state: &ProgressState<'_>, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64();
        let line = format!(
            "{} | {} in {}",
            self.head(state),
            rate(state.samples, seconds),
            clock(seconds)
        );
        self.tail(line, state)
    }

    fn head(&self, state: &ProgressState<'_>) -> String {
        let mut head = format!("Epoch {}/{}", self.epoch + 1, self.epochs);
        match self.total {
            Some(total) => {
                let filled = BAR * state.batch.min(total) / total.max(1);
                let bar = "#".repeat(filled) + &".".repeat(BAR - filled);
                head.push_str(&format!(" [{bar}] {}/{total}", state.batch));
            }
            None => head.push_str(&format!(" batch {}", state.batch)),
        }
        if !state.logs.is_empty() {
            head.push_str(&format!(" {}", state.logs));
        }
        head
    }

    fn tail(&self, mut line: String, state: &ProgressState<'_>) -> String {
        if let Some(scale) = state.scale {
            line.push_str(&format!(" | scale {scale} skipped {}", state.skipped));
        }
        line
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // The prompt or an error message should not stand in the middle of a half-drawn line.
        if self.open {
            let _ = writeln!(self.out);
        }
    }
}

fn rate(samples: u64, seconds: f64) -> String {
    if seconds <= 0.0 {
        return "? samples/s".into();
    }
    let rate = samples as f64 / seconds;
    if rate < 10.0 {
        format!("{rate:.2} samples/s")
    } else {
        format!("{rate:.0} samples/s")
    }
}

/// `0:32`, `12:05`, `3:07:00`.
fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    if h > 0 {
        format!("{h}:{m:02}:{s:02}")
    } else {
        format!("{m}:{s:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(data)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logs() -> Logs {
        [("loss", 0.12341), ("accuracy", 0.975)]
            .into_iter()
            .collect()
    }

    #[test]
    fn the_line_holds_everything() {
        let mut progress = Progress::new(Box::new(io::sink()), true, 5);
        progress.begin_epoch(1, Some(300), 60);
        let logs = logs();
        let state = ProgressState {
            batch: 120,
            samples: 1920,
            logs: &logs,
            scale: Some(32768.0),
            skipped: 2,
        };
        // 60 batches in 30 s: 180 more take 90 s.
        assert_eq!(
            progress.line(&state, Duration::from_secs(30)),
            "Epoch 2/5 [########............] 120/300 loss 0.1234 accuracy 0.9750 | 64 samples/s ETA 1:30 | scale 32768 skipped 2"
        );
        assert_eq!(
            progress.summary(
                &ProgressState {
                    batch: 300,
                    scale: None,
                    ..state
                },
                Duration::from_secs(3605)
            ),
            "Epoch 2/5 [####################] 300/300 loss 0.1234 accuracy 0.9750 | 0.53 samples/s in 1:00:05"
        );
        progress.begin_epoch(0, None, 0);
        let start = ProgressState {
            batch: 0,
            samples: 0,
            ..state
        };
        assert!(
            progress
                .line(&start, Duration::ZERO)
                .starts_with("Epoch 1/5 batch 0 loss")
        );
    }

    #[test]
    fn a_terminal_redraws_one_line() {
        let out = Shared::default();
        let mut progress = Progress::new(Box::new(out.clone()), true, 1).interval(Duration::ZERO);
        progress.begin_epoch(0, Some(2), 0);
        let logs = logs();
        let state = ProgressState {
            batch: 1,
            samples: 1,
            logs: &logs,
            scale: None,
            skipped: 0,
        };
        progress.update(&state);
        progress.update(&state);
        assert!(!out.text().contains('\n'));
        progress.println("a warning");
        assert!(out.text().ends_with("\r\x1b[Ka warning\n"));
        progress.update(&state);
        drop(progress);
        assert!(out.text().ends_with("\x1b[?7h\n"));
    }

    #[test]
    fn a_file_gets_whole_lines_now_and_then() {
        let out = Shared::default();
        let mut progress =
            Progress::new(Box::new(out.clone()), false, 1).interval(Duration::from_secs(3600));
        progress.begin_epoch(0, Some(2), 0);
        let logs = logs();
        let state = ProgressState {
            batch: 2,
            samples: 1,
            logs: &logs,
            scale: None,
            skipped: 0,
        };
        (0..100).for_each(|_| progress.update(&state));
        assert_eq!(out.text(), "");
        progress.end_epoch(&state, Duration::from_secs(1));
        let text = out.text();
        assert_eq!(text.lines().count(), 1);
        assert!(
            text.ends_with("in 0:01\n") && !text.contains(['\r', '\x1b']),
            "{text:?}"
        );
    }
}
