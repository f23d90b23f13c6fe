//! The cause of what is not finite.
use super::NonFinite;
use super::nonfinite::examine;
use super::watch::below;
use bimetal_tensor::graph::{Composite, Literal, NodeId, Op};
use bimetal_tensor::{DType, Result, Tensor};
use std::collections::{HashMap, HashSet};

/// The cause of what is not finite in `tensors`: the earliest operation below them, forward before backward, that made NaN where no operand had one, or infinity
/// of finite operands. If there is none, what is not finite came in from outside, and the first such leaf (a batch, a parameter) is returned; `None` if all
/// tensors are finite.
///
/// Only operations count from which numbers that are not finite reach one of `tensors`. Infinite numbers in the code, such as those of masks, do not, and what is
/// computed without parameters and has minus infinity alone is taken for a mask unless nothing else is to blame.
///
/// Evaluates every floating operation's result, all in one plan, composites as wholes: for looking for the cause of a failure, not for every step. The graph must not
/// read state that has been replaced since it was built.
pub fn find_non_finite(tensors: &[&Tensor]) -> Result<Option<NonFinite>> {
    let mut roots: Vec<Tensor> = Vec::new();
    for t in tensors {
        roots.push(t.check()?.clone());
    }
    let order = below(&roots);
    let mut watched = Vec::new();
    for node in &order {
        for i in 0..node.output_count() {
            let out = node.output(i);
            if out.dtype().is_float() && out.device().is_some() && out.numel()? > 0 {
                watched.push(out);
            }
        }
    }
    if watched.is_empty() {
        return Ok(None);
    }
    let codes: Vec<Tensor> = watched.iter().map(code).collect();
    let codes = Tensor::stack(&codes.iter().collect::<Vec<_>>(), 0).to_vec::<i32>()?;
    let states = watched
        .iter()
        .map(id)
        .zip(codes.into_iter().map(State::from_code));
    let states: HashMap<_, _> = states.collect();
    let state = |t: &Tensor| states.get(&id(t)).copied().unwrap_or_else(|| number(t));

    // Only what is not finite all the way up to a root: what a mask or a branch stops is no cause.
    let mut guilty = HashSet::new();
    while let Some(t) = roots.pop() {
        if state(&t) != State::Finite && guilty.insert(id(&t)) {
            roots.extend(t.inputs().iter().cloned());
        }
    }
    let trained = depends_on_state(&order);
    let cause = |t: &Tensor| {
        let given = t.inputs().iter().map(state).max();
        given.is_some_and(|worst| state(t).class() > worst.class())
    };
    let mask = |t: &Tensor| {
        let without_keys =
            t.output_index() == 1 && matches!(t.op(), Op::Composite(Composite::Attention(_)));
        state(t) == State::MinusInf && (without_keys || !trained.contains(&t.id()))
    };
    let leaf = |t: &Tensor| t.inputs().is_empty();
    let suspects = || watched.iter().filter(|t| guilty.contains(&id(t)));
    let found = suspects()
        .find(|t| cause(t) && !mask(t))
        .or_else(|| suspects().find(|t| cause(t)))
        .or_else(|| suspects().find(|t| leaf(t)));
    match found {
        Some(t) => examine(t),
        None => Ok(None),
    }
}

fn id(t: &Tensor) -> (NodeId, usize) {
    (t.id(), t.output_index())
}

/// How far from finite.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Finite,
    MinusInf,
    Infinite,
    Nan,
}

impl State {
    fn from_code(code: i32) -> State {
        match code {
            0 => State::Finite,
            1 => State::MinusInf,
            2 => State::Infinite,
            _ => State::Nan,
        }
    }

    /// An operation that makes plus infinity of minus infinity is no cause.
    fn class(self) -> u8 {
        match self {
            State::Finite => 0,
            State::MinusInf | State::Infinite => 1,
            State::Nan => 2,
        }
    }
}

/// The worst state of an element: 0 finite, 1 minus infinity, 2 plus infinity, 3 NaN (I32 scalar). Built where `t` was built, so that it is computed there.
fn code(t: &Tensor) -> Tensor {
    t.label().inherit(|| {
        let flag = |b: Tensor, code: i32| b.cast(DType::I32) * code;
        let infinite = flag(t.eq(f64::NEG_INFINITY), 1).maximum(flag(t.eq(f64::INFINITY), 2));
        infinite.maximum(flag(t.is_nan(), 3)).max(&[], false)
    })
}

/// The state of what is no tensor on the device: a number in the code.
fn number(t: &Tensor) -> State {
    match t.op() {
        Op::Scalar(Literal::Value(v)) if v.0.is_nan() => State::Nan,
        Op::Scalar(Literal::Value(v)) if v.0.is_infinite() => State::Infinite,
        _ => State::Finite,
    }
}

/// The nodes that depend on a floating state: what is left is made of batches, masks and numbers of the code.
fn depends_on_state(order: &[Tensor]) -> HashSet<NodeId> {
    let mut found = HashSet::new();
    // A recomputed forward node may come before the backward node it waits for, so one pass is not enough in every graph; those are never masks.
    for t in order {
        let state = t.slot().is_some() && t.dtype().is_float();
        if state || t.label().is_backward() || t.inputs().iter().any(|x| found.contains(&x.id())) {
            found.insert(t.id());
        }
    }
    found
}
