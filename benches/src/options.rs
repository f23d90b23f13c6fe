//! The command line.
use crate::catalog::{NAMES, Work, all};
use crate::peers::PEERS;
use bimetal::DType;
use std::collections::VecDeque;

/// What to run, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Workloads, by name.
    pub only: Vec<String>,
    /// Only variants that contain one of these words; all if empty.
    pub variants: Vec<String>,
    /// Element types.
    pub dtypes: Vec<DType>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// How often everything is measured anew.
    pub rounds: usize,
    /// About how long each row of a round is repeated, in seconds.
    pub seconds: f64,
    /// JSON lines to standard output (`Some(None)`) or to a file.
    pub json: Option<Option<String>>,
    /// Peers that are measured too, by name.
    pub peers: Vec<String>,
    /// Tables of how time and memory grow, instead of rows.
    pub scaling: bool,
    /// Tables of where the time goes, instead of rows.
    pub profile: bool,
    /// Each row once and briefly.
    pub quick: bool,
}

/// How the task is called.
pub const USAGE: &str = "cargo xtask bench [--only W1,W4] [--variant WORD,..] [--dtype f32,bf16,f16] [--threads 1|2|1,2] \
[--rounds N] [--seconds S] [--json [FILE]] [--peers [torch,jax,burn,candle]] [--scaling] [--profile] [--quick]";

impl Default for Options {
    fn default() -> Options {
        Options {
            only: NAMES.map(String::from).to_vec(),
            variants: Vec::new(),
            dtypes: vec![DType::F32],
            threads: vec![1],
            rounds: 3,
            seconds: 1.0,
            json: None,
            peers: Vec::new(),
            scaling: false,
            profile: false,
            quick: false,
        }
    }
}

impl Options {
    /// Reads the words behind `bench`.
    ///
    /// # Errors
    /// An unknown option, workload or dtype, a number that is none; the message lists what is known.
    pub fn parse(words: Vec<String>) -> Result<Options, String> {
        let mut options = Options::default();
        let (mut rounds, mut seconds) = (None, None);
        let mut words: VecDeque<String> = words.into_iter().collect();
        while let Some(word) = words.pop_front() {
            let (name, mut inline) = match word.split_once('=') {
                Some((name, value)) => (name.to_string(), Some(value.to_string())),
                None => (word, None),
            };
            let mut value = || {
                let next = || words.pop_front().filter(|w| !w.starts_with("--"));
                inline
                    .take()
                    .or_else(next)
                    .ok_or_else(|| format!("`{name}` needs a value\nusage: {USAGE}"))
            };
            match name.as_str() {
                "--only" => options.only = list(&value()?, workload)?,
                "--variant" => options.variants = list(&value()?, |word| Ok(word.to_string()))?,
                "--dtype" => options.dtypes = list(&value()?, dtype)?,
                "--threads" => options.threads = list(&value()?, |word| number(&name, word))?,
                "--rounds" => rounds = Some(number(&name, &value()?)?),
                "--seconds" => seconds = Some(positive(&name, &value()?)?),
                "--json" => options.json = Some(optional(&mut inline, &mut words)),
                "--peers" => {
                    options.peers = match optional(&mut inline, &mut words) {
                        Some(names) => list(&names, peer)?,
                        None => PEERS[..2].iter().map(|p| p.to_string()).collect(),
                    };
                }
                "--scaling" => options.scaling = true,
                "--profile" => options.profile = true,
                "--quick" => options.quick = true,
                _ => return Err(format!("unknown argument `{name}`\nusage: {USAGE}")),
            }
            if inline.is_some() {
                return Err(format!("`{name}` takes no value\nusage: {USAGE}"));
            }
        }
        let brief = options.quick;
        options.rounds = rounds.unwrap_or(if brief { 1 } else { options.rounds });
        options.seconds = seconds.unwrap_or(if brief { 0.0 } else { options.seconds });
        if options.works().is_empty() {
            return Err(format!(
                "no variant of {} contains {}",
                options.only.join(", "),
                options.variants.join(" or ")
            ));
        }
        Ok(options)
    }

    /// The workloads that were asked for.
    pub fn works(&self) -> Vec<Work> {
        let wanted = |w: &Work| {
            let fits = |word: &String| w.variant.contains(word.as_str());
            self.only.iter().any(|name| name == w.name)
                && (self.variants.is_empty() || self.variants.iter().any(fits))
        };
        all().into_iter().filter(wanted).collect()
    }
}

fn list<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    text.split(',').map(|word| read(word.trim())).collect()
}

/// The value of an option that can do without.
fn optional(inline: &mut Option<String>, words: &mut VecDeque<String>) -> Option<String> {
    let follows = words.front().is_some_and(|w| !w.starts_with("--"));
    match inline.take() {
        None if follows => words.pop_front(),
        given => given,
    }
}

fn peer(word: &str) -> Result<String, String> {
    match PEERS.contains(&word) {
        true => Ok(word.to_string()),
        false => Err(format!(
            "unknown peer `{word}`; the peers are {}",
            PEERS.join(", ")
        )),
    }
}

fn workload(word: &str) -> Result<String, String> {
    let name = word.to_uppercase();
    match NAMES.contains(&name.as_str()) {
        true => Ok(name),
        false => Err(format!(
            "unknown workload `{word}`; the workloads are {}",
            NAMES.join(", ")
        )),
    }
}

/// A dtype of the bench by name.
pub(crate) fn dtype(word: &str) -> Result<DType, String> {
    match word {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::BF16),
        "f16" => Ok(DType::F16),
        _ => Err(format!(
            "unknown dtype `{word}`; the dtypes are f32, bf16, f16"
        )),
    }
}

/// The name of a dtype of the bench.
pub(crate) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        _ => "f32",
    }
}

pub(crate) fn number(name: &str, word: &str) -> Result<usize, String> {
    let n = word.parse().ok().filter(|n| (1..=1024).contains(n));
    n.ok_or_else(|| format!("`{word}` is not a number from 1 to 1024, which `{name}` takes"))
}

pub(crate) fn positive(name: &str, word: &str) -> Result<f64, String> {
    let n = word.parse().ok().filter(|n| (0.0..1e6).contains(n));
    n.ok_or_else(|| format!("`{word}` is not a number of seconds, which `{name}` takes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(String::from).collect())
    }

    #[test]
    fn options_are_read() {
        let o = parse("--only w1,W7 --dtype=f32,f16 --threads 1,2 --json rows.jsonl --peers");
        let o = o.unwrap();
        assert_eq!(o.only, ["W1", "W7"]);
        assert_eq!(o.dtypes, [DType::F32, DType::F16]);
        assert_eq!((o.threads, o.rounds), (vec![1, 2], 3));
        assert_eq!(o.peers, ["torch", "jax"]);
        assert_eq!(parse("--peers jax,burn").unwrap().peers, ["jax", "burn"]);
        assert_eq!(o.json, Some(Some("rows.jsonl".to_string())));
        assert_eq!(parse("--json --quick").unwrap().json, Some(None));
        assert_eq!(parse("--quick").unwrap().rounds, 1);
        assert_eq!(parse("--quick --rounds 2").unwrap().rounds, 2);
        let names = |o: Options| o.works().iter().map(|w| w.name).collect::<Vec<_>>();
        assert_eq!(
            names(parse("--variant fwd+bwd").unwrap()),
            ["W8", "W9", "W10"]
        );
    }

    #[test]
    fn mistakes_list_what_is_known() {
        for (line, found, known) in [
            ("--only W12", "`W12`", "W1, W2, W3"),
            ("--dtype f8", "`f8`", "f32, bf16, f16"),
            ("--threads 0", "`0`", "1 to 1024"),
            ("--rounds x", "`x`", "--rounds"),
            ("--seconds -1", "`-1`", "--seconds"),
            ("--rouns 3", "`--rouns`", "--rounds N"),
            ("--only", "--only", "needs a value"),
            ("--only --peers", "--only", "needs a value"),
            ("--peers keras", "`keras`", "torch, jax, burn, candle"),
            ("--quick=yes", "--quick", "takes no value"),
            ("--only W1 --variant fwd", "W1", "fwd"),
        ] {
            let message = parse(line).unwrap_err();
            assert!(
                message.contains(found) && message.contains(known),
                "{line}: {message}"
            );
        }
    }
}
