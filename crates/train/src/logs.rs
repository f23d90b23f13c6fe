//! Named numbers of a batch or an epoch.

use std::fmt;

/// An ordered map from name to number: the loss and the metrics of a batch or an epoch.
///
/// Validation results carry the prefix `val_`, as in Keras.
///
/// ```
/// use bimetal_train::Logs;
/// let mut logs: Logs = [("loss", 0.5)].into_iter().collect();
/// let validation: Logs = [("loss", 0.7)].into_iter().collect();
/// logs.extend_prefixed("val_", &validation);
/// assert_eq!(logs.get("val_loss"), Some(0.7));
/// assert_eq!(logs.to_string(), "loss 0.5000 val_loss 0.7000");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logs(Vec<(String, f64)>);

impl Logs {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of that name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|&(_, value)| value)
    }

    /// Sets a number; a new name goes to the end.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Sets all numbers of `other` under their names with `prefix` in front.
    pub fn extend_prefixed(&mut self, prefix: &str, other: &Logs) {
        for (name, value) in other.iter() {
            self.set(format!("{prefix}{name}"), value);
        }
    }

    /// Names and numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The names in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names as one line of text, for messages about a name that is not there.
    pub(crate) fn available(&self) -> String {
        if self.is_empty() {
            return "none".into();
        }
        self.keys().collect::<Vec<_>>().join(", ")
    }
}

impl<S: Into<String>> FromIterator<(S, f64)> for Logs {
    fn from_iter<I: IntoIterator<Item = (S, f64)>>(items: I) -> Self {
        let mut logs = Self::new();
        for (name, value) in items {
            logs.set(name, value);
        }
        logs
    }
}

impl fmt::Display for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.iter().enumerate() {
            let separator = if i == 0 { "" } else { " " };
            // Four decimals suit losses and accuracies; a learning rate needs an exponent to be seen.
            if value != 0.0 && value.abs() < 1e-3 {
                write!(f, "{separator}{name} {value:.3e}")?;
            } else {
                write!(f, "{separator}{name} {value:.4}")?;
            }
        }
        Ok(())
    }
}
