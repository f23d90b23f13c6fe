//! Values from a checkpoint.
use crate::ParamStore;
use crate::param::{Kind, Param};
use crate::store::{APPLIED, HISTORY};
use bimetal_tensor::{DType, Error, PathGuard, Result, Slot, Tensor, commit};
use std::collections::HashMap;

/// One named array of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct StateEntry<'a> {
    /// The name: a parameter's path.
    pub name: &'a str,
    /// The dtype.
    pub dtype: DType,
    /// The shape.
    pub shape: &'a [usize],
    /// The elements in native byte order, row-major.
    pub bytes: &'a [u8],
}

impl ParamStore {
    /// Sets all parameters and buffers from a checkpoint, all together or none. Floats of another width are converted. The count of applied steps and histories of
    /// 8-bit products are set if they are there; a tied parameter may be there under any of its names.
    ///
    /// Error: names that are missing, that nothing here has, or whose shapes differ, all in one message.
    #[track_caller]
    pub fn load(&self, entries: &[StateEntry<'_>]) -> Result<()> {
        self.check()?;
        let mut by_name = HashMap::new();
        let mut twice = Vec::new();
        for e in entries {
            if by_name.insert(e.name, e).is_some() {
                twice.push(e.name);
            }
        }
        let (wanted, names) = self.wanted();
        let mut writes: Vec<(Slot, Tensor)> = Vec::new();
        let (mut missing, mut differing) = (Vec::new(), Vec::new());
        for param in &wanted {
            let mut known = names[param.path()].iter();
            let Some(entry) = known.find_map(|n| by_name.get(n.as_str())) else {
                if param.kind() != Kind::Scaling {
                    missing.push(param.path());
                }
                continue;
            };
            let slot = param.slot()?;
            self.take(entry, slot, &mut writes, &mut differing);
        }
        if let Some(entry) = by_name.get(APPLIED) {
            self.take(entry, self.applied()?, &mut writes, &mut differing);
        }
        let is_known = |name: &str| {
            name == APPLIED
                || name.starts_with(HISTORY)
                || names.values().flatten().any(|n| n == name)
        };
        let extra = entries.iter().map(|e| e.name).filter(|n| !is_known(n));
        let extra: Vec<&str> = extra.collect();
        let differing: Vec<&str> = differing.iter().map(String::as_str).collect();
        let mut complaints = Vec::new();
        for (what, which) in [
            ("missing", missing),
            ("not of this model", extra),
            ("given twice", twice),
            ("different", differing),
        ] {
            if !which.is_empty() {
                complaints.push(format!("{what}: {}", name_some(&which)));
            }
        }
        if !complaints.is_empty() {
            return Err(Error::argument(
                "load",
                format!(
                    "the state does not fit the model; {}",
                    complaints.join("; ")
                ),
            ));
        }
        let writes: Vec<(&Slot, &Tensor)> = writes.iter().map(|(s, t)| (s, t)).collect();
        commit(&[], &writes)
    }

    /// All entries, and the names each is known by, its own first.
    fn wanted(&self) -> (Vec<Param>, HashMap<String, Vec<String>>) {
        let registry = self.registry();
        let mut names: HashMap<String, Vec<String>> = HashMap::new();
        for p in &registry.entries {
            names.insert(p.path().to_string(), vec![p.path().to_string()]);
        }
        for (name, p) in &registry.by_path {
            if &**name != p.path() {
                names
                    .entry(p.path().to_string())
                    .or_default()
                    .push(name.to_string());
            }
        }
        (registry.entries.clone(), names)
    }

    fn take(
        &self,
        entry: &StateEntry<'_>,
        slot: &Slot,
        writes: &mut Vec<(Slot, Tensor)>,
        differing: &mut Vec<String>,
    ) {
        let kinds = entry.dtype == slot.dtype()
            || (entry.dtype.is_float() && slot.dtype().is_float())
            || (entry.dtype.is_int() && slot.dtype().is_int());
        if !kinds || entry.shape != &slot.shape()[..] {
            differing.push(format!(
                "{} is {} {:?}, here {} {}",
                entry.name,
                entry.dtype,
                entry.shape,
                slot.dtype(),
                slot.shape()
            ));
            return;
        }
        let _path = PathGuard::push(entry.name.into());
        let value = Tensor::from_bytes(entry.bytes, entry.shape, entry.dtype, self.device());
        writes.push((slot.clone(), value.cast(slot.dtype())));
    }
}

/// A list of names, cut off where it becomes unreadable.
pub(crate) fn name_some(names: &[&str]) -> String {
    const SHOWN: usize = 12;
    match names {
        [] => "none".to_string(),
        _ if names.len() <= SHOWN => names.join(", "),
        _ => format!(
            "{} and {} more",
            names[..SHOWN].join(", "),
            names.len() - SHOWN
        ),
    }
}
