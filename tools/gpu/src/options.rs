//! Options of a task: `--flag` and `--name VALUE`.

/// Words after a task's name that nobody has asked for yet.
pub struct Options(Vec<String>);

impl Options {
    /// All of them.
    pub fn new(words: Vec<String>) -> Options {
        Options(words)
    }

    /// Whether `--name` was given.
    pub fn flag(&mut self, name: &str) -> bool {
        let at = self.0.iter().position(|w| w == name);
        if let Some(i) = at {
            self.0.remove(i);
        }
        at.is_some()
    }

    /// The value after `--name`.
    pub fn value(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(i) = self.0.iter().position(|w| w == name) else {
            return Ok(None);
        };
        self.0.remove(i);
        match i < self.0.len() {
            true => Ok(Some(self.0.remove(i))),
            false => Err(format!("`{name}` needs a value")),
        }
    }

    /// The first word that is left, if it is no option.
    pub fn word(&mut self) -> Option<String> {
        let first = self.0.first()?;
        (!first.starts_with('-')).then(|| self.0.remove(0))
    }

    /// An error if anything is left.
    pub fn finish(self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => Err(format!("`{word}` is not an option of this task")),
        }
    }
}
