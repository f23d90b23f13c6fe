//! File names with numbers in them: `ckpt/{epoch:02d}-{val_loss:.2f}`, the part of Python's format language that Keras users write.

use std::fmt::Write;
use std::path::PathBuf;

use crate::{Error, Logs, Result};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Template {
    text: String,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Literal(String),
    Field { name: String, spec: Spec },
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spec {
    zero: bool,
    width: usize,
    /// `Some` for `.Nf`.
    decimals: Option<usize>,
    integer: bool,
}

impl Template {
    /// The folder in which all names of the template lie: what comes before the last separator of its first fixed part.
    pub fn folder(&self) -> PathBuf {
        let first = match self.pieces.first() {
            Some(Piece::Literal(text)) => text.as_str(),
            _ => "",
        };
        match first.rfind(std::path::is_separator) {
            Some(end) => PathBuf::from(&first[..=end]),
            None => PathBuf::from("."),
        }
    }

    /// Reads the text of a template.
    ///
    /// # Errors
    /// A brace without its partner, a format that is not `d` or `.Nf` with a width.
    pub fn parse(text: &str) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            let end = rest.find('}').filter(|_| brace == "{");
            let Some(end) = end else {
                return Err(Error::invalid(format!(
                    "`{text}` has a brace without its partner; write {{{{ and }}}} for braces in the name"
                )));
            };
            let (name, spec) = rest[..end].split_once(':').unwrap_or((&rest[..end], ""));
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            pieces.push(Piece::Field {
                name: name.to_string(),
                spec: parse_spec(text, spec)?,
            });
            rest = &rest[end + 1..];
        }
        literal.push_str(rest);
        pieces.push(Piece::Literal(literal));
        Ok(Self {
            text: text.to_string(),
            pieces,
        })
    }

    /// Fills in `epoch` and `batch`, which count from 1 in names as in Keras, and the logs.
    ///
    /// # Errors
    /// A name that is neither; the message lists those there are.
    pub fn fill(&self, epoch: usize, batch: Option<usize>, logs: &Logs) -> Result<String> {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => out.push_str(literal),
                Piece::Field { name, spec } => {
                    let value = match (name.as_str(), batch) {
                        ("epoch", _) => Some((epoch + 1) as f64),
                        ("batch", Some(batch)) if logs.get(name).is_none() => {
                            Some((batch + 1) as f64)
                        }
                        _ => logs.get(name),
                    };
                    let Some(value) = value else {
                        return Err(Error::invalid(format!(
                            "`{}` names `{name}`, which is not available; available are: epoch{}, {}",
                            self.text,
                            if batch.is_some() { ", batch" } else { "" },
                            logs.available()
                        )));
                    };
                    push(&mut out, value, *spec);
                }
            }
        }
        Ok(out)
    }
}

fn parse_spec(text: &str, spec: &str) -> Result<Spec> {
    let unsupported = || {
        Error::invalid(format!(
            "`{text}` has the format `:{spec}`; use a width with `d` (`:02d`) or decimals with `f` (`:.2f`)"
        ))
    };
    let number = |digits: &str| -> Result<usize> {
        if digits.is_empty() {
            Ok(0)
        } else {
            digits.parse().map_err(|_| unsupported())
        }
    };
    let mut result = Spec {
        zero: spec.starts_with('0'),
        ..Spec::default()
    };
    if let Some(width) = spec.strip_suffix('d') {
        result.integer = true;
        result.width = number(width)?;
    } else if let Some(number_text) = spec.strip_suffix('f') {
        let (width, decimals) = number_text.split_once('.').unwrap_or((number_text, "6"));
        result.width = number(width)?;
        result.decimals = Some(number(decimals)?);
    } else {
        result.width = number(spec)?;
    }
    if result.width > 100 || result.decimals > Some(100) {
        return Err(unsupported());
    }
    Ok(result)
}

fn push(out: &mut String, value: f64, spec: Spec) {
    let width = spec.width;
    // Writing to a string cannot fail.
    let _ = match (spec.decimals, spec.zero) {
        (Some(decimals), true) => write!(out, "{value:0width$.decimals$}"),
        (Some(decimals), false) => write!(out, "{value:width$.decimals$}"),
        (None, zero) => {
            let value = if spec.integer { value.round() } else { value };
            if zero {
                write!(out, "{value:0width$}")
            } else {
                write!(out, "{value:width$}")
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(template: &str) -> Result<String> {
        let logs: Logs = [("val_loss", 0.12678), ("acc", 1.0)].into_iter().collect();
        Template::parse(template)?.fill(4, Some(99), &logs)
    }

    #[test]
    fn as_python_formats_them() {
        // The right-hand sides are what Python's str.format gives for epoch=5, batch=100, val_loss=0.12678.
        for (template, expected) in [
            ("plain", "plain"),
            ("{epoch:02d}-{val_loss:.2f}", "05-0.13"),
            ("a/{epoch}/b{batch:06d}", "a/5/b000100"),
            ("{{x}}{epoch:3d}", "{x}  5"),
            (
                "{val_loss:08.3f}|{val_loss:f}|{val_loss}",
                "0000.127|0.126780|0.12678",
            ),
        ] {
            assert_eq!(fill(template).unwrap(), expected, "{template}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (template, part) in [
            ("{epoch", "without its partner"),
            ("epoch}", "without its partner"),
            ("{epoch:x}", "`:x`"),
            ("{val_loss:.2}", "`:.2`"),
            ("{vall_oss}", "available are: epoch, batch, val_loss, acc"),
        ] {
            let error = fill(template).unwrap_err().to_string();
            assert!(error.contains(part), "{template}: {error}");
        }
    }
}
