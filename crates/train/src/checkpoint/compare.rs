//! Do the arrays of a checkpoint fit the model?

use std::collections::HashMap;
use std::fmt;

use super::ArrayInfo;
use crate::Result;
use crate::error::ErrorKind;

/// Names listed of each group in the message; the facts hold them all.
const LISTED: usize = 10;

/// How the arrays found differ from those expected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateMismatch {
    /// Expected and not found.
    pub missing: Vec<ArrayInfo>,
    /// Found and not expected.
    pub extra: Vec<ArrayInfo>,
    /// Found with another shape or dtype, as (expected, found).
    pub different: Vec<(ArrayInfo, ArrayInfo)>,
}

/// Compares the arrays a model expects with those of a checkpoint, in any order.
///
/// # Errors
/// One [`ErrorKind::StateMismatch`] that names every missing, extra and differently shaped array
/// (ten of each in the text, all of them in the kind).
pub fn compare_arrays(expected: &[ArrayInfo], found: &[ArrayInfo]) -> Result<()> {
    let found_by_name: HashMap<_, _> = found.iter().map(|a| (a.name.as_str(), a)).collect();
    let expected_names: HashMap<_, _> = expected.iter().map(|a| (a.name.as_str(), a)).collect();
    let mut mismatch = StateMismatch::default();
    for want in expected {
        match found_by_name.get(want.name.as_str()) {
            None => mismatch.missing.push(want.clone()),
            Some(&have) if have != want => mismatch.different.push((want.clone(), have.clone())),
            Some(_) => {}
        }
    }
    let is_extra = |a: &&ArrayInfo| !expected_names.contains_key(a.name.as_str());
    mismatch.extra = found.iter().filter(is_extra).cloned().collect();
    if mismatch == StateMismatch::default() {
        Ok(())
    } else {
        Err(ErrorKind::StateMismatch(mismatch).into())
    }
}

impl fmt::Display for StateMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the checkpoint does not fit the model:")?;
        let missing = self.missing.iter().map(|a| a.to_string());
        group(f, "missing from the checkpoint", missing)?;
        let extra = self.extra.iter().map(|a| a.to_string());
        group(f, "in the checkpoint and not in the model", extra)?;
        let different = self.different.iter().map(|(want, have)| {
            format!(
                "{want} in the model, {} {:?} in the checkpoint",
                have.dtype, have.shape
            )
        });
        group(f, "of another shape or dtype", different)?;
        write!(f, "\nbuild the model with the settings it was saved with")
    }
}

fn group(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    items: impl ExactSizeIterator<Item = String>,
) -> fmt::Result {
    let total = items.len();
    if total == 0 {
        return Ok(());
    }
    write!(f, "\n  {total} {title}: ")?;
    for (i, item) in items.take(LISTED).enumerate() {
        let separator = if i == 0 { "" } else { "; " };
        write!(f, "{separator}{item}")?;
    }
    if total > LISTED {
        write!(f, "; and {} more", total - LISTED)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_tensor::DType;

    #[test]
    fn order_does_not_matter() {
        let a = ArrayInfo::new("a", DType::F32, [2, 3]);
        let b = ArrayInfo::new("b", DType::F32, []);
        compare_arrays(&[a.clone(), b.clone()], &[b, a]).unwrap();
    }

    #[test]
    fn names_everything_at_once() {
        let info = |name: &str, shape: &[usize]| ArrayInfo::new(name, DType::F32, shape);
        let expected: Vec<_> = (0..12)
            .map(|i| info(&format!("gone.{i}"), &[1]))
            .chain([info("w", &[2, 3]), info("ok", &[4]), info("half", &[4])])
            .collect();
        let found = [
            info("w", &[3, 2]),
            info("ok", &[4]),
            ArrayInfo::new("half", DType::F16, [4]),
            info("new", &[9]),
        ];
        let error = compare_arrays(&expected, &found).unwrap_err();
        let ErrorKind::StateMismatch(m) = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(
            (m.missing.len(), m.extra.len(), m.different.len()),
            (12, 1, 2)
        );
        let text = error.to_string();
        for part in [
            "12 missing",
            "gone.9 float32 [1]; and 2 more",
            "1 in the checkpoint and not in the model: new float32 [9]",
            "w float32 [2, 3] in the model, float32 [3, 2] in the checkpoint",
            "half float32 [4] in the model, float16 [4] in the checkpoint",
        ] {
            assert!(text.contains(part), "no `{part}` in: {text}");
        }
        assert!(!text.contains("gone.10"));
    }
}
