//! Rows and ratios for people.
use crate::machine::Limits;
use crate::row::Row;

/// The heads of the columns of [`line`].
pub(crate) const HEAD: &str = "name variant                dtype thr  peer         cpu ms      (min)    wall ms      (min)  peak%   bw%  saved MB   RSS MB  host us";

pub(crate) fn limits(threads: usize, limits: &Limits) -> String {
    format!(
        "this machine with {threads} thread(s): {:.1} GFLOP/s of f32 multiply-adds, {:.1} GB/s",
        limits.gflops, limits.gbs
    )
}

fn number(value: Option<f64>, factor: f64, width: usize, digits: usize) -> String {
    match value {
        Some(v) => format!("{:width$.digits$}", v * factor),
        None => format!("{:>width$}", "-"),
    }
}

/// A row as one line.
pub(crate) fn line(row: &Row) -> String {
    let mut line = format!(
        "{:4} {:22} {:5} {:3}  {:8}",
        row.name, row.variant, row.dtype, row.threads, row.peer
    );
    if let Some(error) = &row.error {
        return format!("{line} failed: {error}");
    }
    let columns = [
        (row.cpu_ms, 1.0, 10, 4),
        (row.cpu_ms_min, 1.0, 10, 4),
        (row.wall_ms, 1.0, 10, 4),
        (row.wall_ms_min, 1.0, 10, 4),
        (row.peak_share, 100.0, 6, 1),
        (row.bandwidth_share, 100.0, 5, 1),
        (row.saved_bytes, 1.0 / 1048576.0, 9, 2),
        (row.peak_rss_mb, 1.0, 8, 0),
        (row.host_us, 1.0, 8, 1),
    ];
    for (value, factor, width, digits) in columns {
        line += " ";
        line += &number(value, factor, width, digits);
    }
    line
}

/// What is compared, ours above: with half precision our own f32, with two threads one.
pub(crate) fn ratios(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    let ours = || rows.iter().filter(|r| r.peer == "bimetal");
    let same = |a: &Row, b: &Row| a.name == b.name && a.variant == b.variant;
    let over = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    for row in ours().filter(|r| r.dtype != "f32") {
        let wide = |r: &&Row| same(r, row) && r.dtype == "f32" && r.threads == row.threads;
        let Some(wide) = ours().find(wide) else {
            continue;
        };
        lines.push(format!(
            "{:4} {:22} {:5} {:3} thread(s): {} of our f32 time, {} of its saved bytes",
            row.name,
            row.variant,
            row.dtype,
            row.threads,
            number(over(row.ms(), wide.ms()), 1.0, 5, 2),
            number(over(row.saved_bytes, wide.saved_bytes), 1.0, 5, 2),
        ));
    }
    for row in ours().filter(|r| r.threads > 1) {
        let one = |r: &&Row| same(r, row) && r.dtype == row.dtype && r.threads == 1;
        let Some(one) = ours().find(one) else {
            continue;
        };
        lines.push(format!(
            "{:4} {:22} {:5} {:3} threads: {} x one thread (by the best times on the wall)",
            row.name,
            row.variant,
            row.dtype,
            row.threads,
            number(over(one.wall_ms_min, row.wall_ms_min), 1.0, 5, 2),
        ));
    }
    lines
}
