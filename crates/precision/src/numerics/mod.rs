//! Finding the numbers that are not finite.
mod checks;
mod find;
mod level;
mod nonfinite;
mod replay;
mod watch;

pub use checks::Checks;
pub use find::find_non_finite;
pub use level::Level;
pub use nonfinite::{InputRange, NonFinite};

use bimetal_tensor::{Result, Tensor, eval};

/// Evaluates named tensors in one plan and returns the first, in the order given, that has elements that are not finite; `None` if there is
/// none. Integer and Bool tensors are always finite.
///
/// ```no_run
/// # use bimetal_precision::check_numerics;
/// # use bimetal_tensor::{Result, Tensor};
/// # fn f(logits: &Tensor, loss: &Tensor) -> Result<()> {
/// if let Some(bad) = check_numerics(&[("logits", logits), ("loss", loss)])? {
///     return Err(bad.into_error());
/// }
/// # Ok(())
/// # }
/// ```
pub fn check_numerics(tensors: &[(&str, &Tensor)]) -> Result<Option<NonFinite>> {
    let mut counted = Vec::with_capacity(tensors.len());
    for (name, t) in tensors {
        if t.check()?.dtype().is_float() {
            counted.push((*name, *t, nonfinite::counts(t)));
        }
    }
    let all: Vec<&Tensor> = counted
        .iter()
        .flat_map(|(_, t, c)| std::iter::once(*t).chain(c))
        .collect();
    if all.is_empty() {
        return Ok(None);
    }
    eval(&all)?;
    for (name, t, c) in &counted {
        let found = nonfinite::report(name, t, c)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}
