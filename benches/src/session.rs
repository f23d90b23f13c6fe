//! The whole bench: rounds of rows, each in a process of its own, alternated with the peers.
use crate::catalog::Work;
use crate::child;
use crate::clock::median;
use crate::machine::Limits;
use crate::options::{Options, dtype_name};
use crate::peers::{self, Peer};
use crate::profile::profile;
use crate::report;
use crate::row::Row;
use crate::scaling;
use bimetal::DType;
use std::fs::File;
use std::io::Write;
use std::process::Command;

/// Runs the bench with the words behind its name.
///
/// # Errors
/// A mistake in the words, a row that fails, a file that cannot be written.
pub fn main(words: Vec<String>) -> Result<(), String> {
    match words.split_first() {
        Some((first, rest)) if first == child::ROW => child::row(rest),
        Some((first, rest)) if first == child::MACHINE => child::machine(rest),
        Some((first, _)) if first == "--help" || first == "help" => {
            println!("usage: {}", crate::options::USAGE);
            Ok(())
        }
        _ => Session::new(Options::parse(words)?)?.run(),
    }
}

struct Session {
    options: Options,
    file: Option<File>,
    peers: Vec<Peer>,
}

/// A row with the round it is of.
type Measured = (usize, Row);

impl Session {
    fn new(options: Options) -> Result<Session, String> {
        let file = match &options.json {
            Some(Some(path)) => {
                Some(File::create(path).map_err(|e| format!("cannot write {path}: {e}"))?)
            }
            _ => None,
        };
        let (peers, missing) = peers::find(&options.peers);
        let session = Session {
            options,
            file,
            peers,
        };
        for line in missing {
            session.say(&line);
        }
        Ok(session)
    }

    /// Prints a line for people, beside the rows if those go to standard output.
    fn say(&self, line: &str) {
        report::say(self.options.json == Some(None), line);
    }

    /// Writes a line of JSON, if anybody wants it.
    fn write(&mut self, json: &str) -> Result<(), String> {
        if let Some(file) = &mut self.file {
            writeln!(file, "{json}").map_err(|e| e.to_string())?;
        } else if self.options.json.is_some() {
            println!("{json}");
        }
        Ok(())
    }

    fn run(mut self) -> Result<(), String> {
        if self.options.scaling {
            let (options, aside) = (self.options.clone(), self.options.json == Some(None));
            return scaling::run(&options, aside, |json| self.write(json));
        }
        if self.options.profile {
            return self.profile();
        }
        let mut limits = Vec::new();
        for &threads in &self.options.threads {
            let l = self.limits(threads)?;
            self.say(&report::limits(threads, &l));
            limits.push((threads, l));
        }
        self.say(report::HEAD);
        let mut finished: Vec<Row> = Vec::new();
        let works = self.options.works();
        for group in works.chunk_by(|a, b| a.name == b.name) {
            for mut row in merge(&self.rounds(group)?) {
                if let Some((_, l)) = limits.iter().find(|(t, _)| *t == row.threads) {
                    row = row.with_limits(l.gflops, l.gbs);
                }
                self.say(&report::line(&row));
                self.write(&row.json()?)?;
                finished.push(row);
            }
        }
        for line in report::ratios(&finished) {
            self.say(&line);
        }
        Ok(())
    }

    fn profile(&self) -> Result<(), String> {
        let runs = if self.options.quick { 1 } else { 9 };
        for work in self.options.works() {
            for &dtype in &self.options.dtypes {
                for &threads in &self.options.threads {
                    let (name, variant, dtype_name) = (work.name, &work.variant, dtype_name(dtype));
                    println!("\n{name} {variant}, {dtype_name}, {threads} thread(s), CPU time");
                    let lines = profile(&work, dtype, threads, runs).map_err(|e| e.to_string())?;
                    println!("{}", lines.join("\n"));
                }
            }
        }
        Ok(())
    }

    /// All rounds of the variants of a workload. Whatever is compared is measured within a round; the order turns around from round to round.
    fn rounds(&self, works: &[Work]) -> Result<Vec<Measured>, String> {
        let mut rows = Vec::new();
        let mut cells = Vec::new();
        for &dtype in &self.options.dtypes {
            for &threads in &self.options.threads {
                for contestant in 0..=self.peers.len() {
                    cells.push((dtype, threads, contestant));
                }
            }
        }
        for round in 0..self.options.rounds {
            let mut add = |row| rows.push((round, row));
            for &(dtype, threads, contestant) in &cells {
                match contestant.checked_sub(1) {
                    None => {
                        for work in works {
                            add(self.ours(work, dtype, threads)?);
                        }
                    }
                    Some(i) => self
                        .theirs(&self.peers[i], works, dtype_name(dtype), threads)
                        .into_iter()
                        .for_each(&mut add),
                }
            }
            cells.reverse();
        }
        Ok(rows)
    }

    fn ours(&self, work: &Work, dtype: DType, threads: usize) -> Result<Row, String> {
        let mut command = this_program()?;
        command.args([child::ROW, work.name, &work.variant, dtype_name(dtype)]);
        command.args([threads.to_string(), self.options.seconds.to_string()]);
        let text = output(&mut command)?;
        serde_json::from_str(text.trim()).map_err(|e| format!("a row is no JSON: {e}: {text}"))
    }

    fn theirs(&self, peer: &Peer, works: &[Work], dtype: &str, threads: usize) -> Vec<Row> {
        let name = works[0].name;
        if !peer.knows(name, dtype) {
            return Vec::new();
        }
        let variants: Vec<&str> = works.iter().map(|w| w.variant.as_str()).collect();
        // The many small products share a process, since a peer takes seconds to start.
        let together = if name == "W7" { variants.len() } else { 1 };
        let measure = |v: &[&str]| peer.rows(name, v, dtype, threads, self.options.seconds);
        let mut rows: Vec<Row> = variants.chunks(together).flat_map(measure).collect();
        for row in &mut rows {
            // Shares of the machine's limits are by the same counts; a peer's saved bytes are its own.
            if let Some(work) = works.iter().find(|w| w.variant == row.variant) {
                row.flops = work.flops();
                row.bytes = work.kernel_bytes(dtype);
            }
        }
        rows
    }

    fn limits(&self, threads: usize) -> Result<Limits, String> {
        let mut command = this_program()?;
        command.args([child::MACHINE, &threads.to_string()]);
        command.arg(self.options.seconds.to_string());
        let text = output(&mut command)?;
        let numbers: Vec<f64> = text.split_whitespace().flat_map(str::parse).collect();
        match numbers[..] {
            [gflops, gbs] => Ok(Limits { gflops, gbs }),
            _ => Err(format!("the machine's limits are no two numbers: {text}")),
        }
    }
}

fn this_program() -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|e| format!("where this program lies: {e}"))?;
    Ok(Command::new(program))
}

/// Runs a command to its end and gives what it printed.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed with {}: {said}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|e| e.to_string())
}

/// The rows of all rounds as one row each, with the medians of ratios within the rounds.
fn merge(rows: &[Measured]) -> Vec<Row> {
    let same = |a: &Row, b: &Row| {
        (&a.variant, &a.dtype, a.threads, &a.peer) == (&b.variant, &b.dtype, b.threads, &b.peer)
    };
    let mut merged: Vec<Row> = Vec::new();
    for (_, first) in rows {
        if merged.iter().any(|m| same(m, first)) {
            continue;
        }
        let rounds: Vec<Row> = rows
            .iter()
            .filter(|(_, r)| same(r, first))
            .map(|(_, r)| r.clone())
            .collect();
        let Some(mut row) = Row::merge(&rounds) else {
            continue;
        };
        if row.peer == report::OURS {
            for other in rows.iter().map(|(_, r)| r) {
                let Some(name) = report::compared(first, other) else {
                    continue;
                };
                if !row.ratios.contains_key(&name)
                    && let Some(ratio) = paired(rows, first, other, same)
                {
                    row.ratios.insert(name, ratio);
                }
            }
        }
        merged.push(row);
    }
    merged
}

/// The median over the rounds of the ratio of two rows' times.
fn paired(
    rows: &[Measured],
    ours: &Row,
    other: &Row,
    same: impl Fn(&Row, &Row) -> bool,
) -> Option<f64> {
    let of = |round: usize, wanted: &Row| {
        let row = rows.iter().find(|(n, r)| *n == round && same(r, wanted));
        row.and_then(|(_, r)| r.ms())
    };
    let last = rows.iter().map(|(round, _)| *round).max()?;
    let ratios: Vec<f64> = (0..=last)
        .filter_map(|round| Some(of(round, ours)? / of(round, other)?))
        .collect();
    Some(median(&ratios)).filter(|r| r.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(peer: &str, dtype: &str, threads: usize, ms: f64) -> Row {
        Row {
            variant: "train".into(),
            dtype: dtype.into(),
            threads,
            cpu_ms: Some(ms),
            wall_ms: Some(ms),
            peer: peer.into(),
            ..Row::default()
        }
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut rows = Vec::new();
        // A machine that gets slower from round to round: ratios of medians would mix rounds.
        for (round, slow) in [1.0, 2.0, 8.0].into_iter().enumerate() {
            rows.push((round, row("torch", "f32", 1, 4.0 * slow)));
            rows.push((round, row("bimetal", "f32", 1, 2.0 * slow)));
            rows.push((round, row("bimetal", "bf16", 1, 3.0 * slow)));
            rows.push((round, row("bimetal", "f32", 2, 1.2 * slow)));
        }
        let merged = merge(&rows);
        assert_eq!(merged.len(), 4);
        let ratio = |i: usize, name: &str| merged[i].ratios.get(name).copied();
        assert_eq!(ratio(1, "torch"), Some(0.5));
        assert_eq!(ratio(2, "f32"), Some(1.5));
        assert_eq!(ratio(3, "1 thread"), Some(0.6));
        assert!(merged[0].ratios.is_empty());
        assert_eq!((ratio(2, "torch"), ratio(1, "f32")), (None, None));
    }
}
