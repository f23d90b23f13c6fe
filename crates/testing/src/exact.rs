//! A graph as a function of its leaves, in f64 and without any rounding: what differences are taken of where a device has no f64.
use crate::reference::{Array, Memo, compute};
use bimetal_tensor::graph::Op;
use bimetal_tensor::{Result, Tensor};
use std::collections::HashSet;

/// The values that a graph starts from: data, state and random numbers, read from the device once.
pub struct Leaves(Memo);

impl Leaves {
    /// Those of the graph behind `root`.
    pub fn of(root: &Tensor) -> Result<Leaves> {
        root.check()?;
        let (mut memo, mut seen, mut stack) = (Memo::new(), HashSet::new(), vec![root.clone()]);
        while let Some(t) = stack.pop() {
            if !seen.insert((t.id(), t.output_index())) {
                continue;
            }
            if matches!(t.op(), Op::Data | Op::Read | Op::Random { .. }) {
                memo.insert(
                    (t.id(), t.output_index()),
                    Array {
                        shape: t.shape()?.to_vec(),
                        dtype: t.dtype(),
                        data: t.to_f64_vec()?,
                    },
                );
            } else {
                stack.extend(t.inputs().iter().cloned());
            }
        }
        Ok(Leaves(memo))
    }

    /// The value of `root` where `leaf` holds `data` instead of what it has.
    pub fn eval_with(&self, root: &Tensor, leaf: &Tensor, data: &[f64]) -> Result<Array> {
        let mut memo = self.0.clone();
        if let Some(a) = memo.get_mut(&(leaf.id(), leaf.output_index())) {
            a.data = data.to_vec();
        }
        compute(root, &mut memo, true)?;
        Ok(memo[&(root.id(), root.output_index())].clone())
    }
}
