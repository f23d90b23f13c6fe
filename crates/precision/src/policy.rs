//! Precision policies: which dtypes a layer keeps, computes and returns.
use bimetal_tensor::{DType, Error, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// The three dtypes of a layer: of its parameters, of its computation, of its results.
///
/// The names and what they mean are those of Keras; the written-out form is that of DeepMind's `jmp`:
///
/// ```
/// use bimetal_precision::Policy;
/// let policy: Policy = "mixed_float16".parse()?;
/// assert_eq!(policy, "p=f32,c=f16,o=f16".parse()?);
/// assert_eq!(policy.to_string(), "mixed_float16");
/// # Ok::<(), bimetal_precision::PolicyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    /// The dtype parameters are stored in and gradients arrive in: the master weights.
    pub param: DType,
    /// The dtype floating inputs and parameters are cast to where they are used; [`DType::F8E4M3`] for 8-bit products, see [`Policy::mixed_float8`].
    pub compute: DType,
    /// The dtype results are cast to.
    pub output: DType,
}

const NAMED: [(&str, Policy); 7] = [
    ("float32", Policy::float32()),
    ("mixed_float16", Policy::mixed_float16()),
    ("mixed_bfloat16", Policy::mixed_bfloat16()),
    ("mixed_float8", Policy::mixed_float8()),
    ("float64", Policy::float64()),
    ("float16", Policy::uniform(DType::F16)),
    ("bfloat16", Policy::uniform(DType::BF16)),
];

impl Policy {
    const fn uniform(dtype: DType) -> Policy {
        Policy {
            param: dtype,
            compute: dtype,
            output: dtype,
        }
    }

    const fn mixed(dtype: DType) -> Policy {
        Policy {
            param: DType::F32,
            ..Policy::uniform(dtype)
        }
    }

    /// Everything in f32.
    pub const fn float32() -> Policy {
        Policy::uniform(DType::F32)
    }

    /// Everything in f64: for checking derivatives.
    pub const fn float64() -> Policy {
        Policy::uniform(DType::F64)
    }

    /// Everything in f16, the parameters too: small updates are lost, `mixed_float16` is meant for training.
    pub const fn float16() -> Policy {
        Policy::uniform(DType::F16)
    }

    /// Everything in bf16, the parameters too: small updates are lost, `mixed_bfloat16` is meant for training.
    pub const fn bfloat16() -> Policy {
        Policy::uniform(DType::BF16)
    }

    /// Parameters in f32, computation and results in f16. Wants loss scaling.
    pub const fn mixed_float16() -> Policy {
        Policy::mixed(DType::F16)
    }

    /// Parameters in f32, computation and results in bf16.
    pub const fn mixed_bfloat16() -> Policy {
        Policy::mixed(DType::BF16)
    }

    /// Parameters in f32, products of linear layers in 8-bit floats with a scale per tensor, everything else in bf16: `p=f32,c=f8e4m3,o=bf16`.
    ///
    /// The products are those of `Linear` and of the projections of attention, but not of an output projection that is tied to an embedding; see
    /// [`crate::f8_linear`] and, for how scales are found, [`crate::F8Recipe`].
    pub const fn mixed_float8() -> Policy {
        Policy {
            param: DType::F32,
            compute: DType::F8E4M3,
            output: DType::BF16,
        }
    }

    /// Whether linear layers multiply in 8-bit floats.
    pub fn multiplies_in_f8(&self) -> bool {
        self.compute.size() == 1
    }

    /// The dtype of computation that is not an 8-bit product: `compute`, or where that is an 8-bit float, `output`.
    pub fn compute_dtype(&self) -> DType {
        match (self.multiplies_in_f8(), self.output.size()) {
            (false, _) => self.compute,
            (true, 1) => DType::BF16,
            (true, _) => self.output,
        }
    }

    /// Whether computation takes place in f16, whose range is so small that gradients vanish without loss scaling.
    pub fn computes_in_f16(&self) -> bool {
        self.compute_dtype() == DType::F16
    }
}

/// `float32`.
impl Default for Policy {
    fn default() -> Policy {
        Policy::float32()
    }
}

/// The name if the policy has one, otherwise all three dtypes; `FromStr` reads both back.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = NAMED.iter().find(|(_, p)| p == self) {
            return f.pad(name);
        }
        let text = format!(
            "p={},c={},o={}",
            short(self.param),
            short(self.compute),
            short(self.output)
        );
        f.pad(&text)
    }
}

fn short(dtype: DType) -> &'static str {
    match dtype {
        DType::F8E4M3 => "f8e4m3",
        DType::F8E5M2 => "f8e5m2",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F64 => "f64",
        _ => "f32",
    }
}

/// A string that is no policy. The message lists the valid ones.
#[derive(Clone, PartialEq, Eq)]
pub struct PolicyError {
    found: String,
    detail: String,
}

impl PolicyError {
    fn new(found: &str, detail: impl Into<String>) -> PolicyError {
        PolicyError {
            found: found.to_string(),
            detail: detail.into(),
        }
    }

    /// The string that was found.
    pub fn found(&self) -> &str {
        &self.found
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is no precision policy", self.found)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        f.write_str("; valid are ")?;
        for (name, _) in NAMED {
            write!(f, "{name}, ")?;
        }
        f.write_str("or dtypes of parameters, computation and output such as p=f32,c=f16,o=f32")
    }
}

impl fmt::Debug for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PolicyError {}

impl From<PolicyError> for Error {
    #[track_caller]
    fn from(e: PolicyError) -> Error {
        Error::new(
            "policy",
            ErrorKind::Argument {
                detail: e.to_string(),
            },
        )
    }
}

/// Reads a name (`mixed_float16`) or `p=f32,c=f16,o=f32`; without `p` parameters are f32, without `o` the output is what
/// computation is in, bf16 where that is `f8e4m3`.
impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let wanted = text.trim();
        if let Some((_, p)) = NAMED.iter().find(|(name, _)| *name == wanted) {
            return Ok(*p);
        }
        let (mut param, mut compute, mut output) = (None, None, None);
        for part in wanted.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(PolicyError::new(text, ""));
            };
            let place = match key.trim() {
                "p" | "params" => &mut param,
                "c" | "compute" => &mut compute,
                "o" | "output" => &mut output,
                key => {
                    return Err(PolicyError::new(
                        text,
                        format!("`{key}` is none of p, c and o"),
                    ));
                }
            };
            let dtype: DType = value
                .trim()
                .parse()
                .map_err(|e| PolicyError::new(text, format!("{e}")))?;
            if !dtype.is_float() {
                return Err(PolicyError::new(text, format!("{dtype} is not a float")));
            }
            if place.replace(dtype).is_some() {
                return Err(PolicyError::new(text, format!("`{key}` is given twice")));
            }
        }
        let compute = compute.ok_or_else(|| PolicyError::new(text, "`c=` is missing"))?;
        let param = param.unwrap_or(DType::F32);
        if matches!(param, DType::F8E4M3 | DType::F8E5M2) {
            return Err(PolicyError::new(
                text,
                "parameters cannot be kept in 8 bits, an update would vanish",
            ));
        }
        if compute == DType::F8E5M2 {
            return Err(PolicyError::new(
                text,
                "8-bit products are asked for by c=f8e4m3; their gradients are f8e5m2 by themselves",
            ));
        }
        let output = output.unwrap_or(match compute {
            DType::F8E4M3 => DType::BF16,
            compute => compute,
        });
        if output.size() == 1 {
            return Err(PolicyError::new(
                text,
                "results of layers have no scale of their own, so they cannot be 8-bit; write o=bf16 or o=f16",
            ));
        }
        Ok(Policy {
            param,
            compute,
            output,
        })
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Policies by layer path: a default, and rules of a path pattern each.
///
/// In a pattern `*` stands for any run of characters, dots included, and `?` for one. A rule that matches a layer holds for
/// all layers inside of it too: `blocks.*.mlp` speaks of `blocks.0.mlp.up`. Of several rules that match, the last wins.
///
/// ```
/// use bimetal_precision::{Policy, PolicyMap};
/// let map: PolicyMap = "mixed_float16; head=float32; blocks.*.norm=float32".parse()?;
/// assert_eq!(map.resolve("blocks.3.attention.out"), Policy::mixed_float16());
/// assert_eq!(map.resolve("head"), Policy::float32());
/// # Ok::<(), bimetal_precision::PolicyError>(())
/// ```
///
/// As data (JSON, TOML, ...) it is `{"default": "mixed_float16", "rules": [["head", "float32"]]}`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyMap {
    /// The policy of layers that no rule matches.
    pub default: Policy,
    /// Path patterns and their policies; the last that matches wins.
    #[serde(default)]
    pub rules: Vec<(String, Policy)>,
}

impl PolicyMap {
    /// One policy for all layers.
    pub fn new(default: Policy) -> PolicyMap {
        PolicyMap {
            default,
            rules: Vec::new(),
        }
    }

    /// Adds a rule, which is stronger than those before it.
    pub fn rule(mut self, pattern: impl Into<String>, policy: Policy) -> PolicyMap {
        self.rules.push((pattern.into(), policy));
        self
    }

    /// The policy of the layer at `path`.
    pub fn resolve(&self, path: &str) -> Policy {
        self.matching(path).unwrap_or(self.default)
    }

    /// The policy that a rule, not the default, gives the layer at `path`.
    pub fn matching(&self, path: &str) -> Option<Policy> {
        let mut stronger_first = self.rules.iter().rev();
        stronger_first
            .find(|(pattern, _)| path_matches(pattern, path))
            .map(|(_, policy)| *policy)
    }
}

/// Whether a path pattern (`*`: any run of characters, `?`: one) describes `path` or a layer that `path` lies inside of.
pub fn path_matches(pattern: &str, path: &str) -> bool {
    let ends = path.match_indices('.').map(|(i, _)| i);
    ends.chain([path.len()])
        .any(|end| glob(pattern.as_bytes(), &path.as_bytes()[..end]))
}

/// Whether `text` as a whole is what `pattern` describes. Linear but for one point of return, so that no pattern is slow.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

impl From<Policy> for PolicyMap {
    fn from(policy: Policy) -> PolicyMap {
        PolicyMap::new(policy)
    }
}

/// As `FromStr`.
impl TryFrom<&str> for PolicyMap {
    type Error = PolicyError;

    fn try_from(text: &str) -> Result<PolicyMap, PolicyError> {
        text.parse()
    }
}

/// The default, then `; pattern=policy` for each rule; `FromStr` reads it back.
impl fmt::Display for PolicyMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.default)?;
        for (pattern, policy) in &self.rules {
            write!(f, "; {pattern}={policy}")?;
        }
        Ok(())
    }
}

/// Reads a policy, and rules after it: `mixed_float16; head*=float32`.
impl FromStr for PolicyMap {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<PolicyMap, PolicyError> {
        let mut parts = text.split(';');
        let mut map = PolicyMap::new(parts.next().unwrap_or_default().parse()?);
        for part in parts {
            let Some((pattern, policy)) = part.split_once('=') else {
                return Err(PolicyError::new(
                    part.trim(),
                    "a rule is written pattern=policy",
                ));
            };
            map = map.rule(pattern.trim(), policy.parse()?);
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_keras_says() {
        let p = |param, compute, output| Policy {
            param,
            compute,
            output,
        };
        use DType::*;
        for (text, policy) in [
            ("float32", p(F32, F32, F32)),
            ("float64", p(F64, F64, F64)),
            ("float16", p(F16, F16, F16)),
            ("bfloat16", p(BF16, BF16, BF16)),
            ("mixed_float16", p(F32, F16, F16)),
            ("mixed_bfloat16", p(F32, BF16, BF16)),
            ("p=f32,c=f16,o=f32", p(F32, F16, F32)),
            ("mixed_float8", p(F32, F8E4M3, BF16)),
            ("p=f32,c=f8e4m3,o=f16", p(F32, F8E4M3, F16)),
        ] {
            assert_eq!(text.parse(), Ok(policy));
            assert_eq!(policy.to_string(), text);
        }
        let spaced = "output=float32, params = f32, c=bf16".parse();
        assert_eq!(spaced, Ok(p(F32, BF16, F32)));
        assert_eq!("c=f16".parse(), Ok(Policy::mixed_float16()));
        assert_eq!("c=f8e4m3".parse(), Ok(Policy::mixed_float8()));
    }

    #[test]
    fn every_float_policy_round_trips() {
        let floats = DType::ALL.into_iter().filter(|d| d.is_float());
        for param in floats.clone().filter(|d| d.size() > 1) {
            for compute in floats.clone().filter(|d| *d != DType::F8E5M2) {
                for output in floats.clone().filter(|d| d.size() > 1) {
                    let policy = Policy {
                        param,
                        compute,
                        output,
                    };
                    assert_eq!(policy.to_string().parse(), Ok(policy));
                }
            }
        }
    }

    #[test]
    fn a_wrong_name_is_told_the_right_ones() {
        let message = "mixed_f16".parse::<Policy>().unwrap_err().to_string();
        for (name, _) in NAMED {
            assert!(message.contains(name), "{message}");
        }
        assert!(message.contains("\"mixed_f16\"") && message.contains("p=f32,c=f16,o=f32"));
        for bad in [
            "",
            "p=f32",
            "p=f32,c=i32,o=f32",
            "p=f32,c=f16,c=f16",
            "p=f8e4m3,c=f16",
            "c=f8e5m2",
            "c=f8e4m3,o=f8e4m3",
            "x=f32,c=f16",
            "p=f32,c=f61",
            "Float32",
        ] {
            assert!(bad.parse::<Policy>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_error_reaches_those_who_use_tensor_errors() {
        fn f() -> bimetal_tensor::Result<Policy> {
            Ok("float12".parse::<Policy>()?)
        }
        let message = f().unwrap_err().to_string();
        assert!(message.contains("\"float12\"") && message.contains("policy.rs"));
    }

    #[test]
    fn globs() {
        for (pattern, text, yes) in [
            ("", "", true),
            ("*", "", true),
            ("*", "a.b", true),
            ("a*c", "abcbc", true),
            ("a*c", "abcb", false),
            ("h?ad", "head", true),
            ("h?ad", "had", false),
            ("*.norm*", "blocks.0.norm1", true),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("head", "header", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), yes, "{pattern}");
        }
    }

    #[test]
    fn the_last_rule_wins_and_rules_reach_inside() {
        let map = PolicyMap::new(Policy::mixed_float16())
            .rule("blocks.*", Policy::mixed_bfloat16())
            .rule("blocks.*.mlp", Policy::float32());
        assert_eq!(map.resolve("blocks.0.mlp.up"), Policy::float32());
        assert_eq!(map.resolve("blocks.0.mlps"), Policy::mixed_bfloat16());
        assert_eq!(map.resolve("embed"), Policy::mixed_float16());
        assert_eq!(map.resolve(""), Policy::mixed_float16());
        assert_eq!(map.matching("embed"), None);
        let turned = PolicyMap {
            rules: map.rules.iter().rev().cloned().collect(),
            ..map.clone()
        };
        assert_eq!(turned.resolve("blocks.0.mlp.up"), Policy::mixed_bfloat16());
        assert_eq!(map.to_string().parse(), Ok(map));
    }

    #[test]
    fn maps_are_data() {
        let text = r#"{"default":"mixed_float16","rules":[["head*","float32"],["x","p=f32,c=f16,o=f32"]]}"#;
        let map: PolicyMap = serde_json::from_str(text).unwrap();
        assert_eq!(map.resolve("head.out"), Policy::float32());
        assert_eq!(serde_json::to_string(&map).unwrap(), text);
        let wrong = serde_json::from_str::<PolicyMap>(r#"{"default":"half"}"#);
        assert!(wrong.unwrap_err().to_string().contains("mixed_float16"));
    }
}
