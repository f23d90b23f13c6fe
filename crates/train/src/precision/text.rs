//! The report as a table of text.

use std::fmt;

use super::html::short;
use super::report::{LayerReport, PrecisionReport};
use super::values::Values;

pub(super) fn table(r: &PrecisionReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let scale = match r.loss_scale {
        Some(s) => format!("loss scale 2^{:.0}", s.log2()),
        None => "no loss scale".to_string(),
    };
    writeln!(
        f,
        "{}: {}, {} steps ({} skipped), {scale}",
        r.title, r.policy, r.steps, r.skipped
    )?;
    writeln!(
        f,
        "amax and mean are magnitudes; ->0, sub and inf are the percentages that rounding makes zero, subnormal and infinite\n"
    )?;
    let width = r
        .layers
        .iter()
        .map(|l| l.path.chars().count())
        .max()
        .unwrap_or(5)
        .max(5);
    let head = |name: &str| format!("{name:<37}");
    writeln!(
        f,
        "{:width$}  {:14}  {}  {}  {}  updates",
        "",
        "",
        head("activations"),
        head("activation gradients"),
        head("weight gradients")
    )?;
    let columns = format!(
        "{:>8} {:>8} {:>5} {:>5} {:>5}",
        "amax", "mean", "->0", "sub", "inf"
    );
    writeln!(
        f,
        "{:width$}  {:14}  {columns:37}  {columns:37}  {columns:37}  {:>8} {:>5}",
        "layer", "param/comp/out", "ratio", "lost"
    )?;
    for l in &r.layers {
        let updates = match &l.updates {
            Some(u) => format!("{:>8.1e} {:>5}", u.ratio, percent(u.lost_share())),
            None => String::new(),
        };
        let line = format!(
            "{:width$}  {:14}  {:37}  {:37}  {:37}  {updates}",
            l.path,
            dtypes(l),
            figures(&l.activations),
            figures(&l.activation_grads),
            figures(&l.weight_grads)
        );
        writeln!(f, "{}", line.trim_end())?;
    }
    writeln!(f)?;
    if r.advice.is_empty() {
        return writeln!(f, "nothing is lost that matters");
    }
    for a in &r.advice {
        writeln!(f, "- {}", a.text)?;
    }
    Ok(())
}

pub(super) fn dtypes(l: &LayerReport) -> String {
    let param = l.param.map_or("-".to_string(), short);
    format!("{param}/{}/{}", short(l.compute), short(l.output))
}

fn figures(v: &Option<Values>) -> String {
    let Some(v) = v else {
        return String::new();
    };
    format!(
        "{:>8.1e} {:>8.1e} {:>5} {:>5} {:>5}",
        v.amax,
        v.mean,
        percent(v.underflow_share()),
        percent(v.subnormal_share()),
        percent(v.overflow_share())
    )
}

/// A percentage in at most five characters, with `0` for exactly nothing.
pub(super) fn percent(share: f64) -> String {
    match 100.0 * share {
        0.0 => "0".to_string(),
        p if p < 0.01 => "<0.01".to_string(),
        p if p < 10.0 => format!("{p:.2}"),
        p => format!("{p:.1}"),
    }
}
