//! How closely a step is watched.
use bimetal_tensor::Error;
use std::fmt;
use std::str::FromStr;

/// How closely a training watches its numbers. Whatever the level, a step with a gradient that is not finite changes nothing; the level says how much is known of why.
///
/// Parses from and prints as `off`, `step`, `layer`, `op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Level {
    /// The first parameter whose gradient is not finite.
    #[default]
    Off,
    /// A step that is skipped is computed again with every operation checked, which names the one to blame. While all is well this costs nothing.
    Step,
    /// As `Step`; the step's own plan also checks what layers hand to each other, forward and backward, so that the layer is known where the step cannot be
    /// computed again.
    Layer,
    /// As `Layer` with every operation of the graph in place of what layers hand to each other: for looking for a fault, not for every day.
    Op,
}

const NAMES: [(&str, Level); 4] = [
    ("off", Level::Off),
    ("step", Level::Step),
    ("layer", Level::Layer),
    ("op", Level::Op),
];

impl FromStr for Level {
    type Err = Error;

    fn from_str(s: &str) -> Result<Level, Error> {
        let found = NAMES.iter().find(|(name, _)| *name == s);
        found.map(|(_, level)| *level).ok_or_else(|| {
            Error::argument(
                "check_numerics",
                format!("unknown level `{s}`; use `off`, `step`, `layer` or `op`"),
            )
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(NAMES[*self as usize].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_written_as_they_are_read() {
        for (name, level) in NAMES {
            assert_eq!(name.parse::<Level>().unwrap(), level);
            assert_eq!(level.to_string(), name);
        }
        assert!(Level::Off < Level::Step && Level::Layer < Level::Op);
        let e = "all".parse::<Level>().unwrap_err().to_string();
        assert!(e.contains("`layer`"), "{e}");
    }
}
