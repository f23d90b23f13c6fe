//! The whole bench: rounds of rows, each in a process of its own, alternated with the peers.
use crate::catalog::Work;
use crate::child;
use crate::machine::Limits;
use crate::options::{Options, dtype_name};
use crate::report;
use crate::row::Row;
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
}

/// Rows of one workload that belong together: one element type and number of threads.
struct Cell {
    dtype: DType,
    threads: usize,
    /// Of each contestant, in order; ours is the first. One row a round.
    rows: Vec<Vec<Row>>,
}

impl Session {
    fn new(options: Options) -> Result<Session, String> {
        let file = match &options.json {
            Some(Some(path)) => {
                Some(File::create(path).map_err(|e| format!("cannot write {path}: {e}"))?)
            }
            _ => None,
        };
        Ok(Session { options, file })
    }

    fn run(mut self) -> Result<(), String> {
        let limits = self
            .options
            .threads
            .iter()
            .map(|&threads| Ok((threads, self.limits(threads)?)))
            .collect::<Result<Vec<_>, String>>()?;
        let say = |line: &str| match self.options.json {
            Some(None) => eprintln!("{line}"),
            _ => println!("{line}"),
        };
        for (threads, l) in &limits {
            say(&report::limits(*threads, l));
        }
        say(report::HEAD);
        let mut finished: Vec<Row> = Vec::new();
        for work in self.options.works() {
            for cell in self.cells(&work)? {
                let l = limits.iter().find(|(t, _)| *t == cell.threads);
                for rounds in &cell.rows {
                    let Some(mut row) = Row::merge(rounds) else {
                        continue;
                    };
                    if let Some((_, l)) = l {
                        row = row.with_limits(l.gflops, l.gbs);
                    }
                    say(&report::line(&row));
                    let json = row.json()?;
                    if let Some(file) = &mut self.file {
                        writeln!(file, "{json}").map_err(|e| e.to_string())?;
                    } else if self.options.json.is_some() {
                        println!("{json}");
                    }
                    finished.push(row);
                }
            }
        }
        for line in report::ratios(&finished) {
            say(&line);
        }
        Ok(())
    }

    /// All rounds of a workload. Whatever is compared is measured within a round; the order turns around from round to round.
    fn cells(&self, work: &Work) -> Result<Vec<Cell>, String> {
        let mut cells = Vec::new();
        for &dtype in &self.options.dtypes {
            for &threads in &self.options.threads {
                let rows = vec![Vec::new()];
                cells.push(Cell {
                    dtype,
                    threads,
                    rows,
                });
            }
        }
        for round in 0..self.options.rounds {
            let mut order: Vec<usize> = (0..cells.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for i in order {
                let cell = &mut cells[i];
                let row = self.ours(work, cell.dtype, cell.threads)?;
                cell.rows[0].push(row);
            }
        }
        Ok(cells)
    }

    fn ours(&self, work: &Work, dtype: DType, threads: usize) -> Result<Row, String> {
        let mut command = this_program()?;
        command.args([child::ROW, work.name, &work.variant, dtype_name(dtype)]);
        command.args([threads.to_string(), self.options.seconds.to_string()]);
        let text = output(&mut command)?;
        serde_json::from_str(text.trim()).map_err(|e| format!("a row is no JSON: {e}: {text}"))
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
