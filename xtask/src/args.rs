//! A small parser for the options of one task: `--flag`, `--name VALUE`, `--name=VALUE`, words.

use std::str::FromStr;

use crate::Result;

/// The arguments of a task that nobody has claimed yet.
///
/// Every read names an option and so makes it known; [`Args::finish`] then refuses whatever is
/// left and lists the known ones.
pub struct Args {
    task: &'static str,
    words: Vec<String>,
    known: Vec<String>,
}

impl Args {
    /// Takes the words after the task's name.
    pub fn new(task: &'static str, words: impl Iterator<Item = String>) -> Self {
        Self {
            task,
            words: words.collect(),
            known: Vec::new(),
        }
    }

    /// Whether `--name` was given.
    pub fn flag(&mut self, name: &str) -> bool {
        self.known.push(name.to_string());
        let position = self.words.iter().position(|word| word == name);
        if let Some(i) = position {
            self.words.remove(i);
        }
        position.is_some()
    }

    /// The value after `--name`, parsed; an error if it is missing or does not parse.
    pub fn option<T: FromStr>(&mut self, name: &str) -> Result<Option<T>> {
        self.known.push(format!("{name} VALUE"));
        let with_equals = format!("{name}=");
        let Some(i) = self
            .words
            .iter()
            .position(|word| word == name || word.starts_with(&with_equals))
        else {
            return Ok(None);
        };
        let word = self.words.remove(i);
        let value = match word.strip_prefix(&with_equals) {
            Some(value) => value.to_string(),
            None if i < self.words.len() => self.words.remove(i),
            None => return Err(format!("`{name}` needs a value")),
        };
        value
            .parse()
            .map(Some)
            .map_err(|_| format!("`{value}` is not a value that `{name}` takes"))
    }

    /// The words that are no options, for tasks that take names.
    pub fn names(&mut self) -> Vec<String> {
        let (options, names) = self.words.drain(..).partition(|w| w.starts_with('-'));
        self.words = options;
        names
    }

    /// All words, for a task that hands them on to a program that reads them itself.
    pub fn words(self) -> Vec<String> {
        self.words
    }

    /// Refuses arguments that no call above has taken.
    pub fn finish(self) -> Result {
        let Some(word) = self.words.first() else {
            return Ok(());
        };
        let known = match self.known.as_slice() {
            [] => "it takes none".to_string(),
            known => format!("it knows {}", known.join(", ")),
        };
        Err(format!(
            "unknown argument `{word}` for `{}`: {known}",
            self.task
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Args {
        Args::new("task", words.iter().map(|w| w.to_string()))
    }

    #[test]
    fn options_are_taken_in_either_form() {
        let mut a = args(&["--trials", "3", "name", "--seed=7", "--check"]);
        assert_eq!(a.option::<usize>("--trials"), Ok(Some(3)));
        assert_eq!(a.option::<u64>("--seed"), Ok(Some(7)));
        assert!(a.flag("--check"));
        assert!(!a.flag("--other"));
        assert_eq!(a.names(), ["name"]);
        assert_eq!(a.finish(), Ok(()));
    }

    #[test]
    fn what_is_left_is_refused_with_the_known_options() {
        let mut a = args(&["--chekc"]);
        assert!(!a.flag("--check"));
        let message = a.finish().unwrap_err();
        assert!(message.contains("`--chekc`"), "{message}");
        assert!(message.contains("--check"), "{message}");
    }

    #[test]
    fn a_missing_or_malformed_value_is_an_error() {
        assert!(args(&["--seed"]).option::<u64>("--seed").is_err());
        assert!(args(&["--seed", "x"]).option::<u64>("--seed").is_err());
    }
}
