//! The results as JSON, written anew with each row: who is stopped keeps what there is.
use serde_json::{Value, json};
use std::path::PathBuf;

/// What was measured so far.
pub struct Results {
    all: Value,
    file: Option<PathBuf>,
}

impl Results {
    /// None yet.
    pub fn new(device: Value, file: Option<PathBuf>) -> Results {
        Results {
            all: json!({"device": device, "gate": [], "gemm": [], "kernels": [], "steps": []}),
            file,
        }
    }

    /// One more row of a part.
    pub fn add(&mut self, part: &str, row: Value) -> Result<(), String> {
        if let Some(rows) = self.all[part].as_array_mut() {
            rows.push(row);
        }
        match &self.file {
            None => Ok(()),
            Some(file) => std::fs::write(file, format!("{:#}\n", self.all))
                .map_err(|e| format!("{}: {e}", file.display())),
        }
    }

    /// The rows of a part.
    pub fn rows(&self, part: &str) -> &[Value] {
        self.all[part].as_array().map_or(&[], Vec::as_slice)
    }
}
