//! The layers of a graph, and the same graph without rounding to 8 and 16 bits.

use std::collections::{HashMap, HashSet};

use bimetal_tensor::graph::{NodeId, Op};
use bimetal_tensor::{DType, Tensor};

/// What a forward graph shows of one layer, or of the operations of one source line outside of layers.
pub(super) struct Found {
    /// The layer's path, or `file:line`.
    pub path: String,
    pub outside: bool,
    /// The operation that counts: the first product, composite or lookup, otherwise the last operation.
    pub op: &'static str,
    /// The dtype that this operation's operand has.
    pub compute: DType,
    pub output: DType,
    /// Values that something else uses.
    pub outputs: Vec<Tensor>,
    /// Other values in 8 and 16 bits.
    pub inner: Vec<Tensor>,
}

/// Whether a dtype has so few bits that numbers are lost.
pub(super) fn is_low(d: DType) -> bool {
    d.is_float() && !matches!(d, DType::F32 | DType::F64)
}

/// Operands before what uses them, without what is known and what lies behind it. An explicit stack: a graph may be deeper than the thread's.
fn ordered(root: &Tensor, known: &dyn Fn(&Tensor) -> bool) -> Vec<Tensor> {
    let (mut seen, mut order) = (HashSet::new(), Vec::new());
    let mut work = vec![(root.clone(), false)];
    while let Some((t, done)) = work.pop() {
        if done {
            order.push(t);
        } else if !known(&t) && seen.insert(t.id()) {
            let inputs: Vec<Tensor> = t.inputs().to_vec();
            work.push((t, true));
            work.extend(inputs.into_iter().rev().map(|x| (x, false)));
        }
    }
    order
}

/// The same elements under the simplest name: looking at a view would copy it.
fn dense(t: &Tensor) -> Tensor {
    let mut t = t.clone();
    while matches!(t.op(), Op::Reshape | Op::Permute(_) | Op::Detach) {
        t = t.inputs()[0].clone();
    }
    t
}

/// Whether the node computes numbers that can be lost.
fn computes(t: &Tensor) -> bool {
    let names = matches!(
        t.op(),
        Op::Data
            | Op::Read
            | Op::Placeholder(_)
            | Op::Scalar(_)
            | Op::Iota { .. }
            | Op::Checkpoint { .. }
            | Op::Barrier
    );
    !names && !t.op().is_view() && t.device().is_some() && t.numel().is_ok_and(|n| n > 0)
}

/// The layers in the graph of a loss, in the order in which they compute.
pub(super) fn layers(loss: &Tensor) -> Vec<Found> {
    let order = ordered(loss, &|_| false);
    let mut leaves_layer = HashSet::new();
    let mut main: HashMap<&str, (&'static str, DType)> = HashMap::new();
    for t in &order {
        if let Some(found) = main_operation(t) {
            main.entry(t.label().path()).or_insert(found);
        }
        for x in t.inputs() {
            if x.label().path() != t.label().path() {
                leaves_layer.insert((x.id(), x.output_index()));
            }
        }
    }
    leaves_layer.insert((loss.id(), loss.output_index()));
    let mut found: Vec<Found> = Vec::new();
    let mut by_path: HashMap<String, usize> = HashMap::new();
    let mut taken = HashSet::new();
    for node in &order {
        let path = node.label().path();
        let outside = path.is_empty();
        for i in 0..node.output_count() {
            let t = node.output(i);
            if !t.dtype().is_float() {
                continue;
            }
            let leaves = leaves_layer.contains(&(t.id(), i));
            // Outside of layers everything stands for itself, and only what can lose numbers is of interest.
            if outside && (!is_low(t.dtype()) || !computes(&t) || matches!(t.op(), Op::Cast(_))) {
                continue;
            }
            let shown = dense(&t);
            if !computes(&shown) || !(leaves || outside || is_low(t.dtype())) {
                continue;
            }
            if !taken.insert((shown.id(), shown.output_index(), leaves)) {
                continue;
            }
            let key = match outside {
                true => {
                    let l = t.label().location();
                    format!("{}:{}", l.file(), l.line())
                }
                false => path.to_string(),
            };
            let at = *by_path.entry(key).or_insert_with_key(|key| {
                found.push(Found {
                    path: key.clone(),
                    outside,
                    op: node.op().name(),
                    compute: t.dtype(),
                    output: t.dtype(),
                    outputs: Vec::new(),
                    inner: Vec::new(),
                });
                found.len() - 1
            });
            let layer = &mut found[at];
            if leaves || outside {
                layer.output = t.dtype();
                layer.outputs.push(shown);
            } else {
                layer.inner.push(shown);
            }
        }
    }
    for layer in &mut found {
        if let Some((op, compute)) = main.get(layer.path.as_str()) {
            (layer.op, layer.compute) = (op, *compute);
        }
        if layer.op == "take" {
            layer.compute = layer.output;
        }
        // A view of a result is the result.
        let outputs: HashSet<_> = layer
            .outputs
            .iter()
            .map(|t| (t.id(), t.output_index()))
            .collect();
        layer
            .inner
            .retain(|t| !outputs.contains(&(t.id(), t.output_index())));
    }
    found.retain(|layer| !layer.outputs.is_empty());
    found
}

/// The operation of a node if it is one that counts, and the dtype it computes with.
fn main_operation(t: &Tensor) -> Option<(&'static str, DType)> {
    match t.op() {
        // An operation that also gives its operands as it rounded them, such as an 8-bit product, computes in their dtype.
        Op::Custom(_) => {
            let results = (0..t.output_count()).map(|i| t.output(i).dtype());
            let operand = t.inputs().first()?.dtype();
            let floats = results.chain([operand]).filter(|d| d.is_float());
            Some((t.op().name(), floats.min_by_key(|d| d.size())?))
        }
        Op::Matmul(_) | Op::Conv2d(_) | Op::Composite(_) => {
            Some((t.op().name(), t.inputs().first()?.dtype()))
        }
        // A lookup computes nothing.
        Op::Take { .. } => Some((t.op().name(), t.dtype())),
        _ => None,
    }
}

/// A graph again, computed in f32 where it rounds to 8 and 16 bits: what its values would be if nothing were lost.
pub(super) struct Shadow(Wide);

/// The results of a node without rounding.
type Wide = HashMap<NodeId, Vec<Tensor>>;

impl Shadow {
    pub fn new(root: &Tensor) -> Shadow {
        let mut map = Wide::new();
        widen(root, &mut map);
        Shadow(map)
    }

    /// The value that stands for `t`.
    pub fn of(&self, t: &Tensor) -> Tensor {
        of(&self.0, t)
    }
}

fn outputs(t: &Tensor) -> Vec<Tensor> {
    (0..t.output_count()).map(|i| t.output(i)).collect()
}

/// Adds the nodes behind `root` that are not there yet.
fn widen(root: &Tensor, map: &mut Wide) {
    for t in ordered(root, &|t| map.contains_key(&t.id())) {
        let inputs: Vec<Tensor> = t.inputs().iter().map(|x| of(map, x)).collect();
        let wide = match t.op() {
            // An operation of another crate rounds inside: what it is made of does not have to.
            Op::Custom(op) => match t.label().inherit(|| op.0.decompose(&inputs)) {
                Some(parts) => {
                    let mut inside: Wide = inputs.iter().map(|x| (x.id(), outputs(x))).collect();
                    parts.iter().for_each(|part| widen(part, &mut inside));
                    parts.iter().map(|part| of(&inside, part)).collect()
                }
                None => outputs(&t),
            },
            // The result of a cast may be a value that is there already, with others beside it.
            _ if t.output_count() == 1 => vec![t.widened(&inputs)],
            _ => outputs(&t.widened(&inputs)),
        };
        map.insert(t.id(), wide);
    }
}

fn of(map: &Wide, t: &Tensor) -> Tensor {
    let found = map.get(&t.id()).and_then(|all| all.get(t.output_index()));
    let wide = found.unwrap_or(t);
    match is_low(wide.dtype()) {
        true => t.label().inherit(|| wide.cast(DType::F32)),
        false => wide.clone(),
    }
}
