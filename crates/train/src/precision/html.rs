//! The report as a page that needs nothing but itself.

use std::fmt::Write;

use bimetal_tensor::DType;

use super::advice::Severity;
use super::report::{LayerReport, PrecisionReport};
use super::text::percent;
use super::values::Values;

const PAGE: &str = include_str!("page.html");

/// The exponents that a column shows; what lies beyond is drawn at the edge.
#[derive(Clone, Copy)]
struct Axis {
    low: i32,
    high: i32,
}

const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 40.0;

/// The columns of values: heading, name in the sort keys, values of a layer.
type Column = (
    &'static str,
    &'static str,
    fn(&LayerReport) -> Option<&Values>,
);
const COLUMNS: [Column; 3] = [
    ("activations", "a", |l| l.activations.as_ref()),
    ("activation gradients", "g", |l| l.activation_grads.as_ref()),
    ("weight gradients", "w", |l| l.weight_grads.as_ref()),
];

pub(super) fn page(r: &PrecisionReport) -> String {
    let axes = COLUMNS.map(|(_, _, of)| {
        let values = r.layers.iter().filter_map(of);
        Axis::around(values.map(|v| v.exponents.as_slice()))
    });
    let updates = r.layers.iter().filter_map(|l| l.updates.as_ref());
    let update_axis = Axis::around(updates.map(|u| u.exponents.as_slice()));
    let mut heads = String::new();
    for ((name, key, _), axis) in COLUMNS.iter().zip(axes) {
        let keys = ["amax", "mean", "zero", "sub", "inf"];
        let names = ["amax", "mean", "&rarr;0 %", "sub %", "inf %"];
        let _ = write!(heads, "<th>{name}{}<div class=\"keys\">", axis.ticks());
        for (k, name) in keys.iter().zip(names) {
            let _ = write!(
                heads,
                "<button data-k=\"{key}{k}\" type=\"button\">{name}</button>"
            );
        }
        heads.push_str("</div></th>");
    }
    let _ = write!(
        heads,
        "<th>updates / weights{}<div class=\"keys\" style=\"grid-template-columns:1.7fr 1fr\"><button data-k=\"ratio\" type=\"button\">norms</button>\
         <button data-k=\"lost\" type=\"button\">lost %</button></div></th>",
        update_axis.ticks()
    );
    let scale = r.loss_scale.unwrap_or(1.0);
    let mut rows = String::new();
    for (order, layer) in r.layers.iter().enumerate() {
        row(&mut rows, layer, order, &axes, update_axis, scale);
    }
    let parts = [
        ("{{title}}", escape(&r.title)),
        (
            "{{subtitle}}",
            format!(
                "precision report &middot; policy <code>{}</code>",
                escape(&r.policy)
            ),
        ),
        ("{{facts}}", facts(r)),
        ("{{advice}}", advice(r)),
        ("{{heads}}", heads),
        ("{{rows}}", rows),
    ];
    fill(PAGE, &parts)
}

/// The template with each name replaced; what is put in is not looked at again.
pub(super) fn fill(template: &str, parts: &[(&str, String)]) -> String {
    let mut page = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{{") {
        let (before, after) = rest.split_at(start);
        page.push_str(before);
        match parts.iter().find(|(name, _)| after.starts_with(name)) {
            Some((name, text)) => {
                page.push_str(text);
                rest = &after[name.len()..];
            }
            None => {
                page.push_str("{{");
                rest = &after[2..];
            }
        }
    }
    page.push_str(rest);
    page
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Text with `code` in backquotes.
fn marked(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(i, part)| match i % 2 {
            1 => format!("<code>{}</code>", escape(part)),
            _ => raised(&escape(part)),
        })
        .collect()
}

/// `2^-5` with the exponent raised.
fn raised(text: &str) -> String {
    let mut parts = text.split("2^");
    let mut all = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let end = part.find(|c: char| c != '-' && !c.is_ascii_digit());
        let (exponent, rest) = part.split_at(end.unwrap_or(part.len()));
        let _ = write!(all, "2<sup>{exponent}</sup>{rest}");
    }
    all
}

pub(super) fn fact(value: &str, name: &str) -> String {
    format!("<div class=\"fact\"><b>{value}</b><span>{name}</span></div>")
}

fn facts(r: &PrecisionReport) -> String {
    let power = |x: f64| format!("2<sup>{}</sup>", x.log2().round());
    let mut all = fact(&r.steps.to_string(), "steps looked at");
    all += &fact(&r.skipped.to_string(), "skipped");
    all += &fact(
        &r.loss_scale.map_or("none".to_string(), power),
        "loss scale",
    );
    if let Some(s) = r.scales {
        let (value, name) = match s.is_lossless() {
            true => (
                format!("{} &hellip; {}", power(s.lowest), power(s.highest)),
                "loss scales that lose nothing",
            ),
            false => (power(s.highest), "largest loss scale that fits"),
        };
        all += &fact(&value, name);
    }
    let layers = r.layers.iter().filter(|l| !l.outside);
    let parameters: u64 = r.layers.iter().map(|l| l.parameters).sum();
    all += &fact(&layers.count().to_string(), "layers");
    all += &fact(&thousands(parameters), "parameters");
    let losses = &r.losses;
    if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
        all += &fact(&format!("{first:.4} &rarr; {last:.4}"), "loss");
    }
    all
}

/// The usual short name.
pub(super) fn short(d: DType) -> String {
    let name = d.to_string();
    name.replace("bfloat", "bf").replace("float", "f")
}

pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

fn advice(r: &PrecisionReport) -> String {
    if !r.advice.iter().any(|a| a.severity < Severity::Note) {
        let fine = "<li class=\"fine\"><span class=\"tag\">fine</span><span>nothing is lost that matters</span></li>";
        return fine.to_string() + &notes(r);
    }
    notes(r)
}

fn notes(r: &PrecisionReport) -> String {
    let mut all = String::new();
    for a in &r.advice {
        let class = match a.severity {
            Severity::Overflow => "overflow",
            Severity::Loss => "loss",
            Severity::Note => "note",
        };
        let text = marked(&a.text);
        let _ = write!(
            all,
            "<li class=\"{class}\"><span class=\"tag\">{class}</span><span>{text}</span></li>"
        );
    }
    all
}

fn row(
    out: &mut String,
    l: &LayerReport,
    order: usize,
    axes: &[Axis; 3],
    update_axis: Axis,
    scale: f64,
) {
    let _ = write!(out, "<tr data-order=\"{order}\"");
    let mut cells = String::new();
    for ((_, key, of), axis) in COLUMNS.iter().zip(axes) {
        let Some(v) = of(l) else {
            cells.push_str("<td class=\"none\">&ndash;</td>");
            continue;
        };
        let shares = [v.underflow_share(), v.subnormal_share(), v.overflow_share()];
        for (k, value) in [
            ("amax", v.amax),
            ("mean", v.mean),
            ("zero", shares[0]),
            ("sub", shares[1]),
            ("inf", shares[2]),
        ] {
            let _ = write!(out, " data-{key}{k}=\"{value}\"");
        }
        // Activations are rounded as they are.
        let shift = if *key == "a" {
            0
        } else {
            scale.log2().round() as i32
        };
        let class = |i: usize, name| match shares[i] > 0.0 {
            true => format!(" class=\"{name}\""),
            false => String::new(),
        };
        let _ = write!(
            cells,
            "<td>{}<div class=\"nums\"><span>{:.1e}</span><span>{:.1e}</span><span{}>{}</span><span>{}</span><span{}>{}</span></div></td>",
            axis.draw(&v.exponents, Some((v.dtype, shift))),
            v.amax,
            v.mean,
            class(0, "z"),
            percent(shares[0]),
            percent(shares[1]),
            class(2, "i"),
            percent(shares[2]),
        );
    }
    match &l.updates {
        None => cells.push_str("<td class=\"none\">&ndash;</td>"),
        Some(u) => {
            let _ = write!(
                out,
                " data-ratio=\"{}\" data-lost=\"{}\"",
                u.ratio,
                u.lost_share()
            );
            let class = if u.lost > 0 { " class=\"z\"" } else { "" };
            let _ = write!(
                cells,
                "<td>{}<div class=\"nums\" style=\"grid-template-columns:1.7fr 1fr\"><span>{:.1e}</span><span{class}>{}</span></div></td>",
                update_axis.draw(&u.exponents, None),
                u.ratio,
                percent(u.lost_share())
            );
        }
    }
    if let Some(s) = l.scales {
        let _ = write!(out, " data-scale=\"{}\"", s.highest);
    }
    let chip = |name: &str, d: Option<DType>| match d {
        None => String::new(),
        Some(d) => {
            let low = if super::graph::is_low(d) { " low" } else { "" };
            format!(
                "<span class=\"chip{low}\" title=\"{name}\">{}</span>",
                short(d)
            )
        }
    };
    let scales = l.scales.map_or(String::new(), |s| {
        let power = |x: f64| format!("2<sup>{}</sup>", x.log2());
        match s.is_lossless() {
            true => format!("<div class=\"op\">{} &hellip; {}</div>", power(s.lowest), power(s.highest)),
            false => format!(
                "<div class=\"op\" title=\"{} % of the gradients become zero with it\">at most {}</div>",
                percent(s.lost_at_highest),
                power(s.highest)
            ),
        }
    });
    let inner = match &l.inner {
        Some((place, v)) if v.overflow > 0 => format!(
            "<div class=\"inner\">inside, {}: {} % infinite</div>",
            escape(place),
            percent(v.overflow_share())
        ),
        _ => String::new(),
    };
    let parameters = match l.parameters {
        0 => String::new(),
        n => format!(" &middot; {}", thousands(n)),
    };
    let _ = writeln!(
        out,
        "><td><div class=\"path\">{}</div><div class=\"op\">{}{parameters}</div>{inner}</td><td><div class=\"chips\">{}{}{}</div>{scales}</td>{cells}</tr>",
        escape(&l.path),
        escape(&l.op),
        chip("param", l.param),
        chip("compute", Some(l.compute)),
        chip("output", Some(l.output)),
    );
}

impl Axis {
    /// What holds all of the histograms but a few far outliers.
    fn around<'a>(all: impl Iterator<Item = &'a [(i32, u64)]>) -> Axis {
        let (mut low, mut high) = (-8, 4);
        for exponents in all {
            low = exponents.first().map_or(low, |(e, _)| low.min(*e));
            high = exponents.last().map_or(high, |(e, _)| high.max(*e));
        }
        let round = |e: i32, up: i32| (e + up).div_euclid(4) * 4;
        let high = round(high + 1, 3).min(64);
        Axis {
            low: round(low, 0).max(high - 64),
            high,
        }
    }

    fn x(&self, exponent: i32) -> f64 {
        let at = (exponent.clamp(self.low, self.high) - self.low) as f64;
        WIDTH * at / (self.high - self.low) as f64
    }

    fn ticks(&self) -> String {
        let step = match self.high - self.low {
            49.. => 16,
            25.. => 8,
            _ => 4,
        };
        let mut text = "<div class=\"axis\">".to_string();
        let first = self.low.div_euclid(step) * step;
        for e in (first..=self.high).step_by(step as usize) {
            if e >= self.low && e < self.high {
                let x = 100.0 * self.x(e) / WIDTH;
                let _ = write!(text, "<span style=\"left:{x:.1}%\">2<sup>{e}</sup></span>");
            }
        }
        text + "</div>"
    }

    /// A histogram, in the colours of what rounding to a dtype makes of numbers times `2^shift`.
    fn draw(&self, exponents: &[(i32, u64)], rounding: Option<(DType, i32)>) -> String {
        let mut svg = format!(
            "<svg class=\"h\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\">"
        );
        let limits = rounding.map(|(d, shift)| {
            let log = |x: f64| x.log2().floor() as i32 - shift;
            [
                log(d.smallest_subnormal()),
                log(d.smallest_normal()),
                log(d.max_finite()),
            ]
        });
        if let Some([_, normal, top]) = limits {
            let (from, to) = (self.x(normal), self.x(top + 1));
            let _ = write!(
                svg,
                "<rect class=\"band\" x=\"{from:.1}\" y=\"0\" width=\"{:.1}\" height=\"{HEIGHT}\"/>",
                to - from
            );
        }
        let mut bars: Vec<(i32, u64)> = Vec::new();
        for (e, n) in exponents {
            let e = (*e).clamp(self.low, self.high - 1);
            match bars.last_mut() {
                Some((last, sum)) if *last == e => *sum += n,
                _ => bars.push((e, *n)),
            }
        }
        let total: u64 = bars.iter().map(|(_, n)| n).sum();
        let most = bars.iter().map(|(_, n)| *n).max().unwrap_or(1).max(1) as f64;
        let width = self.x(self.low + 1) - self.x(self.low);
        for (e, n) in bars {
            let class = match limits {
                // Half of the numbers below the smallest subnormal are rounded up to it: the exponent below is still kept.
                Some([smallest, ..]) if e < smallest - 1 => "z",
                Some([_, normal, _]) if e < normal => "s",
                Some([.., top]) if e > top => "o",
                _ => "n",
            };
            let height = (f64::sqrt(n as f64 / most) * (HEIGHT - 2.0)).max(1.0);
            let share = percent(n as f64 / total.max(1) as f64);
            let _ = write!(
                svg,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>2^{e}: {share} %</title></rect>",
                self.x(e),
                HEIGHT - height,
                width * 0.88
            );
        }
        svg + "</svg>"
    }
}
