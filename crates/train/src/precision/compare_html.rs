//! The comparison of policies as a page that needs nothing but itself.

use std::fmt::Write;

use super::compare::{Comparison, PolicyRuns, Verdict, significant};
use super::html::{escape, fill};

const PAGE: &str = include_str!("compare.html");
const COLOURS: usize = 6;
const WIDTH: f64 = 1180.0;
/// Room for the numbers of the axes.
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 28.0;

/// Means of step, and of mean, smallest and largest loss, over windows of steps.
type Curve = Vec<(f64, [f64; 3])>;

pub(super) fn page(c: &Comparison) -> String {
    let window = (c.steps / 120).max(1) as usize;
    let policies = || c.policies.iter();
    let curves: Vec<Curve> = policies().map(|p| smooth(&p.curve(), window)).collect();
    let first = c.policies.first();
    let against = |p: &PolicyRuns| first.map_or(Vec::new(), |first| difference(first, p));
    let differences: Vec<Curve> = policies().map(|p| smooth(&against(p), window)).collect();
    let mut legend = String::new();
    for (i, p) in c.policies.iter().enumerate() {
        let colour = i % COLOURS;
        let _ = write!(
            legend,
            "<span><i style=\"background:var(--c{colour})\"></i><code>{}</code></span>",
            escape(&p.policy)
        );
    }
    let seeds = c.policies.first().map_or(0, |p| p.runs.len());
    let parts = [
        ("{{title}}", escape(&c.title)),
        (
            "{{subtitle}}",
            format!(
                "policies compared &middot; {} steps &middot; {seeds} seeds",
                c.steps
            ),
        ),
        ("{{legend}}", legend),
        ("{{plot}}", plot(&curves, c.steps, 380.0)),
        ("{{difference}}", plot(&differences, c.steps, 200.0)),
        (
            "{{first}}",
            first.map_or(String::new(), |p| escape(&p.policy)),
        ),
        ("{{table}}", table(c)),
        ("{{statistic}}", format!("{}.", escape(&c.statistic))),
        ("{{window}}", window.to_string()),
    ];
    fill(PAGE, &parts)
}

fn smooth(curve: &[Option<[f64; 3]>], window: usize) -> Curve {
    let windows = curve.chunks(window).enumerate();
    let mean = |(i, part): (usize, &[Option<[f64; 3]>])| {
        let found: Vec<[f64; 3]> = part.iter().flatten().copied().collect();
        let n = found.len() as f64;
        let sums = found
            .iter()
            .fold([0.0; 3], |s, v| [s[0] + v[0], s[1] + v[1], s[2] + v[2]]);
        let middle = (i * window) as f64 + part.len() as f64 / 2.0;
        (n > 0.0).then(|| (middle, sums.map(|s| s / n)))
    };
    windows.filter_map(mean).collect()
}

/// The loss of each seed minus that of the first policy with the same seed at the same step: mean, smallest, largest.
fn difference(first: &PolicyRuns, other: &PolicyRuns) -> Vec<Option<[f64; 3]>> {
    let mut runs = other.runs.clone();
    for (run, base) in runs.iter_mut().zip(&first.runs) {
        let pairs = run.losses.iter().zip(&base.losses);
        run.losses = pairs.map(|(a, b)| Some((*a)? - (*b)?)).collect();
    }
    let other = PolicyRuns {
        runs,
        ..other.clone()
    };
    other.curve()
}

/// Loss over steps; logarithmic if losses span more than a factor of 20.
fn plot(curves: &[Curve], steps: u64, height: f64) -> String {
    let all = || curves.iter().flatten().flat_map(|(_, v)| v.iter().copied());
    let (mut low, mut high) = (
        all().fold(f64::INFINITY, f64::min),
        all().fold(f64::NEG_INFINITY, f64::max),
    );
    if low > high {
        return "<p>no losses</p>".to_string();
    }
    let log = low > 0.0 && high / low > 20.0;
    let scale = |v: f64| if log { v.log10() } else { v };
    (low, high) = (scale(low), scale(high));
    let room = 0.04 * (high - low).max(1e-9 * high.abs().max(1e-30));
    (low, high) = (low - room, high + room);
    let x = |step: f64| LEFT + (WIDTH - LEFT) * step / steps.max(1) as f64;
    let y = |v: f64| (height - BOTTOM) * (high - scale(v)) / (high - low);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"loss over steps\">"
    );
    for at in ticks(low, high) {
        let value = if log { 10f64.powf(at) } else { at };
        let (line, text) = (y(value), tick(value));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{line:.1}\" y2=\"{line:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            line + 4.0
        );
    }
    for i in 0..=5 {
        let step = steps as f64 * f64::from(i) / 5.0;
        let anchor = match i {
            0 => "start",
            5 => "end",
            _ => "middle",
        };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{step:.0}</text>",
            x(step),
            height - 8.0
        );
    }
    for (i, curve) in curves.iter().enumerate() {
        let colour = format!("var(--c{})", i % COLOURS);
        let points = |which: usize| curve.iter().map(move |(step, v)| (*step, v[which]));
        let text = |all: &mut dyn Iterator<Item = (f64, f64)>| {
            let all = all.map(|(step, v)| format!("{:.1},{:.1}", x(step), y(v)));
            all.collect::<Vec<_>>().join(" ")
        };
        let band = format!(
            "{} {}",
            text(&mut points(1)),
            text(&mut points(2).collect::<Vec<_>>().into_iter().rev())
        );
        let line = text(&mut points(0));
        let _ = write!(
            svg,
            "<polygon points=\"{band}\" style=\"fill:{colour}\" opacity=\"0.16\"/><polyline points=\"{line}\" fill=\"none\" style=\"stroke:{colour}\" stroke-width=\"1.8\"/>"
        );
    }
    svg + "</svg>"
}

/// Three to eight round numbers in a range.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = match rough / power {
        r if r < 1.5 => power,
        r if r < 3.5 => 2.0 * power,
        r if r < 7.5 => 5.0 * power,
        _ => 10.0 * power,
    };
    let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    (first..=last.min(first + 20))
        .map(|i| i as f64 * step)
        .collect()
}

/// A round number as it is written.
fn tick(v: f64) -> String {
    match v.abs() {
        a if a > 1e-12 && !(1e-3..1e5).contains(&a) => format!("{v:.0e}"),
        _ => {
            let text = format!("{v:.4}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            if text == "-0" {
                "0".to_string()
            } else {
                text.to_string()
            }
        }
    }
}

fn table(c: &Comparison) -> String {
    let mut names: Vec<&str> = Vec::new();
    for run in c.policies.iter().flat_map(|p| &p.runs) {
        for (name, _) in &run.metrics {
            if *name != c.result && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    let heads = names.iter().map(|n| format!("<th>{}</th>", escape(n)));
    let mut text = format!(
        "<thead><tr><th>policy</th><th>{} &plusmn; deviation</th>{}<th>skipped</th><th>seconds</th><th>peak MiB</th><th>against the first</th></tr></thead><tbody>",
        escape(&c.result),
        heads.collect::<String>()
    );
    for p in &c.policies {
        let mean = p.mean.map_or("&ndash;".to_string(), |m| {
            format!("{} &plusmn; {}", significant(m), significant(p.deviation))
        });
        let cells = names.iter().map(|n| {
            let value = p.metric(n).map_or("&ndash;".to_string(), significant);
            format!("<td>{value}</td>")
        });
        let class = match p.verdict {
            Verdict::Baseline => "",
            v if v.is_within_noise() => "good",
            Verdict::Unknown { .. } => "",
            Verdict::Different { difference, .. } if difference < 0.0 => "good",
            _ => "bad",
        };
        let _ = write!(
            text,
            "<tr><td><code>{}</code></td><td>{mean}</td>{}<td>{}</td><td>{:.2}</td><td>{:.1}</td><td class=\"{class}\">{}</td></tr>",
            escape(&p.policy),
            cells.collect::<String>(),
            p.skipped(),
            p.seconds,
            p.peak_bytes as f64 / 1048576.0,
            p.verdict
        );
        if let Some(failed) = p.runs.iter().find_map(|r| r.failed.as_ref()) {
            let _ = write!(
                text,
                "<tr><td></td><td class=\"fail\" colspan=\"{}\" style=\"text-align:left\">{}</td></tr>",
                names.len() + 5,
                escape(failed)
            );
        }
    }
    text + "</tbody>"
}
