//! Rows and ratios for people.
use crate::machine::Limits;
use crate::row::Row;

/// The heads of the columns of [`line`].
pub(crate) const HEAD: &str = "name variant                dtype thr  peer         cpu ms      (min)    wall ms      (min)  peak%   bw%  saved MB   RSS MB  host us";

/// Prints a line for people; `aside` keeps standard output free for JSON.
pub(crate) fn say(aside: bool, line: &str) {
    if aside {
        eprintln!("{line}");
    } else {
        println!("{line}");
    }
}

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

/// Who we are among the peers.
pub(crate) const OURS: &str = "bimetal";

/// The name under which a ratio of our row to another of the same variant is kept, if the two are compared.
pub(crate) fn compared(ours: &Row, other: &Row) -> Option<String> {
    let same_dtype = ours.dtype == other.dtype;
    let same_threads = ours.threads == other.threads;
    if ours.variant != other.variant || other.ms().is_none() {
        return None;
    }
    match other.peer == OURS {
        false => (same_dtype && same_threads).then(|| other.peer.clone()),
        true if !same_dtype && other.dtype == "f32" && same_threads => Some("f32".into()),
        true if same_dtype && ours.threads > 1 && other.threads == 1 => Some("1 thread".into()),
        true => None,
    }
}

/// All ratios, ours to others', smaller is faster; the peer that is fastest stands first and is marked.
pub(crate) fn ratios(rows: &[Row]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows.iter().filter(|r| !r.ratios.is_empty()) {
        let own = |name: &str| name == "f32" || name == "1 thread";
        let (others, mut peers): (Vec<_>, Vec<_>) = row.ratios.iter().partition(|(n, _)| own(n));
        // The larger our share of a peer's time, the faster the peer.
        peers.sort_by(|a, b| b.1.total_cmp(a.1));
        let mut line = format!(
            "{:4} {:22} {:5} {:3} ",
            row.name, row.variant, row.dtype, row.threads
        );
        for (i, (name, ratio)) in peers.iter().enumerate() {
            let mark = if i == 0 { "*" } else { "" };
            line += &format!("  {ratio:.3} of {name}{mark}");
        }
        for (name, ratio) in others {
            line += &format!("  {ratio:.3} of our {name}");
        }
        let wide = rows.iter().find(|r| {
            r.peer == OURS
                && (&r.name, &r.variant, r.threads) == (&row.name, &row.variant, row.threads)
                && r.dtype == "f32"
                && row.dtype != "f32"
        });
        if let Some(saved) = wide.and_then(|w| Some(row.saved_bytes? / w.saved_bytes?)) {
            line += &format!("  saves {saved:.3} of our f32's bytes");
        }
        lines.push(line);
    }
    if !lines.is_empty() {
        let head = "\nour time as a share of others' (CPU time of one thread, else wall; medians of the rounds; * the fastest peer)";
        lines.insert(0, head.into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_peer_is_marked() {
        let row = Row {
            name: "W1".into(),
            ratios: [("jax", 1.2), ("torch", 0.7), ("f32", 0.9)]
                .map(|(n, r)| (n.to_string(), r))
                .into(),
            ..Row::default()
        };
        let lines = ratios(&[row]);
        let expected = "  1.200 of jax*  0.700 of torch  0.900 of our f32";
        assert!(lines[1].ends_with(expected), "{lines:?}");
        assert!(ratios(&[Row::default()]).is_empty());
    }
}
