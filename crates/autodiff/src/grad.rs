//! The public functions.
use crate::blame::{Why, describe, no_gradient, why};
use crate::contribution::carrier;
use crate::engine;
use bimetal_tensor::graph::Op;
use bimetal_tensor::{Error, ErrorKind, Result, Tensor};

/// The gradients of a scalar `loss`, one for each of `wrt`, in its shape and dtype.
///
/// State is one variable however often it is read. The gradient of something the loss does not depend on, or depends on only through
/// an operation without derivative (a comparison, an index, a cast to integers), is an error
/// ([`ErrorKind::NoGradient`]) that names it, never a silent zero. `floor`, `ceil`, `round`, `trunc` and `sign` have the derivative zero.
#[track_caller]
pub fn grad(loss: &Tensor, wrt: &[&Tensor]) -> Result<Vec<Tensor>> {
    let grads = with_zeros(&[loss], wrt, of_loss(loss, wrt)?)?;
    let mut result = Vec::with_capacity(wrt.len());
    for (g, v) in grads.into_iter().zip(wrt) {
        result.push(match g {
            Some(g) => g,
            None => return Err(no_gradient(v, &why(&[loss], v))),
        });
    }
    Ok(result)
}

/// As [`grad`], with `None` for what the loss does not depend on or is cut off by `detach`. Reaching a variable only through an operation
/// without derivative stays an error.
#[track_caller]
pub fn grad_optional(loss: &Tensor, wrt: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    with_zeros(&[loss], wrt, of_loss(loss, wrt)?)
}

/// The product of `cotangents`, one for each of `outputs` in its shape and dtype, with the Jacobian of `outputs` for each of `wrt`; `None` for what
/// the outputs do not depend on.
#[track_caller]
pub fn vjp(
    outputs: &[&Tensor],
    cotangents: &[&Tensor],
    wrt: &[&Tensor],
) -> Result<Vec<Option<Tensor>>> {
    if outputs.len() != cotangents.len() {
        return Err(Error::argument(
            "vjp",
            format!(
                "{} outputs need as many cotangents, found {}",
                outputs.len(),
                cotangents.len()
            ),
        ));
    }
    let mut seeds = Vec::with_capacity(outputs.len());
    for (y, g) in outputs.iter().zip(cotangents) {
        let (ys, gs) = (y.shape()?, g.shape()?);
        if ys != gs {
            return Err(Error::shape(
                "vjp",
                &[ys, gs],
                "a cotangent must have the shape of its output",
            ));
        }
        let fits = g.dtype() == y.dtype() || g.dtype() == carrier(y.dtype());
        if !y.dtype().is_float() || !fits {
            return Err(Error::dtype(
                "vjp",
                &[y.dtype(), g.dtype()],
                "an output must be a float and its cotangent of the same dtype; use `cast`",
            ));
        }
        seeds.push((*g).clone());
    }
    with_zeros(outputs, wrt, all(outputs, &seeds, wrt)?)
}

#[track_caller]
fn of_loss(loss: &Tensor, wrt: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let shape = loss.shape()?;
    if shape.rank() != 0 {
        return Err(Error::shape(
            "grad",
            &[shape],
            "the loss must be a scalar; use `mean_all` or `sum_all`, or `vjp` with a cotangent",
        ));
    }
    if !loss.dtype().is_float() {
        return Err(Error::dtype(
            "grad",
            &[loss.dtype()],
            "the loss must be a float",
        ));
    }
    let Some(device) = loss.device() else {
        return Err(Error::new(
            "grad",
            ErrorKind::NoGradient {
                detail: "the loss is a bare number".to_string(),
            },
        ));
    };
    if cfg!(debug_assertions) {
        warn_of_two_passes(loss);
    }
    let one = loss
        .label()
        .backward(|| Tensor::ones(&[], carrier(loss.dtype()), device));
    all(&[loss], &[one], wrt)
}

/// Says once in debug builds that the forward pass runs twice, which costs a third of a step and shows nowhere.
#[track_caller]
fn warn_of_two_passes(loss: &Tensor) {
    static SAID: std::sync::Once = std::sync::Once::new();
    let here = std::panic::Location::caller();
    if let Some(read) = bimetal_tensor::graph::last_read(loss) {
        SAID.call_once(|| {
            eprintln!(
                "bimetal: {read} reads the loss before {here} asks for its gradients: the forward pass runs twice. Ask for the gradients \
                 first; a step computes the loss along with them (said once)"
            );
        });
    }
}

/// The gradients in the variables' own dtypes.
#[track_caller]
fn all(outputs: &[&Tensor], seeds: &[Tensor], wrt: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    for v in wrt {
        v.check()?;
        let bare = matches!(v.op(), Op::Scalar(_));
        if bare || !v.dtype().is_float() {
            let what = match bare {
                true => "a bare number".to_string(),
                false => format!("of dtype {}", v.dtype()),
            };
            return Err(Error::new(
                "grad",
                ErrorKind::NoGradient {
                    detail: format!(
                        "{} is {what}: only float tensors have gradients",
                        describe(v)
                    ),
                },
            ));
        }
    }
    let grads = engine::run(outputs, seeds, wrt, &[])?;
    let own =
        |(g, v): (Option<Tensor>, &&Tensor)| g.map(|g| v.label().backward(|| g.cast(v.dtype())));
    Ok(grads.into_iter().zip(wrt).map(own).collect())
}

/// Looks into what has no gradient: zeros where the derivative is zero, an error where there is none.
fn with_zeros(
    outputs: &[&Tensor],
    wrt: &[&Tensor],
    mut grads: Vec<Option<Tensor>>,
) -> Result<Vec<Option<Tensor>>> {
    for (v, g) in wrt.iter().zip(&mut grads) {
        if g.is_some() {
            continue;
        }
        match why(outputs, v) {
            Why::Flat => *g = Some(v.label().backward(|| v.zeros_like())),
            Why::Blocked(t) if !matches!(t.op(), Op::Detach) => {
                return Err(no_gradient(v, &Why::Blocked(t)));
            }
            _ => {}
        }
    }
    Ok(grads)
}
