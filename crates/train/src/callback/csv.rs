//! One line of comma-separated values an epoch.

use std::path::PathBuf;

use super::lines::LineFile;
use super::{Callback, Control, TrainInfo};
use crate::{Error, Logs, Result};

/// Writes the logs of each epoch as a line of a CSV file.
///
/// The header is `epoch` and the names of the first epoch, with `val_` names where there is validation data; what a
/// later epoch lacks is `NA`. A resumed run goes on after the epochs that were completed when its checkpoint was written.
#[derive(Debug)]
pub struct CsvLogger {
    path: PathBuf,
    separator: char,
    append: bool,
    validation: bool,
    columns: Vec<String>,
    file: Option<LineFile>,
    warned: bool,
}

impl CsvLogger {
    /// Writes to `path`; a file that is there is replaced unless the run is a resumed one.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            separator: ',',
            append: false,
            validation: false,
            columns: Vec::new(),
            file: None,
            warned: false,
        }
    }

    /// The character between values; default a comma.
    pub fn separator(mut self, separator: char) -> Self {
        self.separator = separator;
        self
    }

    /// Whether a new run goes on in a file that is there; default false.
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    fn line<'a>(&self, fields: impl Iterator<Item = &'a str>) -> String {
        let quoted: Vec<_> = fields.map(|field| quote(field, self.separator)).collect();
        quoted.join(&self.separator.to_string())
    }

    fn columns_of(&self, logs: &Logs) -> Vec<String> {
        let mut columns: Vec<String> = logs.keys().map(str::to_string).collect();
        // Validation may come every few epochs only; its columns must be there from the start.
        if self.validation && !columns.iter().any(|name| name.starts_with("val_")) {
            let validation: Vec<_> = columns.iter().map(|name| format!("val_{name}")).collect();
            columns.extend(validation);
        }
        columns
    }
}

impl Callback for CsvLogger {
    fn on_train_begin(&mut self, info: &TrainInfo) -> Result<Control> {
        self.validation = info.validation;
        self.columns.clear();
        if info.resumed.is_none() && !self.append {
            self.file = Some(LineFile::create(&self.path)?);
            return Ok(Control::Continue);
        }
        let completed = info.resumed.map(|r| r.epoch as u64);
        let mut header = None;
        let separator = self.separator;
        let file = LineFile::resume(&self.path, |line| {
            if header.is_none() {
                header = Some(unquote(line, separator));
                return true;
            }
            let epoch = line
                .split(separator)
                .next()
                .and_then(|text| text.parse::<u64>().ok());
            match (epoch, completed) {
                (Some(epoch), Some(completed)) => epoch < completed,
                (epoch, _) => epoch.is_some(),
            }
        })?;
        self.file = Some(file);
        if let Some(header) = header {
            if header.first().map(String::as_str) != Some("epoch") {
                return Err(Error::invalid(format!(
                    "`{}` does not begin with the column `epoch`: it is not a log of this kind; choose another file",
                    self.path.display()
                )));
            }
            self.columns = header.into_iter().skip(1).collect();
        }
        Ok(Control::Continue)
    }

    fn on_epoch_end(&mut self, epoch: usize, logs: &Logs) -> Result<Control> {
        let mut lines = Vec::new();
        if self.columns.is_empty() {
            self.columns = self.columns_of(logs);
            let columns = self.columns.iter().map(String::as_str);
            lines.push(self.line(["epoch"].into_iter().chain(columns)));
        }
        let values = self.columns.iter().map(|name| match logs.get(name) {
            Some(value) => value.to_string(),
            None => "NA".into(),
        });
        let fields: Vec<String> = [epoch.to_string()].into_iter().chain(values).collect();
        lines.push(self.line(fields.iter().map(String::as_str)));
        let Some(file) = &mut self.file else {
            return Err(Error::invalid(
                "CsvLogger was not told that training began; call on_train_begin first",
            ));
        };
        lines.iter().for_each(|line| file.push(line));
        file.flush()?;

        let new = logs
            .keys()
            .find(|name| !self.columns.iter().any(|column| column == name));
        match new {
            Some(name) if !self.warned => {
                self.warned = true;
                Ok(Control::Warn(format!(
                    "`{name}` has no column in `{}`, whose header was written before; it is left out",
                    self.path.display()
                )))
            }
            _ => Ok(Control::Continue),
        }
    }

    fn on_train_end(&mut self, _logs: &Logs) -> Result<Control> {
        self.flush()?;
        self.file = None;
        Ok(Control::Continue)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.as_mut().map_or(Ok(()), LineFile::sync)
    }
}

/// The field in quotes where it needs them (RFC 4180).
fn quote(field: &str, separator: char) -> String {
    if field.contains([separator, '"', '\n', '\r']) {
        // A line break would end the record for line-based readers, this one included.
        format!(
            "\"{}\"",
            field.replace('"', "\"\"").replace(['\n', '\r'], " ")
        )
    } else {
        field.to_string()
    }
}

/// The fields of a line.
fn unquote(line: &str, separator: char) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut inside = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let last = fields.len() - 1;
        match c {
            '"' if inside && chars.peek() == Some(&'"') => {
                chars.next();
                fields[last].push('"');
            }
            '"' => inside = !inside,
            c if c == separator && !inside => fields.push(String::new()),
            c => fields[last].push(c),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_round_trips() {
        let fields = ["epoch", "a,b", "say \"hi\"", "plain", ""];
        let line = fields.map(|f| quote(f, ',')).join(",");
        assert_eq!(line, "epoch,\"a,b\",\"say \"\"hi\"\"\",plain,");
        assert_eq!(unquote(&line, ','), fields);
    }
}
