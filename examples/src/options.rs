//! Options of the command line.

use bimetal::precision::PolicyMap;
use bimetal::{Error, Result};
use std::path::{Path, PathBuf};

/// What an example does when it is not told otherwise.
pub struct Defaults {
    /// The example's name.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// The default of `--policy`.
    pub policy: &'static str,
    /// How long it trains: `("epochs", 10)` or `("steps", 2000)`.
    pub length: (&'static str, u64),
    /// The default of `--batch`.
    pub batch: usize,
    /// The default of `--data`, in the examples' data folder.
    pub data: &'static str,
    /// Numbers that only this example takes.
    pub extra: &'static [Extra],
}

/// A number that only one example takes.
pub struct Extra {
    /// The option's name, without dashes.
    pub name: &'static str,
    /// Its default.
    pub value: usize,
    /// What it means.
    pub help: &'static str,
}

/// The options as they hold.
#[derive(Debug)]
pub struct Options {
    /// The example's name.
    pub name: &'static str,
    /// `--policy`: the precision policy, with rules by path if need be (`"mixed_float16; head=float32"`).
    pub policy: PolicyMap,
    /// `--policy` as it was written.
    pub policy_name: String,
    /// `--device`.
    pub device: String,
    /// `--epochs` or `--steps`.
    pub length: u64,
    /// `--batch`.
    pub batch: usize,
    /// `--data`.
    pub data: PathBuf,
    /// `--limit`: at most so many training samples.
    pub limit: Option<usize>,
    /// `--seed`.
    pub seed: u64,
    /// `--threads`.
    pub threads: Option<usize>,
    /// `--out`.
    pub out: Option<PathBuf>,
    /// `--save-every`: steps from one checkpoint to the next.
    pub save_every: Option<u64>,
    /// `--resume`.
    pub resume: bool,
    /// `--json`.
    pub json: Option<PathBuf>,
    /// `--report`.
    pub report: Option<PathBuf>,
    extra: Vec<(&'static str, usize)>,
}

/// Name, value and meaning of the options that all examples take; `--epochs` or `--steps` comes beside them.
const COMMON: [[&str; 3]; 13] = [
    [
        "policy",
        "NAME",
        "precision policy: float32, mixed_float16, mixed_bfloat16, ...",
    ],
    ["device", "NAME", "device to train on"],
    ["batch", "N", "samples of a batch"],
    ["data", "PATH", "other data"],
    ["limit", "N", "use only so many training samples"],
    [
        "seed",
        "N",
        "seed of weights, order of the data and dropout",
    ],
    ["threads", "N", "threads; results do not depend on it"],
    [
        "out",
        "DIR",
        "folder of the run (default: runs/<example>-<time>)",
    ],
    ["save-every", "N", "write a checkpoint every N steps"],
    [
        "resume",
        "",
        "go on from the newest checkpoint in --out, if there is one",
    ],
    ["json", "FILE", "write the figures of the run to FILE"],
    [
        "report",
        "DIR",
        "write a precision report of the trained model to DIR",
    ],
    ["help", "", "print this"],
];

impl Options {
    /// Reads the words of a command line.
    pub fn parse(defaults: &Defaults, words: Vec<String>) -> Result<Options> {
        let data = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("data")
            .join(defaults.data);
        let mut options = Options {
            name: defaults.name,
            policy: defaults.policy.parse()?,
            policy_name: defaults.policy.to_string(),
            device: "cpu".to_string(),
            length: defaults.length.1,
            batch: defaults.batch,
            data,
            limit: None,
            seed: 0,
            threads: None,
            out: None,
            save_every: None,
            resume: false,
            json: None,
            report: None,
            extra: defaults.extra.iter().map(|e| (e.name, e.value)).collect(),
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--") else {
                return Err(defaults.unknown(&word));
            };
            // Both `--batch 32` and `--batch=32`.
            let (name, given) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_string())),
                None => (name, None),
            };
            if name == "resume" {
                if given.is_some() {
                    return Err(Error::invalid("--resume takes no value"));
                }
                options.resume = true;
                continue;
            }
            if !defaults.knows(name) {
                return Err(defaults.unknown(&word));
            }
            let value = given.or_else(|| words.next());
            let value = value.ok_or_else(|| Error::invalid(format!("--{name} needs a value")))?;
            options.set(defaults, name, value)?;
        }
        if options.resume && options.out.is_none() {
            return Err(Error::invalid(
                "--resume needs --out DIR, the folder of the run to go on with",
            ));
        }
        Ok(options)
    }

    fn set(&mut self, defaults: &Defaults, name: &str, value: String) -> Result<()> {
        match name {
            "policy" => {
                self.policy = value.parse()?;
                self.policy_name = value;
            }
            "device" => self.device = value,
            "batch" => self.batch = number(name, &value, 1)?,
            "data" => self.data = value.into(),
            "limit" => self.limit = Some(number(name, &value, 1)?),
            "seed" => self.seed = number(name, &value, 0)?,
            "threads" => self.threads = Some(number(name, &value, 1)?),
            "out" => self.out = Some(value.into()),
            "save-every" => self.save_every = Some(number(name, &value, 1)?),
            "json" => self.json = Some(value.into()),
            "report" => self.report = Some(value.into()),
            _ if name == defaults.length.0 => self.length = number(name, &value, 1)?,
            _ => {
                let known = self.extra.iter_mut().find(|(extra, _)| *extra == name);
                let (_, slot) = known.ok_or_else(|| defaults.unknown(name))?;
                *slot = number(name, &value, 1)?;
            }
        }
        Ok(())
    }

    /// A number that only this example takes.
    pub fn extra(&self, name: &str) -> usize {
        let found = self.extra.iter().find(|(extra, _)| *extra == name);
        found.map_or(0, |(_, value)| *value)
    }
}

fn number<T: std::str::FromStr + PartialOrd + From<u8>>(
    name: &str,
    value: &str,
    least: u8,
) -> Result<T> {
    match value.parse::<T>() {
        Ok(number) if number >= T::from(least) => Ok(number),
        _ => Err(Error::invalid(format!(
            "--{name} is `{value}`; expected a whole number of at least {least}"
        ))),
    }
}

impl Defaults {
    fn rows(&self) -> Vec<(String, String)> {
        let (length, default) = self.length;
        let mut rows = vec![(
            format!("{length} N"),
            format!("{length} to train (default: {default})"),
        )];
        for [name, value, help] in COMMON {
            let default = match name {
                "policy" => format!(" (default: {})", self.policy),
                "batch" => format!(" (default: {})", self.batch),
                "data" => format!(" (default: {})", self.data),
                "seed" => " (default: 0)".to_string(),
                "device" => format!(
                    ": {} (default: cpu); wgpu and cuda need a build with the feature of that name",
                    bimetal::devices().join(", ")
                ),
                _ => String::new(),
            };
            rows.push((format!("{name} {value}"), format!("{help}{default}")));
        }
        for e in self.extra {
            let help = format!("{} (default: {})", e.help, e.value);
            rows.push((format!("{} N", e.name), help));
        }
        rows
    }

    /// The text of `--help`.
    pub fn help(&self) -> String {
        let mut text = format!("{}\n\noptions:\n", self.about);
        for (option, help) in self.rows() {
            text.push_str(&format!("  --{option:<16} {help}\n"));
        }
        text
    }

    fn names(&self) -> Vec<String> {
        let rows = self.rows().into_iter();
        rows.filter_map(|(option, _)| Some(option.split(' ').next()?.to_string()))
            .collect()
    }

    fn knows(&self, name: &str) -> bool {
        name != "help" && self.names().iter().any(|known| known == name)
    }

    fn unknown(&self, word: &str) -> Error {
        Error::invalid(format!(
            "unknown option `{word}`; the options of {} are --{}",
            self.name,
            self.names().join(", --")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: Defaults = Defaults {
        name: "test",
        about: "A test.",
        policy: "mixed_float16",
        length: ("steps", 2000),
        batch: 12,
        data: "text.txt",
        extra: &[Extra {
            name: "context",
            value: 64,
            help: "tokens",
        }],
    };

    fn parse(line: &str) -> Result<Options> {
        Options::parse(
            &DEFAULTS,
            line.split_whitespace().map(String::from).collect(),
        )
    }

    #[test]
    fn defaults_and_values() {
        let o = parse("").unwrap();
        assert_eq!(
            (o.length, o.batch, o.extra("context"), o.seed),
            (2000, 12, 64, 0)
        );
        assert!(o.data.ends_with("data/text.txt"));
        let o =
            parse("--steps 3 --batch=64 --context 256 --resume --out x --policy float32").unwrap();
        assert_eq!((o.length, o.batch, o.extra("context")), (3, 64, 256));
        assert!(o.resume && o.out.is_some());
        assert_eq!(o.policy_name, "float32");
    }

    #[test]
    fn mistakes_say_what_is_known() {
        for (line, part) in [
            ("--batchsize 3", "--batch, "),
            ("--epochs 3", "--steps"),
            ("file", "unknown option `file`"),
            ("--batch", "needs a value"),
            ("--batch x", "whole number of at least 1"),
            ("--batch 0", "whole number of at least 1"),
            ("--seed -1", "whole number of at least 0"),
            ("--policy float17", "mixed_bfloat16"),
            ("--resume", "--out DIR"),
        ] {
            let text = parse(line).unwrap_err().to_string();
            assert!(text.contains(part), "{line}: {text}");
        }
        assert!(DEFAULTS.help().contains("--context N"));
    }
}
